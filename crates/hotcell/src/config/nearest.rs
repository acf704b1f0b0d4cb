//! The key that somebody probably meant.

/// What changes a name may differ by, as a part of its length.
const TOLERANCE: usize = 3;

/// The nearest of `known` to a key that is not, if one is near enough.
///
/// A key in the wrong table is near to the one of the same name elsewhere; a key without its unit is
/// near to the one with it.
pub(super) fn of<'a>(key: &str, known: &'a [String]) -> Option<&'a str> {
    known
        .iter()
        .map(|candidate| (distance_of(key, candidate), candidate))
        .filter(|(distance, candidate)| {
            *distance <= allowed(last(key)).max(allowed(last(candidate)))
        })
        .min()
        .map(|(_, candidate)| candidate.as_str())
}

fn allowed(name: &str) -> usize {
    (name.len() / TOLERANCE).max(1)
}

fn last(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

fn distance_of(key: &str, candidate: &str) -> usize {
    let table = |key: &str| key.rsplit_once('.').map(|(table, _)| table.to_owned());
    let (name, other) = (without_unit(last(key)), without_unit(last(candidate)));
    // The same name in another table comes after one in its own.
    let by_name = edits(name, other) + usize::from(table(key) != table(candidate));
    edits(key, candidate).min(by_name)
}

/// A name without what it is counted in.
fn without_unit(name: &str) -> &str {
    [
        "_ms", "_s", "_sec", "_secs", "_seconds", "_bytes", "_mb", "_gb", "_mib", "_gib",
    ]
    .iter()
    .find_map(|unit| name.strip_suffix(unit))
    .unwrap_or(name)
}

/// How many characters have to be put in, taken out or changed.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let same = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = same.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        for (a, b, count) in [
            ("", "abc", 3),
            ("listen", "listne", 2),
            ("kind", "kind", 0),
            ("a", "b", 1),
        ] {
            assert_eq!(edits(a, b), count, "{a} {b}");
            assert_eq!(edits(b, a), count, "{b} {a}");
        }
    }
}
