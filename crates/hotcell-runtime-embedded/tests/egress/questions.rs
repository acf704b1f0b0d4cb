//! Questions of every kind, asked byte by byte in a sandbox: which names a rule means, and what is
//! answered to what is no proper question.

use std::net::IpAddr;

use hotcell_egress::firewall::Firewall;
use hotcell_testkit::internet::Answer;

use crate::{
    common::Cell,
    stage::{Filter, Guard, Stage, policy, table},
    staged,
};

staged!(
    rules_mean_every_spelling_of_a_name,
    denied_names_of_every_kind_stay_here,
    numbers_are_no_names,
    what_is_no_proper_question_is_answered_shortly,
    answers_of_every_size_are_whole_or_marked,
    names_on_one_address_do_not_close_each_other,
    thousands_of_rules_decide_in_their_order,
);

/// A client that asks what no library would.
const ASKING: &str = include_str!("asking.py");
const NO_ERROR: &str = "0";
const NO_SUCH_NAME: &str = "3";

impl Cell {
    /// Runs a Python program that has the client of `asking.py` at hand.
    pub(crate) async fn asking(&self, program: &str) -> String {
        self.python(&format!("{ASKING}\n{program}"), &[]).await
    }

    /// The codes of the answers to these names' questions, over UDP.
    async fn codes(&self, names: &[&str]) -> Vec<String> {
        let said = self
            .asking(&format!(
                "for name in {names:?}: print(code(over_udp(question(name))))"
            ))
            .await;
        said.lines().map(str::to_owned).collect()
    }
}

/// EG-03 and EG-05.
async fn rules_mean_every_spelling_of_a_name(stage: &Stage<'_>) {
    let rules = [
        "deny Bad.Example.org",
        "allow *.example.org",
        "allow bücher.example",
    ];
    let allowed = [
        "a.example.org",
        "a.b.example.org",
        "_dmarc.example.org",
        "A.Example.Org",
        "*.example.org",
        "xn--bcher-kva.example",
        "XN--BCHER-KVA.example",
    ];
    let denied = [
        "example.org",
        "xexample.org",
        "example.org.evil.net",
        "bad.example.org",
        "BAD.EXAMPLE.ORG",
        "bad.example.org.evil.net",
    ];
    let names = stage.internet.names();
    for name in allowed.iter().chain(&denied) {
        names.address(name, &["203.0.113.5"]);
    }
    let (_guard, cell, _filter) = stage.one("deny", &rules).await;
    assert_eq!(cell.codes(&allowed).await, [NO_ERROR; 7]);
    assert_eq!(cell.codes(&denied).await, [NO_SUCH_NAME; 6]);
    // As programs ask, with a dot at the end and in capitals.
    cell.only(
        &[
            ("tcp", "a.b.example.org.", 443),
            ("tcp", "A.B.EXAMPLE.ORG", 443),
        ],
        &[
            ("tcp", "BAD.EXAMPLE.ORG.", 443),
            ("tcp", "example.org", 443),
        ],
    )
    .await;
    for name in denied {
        assert_eq!(names.asked_for(name), 0, "{name} went out");
    }
}

/// EG-30.
async fn denied_names_of_every_kind_stay_here(stage: &Stage<'_>) {
    let names = stage.internet.names();
    names.address("pypi.org", &["203.0.113.5"]);
    let (guard, cell, filter) = stage.one("deny", &["allow pypi.org"]).await;
    let said = cell
        .asking(
            r"
codes = set()
for n in range(50):
    name = f'{n * 7919:032x}.t.evil.example'
    for ask in (over_udp, over_tcp):
        reply = ask(question(name, (A, TXT, NULL, MX)[n % 4], edns=1232))
        codes.add((code(reply), b'blocked by network policy' in reply, len(records(reply))))
for name, kind in (('x.pypi.org', A), ('8.8.8.8.in-addr.arpa', PTR), ('evil.example', SRV), ('evil.example', HTTPS), ('evil.example', AAAA)):
    reply = over_udp(question(name, kind, edns=1232))
    codes.add((code(reply), b'blocked by network policy' in reply, len(records(reply))))
print(codes)
print(code(over_udp(question('pypi.org'))))
",
        )
        .await;
    assert_eq!(said, "{(3, True, 0)}\n0");
    let asked: Vec<_> = names.asked().into_iter().map(|(name, _)| name).collect();
    assert!(asked.iter().all(|name| name == "pypi.org"), "{asked:?}");
    assert!(!asked.is_empty() && filter.events.all().len() > 100);
    // Under default allow it is the names of the deny rule that stay here.
    let (open, _filter, _) = stage
        .sandbox(&guard, policy("allow", &["deny *.evil.example"]))
        .await;
    names.address("fine.example", &["203.0.113.6"]);
    assert_eq!(
        open.codes(&["x.evil.example", "fine.example"]).await,
        [NO_SUCH_NAME, NO_ERROR]
    );
    assert_eq!(names.asked_for("x.evil.example"), 0);
}

/// EG-28, the questions.
async fn numbers_are_no_names(stage: &Stage<'_>) {
    let names = stage.internet.names();
    names.address("ok.example.org", &["203.0.113.5"]);
    let (_guard, cell, _filter) = stage.one("allow", &[]).await;
    let numbers = [
        "2852039166",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "169.254.43518",
        "127.1",
        "0177.0.0.1",
        "1.2.3.4",
    ];
    assert_eq!(cell.codes(&numbers).await, [NO_SUCH_NAME; 7]);
    assert_eq!(cell.codes(&["ok.example.org"]).await, [NO_ERROR]);
    assert_eq!(names.asked().len(), 1, "{:?}", names.asked());
}

/// Several questions or none, other classes, operations and kinds, names that are too long or go round
/// in a circle, messages that lie about themselves: nothing of it is asked of anybody else.
async fn what_is_no_proper_question_is_answered_shortly(stage: &Stage<'_>) {
    let names = stage.internet.names();
    names.address("ok.example.org", &["203.0.113.5"]);
    let (_guard, cell, _filter) = stage.one("allow", &["deny evil.example"]).await;
    let said = cell
        .asking(
            r"
FORMERR, NXDOMAIN, NOTIMP, REFUSED = 1, 3, 4, 5
ok, evil = (wire('ok.example.org'), A), (wire('evil.example'), A)
label = b'\x3f' + b'a' * 63
longest = label * 3 + b'\x3d' + b'b' * 61 + b'\0'
assert len(longest) == 255
wrong = []
def expect(what, said, *codes):
    for ask in (over_udp, over_tcp):
        got = code(ask(said, 4))
        if got not in codes: wrong.append((what, ask.__name__, got))
expect('two questions', message([ok, evil]), FORMERR)
expect('two questions, the denied one first', message([evil, ok]), FORMERR)
expect('no question', message([]), FORMERR)
expect('a thousand questions that are not there', message([ok], count=1000), FORMERR)
expect('class CH', message([(wire('version.bind'), TXT, 3)]), REFUSED)
expect('class ANY', message([ok + (255,)]), REFUSED)
expect('ANY', question('ok.example.org', 255), REFUSED)
expect('AXFR', question('ok.example.org', 252), REFUSED)
expect('IXFR', question('ok.example.org', 251), REFUSED)
for operation in (1, 2, 4, 5, 6, 15):
    expect(f'operation {operation}', message([ok], flags=0x100 | operation << 11), NOTIMP, FORMERR)
expect('a pointer to itself', message([(b'\xc0\x0c', A)]), FORMERR)
expect('two pointers in a circle', message([(b'\xc0\x0e\xc0\x0c', A)]), FORMERR)
expect('a label of a kind that does not exist', message([(b'\x80abc\0', A)]), FORMERR)
expect('a name that ends nowhere', message([], count=1, tail=b'\x20ab'), FORMERR)
expect('a name of 256 bytes', message([(label * 3 + b'\x3e' + b'b' * 62 + b'\0', A)]), FORMERR)
expect('a name of 2000 bytes', message([(label * 31 + b'\0', A)]), FORMERR)
expect('a label with a dot', message([(b'\x04a.ok\x07example\x03org\0', A)]), NXDOMAIN)
expect('a label with a zero', message([(b'\x03o\0k\x07example\x03org\0', A)]), NXDOMAIN)
expect('a space', message([(b'\x03o k\x07example\x03org\0', A)]), NXDOMAIN)
# Nobody is answered for answering, or for less than a header.
for what in (message([ok], flags=0x8180), b'', b'\x48', message([ok])[:11]):
    if over_udp(what, 0.3) is not None: wrong.append(('answered', what))
# A length that promises more than comes, and more than one connection of the kind.
half = [socket.create_connection((SERVER, 53), 3) for _ in range(20)]
for s in half: s.sendall(b'\xff\xff\x48')
# The control.
expect('the control', message([ok]), 0)
assert addresses(over_udp(question('ok.example.org'))) == ['203.0.113.5']
# A name of the full length is one, and asked for.
expect('a name of 255 bytes', message([(longest, A)]), NXDOMAIN)
print(wrong)
",
        )
        .await;
    assert_eq!(said, "[]");
    let asked: Vec<_> = names
        .asked()
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| name != "ok.example.org" && name.len() != 253)
        .collect();
    assert!(asked.is_empty(), "{asked:?}");
}

/// EG-10.
async fn answers_of_every_size_are_whole_or_marked(stage: &Stage<'_>) {
    let names = stage.internet.names();
    for count in [25_u8, 40, 120] {
        let all: Vec<IpAddr> = (1..=count)
            .map(|last| IpAddr::from([198, 51, 100, last]))
            .collect();
        names.set(&format!("many{count}.example.org"), Answer::addresses(&all));
    }
    let (_guard, cell, _filter) = stage.one("deny", &["allow *.example.org"]).await;
    let said = cell
        .asking(
            r"
wrong = []
for count in (25, 40, 120):
    name = f'many{count}.example.org'
    for what, reply, most in (
        ('plain', over_udp(question(name)), 512),
        ('1232', over_udp(question(name, edns=1232)), 1232),
        ('4096', over_udp(question(name, edns=4096)), 4096),
        ('tcp', over_tcp(question(name)), 65535),
    ):
        shown = addresses(reply)
        if len(reply) > most: wrong.append((what, count, 'too long', len(reply)))
        if truncated(reply) != (len(shown) < count): wrong.append((what, count, 'not marked'))
        if most >= 4096 and len(shown) != count: wrong.append((what, count, 'not whole', len(shown)))
        # What the client can see is open.
        for address in shown[:1] + shown[len(shown) // 2:][:1] + shown[-1:]:
            if not connects(address): wrong.append((what, count, address, 'closed'))
if connects('198.51.100.121'): wrong.append('what nobody named is open')
print(wrong)
",
        )
        .await;
    assert_eq!(said, "[]");
}

/// The same sandbox with a filter that has learned nothing yet.
async fn anew(
    stage: &Stage<'_>,
    guard: &Guard,
    cell: &Cell,
    old: Filter,
    rules: &[&str],
) -> Filter {
    use hotcell_runtime::Runtime;
    let site = stage.rig.runtime.filter_site(&cell.lease).await.unwrap();
    guard
        .firewall
        .remove_lease(&table(), &old.rules)
        .await
        .unwrap();
    drop(old);
    guard.admit(&cell.lease, &site, policy("deny", rules)).await
}

/// EG-22 and EG-25.
async fn names_on_one_address_do_not_close_each_other(stage: &Stage<'_>) {
    let all = ["www.gapi.example", "maps.gapi.example", "x.other.example"];
    let names = stage.internet.names();
    for name in all {
        names.address(name, &["203.0.113.9"]);
    }
    let rules = [
        "allow www.gapi.example",
        "deny *.gapi.example",
        "allow *.other.example",
    ];
    let (guard, cell, mut filter) = stage.one("deny", &rules).await;
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        filter = anew(stage, &guard, &cell, filter, &rules).await;
        // Nothing of before is open.
        assert_eq!(cell.probe(&[("tcp", "203.0.113.9", 443)]).await, [false]);
        for name in order.map(|place| all[place]) {
            let control = if name == all[1] {
                NO_SUCH_NAME
            } else {
                NO_ERROR
            };
            assert_eq!(cell.codes(&[name]).await, [control], "{order:?}: {name}");
            if name != all[1] {
                cell.only(&[("tcp", "203.0.113.9", 443)], &[("tcp", all[1], 443)])
                    .await;
            }
        }
    }
    // Two names of one host: the denied one is not found, and does not close the other one's address.
    names.address("good.example", &["203.0.113.5"]);
    names.address("bad.example", &["203.0.113.5"]);
    for rules in [
        ["allow good.example", "allow 192.0.2.7"],
        ["deny bad.example", "allow good.example"],
    ] {
        filter = anew(stage, &guard, &cell, filter, &rules).await;
        assert_eq!(
            cell.codes(&["bad.example", "good.example"]).await,
            [NO_SUCH_NAME, NO_ERROR]
        );
        cell.only(
            &[("tcp", "good.example", 443)],
            &[("tcp", "bad.example", 443)],
        )
        .await;
        // Who names the other host to that address is not told apart: the documentation says so, and
        // the policy's explanation.
        let said = cell
            .python(
                r"
import http.client
c = http.client.HTTPConnection('203.0.113.5', 80, timeout=5)
c.request('GET', '/', headers={'Host': 'bad.example'})
print(c.getresponse().status)
",
                &[],
            )
            .await;
        assert_eq!(said, "200");
    }
    drop(filter);
}

/// A policy at its limit: the first, the last, and one in the middle that an earlier one decides.
async fn thousands_of_rules_decide_in_their_order(stage: &Stage<'_>) {
    let mut rules = vec![
        "deny no.n7.example.org".to_owned(),
        "deny 11.2.7.9".to_owned(),
    ];
    for n in 0..2_046_u32 {
        rules.push(format!("allow *.n{n}.example.org"));
        rules.push(format!("allow 11.{}.{}.0/28", 2 + n / 256, n % 256));
    }
    rules.push("deny *.n9.example.org".to_owned());
    rules.push("deny 11.2.9.0/24".to_owned());
    assert_eq!(rules.len(), 4_096);
    let names = stage.internet.names();
    for name in ["a.n0", "a.n2045", "a.n7", "no.n7", "a.n9", "a.n3000"] {
        names.address(&format!("{name}.example.org"), &["203.0.113.5"]);
    }
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    let (_guard, cell, _filter) = stage.one("deny", &rules).await;
    let tcp = |host| ("tcp", host, 443);
    cell.only(
        &[
            tcp("11.2.0.1"),
            tcp("11.9.253.15"),
            tcp("11.2.7.8"),
            tcp("11.2.9.1"),
            tcp("a.n0.example.org"),
            tcp("a.n2045.example.org"),
            tcp("a.n7.example.org"),
            tcp("a.n9.example.org"),
        ],
        &[
            tcp("11.2.7.9"),
            tcp("11.2.9.16"),
            tcp("11.9.254.1"),
            tcp("11.2.0.16"),
            tcp("no.n7.example.org"),
            tcp("a.n3000.example.org"),
        ],
    )
    .await;
}
