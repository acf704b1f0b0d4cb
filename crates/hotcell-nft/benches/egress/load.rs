//! The one client: as many answers as there are, or the latency under a fixed load.

use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use tokio::time::Instant;

use crate::upstream::{NAMES, question};

/// Sockets that ask at once.
pub(crate) const SOCKETS: usize = 4;
/// Questions under way on each.
pub(crate) const WINDOW: usize = 16;
/// An answer that has not come by then is lost.
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);
/// How often the steady client sends what is due.
const TICK: Duration = Duration::from_micros(500);
const IDENTIFIERS: usize = 65_536;

fn socket(server: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// No error, and one answer.
fn check(answer: &[u8]) -> bool {
    answer.len() > 40 && answer[3] & 15 == 0 && answer[7] == 1
}

/// Asks for every name until it is answered: afterwards the server has them all.
pub(crate) fn warm(server: SocketAddr, patience: Duration) -> Result<(), String> {
    let until = Instant::now() + patience;
    let socket = socket(server);
    let mut answer = [0; 512];
    for number in 0..NAMES {
        loop {
            let sent = socket.send(&question(number));
            // A server that is not up yet refuses at once; one that is does not answer wrongly.
            if sent.is_ok()
                && let Ok(length) = socket.recv(&mut answer)
            {
                if check(&answer[..length]) {
                    break;
                }
                return Err(format!(
                    "it answers wrongly: {:?}",
                    &answer[..length.min(12)]
                ));
            }
            if Instant::now() > until {
                return Err("it does not answer".to_owned());
            }
            thread::park_timeout(Duration::from_millis(20));
        }
    }
    Ok(())
}

/// Answers a second with [`SOCKETS`] × [`WINDOW`] questions always under way.
pub(crate) fn most(server: SocketAddr, for_time: Duration) -> f64 {
    let start = Instant::now();
    let until = start + for_time;
    let answered: usize = thread::scope(|scope| {
        let clients: Vec<_> = (0..SOCKETS)
            .map(|number| scope.spawn(move || keep_asking(server, number * 25, until)))
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .sum()
    });
    answered as f64 / start.elapsed().as_secs_f64()
}

fn keep_asking(server: SocketAddr, first: usize, until: Instant) -> usize {
    let socket = socket(server);
    let questions: Vec<Vec<u8>> = (0..NAMES).map(question).collect();
    let (mut asked, mut answered) = (first, 0);
    let mut answer = [0; 512];
    let mut ask = |count: usize| {
        for _ in 0..count {
            socket.send(&questions[asked % NAMES]).unwrap();
            asked += 1;
        }
    };
    ask(WINDOW);
    while Instant::now() < until {
        match socket.recv(&mut answer) {
            Ok(length) => {
                assert!(check(&answer[..length]), "an answer without an address");
                answered += 1;
                ask(1);
            }
            // All that was under way is lost.
            Err(_) => ask(WINDOW),
        }
    }
    answered
}

/// What a steady load met with.
pub(crate) struct Steady {
    /// Microseconds of each answer; a lost one took all its time.
    pub(crate) took_us: Vec<f64>,
    pub(crate) lost: usize,
}

/// Latencies at `per_second` questions a second, whatever the answers do.
pub(crate) fn steady(server: SocketAddr, per_second: f64, for_time: Duration) -> Steady {
    let socket = socket(server);
    let receiving = socket.try_clone().unwrap();
    let mut questions: Vec<Vec<u8>> = (0..NAMES).map(question).collect();
    let start = Instant::now();
    let sent_at: Vec<AtomicU64> = (0..IDENTIFIERS).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    let nanos = || start.elapsed().as_nanos() as u64;
    let (sent, mut took_us) = thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut took_us = Vec::with_capacity((per_second * for_time.as_secs_f64()) as usize);
            let mut answer = [0; 512];
            loop {
                match receiving.recv(&mut answer) {
                    Ok(length) => {
                        let now = nanos();
                        assert!(check(&answer[..length]), "an answer without an address");
                        let id = usize::from(u16::from_be_bytes([answer[0], answer[1]]));
                        took_us.push((now - sent_at[id].load(Relaxed)) as f64 / 1e3);
                    }
                    Err(_) if done.load(Relaxed) => return took_us,
                    Err(_) => {}
                }
            }
        });
        let (mut sent, mut skipped) = (0_usize, 0_usize);
        while start.elapsed() < for_time {
            let due = (start.elapsed().as_secs_f64() * per_second) as usize;
            // What this client itself was too late for is left out: a burst would measure its length.
            skipped += (due - sent - skipped).saturating_sub(WINDOW);
            while sent + skipped < due {
                let question = &mut questions[sent % NAMES];
                let id = sent % IDENTIFIERS;
                question[..2].copy_from_slice(&(id as u16).to_be_bytes());
                sent_at[id].store(nanos(), Relaxed);
                socket.send(question).unwrap();
                sent += 1;
            }
            thread::park_timeout(TICK);
        }
        done.store(true, Relaxed);
        (sent, receiver.join().unwrap())
    });
    let lost = sent.saturating_sub(took_us.len());
    took_us.extend(std::iter::repeat_n(PATIENCE.as_micros() as f64, lost));
    Steady { took_us, lost }
}
