//! Request targets: a path and its query, encoded so that what is signed is what is sent.

use std::fmt::Write;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Everything but RFC 3986's unreserved characters and `/`, which a query may hold as it is.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// A request target under construction.
pub(crate) struct Target {
    text: String,
    joint: char,
}

impl Target {
    pub(crate) fn new(path: &str) -> Self {
        Self {
            text: path.to_owned(),
            joint: '?',
        }
    }

    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Self {
        let value = value.to_string();
        let value = utf8_percent_encode(&value, QUERY);
        // Writing into a String cannot fail.
        let _ = write!(self.text, "{}{name}={value}", self.joint);
        self.joint = '&';
        self
    }

    pub(crate) fn into_string(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_cannot_leave_their_place() {
        let target = Target::new("/v1/files")
            .with("path", "/workspace/a b&c=d#e?f%41\n测.txt")
            .with("mode", 0o644);
        assert_eq!(
            target.into_string(),
            "/v1/files?path=/workspace/a%20b%26c%3Dd%23e%3Ff%2541%0A%E6%B5%8B.txt&mode=420"
        );
    }
}
