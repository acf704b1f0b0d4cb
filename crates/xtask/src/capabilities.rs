//! What the unit lets the service have of root's powers, compared with the list that says why.
//!
//! systemd counts capabilities in groups: once one of a group is there, another adds nothing to the
//! exposure. So the names themselves are compared, with the table in the guide that says what
//! happens without each.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};

const BOUNDING: &str = "CapabilityBoundingSet";
const AMBIENT: &str = "AmbientCapabilities";
const TABLE_BEGIN: &str = "\n## Capabilities\n";

/// Fails when a unit of this text allows a capability that the guide does not account for, or the
/// guide accounts for one that it does not allow.
pub(crate) fn judge(unit: &str, guide: &str) -> Result<usize> {
    let allowed = allowed_by(unit)?;
    let justified = justified_in(guide).context("the guide has no table of capabilities")?;
    let more: Vec<_> = allowed.difference(&justified).copied().collect();
    ensure!(
        more.is_empty(),
        "the unit allows {}, and the guide does not say what happens without it",
        more.join(", ")
    );
    let fewer: Vec<_> = justified.difference(&allowed).copied().collect();
    ensure!(
        fewer.is_empty(),
        "the unit no longer allows {}: take it out of the guide's table",
        fewer.join(", ")
    );
    Ok(allowed.len())
}

/// The capabilities that a unit names one by one. Anything else that could add some is refused.
fn allowed_by(unit: &str) -> Result<BTreeSet<&str>> {
    let mut allowed = None;
    for (key, value) in unit.lines().filter_map(|line| line.split_once('=')) {
        let (key, value) = (key.trim(), value.trim());
        // The program is root, and needs none handed to it.
        ensure!(key != AMBIENT, "the unit has a line {AMBIENT}");
        if key != BOUNDING {
            continue;
        }
        // A second line adds to the first, and an empty one or one with a tilde means all others.
        ensure!(
            allowed.is_none(),
            "the unit has two lines {BOUNDING}: make them one"
        );
        let names: BTreeSet<&str> = value.split_whitespace().collect();
        if let Some(other) = names.iter().find(|name| !is_capability(name)) {
            bail!("{BOUNDING} holds {other}, which is no name of a capability");
        }
        ensure!(
            !names.is_empty(),
            "{BOUNDING} is empty, which takes back what was said before"
        );
        allowed = Some(names);
    }
    allowed.with_context(|| format!("the unit has no line {BOUNDING}, so it allows all of them"))
}

/// The first column of the guide's table: a row may name several.
fn justified_in(guide: &str) -> Option<BTreeSet<&str>> {
    let (_, rest) = guide.split_once(TABLE_BEGIN)?;
    let (section, _) = rest.split_once("\n## ").unwrap_or((rest, ""));
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let firsts = rows.filter_map(|row| row.split('|').next());
    let names: BTreeSet<&str> = firsts
        .flat_map(|first| first.split('`'))
        .filter(|word| is_capability(word))
        .collect();
    (!names.is_empty()).then_some(names)
}

fn is_capability(word: &str) -> bool {
    word.strip_prefix("CAP_").is_some_and(|rest| {
        !rest.is_empty()
            && rest
                .bytes()
                .all(|byte| byte.is_ascii_uppercase() || byte == b'_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{service, shell};

    fn files() -> (String, String) {
        let read = |path| std::fs::read_to_string(shell::root().join(path)).unwrap();
        (read(service::UNIT), read(service::RECORD))
    }

    #[test]
    fn a_capability_more_or_less_is_seen_each() {
        let (unit, guide) = files();
        let count = judge(&unit, &guide).unwrap();
        assert!(count >= 10, "{count}");
        let begin = format!("{BOUNDING}=");
        // The first four are in groups that systemd counts already.
        for more in [
            "CAP_DAC_READ_SEARCH",
            "CAP_IPC_OWNER",
            "CAP_NET_BROADCAST",
            "CAP_FOWNERS",
            "CAP_BPF",
            "CAP_SYS_RAWIO",
        ] {
            let weaker = unit.replace(&begin, &format!("{begin}{more} "));
            let error = judge(&weaker, &guide).unwrap_err().to_string();
            assert!(error.contains(more), "{error}");
        }
        for one in allowed_by(&unit).unwrap() {
            let fewer = unit
                .replace(&format!("{one} "), "")
                .replace(&format!(" {one}\n"), "\n");
            let error = judge(&fewer, &guide).unwrap_err().to_string();
            assert!(error.contains(one), "{one}: {error}");
        }
    }

    #[test]
    fn other_ways_to_more_capabilities_are_refused() {
        let (unit, guide) = files();
        let begin = format!("{BOUNDING}=");
        let planted = |text: &str| unit.replace(&begin, &format!("{text}\n{begin}"));
        for (weaker, said) in [
            (planted("AmbientCapabilities=CAP_KILL"), AMBIENT),
            (planted(" AmbientCapabilities = CAP_KILL"), AMBIENT),
            (planted("CapabilityBoundingSet=CAP_KILL"), "two lines"),
            (unit.replace(&begin, "CapabilityBoundingSet=~"), "no name"),
            (unit.replace(&begin, "CapabilityBoundingSet=\n#"), "empty"),
            (unit.replace(&begin, "#"), "all of them"),
        ] {
            let error = judge(&weaker, &guide).unwrap_err().to_string();
            assert!(error.contains(said), "{said}: {error}");
        }
    }

    #[test]
    fn a_guide_without_its_table_is_an_error() {
        let (unit, guide) = files();
        assert!(judge(&unit, &guide.replace(TABLE_BEGIN, "\n")).is_err());
        assert!(judge(&unit, "\n## Capabilities\n\nnone\n").is_err());
    }
}
