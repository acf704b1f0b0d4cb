//! `Range`: one range of bytes, or the whole.
//!
//! A header that is no valid single range of bytes is ignored, as RFC 9110 allows: the answer is
//! then the whole file with 200. Only a valid range with nothing in it is 416.

/// What a `Range` header asks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// All of it, with 200.
    Whole,
    /// `first..=last`, with 206.
    Part {
        /// The first byte.
        first: u64,
        /// The last byte; never before the first.
        last: u64,
    },
    /// Nothing of the file lies in the range: 416.
    Nothing,
}

enum Position {
    Empty,
    At(u64),
}

/// Decimal digits only. A number too large to hold is beyond every file.
fn position(text: &str) -> Option<Position> {
    if text.is_empty() {
        return Some(Position::Empty);
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(Position::At(text.parse().unwrap_or(u64::MAX)))
}

/// Reads a `Range` header for a file of `length` bytes.
#[must_use]
pub(super) fn parse(header: &str, length: u64) -> Wanted {
    let Some(specifier) = header.strip_prefix("bytes=") else {
        return Wanted::Whole;
    };
    // No multipart answers: several ranges are the whole file.
    let Some((first, last)) = specifier.trim().split_once('-') else {
        return Wanted::Whole;
    };
    match (position(first.trim()), position(last.trim())) {
        (Some(Position::At(first)), Some(Position::At(last))) if last < first => Wanted::Whole,
        (Some(Position::At(first)), Some(last)) => {
            if first >= length {
                return Wanted::Nothing;
            }
            let last = match last {
                Position::Empty => u64::MAX,
                Position::At(last) => last,
            };
            Wanted::Part {
                first,
                last: last.min(length - 1),
            }
        }
        (Some(Position::Empty), Some(Position::At(suffix))) => {
            if suffix == 0 || length == 0 {
                return Wanted::Nothing;
            }
            Wanted::Part {
                first: length.saturating_sub(suffix),
                last: length - 1,
            }
        }
        _ => Wanted::Whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FA-12.
    #[test]
    fn the_table() {
        let part = |first, last| Wanted::Part { first, last };
        for (header, expected) in [
            ("bytes=0-10", part(0, 10)),
            ("bytes=90-", part(90, 99)),
            ("bytes=-10", part(90, 99)),
            ("bytes=90-110", part(90, 99)),
            ("bytes=0-3145727", part(0, 99)),
            ("bytes=-2000", part(0, 99)),
            ("bytes=100-", Wanted::Nothing),
            ("bytes=-0", Wanted::Nothing),
            ("bytes=5-2", Wanted::Whole),
            ("bytes=abc", Wanted::Whole),
            ("bytes=", Wanted::Whole),
            ("bytes=-", Wanted::Whole),
            ("bytes=+1-2", Wanted::Whole),
            ("lines=0-1", Wanted::Whole),
            ("bytes=0-0,2-2", Wanted::Whole),
            ("bytes=-18446744073709551616", part(0, 99)),
            ("bytes=18446744073709551616-", Wanted::Nothing),
            ("bytes=99-99", part(99, 99)),
        ] {
            assert_eq!(parse(header, 100), expected, "{header}");
        }
        assert_eq!(parse("bytes=0-", 0), Wanted::Nothing);
        assert_eq!(parse("bytes=-5", 0), Wanted::Nothing);
    }

    proptest::proptest! {
        #[test]
        fn a_part_always_lies_in_the_file(header in "bytes=[0-9]{0,22}-[0-9]{0,22}", length: u64) {
            if let Wanted::Part { first, last } = parse(&header, length) {
                proptest::prop_assert!(first <= last && last < length);
            }
        }
    }
}
