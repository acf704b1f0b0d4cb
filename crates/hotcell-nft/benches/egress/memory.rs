//! What a filter holds, of a thousand in one process over one table.

use std::{
    env, fs,
    net::Ipv4Addr,
    process::{Command, Stdio},
    sync::Arc,
};

use hotcell_egress::{
    dns::{
        serve,
        upstream::{Resolvers, Upstream},
    },
    firewall::Firewall,
    layout::Link,
};
use tokio::net::{TcpListener, UdpSocket};

use crate::{
    ours::{self, RULES},
    row::{Target, row},
    upstream,
};

const FILTERS: u16 = 1_000;

fn resident_kib() -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// In a process of its own, so that nothing that was freed before is used again.
pub(crate) fn of_filters() {
    let output = Command::new("setpriv")
        .args(["--pdeathsig", "KILL"])
        .arg(env::current_exe().unwrap())
        .arg("memory")
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    assert!(output.status.success(), "a thousand filters");
    print!("{}", String::from_utf8(output.stdout).unwrap());
}

/// That process.
pub(crate) fn measure() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let firewall = ours::firewall().await;
        let upstream: Arc<dyn Upstream> = Arc::new(Resolvers::new(&[upstream::ADDRESS]).unwrap());
        let before = resident_kib();
        let mut servers = Vec::with_capacity(FILTERS.into());
        for number in 0..FILTERS {
            let [high, low] = number.to_be_bytes();
            let link = Link {
                sandbox: Ipv4Addr::new(10, 1 + high, low, 2),
                gateway: Ipv4Addr::new(127, 1 + high, low, 1),
            };
            let model = ours::model();
            let short = format!("lease{number}");
            let rules = ours::lease(&model, &short, &format!("sb{number}"), link);
            firewall.add_lease(&ours::table(), &rules).await.unwrap();
            let udp = UdpSocket::bind((link.gateway, 53)).await.unwrap();
            let tcp = TcpListener::bind((link.gateway, 53)).await.unwrap();
            servers.push(serve(ours::dns(model, &firewall, &upstream, &short), udp, tcp));
        }
        let each = resident_kib().saturating_sub(before) as f64 / f64::from(FILTERS);
        row(
            "egress.filter_kib",
            each,
            "KiB",
            Target::None,
            &format!(
                "resident memory for each of {FILTERS} filters of {RULES} rules, with its sockets; the kernel's own \
                 is not in it"
            ),
        );
        drop(servers);
    });
}
