//! What tests of filtered sandboxes through the front door share: a profile on a stub internet,
//! policies, commands that try to get out, and a loop that goes on trying.

use hotcell_testkit::{
    Client, Site,
    internet::{Internet, RESOLVER},
    wait_until,
};
use http::Method;
use serde_json::Value;

use super::runtime_table;

/// Where the policy of the tests' organization is.
pub(crate) const POLICY: &str = "/v1/admin/organizations/o/network-policy";
/// What `ok.example.org` stands for.
pub(crate) const ALLOWED: &str = "203.0.113.5";
/// What `no.example.org` stands for.
pub(crate) const DENIED: &str = "203.0.113.99";

/// Tries an allowed address and some closed ones again and again, and writes down which answered,
/// where the host sees it too.
const BACKGROUND: &str = r"cat > /workspace/loop.py <<'PY'
import socket, struct, sys, time
def reached(address, port):
    try:
        socket.create_connection((address, port), timeout=0.3).close()
        return True
    except OSError:
        return False
def answered(server):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(0.3)
    try:
        s.sendto(struct.pack('>6H', 7, 0x100, 1, 0, 0, 0) + b'\x02ok\x07example\x03org\0' + struct.pack('>2H', 1, 1), (server, 53))
        return s.recv(4096)[3] & 15 == 0
    except OSError:
        return False
    finally:
        s.close()
words = [word.split(':') for word in sys.argv[1:]]
closed = [(host, int(port)) for host, port in words]
resolvers = [host for host, port in words if port == '53']
while True:
    allowed = reached('203.0.113.5', 443)
    denied = any([reached(*one) for one in closed] + [answered(one) for one in resolvers])
    print('A' if allowed else 'a', 'D' if denied else 'd', sep='', flush=True)
    time.sleep(0.05)
PY
python3 /workspace/loop.py CLOSED >/mnt/user-data/FILE 2>&1 &
for i in $(seq 200); do grep -q A /mnt/user-data/FILE && break; sleep 0.05; done
grep -c A /mnt/user-data/FILE";

/// Asks the resolver for the address of a name, and prints the code of its answer: 0, or 3 for a name
/// that does not exist.
const ASK: &str = r"python3 - NAME <<'PY'
import socket, struct, sys
server = open('/etc/resolv.conf').read().split()[1]
labels = sys.argv[1].encode().split(b'.')
name = b''.join(bytes([len(it)]) + it for it in labels) + b'\0'
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5)
s.sendto(struct.pack('>6H', 7, 0x100, 1, 0, 0, 0) + name + struct.pack('>2H', 1, 1), (server, 53))
print(s.recv(4096)[3] & 15)
PY";

/// The `[runtime]` table of a filtered profile that asks the stub's resolver.
pub(crate) fn table(runtime: &str) -> String {
    format!(
        "{}\nnetwork = \"filtered\"\ndns_upstreams = [\"{}\"]",
        runtime_table(runtime),
        RESOLVER.ip()
    )
}

/// An internet with an allowed name and a denied one.
pub(crate) fn internet() -> Internet {
    let internet = Internet::new();
    internet.names().address("ok.example.org", &[ALLOWED]);
    internet.names().address("no.example.org", &[DENIED]);
    internet
}

/// A command that loads a page and prints it.
pub(crate) fn fetch(host: &str) -> String {
    let program = format!(
        "import urllib.request as r; print(r.urlopen('http://{host}/', timeout=5).read().decode())"
    );
    format!("python3 -c \"{program}\"")
}

/// A command that connects, and says so when it does.
pub(crate) fn connect(host: &str, port: u16) -> String {
    format!(
        "timeout 2 bash -c \"exec 3<>/dev/tcp/{host}/{port} && echo open\" 2>/dev/null; sleep 0.5"
    )
}

/// See [`ASK`].
pub(crate) fn ask(name: &str) -> String {
    ASK.replace("NAME", name)
}

/// A command that leaves a loop behind; it writes a line into `file` for each try. What is denied by
/// name is always tried, `closed` (address and port) beside it; what has the port of DNS is asked for
/// an allowed name, too.
pub(crate) fn background(file: &str, closed: &[String]) -> String {
    let mut words = vec![format!("{DENIED}:443")];
    words.extend_from_slice(closed);
    BACKGROUND
        .replace("FILE", file)
        .replace("CLOSED", &words.join(" "))
}

/// Saves the organization's policy.
pub(crate) async fn save(operator: &Client, text: &str) {
    let headers = [("content-type", "application/json")];
    let saved = operator.request(Method::PUT, POLICY, &headers, text.to_owned());
    let _ = saved.await.expect(200);
}

/// The filters' events of a kind, of all leases.
pub(crate) async fn events(operator: &Client, kind: &str) -> Vec<Value> {
    let page = operator.get("/v1/admin/egress-events?limit=1000").await;
    let page = page.expect(200).json();
    let events = page["events"].as_array().unwrap().iter();
    events.filter(|it| it["kind"] == kind).cloned().collect()
}

/// Whether a note of a command's result has this.
pub(crate) fn says(result: &Value, part: &str) -> bool {
    result["notes"].to_string().contains(part)
}

/// What a loop said so far, read on the host: a line for each try.
pub(crate) fn said(site: &Site, file: &str) -> Vec<String> {
    let mut dirs = vec![site.dir().join("state/volumes")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path());
            } else if entry.file_name() == file {
                let text = std::fs::read_to_string(entry.path()).unwrap();
                return text.lines().map(str::to_owned).collect();
            }
        }
    }
    panic!("the loop says nothing");
}

/// Waits until a loop, from now on, reached what is allowed a few times.
pub(crate) async fn goes_on(site: &Site, file: &str) {
    let before = said(site, file).len();
    wait_until("the loop to go on", || {
        let reached = said(site, file)[before..]
            .iter()
            .filter(|line| *line == "Ad")
            .count();
        reached >= 3
    })
    .await;
}

/// Fails when a loop ever reached something that is closed.
pub(crate) fn assert_never_open(site: &Site, file: &str) {
    let lines = said(site, file);
    assert!(
        !lines.iter().any(|line| line.contains('D')),
        "it was open for a moment: {lines:?}"
    );
}
