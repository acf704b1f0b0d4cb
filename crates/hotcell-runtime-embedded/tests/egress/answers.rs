//! Answers of every kind, from resolvers that are wrong or lie: what is not what was asked for opens
//! nothing, is shown to nobody, and is not remembered for anybody else.

use std::net::Ipv4Addr;

use hotcell_testkit::internet::{
    Answer,
    records::{
        Name, RData, RecordType,
        rdata::{
            A, CNAME, HTTPS, NULL, SVCB,
            svcb::{IpHint, SvcParamKey, SvcParamValue},
        },
    },
};

use crate::{
    stage::{Stage, policy},
    staged,
};

staged!(
    records_of_other_names_open_nothing_for_anybody,
    circles_and_long_chains_end,
    hints_are_not_passed_on,
    an_address_in_another_is_seen,
    a_name_that_turns_inside_is_not_followed,
    an_answer_of_no_time_opens_like_any_other,
    a_failing_resolver_is_said_and_comes_back,
);

const LIE: &str = "203.0.113.66";
/// Kind of a record that renames everything below its owner.
const DNAME: u16 = 39;

fn a(address: &str) -> RData {
    RData::A(A(address.parse::<Ipv4Addr>().unwrap()))
}

fn name(text: &str) -> Name {
    Name::from_ascii(format!("{text}.")).unwrap()
}

/// Additional records, answers to another question, and an alias to somebody else's name with a wrong
/// address beside it. Cached answers are shared, so the second sandbox is the one that counts.
async fn records_of_other_names_open_nothing_for_anybody(stage: &Stage<'_>) {
    let names = stage.internet.names();
    let answer = Answer::addresses(&["203.0.113.5".parse().unwrap()]);
    names.set(
        "ok.example.org",
        answer
            .beside("victim.example.org", a(LIE))
            .additionally("victim.example.org", a(LIE)),
    );
    names.set(
        "trick.example.org",
        Answer::alias("victim.example.org").beside("victim.example.org", a(LIE)),
    );
    names.address("victim.example.org", &["203.0.113.67"]);
    let (guard, cell, _filter) = stage.one("deny", &["allow ok.example.org"]).await;
    let control = ("tcp", "ok.example.org", 443);
    assert_eq!(
        cell.resolve("ok.example.org").await,
        ["203.0.113.5".parse::<Ipv4Addr>().unwrap()]
    );
    cell.only(&[control], &[("tcp", LIE, 443)]).await;
    // Somebody who may look up the name that was lied about hears of its own answer.
    let rules = ["allow victim.example.org", "allow ok.example.org"];
    let (other, _other_filter, _) = stage.sandbox(&guard, policy("deny", &rules)).await;
    other.only(&[control], &[("tcp", LIE, 443)]).await;
    assert_eq!(
        other.resolve("victim.example.org").await,
        ["203.0.113.67".parse::<Ipv4Addr>().unwrap()]
    );
    other
        .only(
            &[("tcp", "victim.example.org", 443)],
            &[("tcp", LIE, 443), ("tcp", "trick.example.org", 443)],
        )
        .await;
    // Even after a third sandbox was led to that name by an alias.
    let (third, _third_filter, _) = stage
        .sandbox(&guard, policy("deny", &["allow trick.example.org"]))
        .await;
    third.resolve("trick.example.org").await;
    assert_eq!(
        other.resolve("victim.example.org").await,
        ["203.0.113.67".parse::<Ipv4Addr>().unwrap()]
    );
    other
        .only(&[("tcp", "203.0.113.67", 443)], &[("tcp", LIE, 443)])
        .await;
}

/// Aliases that lead to themselves, a chain of more than is followed, and a renamed tree.
async fn circles_and_long_chains_end(stage: &Stage<'_>) {
    let names = stage.internet.names();
    names.address("ok.example.org", &["203.0.113.5"]);
    names.set("self.example.org", Answer::alias("self.example.org"));
    names.set("one.example.org", Answer::alias("two.example.net"));
    names.set("two.example.net", Answer::alias("one.example.org"));
    names.set(
        "half.example.org",
        Answer::alias("other.example.net").split(),
    );
    names.set(
        "other.example.net",
        Answer::alias("half.example.org").split(),
    );
    names.set("long.example.org", Answer::alias("n1.example.net"));
    for link in 1..30 {
        names.set(
            &format!("n{link}.example.net"),
            Answer::alias(&format!("n{}.example.net", link + 1)),
        );
    }
    names.address("n30.example.net", &["203.0.113.30"]);
    let renamed = RData::Unknown {
        code: RecordType::from(DNAME),
        rdata: NULL::with(b"\x03cdn\x07example\x03net\0".to_vec()),
    };
    let answer = Answer::default()
        .beside("tree.example.org", renamed)
        .beside(
            "www.tree.example.org",
            RData::CNAME(CNAME(name("www.cdn.example.net"))),
        )
        .beside("www.cdn.example.net", a("203.0.113.40"))
        .beside("cdn.example.net", a("203.0.113.41"));
    names.set("www.tree.example.org", answer);
    let (_guard, cell, _filter) = stage.one("deny", &["allow *.example.org"]).await;
    let said = cell
        .asking(
            r"
for name in ('self', 'one', 'half', 'long'):
    begin = time.monotonic()
    reply = over_udp(question(f'{name}.example.org'), 20)
    took = time.monotonic() - begin
    print(name, code(reply) in (0, 2), addresses(reply), took < 10)
print(addresses(over_udp(question('www.tree.example.org'))))
",
        )
        .await;
    assert_eq!(
        said,
        "self True [] True\none True [] True\nhalf True [] True\nlong True [] True\n\
         ['203.0.113.40']"
    );
    cell.only(
        &[("tcp", "ok.example.org", 443), ("tcp", "203.0.113.40", 443)],
        &[
            ("tcp", "203.0.113.30", 443),
            ("tcp", "203.0.113.41", 443),
            ("tcp", "n30.example.net", 443),
        ],
    )
    .await;
}

/// Addresses in a service binding would be used without a question that the filter sees.
async fn hints_are_not_passed_on(stage: &Stage<'_>) {
    let hint = |address: &str| {
        let parameters = vec![
            (SvcParamKey::Port, SvcParamValue::Port(443)),
            (
                SvcParamKey::Ipv4Hint,
                SvcParamValue::Ipv4Hint(IpHint(vec![A(address.parse().unwrap())])),
            ),
        ];
        SVCB::new(1, name("ok.example.org"), parameters)
    };
    let names = stage.internet.names();
    let answer = Answer::addresses(&["203.0.113.5".parse().unwrap()])
        .with(RecordType::HTTPS, vec![RData::HTTPS(HTTPS(hint(LIE)))])
        .with(RecordType::SVCB, vec![RData::SVCB(hint(LIE))]);
    names.set("ok.example.org", answer);
    let (_guard, cell, _filter) = stage.one("deny", &["allow ok.example.org"]).await;
    let said = cell
        .asking(
            r"
for kind in (HTTPS, SVCB):
    reply = over_udp(question('ok.example.org', kind, edns=1232))
    # The port is passed on; no address is, in whatever place.
    print(code(reply), len(records(reply)), b'\x00\x03\x00\x02\x01\xbb' in reply, socket.inet_aton('203.0.113.66') in reply)
",
        )
        .await;
    assert_eq!(said, "0 1 True False\n0 1 True False");
    cell.only(&[("tcp", "ok.example.org", 443)], &[("tcp", LIE, 443)])
        .await;
}

/// EG-34: an IPv4 address written as an IPv6 one is that address, or goes nowhere.
async fn an_address_in_another_is_seen(stage: &Stage<'_>) {
    let names = stage.internet.names();
    let hidden = [
        "::ffff:10.1.2.3",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b::a01:203",
        "2002:a9fe:a9fe::1",
        "2002:a01:203::1",
        "2001:0:4136:e378:8000:63bf:5601:5601",
        "::a9fe:a9fe",
        "::ffff:0:a9fe:a9fe",
    ];
    for (number, address) in hidden.iter().enumerate() {
        names.address(&format!("h{number}.example.org"), &[address]);
    }
    let (_guard, cell, _filter) = stage.one("allow", &[]).await;
    let closed: Vec<_> = hidden.iter().map(|host| ("tcp", *host, 80)).collect();
    cell.only(&[("tcp", "203.0.113.5", 80)], &closed).await;
    // Such a sandbox has no IPv6, so no name stands for one.
    let said = cell
        .asking(
            r"
print({(code(reply), len(records(reply))) for reply in (over_udp(question(f'h{n}.example.org', AAAA)) for n in range(9))})
",
        )
        .await;
    assert_eq!(said, "{(0, 0)}");
}

/// EG-26, over time: a name that is public first.
async fn a_name_that_turns_inside_is_not_followed(stage: &Stage<'_>) {
    let names = stage.internet.names();
    let of = |text: &str| [text.parse().unwrap()];
    let host = stage.internet.host_addresses();
    let host = host.iter().find(|it| it.is_ipv4()).unwrap().to_string();
    let answer = Answer::addresses(&of("203.0.113.5"))
        .then(&of("10.1.2.3"))
        .then(&of("169.254.169.254"))
        .then(&of(&host))
        .then(&of("127.0.0.1"))
        .then(&of("203.0.113.6"))
        .ttl_seconds(0);
    names.set("turns.example.org", answer);
    let (_guard, cell, _filter) = stage.one("deny", &["allow turns.example.org"]).await;
    let said = cell
        .asking(
            r"
for _ in range(6): print(addresses(over_udp(question('turns.example.org'))))
",
        )
        .await;
    assert_eq!(said, "['203.0.113.5']\n[]\n[]\n[]\n[]\n['203.0.113.6']");
    // What was open stays open for its grace; nothing inside ever was.
    cell.only(
        &[("tcp", "203.0.113.5", 80), ("tcp", "203.0.113.6", 80)],
        &[
            ("tcp", "10.1.2.3", 80),
            ("tcp", "169.254.169.254", 80),
            ("tcp", &host, 22),
        ],
    )
    .await;
    assert_eq!(stage.internet.host_hits(), 0);
}

/// A time to live of nothing is asked for anew each time, and opens no shorter.
async fn an_answer_of_no_time_opens_like_any_other(stage: &Stage<'_>) {
    let names = stage.internet.names();
    let answer = Answer::addresses(&["203.0.113.5".parse().unwrap()]).ttl_seconds(0);
    names.set("brief.example.org", answer);
    let (_guard, cell, _filter) = stage.one("deny", &["allow brief.example.org"]).await;
    for _ in 0..3 {
        cell.only(
            &[("tcp", "brief.example.org", 443)],
            &[("tcp", "203.0.113.6", 443)],
        )
        .await;
    }
    assert!(names.asked_for("brief.example.org") >= 3);
    cell.only(
        &[("tcp", "203.0.113.5", 443)],
        &[("tcp", "203.0.113.6", 443)],
    )
    .await;
}

/// No answer of the resolver's is no permission and no denial.
async fn a_failing_resolver_is_said_and_comes_back(stage: &Stage<'_>) {
    let names = stage.internet.names();
    names.set("ok.example.org", Answer::failure());
    let (_guard, cell, _filter) = stage.one("deny", &["allow ok.example.org"]).await;
    let ask = r"
reply = over_udp(question('ok.example.org', edns=1232), 20)
print(code(reply), b'no upstream resolver answered' in reply)
";
    assert_eq!(cell.asking(ask).await, "2 True");
    assert_eq!(cell.probe(&[("tcp", "203.0.113.5", 443)]).await, [false]);
    names.address("ok.example.org", &["203.0.113.5"]);
    assert_eq!(cell.asking(ask).await, "0 False");
    cell.only(
        &[("tcp", "203.0.113.5", 443)],
        &[("tcp", "203.0.113.6", 443)],
    )
    .await;
}
