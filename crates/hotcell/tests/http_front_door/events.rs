//! Reading server-sent events.

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

/// One event: id, name, data.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    pub(crate) id: Option<u64>,
    pub(crate) name: String,
    pub(crate) data: Value,
}

/// A stream of them.
pub(crate) struct Events {
    body: Incoming,
    buffer: String,
    /// Keep-alives so far.
    pub(crate) comments: usize,
}

impl Events {
    pub(crate) fn new(body: Incoming) -> Self {
        Self {
            body,
            buffer: String::new(),
            comments: 0,
        }
    }

    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((block, rest)) = self.buffer.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.buffer = rest;
                let field = |name: &str| {
                    block
                        .lines()
                        .find_map(|line| line.strip_prefix(name).map(|v| v.trim_start().to_owned()))
                };
                match field("data:") {
                    Some(data) => {
                        return Some(Event {
                            id: field("id:").map(|id| id.parse().unwrap()),
                            name: field("event:").unwrap(),
                            data: serde_json::from_str(&data).unwrap(),
                        });
                    }
                    None => {
                        self.comments += 1;
                        continue;
                    }
                }
            }
            let frame = self.body.frame().await?.unwrap();
            if let Ok(bytes) = frame.into_data() {
                self.buffer.push_str(std::str::from_utf8(&bytes).unwrap());
            }
        }
    }

    pub(crate) async fn rest(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}
