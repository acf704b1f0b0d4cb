use hotcell_types::limits::{
    MAX_OUTPUT_CHARACTERS_PER_COLLECTION, MAX_OUTPUTS_PER_COLLECTION, MAX_PATHS_PER_COLLECTION,
};

use super::*;

#[test]
fn only_files_of_some_types_in_some_places() {
    for good in [
        "a.pdf",
        "/workspace/x/Y.PNG",
        "/mnt/user-data/a.csv",
        "/tmp/a.md",
        "x/../a.txt",
    ] {
        assert!(allowed(&OutputLimits::default(), good).is_ok(), "{good}");
    }
    for (bad, part) in [
        ("", "not a path"),
        ("/..", "not a path"),
        ("/etc/hosts.txt", "only files in"),
        ("../etc/x.txt", "only files in"),
        ("/mnt/skills/a.md", "only files in"),
        ("/mnt/uploaded-files/a.csv", "only files in"),
        ("/workspace", "only files in"),
        ("/workspacex/a.txt", "only files in"),
        ("a.exe", "file type"),
        ("a.txt.sh", "file type"),
        (".txt", "file type"),
        ("txt", "file type"),
    ] {
        let reason = allowed(&OutputLimits::default(), bad).unwrap_err();
        assert!(reason.contains(part), "{bad}: {reason}");
    }
}

#[test]
fn the_answer_stays_within_its_characters() {
    let skipped: Vec<Skipped> = (0..MAX_PATHS_PER_COLLECTION)
        .map(|index| Skipped {
            path: format!("{index}{}", "ü".repeat(4_000)),
            reason: allowed(&OutputLimits::default(), "x.exe").unwrap_err(),
        })
        .collect();
    let outputs = (0..MAX_OUTPUTS_PER_COLLECTION as u128)
        .map(|bits| Output {
            id: OutputId::from_bits(bits),
            name: "x".repeat(255).parse().unwrap(),
            bytes: 1,
            media_type: media_type(&"x.pptx".parse().unwrap()).to_owned(),
            sha256: "0".repeat(64),
            created_at_ms: hotcell_types::UnixMillis(0),
            content_url: "x".repeat(360),
            preview_url: None,
        })
        .collect();
    let result = shortened(outputs, skipped, MAX_OUTPUT_CHARACTERS_PER_COLLECTION);
    assert_eq!(result.skipped.len(), MAX_PATHS_PER_COLLECTION);
    let text: usize = result
        .skipped
        .iter()
        .map(|entry| characters(&entry.path) + characters(&entry.reason))
        .chain(
            result
                .outputs
                .iter()
                .map(|o| characters(o.name.as_str()) + o.content_url.len() + 120),
        )
        .sum();
    assert!(text <= MAX_OUTPUT_CHARACTERS_PER_COLLECTION, "{text}");

    let few = vec![Skipped {
        path: "y".repeat(4_096),
        reason: "no".into(),
    }];
    assert_eq!(shortened(Vec::new(), few.clone(), 50_000).skipped, few);
}
