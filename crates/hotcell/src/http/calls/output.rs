//! One output stream of a call: what comes of it as bytes, what is told of it as text.
//!
//! ```text
//!   ├─ head, OUTPUT_HEAD_BYTES: told as it comes ─┤ [… N bytes dropped …] ├─ tail: told at the end ─┤
//! ```
//!
//! The sandbox may send more than it should: then this drops between head and tail by itself.

use base64::{Engine, engine::general_purpose::STANDARD};
use hotcell_types::limits::{OUTPUT_HEAD_BYTES, OUTPUT_TAIL_BYTES};

use crate::http::text::{Decoder, cut_at_start};

/// One stream.
#[derive(Default)]
pub(super) struct Output {
    head: Vec<u8>,
    tail: Vec<u8>,
    dropped_bytes: u64,
    decoder: Decoder,
    /// Text that is not told yet.
    pending: String,
}

/// How a stream ended.
pub(super) struct OutputEnd {
    /// Bytes that are missing between head and tail.
    pub(super) dropped_bytes: u64,
    /// The kept bytes, when the text is not the whole truth about them.
    pub(super) base64: Option<String>,
}

impl Output {
    /// Takes the next piece.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let room = OUTPUT_HEAD_BYTES - self.head.len();
        let (head, tail) = bytes.split_at(bytes.len().min(room));
        self.head.extend_from_slice(head);
        self.pending.push_str(&self.decoder.push(head));
        self.tail.extend_from_slice(tail);
        // Dropped in large steps, so that each byte is moved at most twice.
        if self.tail.len() > 2 * OUTPUT_TAIL_BYTES {
            self.shorten();
        }
    }

    fn shorten(&mut self) {
        let surplus = self.tail.len().saturating_sub(OUTPUT_TAIL_BYTES);
        self.tail.drain(..surplus);
        self.dropped_bytes += surplus as u64;
    }

    /// How much text is not told yet, in bytes.
    pub(super) fn pending_bytes(&self) -> usize {
        self.pending.len()
    }

    /// The text that is not told yet.
    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.pending)
    }

    /// Nothing more comes; `dropped_bytes` were dropped inside the sandbox. [`Output::take`] then has the rest.
    pub(super) fn finish(&mut self, dropped_bytes: u64) -> OutputEnd {
        self.shorten();
        self.dropped_bytes = self.dropped_bytes.saturating_add(dropped_bytes);
        if self.dropped_bytes > 0 {
            let half = self.decoder.cut();
            self.head.truncate(self.head.len() - half);
            let other_half = cut_at_start(&self.tail);
            self.tail.drain(..other_half);
            self.dropped_bytes = self
                .dropped_bytes
                .saturating_add((half + other_half) as u64);
            self.pending
                .push_str(&format!("\n[… {} bytes dropped …]\n", self.dropped_bytes));
        }
        self.pending.push_str(&self.decoder.push(&self.tail));
        self.pending.push_str(self.decoder.finish());
        let mut kept = std::mem::take(&mut self.head);
        kept.append(&mut self.tail);
        OutputEnd {
            dropped_bytes: self.dropped_bytes,
            base64: self.decoder.replaced().then(|| STANDARD.encode(&kept)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(pieces: &[&[u8]], dropped: u64) -> (String, OutputEnd) {
        let mut output = Output::default();
        let mut text = String::new();
        for piece in pieces {
            output.push(piece);
            text.push_str(&output.take());
        }
        let end = output.finish(dropped);
        text.push_str(&output.take());
        (text, end)
    }

    #[test]
    fn a_small_output_is_told_whole() {
        let (text, end) = told(&[b"gr\xc3", b"\xbc\xc3\x9fe\n"], 0);
        assert_eq!(
            (text.as_str(), end.dropped_bytes, end.base64),
            ("grüße\n", 0, None)
        );
    }

    /// EX-08, the raw form.
    #[test]
    fn bytes_that_are_no_text_are_there_in_base64() {
        let (text, end) = told(&[b"a\xffb\n"], 0);
        assert_eq!(text, "a\u{FFFD}b\n");
        assert_eq!(end.base64.as_deref(), Some("Yf9iCg=="));
        assert_eq!(told(&[b"x\0y\n"], 0).1.base64.as_deref(), Some("eAB5Cg=="));
    }

    #[test]
    fn what_is_missing_is_marked_where_it_is_missing() {
        let head = vec![b'h'; OUTPUT_HEAD_BYTES];
        let (text, end) = told(&[&head, b"tail"], 7);
        assert_eq!(end.dropped_bytes, 7);
        assert_eq!(
            text.len(),
            head.len() + "\n[… 7 bytes dropped …]\n".len() + 4
        );
        assert!(text.ends_with("h\n[… 7 bytes dropped …]\ntail"));

        // A cut in the midst of a character leaves no replacement characters behind.
        let mut head = vec![b'h'; OUTPUT_HEAD_BYTES - 2];
        head.extend_from_slice("测".as_bytes());
        let (text, end) = told(
            &[&head[..OUTPUT_HEAD_BYTES], "试".as_bytes().split_at(1).1],
            100,
        );
        assert_eq!((end.dropped_bytes, end.base64), (104, None));
        assert!(text.ends_with("h\n[… 104 bytes dropped …]\n"));
    }

    #[test]
    fn a_sandbox_that_sends_too_much_fills_no_memory() {
        let mut output = Output::default();
        let chunk = vec![b'x'; 1 << 16];
        for _ in 0..1_000 {
            output.push(&chunk);
            output.take();
            assert!(output.tail.len() <= 2 * OUTPUT_TAIL_BYTES + chunk.len());
        }
        let end = output.finish(0);
        let kept = OUTPUT_HEAD_BYTES + OUTPUT_TAIL_BYTES;
        assert_eq!(end.dropped_bytes, (1_000 << 16) - kept as u64);
        assert!(output.take().len() < kept);
    }
}
