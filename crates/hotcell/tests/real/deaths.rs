//! EG-41: `kill -9` of the daemon, and so of every filter, again and again at random moments, while a
//! sandbox goes on asking and connecting. What is denied never works; what is allowed is back within
//! seconds; what is connected or learned does not notice.

use std::time::{Duration, Instant};

use hotcell_testkit::{Site, wait_until};

use super::{
    bash, end,
    filtered::{self, save},
    on_both_engines, site_with,
};

on_both_engines!(nothing_opens_while_filters_die);

const DEATHS: usize = 20;
/// How long an allowed name may fail after a kill.
const BACK_WITHIN: Duration = Duration::from_secs(5);
const POLICY: &str = r#"{"egress": [
    {"action": "allow", "target": "ok.example.org"},
    {"action": "allow", "target": "name.example.org"}
]}"#;

/// A letter for each thing tried: `N` a name that may be asked for was answered, `X` one that may not,
/// `A` the learned address is open, `D` one that nobody named, `E` the first connection goes on.
const LOOP: &str = r"cat > /workspace/loop.py <<'PY'
import socket, struct, time
server = open('/etc/resolv.conf').read().split()[1]
def answered(name):
    labels = name.encode().split(b'.')
    wire = b''.join(bytes([len(it)]) + it for it in labels) + b'\0'
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(0.5)
        try:
            s.sendto(struct.pack('>6H', 7, 0x100, 1, 0, 0, 0) + wire + struct.pack('>2H', 1, 1), (server, 53))
            reply = s.recv(4096)
            return reply[3] & 15 == 0 and reply[7] > 0
        except OSError: return False
def reached(address):
    try:
        socket.create_connection((address, 443), timeout=0.3).close()
        return True
    except OSError: return False
kept = socket.create_connection(('ok.example.org', 443)); kept.settimeout(5)
def goes_on():
    try:
        kept.send(b'x'); return kept.recv(9) == b'x'
    except OSError: return False
while True:
    line = ['N' if answered('name.example.org') else 'n', 'X' if answered('no.example.org') else 'x',
        'A' if reached('203.0.113.5') else 'a', 'D' if reached('203.0.113.99') else 'd', 'E' if goes_on() else 'e']
    print(''.join(line), flush=True)
PY
python3 /workspace/loop.py >/mnt/user-data/said 2>&1 &
for i in $(seq 200); do grep -q NxAdE /mnt/user-data/said && break; sleep 0.05; done
tail -1 /mnt/user-data/said";

fn random_ms() -> u64 {
    use hotcell_types::IdSource;
    20 + u64::try_from(hotcell::clock::SystemIds.bits() >> 64).unwrap() % 1_000
}

/// Waits until a line from now on says this, and returns how long that took.
#[expect(
    clippy::disallowed_methods,
    reason = "the promise is about real time, and the daemon is another process"
)]
async fn says(site: &Site, wanted: &str) -> Duration {
    let begin = Instant::now();
    let before = filtered::said(site, "said").len();
    wait_until(wanted, || {
        filtered::said(site, "said")[before..]
            .iter()
            .any(|line| line == wanted)
    })
    .await;
    begin.elapsed()
}

async fn nothing_opens_while_filters_die(engine: &str) {
    let internet = filtered::internet();
    internet
        .names()
        .address("name.example.org", &["203.0.113.7"]);
    let site = site_with(&filtered::table(engine)).on_host_of(&internet);
    let mut daemon = site.start();
    let mut client = daemon.operator.switch_on().await;
    save(&daemon.operator, POLICY).await;
    let begun = bash(&client, "c", LOOP).await;
    assert_eq!(begun["stdout"], "NxAdE\n", "{begun}");
    for death in 0..DEATHS {
        // The moment is the point of it.
        tokio::time::sleep(Duration::from_millis(random_ms())).await;
        daemon.kill();
        // Nobody answers names; the rest goes on.
        says(&site, "nxAdE").await;
        daemon = site.start();
        let took = says(&site, "NxAdE").await;
        assert!(took < BACK_WITHIN, "{took:?} after death {death}");
        let (key, secret) = client.credential().unwrap();
        client = daemon.operator.signing(key, secret);
    }
    let lease = bash(&client, "c", "true").await["lease"]["id"].clone();
    assert_eq!(lease, begun["lease"]["id"]);
    let lines = filtered::said(&site, "said");
    let first = lines.iter().position(|line| line == "NxAdE").unwrap();
    let wrong: Vec<_> = lines[first..]
        .iter()
        .filter(|line| !["NxAdE", "nxAdE"].contains(&line.as_str()))
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert_eq!(internet.names().asked_for("no.example.org"), 0);
    end(&client, "c").await;
    daemon.stop();
}
