//! Output bytes as text, also when they come in pieces.
//!
//! Each invalid UTF-8 sequence becomes one U+FFFD, as `String::from_utf8_lossy` does it, and so
//! does each NUL, which many readers of JSON cannot hold. A sequence that is cut between two
//! pieces is kept back until its rest comes.

/// Decodes pieces of one stream.
#[derive(Debug, Default)]
pub(in crate::http) struct Decoder {
    /// The start of a sequence whose rest has not come: at most three bytes.
    kept: Vec<u8>,
    replaced: bool,
}

impl Decoder {
    /// Whether anything was replaced so far, so that the text is not the whole truth.
    #[must_use]
    pub(in crate::http) fn replaced(&self) -> bool {
        self.replaced
    }

    /// The text of the next piece.
    pub(in crate::http) fn push(&mut self, bytes: &[u8]) -> String {
        if self.kept.is_empty() {
            self.decode(bytes)
        } else {
            let mut joined = std::mem::take(&mut self.kept);
            joined.extend_from_slice(bytes);
            self.decode(&joined)
        }
    }

    /// The stream has ended: what was kept back is no sequence.
    pub(in crate::http) fn finish(&mut self) -> &'static str {
        if self.kept.is_empty() {
            return "";
        }
        self.kept.clear();
        self.replaced = true;
        "\u{FFFD}"
    }

    /// The stream was cut here: a sequence that lacks its rest is dropped, not replaced. How many
    /// bytes that were.
    pub(in crate::http) fn cut(&mut self) -> usize {
        std::mem::take(&mut self.kept).len()
    }

    fn decode(&mut self, mut bytes: &[u8]) -> String {
        let mut text = String::with_capacity(bytes.len());
        loop {
            match std::str::from_utf8(bytes) {
                Ok(valid) => {
                    self.append(&mut text, valid);
                    return text;
                }
                Err(error) => {
                    let (valid, rest) = bytes.split_at(error.valid_up_to());
                    // `valid` is valid: that is what the error says.
                    self.append(&mut text, std::str::from_utf8(valid).unwrap_or_default());
                    let Some(invalid) = error.error_len() else {
                        self.kept = rest.to_vec();
                        return text;
                    };
                    text.push('\u{FFFD}');
                    self.replaced = true;
                    bytes = &rest[invalid..];
                }
            }
        }
    }

    fn append(&mut self, text: &mut String, valid: &str) {
        if valid.contains('\0') {
            self.replaced = true;
            text.extend(
                valid
                    .chars()
                    .map(|c| if c == '\0' { '\u{FFFD}' } else { c }),
            );
        } else {
            text.push_str(valid);
        }
    }
}

/// How many bytes at the start of `tail` are the cut end of a sequence.
#[must_use]
pub(in crate::http) fn cut_at_start(tail: &[u8]) -> usize {
    tail.iter()
        .take(3)
        .take_while(|byte| (0x80..0xC0).contains(*byte))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(bytes: &[u8]) -> (String, bool) {
        let mut decoder = Decoder::default();
        let mut text = decoder.push(bytes);
        text.push_str(decoder.finish());
        (text, decoder.replaced())
    }

    /// EX-08, the text form.
    #[test]
    fn bad_bytes_are_replaced_one_by_one_and_the_rest_is_intact() {
        assert_eq!(whole(b"a\xffb\n"), ("a\u{FFFD}b\n".into(), true));
        assert_eq!(whole(b"\xf0"), ("\u{FFFD}".into(), true));
        assert_eq!(whole(b"x\0y\n"), ("x\u{FFFD}y\n".into(), true));
        assert_eq!(
            whole("grüße 测试\n".as_bytes()),
            ("grüße 测试\n".into(), false)
        );
        assert_eq!(
            whole(b"\xff\xfeh\0i\0"),
            ("\u{FFFD}\u{FFFD}h\u{FFFD}i\u{FFFD}".into(), true)
        );
    }

    #[test]
    fn a_cut_drops_half_sequences_on_both_sides() {
        let text = "ab\u{6d4b}".as_bytes();
        let mut decoder = Decoder::default();
        assert_eq!(decoder.push(&text[..4]), "ab");
        assert_eq!(decoder.cut(), 2);
        assert_eq!(
            (decoder.push(b"c"), decoder.replaced()),
            ("c".into(), false)
        );
        assert_eq!(cut_at_start(&text[2..]), 0);
        assert_eq!(cut_at_start(&text[3..]), 2);
        assert_eq!(cut_at_start(&text[4..]), 1);
    }

    proptest::proptest! {
        #[test]
        fn pieces_give_the_same_text_as_the_whole(
            bytes: Vec<u8>, cuts in proptest::collection::vec(0usize..64, 0..8)
        ) {
            let mut decoder = Decoder::default();
            let mut text = String::new();
            let mut rest = bytes.as_slice();
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                text.push_str(&decoder.push(piece));
                rest = after;
            }
            text.push_str(&decoder.push(rest));
            text.push_str(decoder.finish());
            proptest::prop_assert_eq!(
                text,
                String::from_utf8_lossy(&bytes).replace('\0', "\u{FFFD}")
            );
        }
    }
}
