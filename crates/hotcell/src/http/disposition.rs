//! `Content-Disposition: attachment` for any file name that Linux allows.
//!
//! Two forms, after RFC 6266: `filename="…"` holds a harmless ASCII likeness, and
//! `filename*=UTF-8''…` the true name. The second is left out only when the first is the true
//! name and every browser reads it alike.

use http::HeaderValue;

/// RFC 5987 `attr-char`: what stands for itself in `filename*`.
const fn is_attr_char(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#' | b'$' | b'&' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        )
}

fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| is_attr_char(byte) || byte == b' ') && name.trim() == name
}

/// Something that is safe between quotes: other scripts, control characters, quotes, backslashes,
/// separators and `%` (which some browsers decode) become `_`.
fn likeness(name: &str) -> String {
    name.chars()
        .map(|c| match c {
            '"' | '\\' | '%' | ';' | '/' => '_',
            ' '..='~' => c,
            _ => '_',
        })
        .collect()
}

fn percent_encoded(name: &str) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(name.len() * 3);
    for byte in name.bytes() {
        if is_attr_char(byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// The header's value for a download under this name.
#[must_use]
pub(super) fn attachment(name: &str) -> HeaderValue {
    let text = if is_plain(name) {
        format!("attachment; filename=\"{name}\"")
    } else {
        format!(
            "attachment; filename=\"{}\"; filename*=UTF-8''{}",
            likeness(name),
            percent_encoded(name)
        )
    };
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static("attachment"))
}

#[cfg(test)]
mod tests {
    use percent_encoding::percent_decode_str;

    use super::*;

    fn header(name: &str) -> String {
        attachment(name).to_str().unwrap().to_owned()
    }

    /// FA-05.
    #[test]
    fn other_scripts_have_a_likeness_and_the_true_name() {
        for (name, likeness, starred) in [
            (
                "测试 报告.pdf",
                "__ __.pdf",
                "%E6%B5%8B%E8%AF%95%20%E6%8A%A5%E5%91%8A.pdf",
            ),
            ("résumé.txt", "r_sum_.txt", "r%C3%A9sum%C3%A9.txt"),
            (
                "плюс+100%.csv",
                "____+100_.csv",
                "%D0%BF%D0%BB%D1%8E%D1%81+100%25.csv",
            ),
            ("it's (1)*.md", "it's (1)*.md", "it%27s%20%281%29%2A.md"),
        ] {
            assert_eq!(
                header(name),
                format!("attachment; filename=\"{likeness}\"; filename*=UTF-8''{starred}")
            );
        }
        assert_eq!(header("report.pdf"), "attachment; filename=\"report.pdf\"");
        assert_eq!(
            header("my report.pdf"),
            "attachment; filename=\"my report.pdf\""
        );
    }

    /// FA-06.
    #[test]
    fn no_name_breaks_the_header() {
        for name in [
            "61,UF_1000,QL80.jpg",
            "rapport \"final\", v2;x.pdf",
            "a\r\nSet-Cookie: x=1.txt",
            "back\\slash.txt",
            "\ttab.txt",
            ".htaccess",
            "..foo",
            " lead.txt",
            "trail .txt",
            "-rf",
            "%41.txt",
            "con.txt",
        ] {
            let header = header(name);
            assert!(
                header.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
                "{header}"
            );
            let rest = header.strip_prefix("attachment; filename=\"").unwrap();
            let (quoted, rest) = rest.split_once('"').unwrap();
            assert!(!quoted.contains(['\\', ';']), "{header}");
            let told = match rest.strip_prefix("; filename*=UTF-8''") {
                Some(starred) => percent_decode_str(starred)
                    .decode_utf8()
                    .unwrap()
                    .into_owned(),
                None => {
                    assert_eq!(rest, "");
                    quoted.to_owned()
                }
            };
            assert_eq!(told, name);
        }
        assert!(
            header("rapport \"final\", v2;x.pdf")
                .ends_with("rapport%20%22final%22%2C%20v2%3Bx.pdf")
        );
        assert!(header("a\r\nSet-Cookie: x=1.txt").ends_with("a%0D%0ASet-Cookie%3A%20x%3D1.txt"));
    }
}
