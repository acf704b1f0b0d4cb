//! A sandbox without egress reaches nothing at all.

use std::{fs, net::Ipv6Addr, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream, UdpSocket},
    time::timeout,
};

use super::{
    Fault,
    bench::{Bench, Cell, start_of},
    checks, ensure, failed,
};

checks! {
    "net" "the host cannot be reached at any of its addresses" Processes host;
    "net" "another sandbox cannot be reached" Processes neighbour;
    "net" "nothing outside can be reached, not by name either" Processes outside;
}

/// Prints the sandbox's own IPv4 addresses and its gateways.
const ADDRESSES: &str = r"
import fcntl, socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _, name in socket.if_nameindex():
    try:
        raw = fcntl.ioctl(s.fileno(), 0x8915, struct.pack('256s', name.encode()))
        print('own', socket.inet_ntoa(raw[20:24]))
    except OSError:
        pass
try:
    for line in open('/proc/net/route').read().splitlines()[1:]:
        gateway = int(line.split()[2], 16)
        if gateway:
            print('gateway', socket.inet_ntoa(struct.pack('<I', gateway)))
except OSError:
    pass
";

/// Tries all targets at once and prints those that could be reached.
const TRY: &str = r"
import socket, sys, threading
open_ones = []
def attempt(target):
    kind, host, port = target.split('|')
    family = socket.AF_INET6 if ':' in host else socket.AF_INET
    try:
        if kind == 'udp':
            s = socket.socket(family, socket.SOCK_DGRAM)
            s.settimeout(1.5)
            s.sendto(b'ping', (host, int(port)))
            s.recv(10)
        else:
            s = socket.socket(family, socket.SOCK_STREAM)
            s.settimeout(1.5)
            s.connect((host, int(port)))
        open_ones.append(target)
    except OSError:
        pass
threads = [threading.Thread(target=attempt, args=(t,)) for t in sys.argv[1:]]
[t.start() for t in threads]
[t.join() for t in threads]
print(' '.join(sorted(open_ones)))
";

async fn python(cell: &Cell, script: &str, arguments: &[String]) -> Result<String, Fault> {
    let arguments = arguments
        .iter()
        .map(|argument| format!("'{argument}'"))
        .collect::<Vec<_>>()
        .join(" ");
    let text = format!("python3 - {arguments} <<'E'\n{script}\nE");
    cell.sh(text).await?.ok()
}

/// Addresses of the host itself, as its kernel lists them.
fn host_addresses() -> Vec<String> {
    let mut addresses = Vec::new();
    let trie = fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    let mut candidate = None;
    for line in trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            candidate = Some(address.to_owned());
        } else if line.contains("host LOCAL") {
            addresses.extend(candidate.take());
        }
    }
    let six = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    for line in six.lines() {
        let bits = line
            .split_whitespace()
            .next()
            .and_then(|hex| u128::from_str_radix(hex, 16).ok());
        addresses.extend(bits.map(|bits| Ipv6Addr::from(bits).to_string()));
    }
    addresses.sort();
    addresses.dedup();
    addresses
}

/// The sandbox's addresses of one sort, `own` or `gateway`.
async fn addresses(cell: &Cell, sort: &str) -> Result<Vec<String>, Fault> {
    let out = python(cell, ADDRESSES, &[]).await?;
    Ok(out
        .lines()
        .filter_map(|line| line.strip_prefix(sort))
        .map(|address| address.trim().to_owned())
        .collect())
}

async fn host(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let listener = TcpListener::bind("0.0.0.0:0").await?;
    let port = listener.local_addr()?.port();
    let six = TcpListener::bind(("::", port)).await.ok();
    let udp = UdpSocket::bind(("0.0.0.0", port)).await?;
    // The control: the listener can be reached from here.
    TcpStream::connect(("127.0.0.1", port)).await?;
    listener.accept().await?;

    let mut hosts = host_addresses();
    hosts.extend(addresses(&cell, "gateway").await?);
    // Neighbours of its own address, should the gateway not show.
    for own in addresses(&cell, "own").await? {
        if let Some((net, last)) = own.rsplit_once('.')
            && !own.starts_with("127.")
            && let Ok(last) = last.parse::<u8>()
        {
            let near = [1, 254, last.wrapping_sub(1), last.wrapping_add(1), last ^ 1];
            hosts.extend(
                near.into_iter()
                    .filter(|other| *other != last)
                    .map(|other| format!("{net}.{other}")),
            );
        }
    }
    // What is loopback here is the sandbox's own loopback there.
    hosts.retain(|host| !host.starts_with("127.") && host != "::1");
    hosts.sort();
    hosts.dedup();
    ensure!(!hosts.is_empty(), "the host has no address to try");
    let mut targets = Vec::new();
    for host in &hosts {
        for port in [port, 22, 53, 80, 443] {
            targets.push(format!("tcp|{host}|{port}"));
        }
        targets.push(format!("udp|{host}|{port}"));
        targets.push(format!("udp|{host}|53"));
    }
    targets.push(format!("tcp|127.0.0.1|{port}"));
    let reached = python(&cell, TRY, &targets).await?;
    ensure!(reached.trim().is_empty(), "reached {reached}");
    let no_wait = Duration::from_millis(10);
    ensure!(
        timeout(no_wait, listener.accept()).await.is_err(),
        "the listener got a connection"
    );
    if let Some(six) = six {
        ensure!(
            timeout(no_wait, six.accept()).await.is_err(),
            "the IPv6 listener got a connection"
        );
    }
    let mut packet = [0; 16];
    ensure!(
        timeout(no_wait, udp.recv_from(&mut packet)).await.is_err(),
        "the socket got a datagram"
    );
    Ok(())
}

async fn neighbour(bench: &Bench) -> Result<(), Fault> {
    let one = bench.shared().await?;
    let two = bench.fresh().await?;
    two.sh("python3 -m http.server 9123 >/dev/null 2>&1 &")
        .await?;
    let own = addresses(&two, "own").await?;
    // The control: it listens.
    let control = vec!["tcp|127.0.0.1|9123".to_owned(), "tcp|127.0.0.1|8888".into()];
    let mut tries = 0;
    while python(&two, TRY, &control).await?.trim().is_empty() {
        tries += 1;
        if tries > 20 {
            return failed("the neighbour's server did not start");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let targets: Vec<_> = own
        .iter()
        .filter(|address| !address.starts_with("127."))
        .flat_map(|address| [8888, 9123].map(|port| format!("tcp|{address}|{port}")))
        .collect();
    let reached = python(&one, TRY, &targets).await?;
    ensure!(reached.trim().is_empty(), "reached {reached}");
    Ok(())
}

async fn outside(bench: &Bench) -> Result<(), Fault> {
    let cell = bench.shared().await?;
    let targets: Vec<_> = [
        "169.254.169.254|80",
        "192.0.2.1|443",
        "198.51.100.1|80",
        "10.0.0.1|80",
        "172.17.0.1|80",
        "192.168.0.1|80",
        "fd00:ec2::254|80",
        "2001:db8::1|443",
    ]
    .iter()
    .flat_map(|target| [format!("tcp|{target}"), format!("udp|{target}")])
    .collect();
    let reached = python(&cell, TRY, &targets).await?;
    ensure!(reached.trim().is_empty(), "reached {reached}");
    let text = "timeout 8 getent hosts example.org; echo $?";
    let done = cell.sh(text).await?;
    ensure!(
        done.ok()?.trim() != "0" && done.out().lines().count() == 1,
        "a name was resolved: {:?}",
        start_of(&done.out())
    );
    ensure!(
        done.took < Duration::from_secs(6),
        "a lookup takes {:?} to fail",
        done.took
    );
    Ok(())
}
