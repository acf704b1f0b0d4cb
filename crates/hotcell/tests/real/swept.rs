//! A lease whose sandbox vanished while no daemon ran: whatever its filter had in the kernel (tables,
//! chains, sets, links, namespaces) goes with the next daemon's first look. That of another lease
//! beside it is adopted and stays.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use hotcell_testkit::{Footprint, Site, internet::Internet, wait_for, wait_until};

use super::{
    bash, end,
    engines::ContainerEngine,
    filtered::{self, DENIED, ask, connect, fetch, save, says},
    on_runtimes, site_with,
};

on_runtimes!(
    runsc runc docker docker_runsc podman podman_runsc: (nothing_of_a_vanished_lease_stays)
);

const ALLOW_OK: &str = r#"{"egress": [{"action": "allow", "target": "ok.example.org"}]}"#;

/// Everything of filters that is in the kernel: where it is, and its name.
fn traces(site: &Site, internet: &Internet) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut note = |place: &str, text: &str, of: fn(&str) -> bool| {
        for line in text.lines().map(str::trim).filter(|line| of(line)) {
            found.insert(format!("{place}: {line}"));
        }
    };
    let is_ours = |line: &str| line.starts_with("table") && line.contains("hotcell");
    note(
        "host",
        &internet.run_on_host("nft", &["list", "tables"]),
        is_ours,
    );
    // An interface's name stands before the one at its other end.
    let links = internet.run_on_host("ip", &["-br", "link"]);
    let links = links.replace('@', "\n");
    note("host", &links, |line| line.starts_with("hcu-"));
    let namespaces = ["run/netns", "run/containers/netns"]
        .into_iter()
        .filter_map(|place| fs::read_dir(site.dir().join(place)).ok());
    for entry in namespaces.flatten().map(Result::unwrap) {
        let place = entry.file_name().to_string_lossy().into_owned();
        note(&place, "a namespace", |_| true);
        let there = format!("--net={}", entry.path().display());
        for words in [
            ["nft", "list", "chains"].as_slice(),
            &["nft", "list", "sets"],
            &["ip", "-br", "link"],
        ] {
            let output = Command::new("nsenter").arg(&there).args(words).output();
            let text = String::from_utf8_lossy(&output.unwrap().stdout).replace('@', "\n");
            note(&place, &text, |line| {
                ["table", "chain", "set", "sb", "hc"]
                    .iter()
                    .any(|begin| line.starts_with(begin))
            });
        }
    }
    found
}

/// Ends a sandbox and forgets it, as somebody does who knows nothing of the daemon.
fn remove_by_hand(site: &Site, runtime: &str, lease: &str) {
    if let Some(engine) = ContainerEngine::named(runtime) {
        engine.remove(lease);
        return;
    }
    let of_lease = |line: &&String| line.contains(lease);
    for line in site.footprint().processes.iter().filter(of_lease) {
        let pid = line.split(' ').next().unwrap();
        // One may end with another.
        let _ = Command::new("kill").args(["-9", pid]).status();
    }
    let directory = site.dir().join("state/sandboxes").join(lease);
    unmount(&directory);
    fs::remove_dir_all(&directory).unwrap();
}

fn unmount(beneath: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    for place in places.filter(|it| Path::new(it).starts_with(beneath)) {
        let _ = Command::new("umount").args(["-l", place]).status();
    }
}

async fn nothing_of_a_vanished_lease_stays(runtime: &str) {
    let internet = filtered::internet();
    let site = site_with(&filtered::table(runtime)).on_host_of(&internet);
    let daemon = site.start();
    let client = daemon.operator.switch_on().await;
    save(&daemon.operator, ALLOW_OK).await;
    let kept = bash(&client, "kept", &fetch("ok.example.org")).await;
    assert_eq!(kept["exit_code"], 0, "{kept}");
    let of_kept = traces(&site, &internet);
    assert!(of_kept.len() > 3, "nothing is seen: {of_kept:?}");
    let gone = bash(&client, "gone", &fetch("ok.example.org")).await;
    assert_eq!(gone["exit_code"], 0, "{gone}");
    let of_both = traces(&site, &internet);
    assert!(of_both.is_superset(&of_kept), "{of_kept:?}\n{of_both:?}");
    assert!(of_both.len() > of_kept.len() + 2, "{of_both:?}");

    daemon.kill();
    remove_by_hand(&site, runtime, gone["lease"]["id"].as_str().unwrap());
    assert!(
        traces(&site, &internet).len() > of_kept.len(),
        "it stays by itself"
    );
    let daemon = site.start();
    let (key, secret) = client.credential().unwrap();
    let client = daemon.operator.signing(key, secret);
    wait_for("what the vanished lease left to go", async || {
        (traces(&site, &internet) == of_kept).then_some(())
    })
    .await;
    // The other one is what it was.
    let after = bash(&client, "kept", &fetch("ok.example.org")).await;
    assert_eq!(after["exit_code"], 0, "{after}");
    assert_eq!(after["lease"]["id"], kept["lease"]["id"]);
    assert_eq!(
        bash(&client, "kept", &ask("no.example.org")).await["stdout"],
        "3\n"
    );
    let denied = bash(&client, "kept", &connect(DENIED, 443)).await;
    assert_eq!(denied["stdout"], "", "{denied}");
    assert!(says(&denied, "blocked by network policy"), "{denied}");
    // And the chat whose sandbox is gone gets a new one.
    let again = bash(&client, "gone", &fetch("ok.example.org")).await;
    assert_eq!(again["exit_code"], 0, "{again}");
    assert_ne!(again["lease"]["id"], gone["lease"]["id"]);
    end(&client, "gone").await;
    end(&client, "kept").await;
    wait_until("the leases' directories to go", || {
        site.footprint().leases.is_empty()
    })
    .await;
    daemon.stop();
    // The embedded runtime keeps its gateway until it ends itself.
    let left: BTreeSet<String> = traces(&site, &internet)
        .into_iter()
        .filter(|it| it.starts_with("host"))
        .collect();
    assert_eq!(left, BTreeSet::new());
    assert_eq!(site.footprint(), Footprint::default());
}
