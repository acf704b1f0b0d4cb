"""A stand-in for the NixOS test driver's Machine, with nothing but Python's own library.

A Machine is a QEMU guest booted by direct kernel boot from a qcow2 overlay over a
Debian ext4 image.  Commands run in a root shell ("backdoor") that the guest
attaches to a virtio-serial port; no network is needed for it.
"""
import base64
import ctypes
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time


LIBC = ctypes.CDLL(None)


class MachineError(Exception):
    pass


class RequestedAssertionFailed(AssertionError):
    pass


def _log(name, msg):
    print("[%8.2f] %s: %s" % (time.monotonic() - _T0, name, msg), file=sys.stderr, flush=True)


_T0 = time.monotonic()


def retry(fn, timeout, interval=1.0):
    """Call fn(last) until it is true; fn(True) once more at the end."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if fn(False):
            return
        time.sleep(interval)
    if not fn(True):
        raise RequestedAssertionFailed("action timed out after %s seconds" % timeout)


class Machine:
    def __init__(self, name="machine", image=None, kernel=None, initrd=None, accel="tcg",
                 cpu=None, machine="q35", smp=2, memory=2048, state_dir=None,
                 hostfwd=(), cmdline="", extra_args=(), image_format="raw",
                 boot_timeout=180, slow=1.0, keep_disk=False, cache="writeback",
                 net="user"):
        self.name = name
        self.image = image
        self.image_format = image_format
        self.kernel = kernel
        self.initrd = initrd
        self.accel = accel
        self.cpu = cpu or ("host" if accel == "kvm" else "max")
        self.machine = machine
        self.smp, self.memory = smp, memory
        self.hostfwd = hostfwd            # [(host_port, guest_port)]; listens on 127.0.0.1
        self.cmdline = cmdline
        self.extra_args = list(extra_args)
        self.boot_timeout = boot_timeout
        self.slow = slow                  # multiplies every default timeout
        self.cache = cache
        self.net = net
        self.keep_disk = keep_disk
        self.state_dir = state_dir or tempfile.mkdtemp(prefix="vm-%s-" % name)
        self._own_state = state_dir is None
        os.makedirs(self.state_dir, exist_ok=True)
        self.disk = os.path.join(self.state_dir, "disk.qcow2")
        self.console_log = os.path.join(self.state_dir, "console.log")
        self.process = None
        self.shell = None
        self.qmp = None
        self._lock = threading.RLock()
        self._buf = b""
        self.boot_id = None

    # ---- life cycle -----------------------------------------------------
    def _p(self, n):
        return os.path.join(self.state_dir, n)

    def is_up(self):
        return self.process is not None and self.process.poll() is None

    booted = property(is_up)

    def create_disk(self):
        if not os.path.exists(self.disk):
            subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", os.path.abspath(self.image),
                            "-F", self.image_format, self.disk], check=True, timeout=60)

    def start(self, allow_reboot=True, loadvm=None):
        """Boot (on the same disk if it exists).  Returns when the shell answers.
        loadvm: go on from a state saved by save_snapshot() on this machine's disk."""
        if self.is_up():
            return
        t = time.monotonic()
        self.create_disk()
        for s in ("shell.sock", "qmp.sock"):
            try:
                os.unlink(self._p(s))
            except FileNotFoundError:
                pass
        ls = socket.socket(socket.AF_UNIX)
        ls.bind(self._p("shell.sock"))
        ls.listen(1)
        lq = socket.socket(socket.AF_UNIX)
        lq.bind(self._p("qmp.sock"))
        lq.listen(1)
        accel = {"tcg": "tcg,thread=multi,tb-size=512"}.get(self.accel, self.accel)
        args = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none",
                "-name", self.name, "-M", self.machine, "-accel", accel, "-cpu", self.cpu,
                "-smp", str(self.smp), "-m", str(self.memory), "-kernel", self.kernel,
                "-append", ("root=/dev/vda " if self.initrd else "root=/dev/nvme0n1 ") + "rw console=ttyS0 net.ifnames=0 panic=-1 quiet audit=0 "
                           "mitigations=off systemd.show_status=0 " + self.cmdline,
                "-drive", "file=%s,if=none,id=d0,format=qcow2,discard=unmap,cache=%s" % (self.disk, self.cache),
                # NVMe is built into Debian's cloud kernels (no initrd) but cannot be in a snapshot
                "-device", "virtio-blk-pci,drive=d0" if self.initrd else "nvme,drive=d0,serial=root",
                "-chardev", "file,id=con,path=%s,append=on" % self.console_log, "-serial", "chardev:con",
                "-device", "virtio-serial-pci",
                "-chardev", "socket,id=shell,path=" + self._p("shell.sock"),
                "-device", "virtserialport,chardev=shell,name=backdoor",
                "-chardev", "socket,id=qmp,path=" + self._p("qmp.sock"), "-mon", "chardev=qmp,mode=control",
                "-device", "virtio-rng-pci"]
        if not allow_reboot:
            args += ["-no-reboot"]
        if self.initrd:
            args += ["-initrd", self.initrd]
        if loadvm:
            args += ["-loadvm", loadvm]
        if self.net == "user":
            # restrict=on: the guest reaches nothing but the forwarded ports
            fw = "".join(",hostfwd=tcp:127.0.0.1:%d-:%d" % p for p in self.hostfwd)
            args += ["-netdev", "user,id=n0,restrict=on" + fw, "-device", "virtio-net-pci,netdev=n0,romfile="]
        args += self.extra_args
        self.process = subprocess.Popen(args, stdin=subprocess.DEVNULL,
                                        stdout=open(self._p("qemu.log"), "ab"), stderr=subprocess.STDOUT,
                                        # PR_SET_PDEATHSIG: a driver that is killed leaves no guest.
                                        preexec_fn=lambda: LIBC.prctl(1, signal.SIGKILL),
                                        start_new_session=True)
        try:
            for l in (ls, lq):
                l.settimeout(20)
            self.shell, _ = ls.accept()
            self.qmp, _ = lq.accept()
            self._qmpf = self.qmp.makefile("rwb", buffering=0)
            self.qmp.settimeout(120)
            self._qmp_read()
            self.qmp_command("qmp_capabilities")
            self._buf = b""
            if loadvm:
                self.succeed("date -s @%d" % time.time(), timeout=60)
            else:
                self._wait_ready(self.boot_timeout * self.slow)
        except Exception as e:
            why = open(self._p("qemu.log"), "rb").read()[-2000:].decode(errors="replace")
            self.crash()
            raise MachineError("%s did not come up: %r; qemu said: %s" % (self.name, e, why))
        finally:
            ls.close()
            lq.close()
        _log(self.name, "shell up %.1f s after start" % (time.monotonic() - t))

    def _wait_ready(self, timeout):
        """Until the shell of a new boot answers.  It may say twice that it is ready: systemd
        starts it again when it ends early in the boot, and what it was told then is lost."""
        end = time.monotonic() + timeout
        asked, probe = 0, None
        while True:
            line = self._readline(end)
            if line.startswith(b"BACKDOOR-READY"):
                new = line.split()[1].decode()
                if new == self.boot_id:
                    continue
                asked += 1
                probe = b"PROBE-%d-%s" % (asked, new.encode())
                self.shell.sendall(b"echo %s\n" % probe)
            elif probe is not None and line == probe:
                self.boot_id = new
                return

    def reboot(self):
        """Clean guest reboot (same QEMU process)."""
        with self._lock:
            _log(self.name, "reboot")
            self._buf = b""
            self.shell.sendall(b"systemctl reboot\n")
            self._wait_ready(self.boot_timeout * self.slow)

    def shutdown(self, timeout=60):
        """Clean power-off."""
        if not self.is_up():
            return
        with self._lock:
            self.shell.sendall(b"systemctl poweroff\n")
            try:
                self.process.wait(timeout * self.slow)
            except subprocess.TimeoutExpired:
                self.crash()
                raise MachineError("%s did not power off" % self.name)
            self._closed()

    def crash(self):
        """Power cut: whatever the guest had not written to its disk is lost."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)
        self._closed()

    def reset(self):
        """Hard reset (reset button), same QEMU process."""
        with self._lock:
            self._buf = b""
            self.qmp_command("system_reset")
            self._wait_ready(self.boot_timeout * self.slow)

    def _closed(self):
        for s in (self.shell, self.qmp):
            if s:
                s.close()
        self.shell = self.qmp = self.process = None

    def cleanup(self):
        self.crash()
        if self._own_state and not self.keep_disk:
            shutil.rmtree(self.state_dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *a):
        self.cleanup()

    # ---- QMP --------------------------------------------------------------
    def _qmp_read(self):
        while True:
            m = json.loads(self._qmpf.readline())
            if "event" not in m:
                return m

    def qmp_command(self, cmd, **a):
        self._qmpf.write(json.dumps({"execute": cmd, "arguments": a}).encode() + b"\n")
        r = self._qmp_read()
        if "error" in r:
            raise MachineError(str(r["error"]))
        return r.get("return")

    def save_snapshot(self, name):
        """Save RAM, devices and disk inside the qcow2 (needs virtio-blk, so an initrd)."""
        r = self.qmp_command("human-monitor-command", **{"command-line": "savevm " + name})
        if r and r.strip():
            raise MachineError(r)

    def block(self):
        """Pull the network cable."""
        self.qmp_command("set_link", name="n0", up=False)

    def unblock(self):
        self.qmp_command("set_link", name="n0", up=True)

    # ---- commands ---------------------------------------------------------
    def _readline(self, end):
        while b"\n" not in self._buf:
            left = end - time.monotonic()
            if left <= 0:
                raise MachineError("%s: no answer from the shell in time" % self.name)
            self.shell.settimeout(left)
            try:
                d = self.shell.recv(1 << 16)
            except socket.timeout:
                continue
            if not d:
                raise MachineError("%s: shell closed (qemu gone?)" % self.name)
            self._buf += d
        line, self._buf = self._buf.split(b"\n", 1)
        return line

    def execute(self, command, check_return=True, check_output=True, timeout=900):
        """-> (exit status, stdout).  As in NixOS: bash with pipefail; stderr goes to the
        console; exit status 124 (137) when the command ran past timeout."""
        if not self.is_up():
            raise MachineError("%s is not running" % self.name)
        t = timeout * self.slow
        script = "set -euo pipefail; " + command
        line = ("timeout -k 5 %d bash -c %s </dev/null | (base64 -w 0; echo); echo ${PIPESTATUS[0]}\n"
                % (t, shlex.quote(script)))
        with self._lock:
            self.shell.sendall(line.encode())
            end = time.monotonic() + t + 30
            out = base64.b64decode(self._readline(end)).decode(errors="replace")
            rc = int(self._readline(end))
        return rc, out

    def succeed(self, *commands, timeout=900):
        output = ""
        for c in commands:
            t = time.monotonic()
            rc, out = self.execute(c, timeout=timeout)
            _log(self.name, "must succeed: %s  (rc=%d, %.2f s)" % (c[:160], rc, time.monotonic() - t))
            if rc != 0:
                raise RequestedAssertionFailed("command `%s` failed (exit code %d): %s" % (c, rc, out))
            output += out
        return output

    def fail(self, *commands, timeout=900):
        output = ""
        for c in commands:
            rc, out = self.execute(c, timeout=timeout)
            _log(self.name, "must fail: %s  (rc=%d)" % (c[:160], rc))
            if rc == 0:
                raise RequestedAssertionFailed("command `%s` unexpectedly succeeded: %s" % (c, out))
            output += out
        return output

    def wait_until_succeeds(self, command, timeout=900):
        got = [""]

        def chk(_last):
            rc, got[0] = self.execute(command, timeout=timeout)
            return rc == 0
        _log(self.name, "waiting for success: " + command[:160])
        retry(chk, timeout * self.slow)
        return got[0]

    def wait_until_fails(self, command, timeout=900):
        got = [""]

        def chk(_last):
            rc, got[0] = self.execute(command, timeout=timeout)
            return rc != 0
        retry(chk, timeout * self.slow)
        return got[0]

    # ---- systemd ------------------------------------------------------------
    def systemctl(self, q, user=None):
        return self.execute("systemctl " + q)

    def get_unit_info(self, unit):
        rc, out = self.systemctl("--no-pager show -- %s" % shlex.quote(unit))
        if rc != 0:
            raise MachineError("no info on unit " + unit)
        return dict(l.split("=", 1) for l in out.splitlines() if "=" in l)

    def get_unit_property(self, unit, prop):
        return self.succeed("systemctl --no-pager show --property=%s --value -- %s"
                            % (prop, shlex.quote(unit))).strip()

    def wait_for_unit(self, unit, timeout=900):
        def chk(_last):
            rc, out = self.execute("systemctl --no-pager show --property=ActiveState --property=Job -- "
                                   + shlex.quote(unit))
            st = dict(l.split("=", 1) for l in out.splitlines() if "=" in l)
            if st.get("ActiveState") == "failed":
                raise RequestedAssertionFailed("unit %s reached state failed" % unit)
            if st.get("ActiveState") == "inactive" and not st.get("Job"):
                rc, jobs = self.execute("systemctl list-jobs --no-legend")
                if not jobs.strip():
                    st2 = self.get_unit_info(unit)
                    if st2.get("ActiveState") == "inactive":
                        raise RequestedAssertionFailed("unit %s is inactive and there are no pending jobs" % unit)
            return st.get("ActiveState") == "active"
        _log(self.name, "waiting for unit " + unit)
        retry(chk, timeout * self.slow, 0.5)

    def require_unit_state(self, unit, require_state="active"):
        st = self.get_unit_property(unit, "ActiveState")
        if st != require_state:
            raise RequestedAssertionFailed("unit %s is %s, not %s" % (unit, st, require_state))

    def start_job(self, unit):
        return self.systemctl("start " + shlex.quote(unit))

    def stop_job(self, unit):
        return self.systemctl("stop " + shlex.quote(unit))

    # ---- ports, files ------------------------------------------------------
    def wait_for_open_port(self, port, addr="localhost", timeout=900):
        _log(self.name, "waiting for TCP port %d" % port)
        retry(lambda _l: self.execute("nc -z %s %d" % (shlex.quote(addr), port))[0] == 0, timeout * self.slow)

    def wait_for_closed_port(self, port, addr="localhost", timeout=900):
        retry(lambda _l: self.execute("nc -z %s %d" % (shlex.quote(addr), port))[0] != 0, timeout * self.slow)

    def wait_for_file(self, path, timeout=900):
        retry(lambda _l: self.execute("test -e " + shlex.quote(path))[0] == 0, timeout * self.slow)

    def _send_bytes(self, cmd, data, timeout):
        """cmd reads len(data) bytes from the shell's own stdin: raw, no encoding."""
        with self._lock:
            self.shell.settimeout(timeout)
            self.shell.sendall(("%s; echo $?\n" % cmd).encode())
            self.shell.sendall(data)
            return int(self._readline(time.monotonic() + timeout))

    def copy_from_host(self, source, target):
        """File or directory, with modes; over the shell's serial port (no network)."""
        t = time.monotonic()
        if os.path.isdir(source):
            data = subprocess.run(["tar", "-C", source, "--owner=0", "--group=0", "-cf", "-", "."],
                                  stdout=subprocess.PIPE, check=True).stdout
            q = shlex.quote(target)
            cmd = "mkdir -p %s && head -c %d | tar -xf - -C %s" % (q, len(data), q)
        else:
            with open(source, "rb") as f:
                data = f.read()
            q = shlex.quote(target)
            cmd = ("mkdir -p $(dirname %s) && head -c %d > %s && chmod %o %s"
                   % (q, len(data), q, os.stat(source).st_mode & 0o7777, q))
        rc = self._send_bytes(cmd, data, 600)
        if rc:
            raise MachineError("copy to %s failed (%d)" % (target, rc))
        _log(self.name, "copied %s to %s (%d bytes, %.2f s)" % (source, target, len(data), time.monotonic() - t))

    copy_from_host_via_shell = copy_from_host

    def copy_from_vm(self, source, target_dir=""):
        data = base64.b64decode(self.succeed("base64 -w 0 " + shlex.quote(source)))
        dst = os.path.join(target_dir or self.state_dir, os.path.basename(source))
        os.makedirs(os.path.dirname(dst), exist_ok=True)
        with open(dst, "wb") as f:
            f.write(data)
        return dst

    def get_console_log(self):
        with open(self.console_log, "rb") as f:
            return f.read().decode(errors="replace")
