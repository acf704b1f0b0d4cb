//! A name with more addresses than a sandbox may have open.

use std::net::IpAddr;

use hotcell_egress::{
    dns::FilterEvent, filter::FilterSettings, firewall::Firewall, layout::learned_set,
    learned::LearnedLimits,
};
use hotcell_policy::Family;
use hotcell_testkit::internet::Answer;

use crate::{
    stage::{Guard, Stage, policy, table},
    staged,
};

staged!(a_name_with_more_addresses_than_the_ceiling_is_never_cut);

const WORKERS: usize = 40;
const ADDRESSES_PER_ANSWER: usize = 8;
/// What the name has in all: more than may be open, and all of them within as many answers as the workers
/// ask for in a second or two.
const ALL: usize = 440;
/// Room for what each worker was just told and for what each has a connection to, and hardly more.
const CEILING: usize = WORKERS * (ADDRESSES_PER_ANSWER + 1) + 20;
const SECONDS: u64 = 12;

/// Each worker looks up, connects to an address of the answer, keeps it busy, and closes.
const WORKLOAD: &str = r"
import random, socket, sys, threading, time
workers, seconds = int(sys.argv[1]), int(sys.argv[2])
until, done, wrong = time.monotonic() + seconds, [], []
def work():
    while time.monotonic() < until:
        doing = 'look up'
        try:
            found = socket.getaddrinfo('s3.example.org', 443, socket.AF_INET, socket.SOCK_STREAM)
            address = random.choice(found)[4]
            doing = 'connect to %s' % address[0]
            s = socket.create_connection(address, 5)
            for _ in range(random.randrange(2, 24)):
                doing = 'use %s' % address[0]
                s.sendall(b'hello')
                if s.recv(99) != b'hello':
                    raise OSError('it ended')
                time.sleep(0.1)
            s.close()
            done.append(address[0])
        except OSError as error:
            wrong.append('%s: %s' % (doing, error))
threads = [threading.Thread(target=work) for _ in range(workers)]
[t.start() for t in threads]
[t.join() for t in threads]
print(len(done), len(set(done)), len(wrong), wrong[:5])
";

fn address(number: usize) -> IpAddr {
    let last = |from: usize| u8::try_from(from).unwrap();
    match number {
        0..250 => [203, 0, 113, last(1 + number)].into(),
        _ => [198, 51, 100, last(60 + number - 250)].into(),
    }
}

/// EG-12, in a shorter time and with a lower ceiling.
async fn a_name_with_more_addresses_than_the_ceiling_is_never_cut(stage: &Stage<'_>) {
    // All of them within 55 answers, and again and again: what went must come back.
    let lists: Vec<Vec<IpAddr>> = (0..2_000)
        .map(|answer| {
            let of = |i| address((answer * ADDRESSES_PER_ANSWER + i) % ALL);
            (0..ADDRESSES_PER_ANSWER).map(of).collect()
        })
        .collect();
    let mut answer = Answer::addresses(&lists[0]).ttl_seconds(0);
    for list in &lists[1..] {
        answer = answer.then(list);
    }
    stage.internet.names().set("s3.example.org", answer);
    let (lease, key, site) = stage.create().await;
    let guard = Guard::open(stage.internet, &site).await;
    let settings = FilterSettings {
        learned: LearnedLimits {
            ceiling: CEILING,
            ..FilterSettings::default().learned
        },
        ..FilterSettings::default()
    };
    let rules = policy("deny", &["allow s3.example.org"]);
    let filter = guard.admit_with(&lease, &site, rules, settings).await;
    let cell = stage.start(&lease, &key).await;

    let arguments = [WORKERS.to_string(), SECONDS.to_string()];
    let said = cell.python(WORKLOAD, &arguments).await;
    let mut words = said.split(' ').map(str::parse::<usize>);
    let mut number = || words.next().unwrap().unwrap();
    let (done, different, wrong) = (number(), number(), number());
    assert_eq!(wrong, 0, "something was cut off: {said}");
    assert!(done >= 2 * WORKERS && different >= WORKERS, "{said}");

    // The ceiling was reached, what had to go came back later, and each time one event tells
    // of it; nothing was refused.
    let (mut answers, mut made_room, mut closed_in_all) = (0, 0, 0);
    for event in filter.events.all() {
        let FilterEvent::NameAllowed { opened, closed, .. } = event else {
            panic!("{event:?}");
        };
        answers += 1;
        made_room += usize::from(!closed.is_empty());
        closed_in_all += closed.len();
        assert!(closed.iter().all(|address| !opened.contains(address)));
    }
    assert!(
        made_room > 0 && closed_in_all > ALL - CEILING,
        "{answers} answers, {closed_in_all} closed in {made_room}: {said}"
    );
    // And it was held, in the filter and in the kernel.
    let known = filter.dns.with_filter(|model, _| model.learned().len());
    let report = guard.firewall.report(&table()).await.unwrap().unwrap();
    let learned = learned_set(lease.short(), Family::V4).to_string();
    let open = report.sets[&learned].remaining_ms.len();
    assert_eq!((known, open), (CEILING, CEILING));
    // As a control: an address that no answer had is closed.
    cell.only(
        &[("tcp", "s3.example.org", 443)],
        &[("tcp", "203.0.113.254", 443)],
    )
    .await;
}
