//! What stands between user code and everything else.

use hotcell_types::volume::{SANDBOX_GID, SANDBOX_UID};

use super::{
    Fault,
    bench::{Bench, start_of},
    checks, ensure,
};
use crate::Isolation;

checks! {
    "iso" "everything runs as the sandbox user, without groups of others" Processes user;
    "iso" "no capabilities, and none to be had" Processes capabilities;
    "iso" "the root file system is read-only" Processes root_is_read_only;
    "iso" "the agent's key is nowhere to be read" Processes key_is_hidden;
    "iso" "no devices, no host paths, no host name" Processes host_is_hidden;
    "iso" "resolv.conf is not the host's" Processes resolv_conf;
    "iso" "dangerous system calls fail" Processes system_calls;
}

async fn user(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let done = cell.sh("id -u; id -g; id -G; umask; echo $HOME").await?;
    let want = format!("{SANDBOX_UID}\n{SANDBOX_GID}\n{SANDBOX_GID}\n0022\n/workspace\n");
    ensure!(done.ok()? == want, "{:?}", done.out());
    let done = cell.sh("ps -e -o uid= | sort -u").await?;
    ensure!(
        done.ok()?.trim() == SANDBOX_UID.to_string(),
        "processes run as {:?}",
        done.out()
    );
    Ok(())
}

async fn capabilities(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let done = cell
        .sh("grep -hE '^Cap(Inh|Prm|Eff|Bnd|Amb):' /proc/self/status /proc/1/status")
        .await?;
    let out = done.ok()?;
    ensure!(
        out.lines().count() >= 6
            && out.lines().all(|line| {
                line.split_whitespace()
                    .nth(1)
                    .is_some_and(|set| set.bytes().all(|byte| byte == b'0'))
            }),
        "{out}"
    );
    let ask = "python3 -c 'import ctypes; print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))'";
    let done = cell.sh(ask).await?;
    ensure!(done.ok()? == "1\n", "no_new_privs is {:?}", done.out());
    if bench.facts.isolation == Isolation::SharedKernel {
        let done = cell.sh("grep Seccomp: /proc/self/status").await?;
        ensure!(
            done.ok()?.split_whitespace().nth(1) == Some("2"),
            "{:?}",
            done.out()
        );
    }
    Ok(())
}

async fn root_is_read_only(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let text = "for d in / /usr /usr/bin /etc /var /opt /root /home /.hotcell /mnt /proc /sys; do \
                touch $d/hotcell-probe 2>/dev/null && echo $d; done; true";
    let done = cell.sh(text).await?;
    ensure!(done.ok()?.is_empty(), "writable: {:?}", done.out());
    let done = cell.sh("echo x > /.hotcell/agent").await?;
    ensure!(done.exit.exit_code != Some(0), "the agent can be replaced");
    Ok(())
}

async fn key_is_hidden(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let key = cell.key.to_hex();
    // The text holds only half of the key, so that it does not find itself.
    let (half, _) = key.split_at(20);
    let text = format!(
        "cat /proc/*/environ /proc/*/cmdline /proc/*/task/*/environ 2>/dev/null | tr '\\0' '\\n' \
         | grep -c '{}[{}]'; env | grep -ci agent_key; \
         grep -rlsI '{}[{}]' /run /tmp /workspace /etc /.hotcell /dev/shm 2>/dev/null \
         | grep -v \"$(basename \"$0\")\"; true",
        &half[..19],
        &half[19..],
        &half[..19],
        &half[19..],
    );
    let done = cell.sh(text).await?;
    ensure!(done.ok()? == "0\n0\n", "found: {:?}", start_of(&done.out()));
    Ok(())
}

async fn host_is_hidden(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let root = bench.env.volume_root.display();
    let done = cell
        .sh(format!(
            "find /dev -type b 2>/dev/null; ls -d '{root}' 2>/dev/null; hostname 2>/dev/null || \
             cat /proc/sys/kernel/hostname"
        ))
        .await?;
    let out = done.out();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname")?;
    ensure!(
        out.lines().count() <= 1 && out.trim() != host.trim(),
        "{out:?}"
    );
    // Names of devices that give away the host's memory, disks or kernel.
    // gVisor makes some of these itself; they lead to its own kernel, not to the host's.
    let more = match bench.facts.isolation {
        Isolation::Gvisor => "",
        Isolation::SharedKernel | Isolation::None => "/dev/fuse /dev/net/tun",
    };
    let done = cell
        .sh(format!(
            "ls /dev/mem /dev/kmem /dev/port /dev/kmsg /dev/kvm /dev/loop-control {more} \
             2>/dev/null; true"
        ))
        .await?;
    ensure!(done.ok()?.is_empty(), "devices: {:?}", done.out());
    Ok(())
}

async fn resolv_conf(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let done = cell.sh("cat /etc/resolv.conf").await?;
    let inside = done.ok()?;
    let host = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    for line in host.lines().filter(|line| line.starts_with("nameserver")) {
        ensure!(
            !inside.lines().any(|inner| inner.trim() == line.trim()),
            "the host's {line:?} is inside"
        );
    }
    ensure!(
        !inside.lines().any(|line| line.starts_with("search")),
        "a search list: {inside:?}"
    );
    let done = cell.sh("echo x >> /etc/resolv.conf").await?;
    ensure!(done.exit.exit_code != Some(0), "it can be written");
    Ok(())
}

async fn system_calls(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let text = r"python3 - <<'E'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
bad = []
def refused(name, result):
    if result == 0:
        bad.append(name)
refused('mount', libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))
refused('chroot', libc.chroot(b'/tmp'))
refused('setuid 0', libc.setuid(0))
refused('sethostname', libc.sethostname(b'x', 1))
refused('ptrace of 1', libc.ptrace(16, 1, None, None))
for path in ('/proc/sys/kernel/hostname', '/proc/sysrq-trigger', '/proc/1/mem', '/dev/mem'):
    try:
        open(path, 'r+b')
        bad.append(path)
    except OSError:
        pass
print(bad)
E";
    let done = cell.sh(text).await?;
    ensure!(done.ok()? == "[]\n", "{:?}", done.out());
    Ok(())
}
