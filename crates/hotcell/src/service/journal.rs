//! The journal's own protocol, so that `journalctl HOTCELL_LEASE=…` finds what belongs together.
//!
//! An event becomes one datagram: its message with its fields in words, and each of its fields,
//! and those of the spans around it, as a field of the journal:
//!
//! | in the code | in the journal |
//! |---|---|
//! | `message` | `MESSAGE` |
//! | `request_id` | `HOTCELL_REQUEST` |
//! | `lease`, `workspace`, `chat`, … | `HOTCELL_LEASE`, `HOTCELL_WORKSPACE`, `HOTCELL_CHAT`, … |
//! | level | `PRIORITY` |

use std::{
    collections::BTreeMap, fmt::Write, io, os::unix::net::UnixDatagram, path::Path, time::Duration,
};

use hotcell_types::limits::MAX_DATAGRAM_BYTES;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

/// Where journald listens.
const SOCKET: &str = "/run/systemd/journal/socket";
/// The longest value of one field, in bytes.
const MAX_VALUE_BYTES: usize = 16 * 1024;
/// How long journald may take to take an event, before that is lost.
const PATIENCE: Duration = Duration::from_secs(1);

/// Whether stderr of this process is the journal, as `JOURNAL_STREAM` says.
#[must_use]
pub fn is_journal() -> bool {
    let Ok(stat) = rustix::fs::fstat(rustix::stdio::stderr()) else {
        return false;
    };
    std::env::var("JOURNAL_STREAM").is_ok_and(|text| is_stream(&text, stat.st_dev, stat.st_ino))
}

fn is_stream(text: &str, device: u64, inode: u64) -> bool {
    text.split_once(':').is_some_and(|(of_device, of_inode)| {
        of_device.parse() == Ok(device) && of_inode.parse() == Ok(inode)
    })
}

/// Sends events to the journal.
#[derive(Debug)]
pub struct Journal {
    socket: UnixDatagram,
}

impl Journal {
    /// Connects to journald.
    ///
    /// # Errors
    /// There is none.
    pub fn open() -> io::Result<Self> {
        Self::at(Path::new(SOCKET))
    }

    /// Connects to a journal that listens there.
    ///
    /// # Errors
    /// None does.
    pub fn at(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { socket })
    }
}

/// Fields by their name in the journal.
#[derive(Debug, Default, Clone)]
struct Fields(BTreeMap<String, String>);

impl Fields {
    fn put(&mut self, field: &Field, value: &dyn std::fmt::Display) {
        let name = match field.name() {
            "message" => "MESSAGE".to_owned(),
            "request_id" => "HOTCELL_REQUEST".to_owned(),
            name => {
                let known = |c: char| {
                    if c.is_ascii_alphanumeric() {
                        c.to_ascii_uppercase()
                    } else {
                        '_'
                    }
                };
                format!("HOTCELL_{}", name.chars().map(known).collect::<String>())
            }
        };
        let mut text = value.to_string();
        if text.len() > MAX_VALUE_BYTES {
            let end = text.floor_char_boundary(MAX_VALUE_BYTES);
            text.truncate(end);
            text.push('…');
        }
        self.0.insert(name, text);
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, &value);
    }
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.put(field, &format_args!("{value:?}"));
    }
}

fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        _ => "7",
    }
}

/// One field on the wire: a value with a line end takes its length before it.
fn put(datagram: &mut Vec<u8>, name: &str, value: &str) {
    // What does not fit any more is left out; journald would refuse the whole.
    if datagram.len() + name.len() + value.len() + 16 > MAX_DATAGRAM_BYTES {
        return;
    }
    datagram.extend_from_slice(name.as_bytes());
    if value.contains('\n') {
        datagram.push(b'\n');
        datagram.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        datagram.push(b'=');
    }
    datagram.extend_from_slice(value.as_bytes());
    datagram.push(b'\n');
}

impl<S: Subscriber + for<'l> LookupSpan<'l>> Layer<S> for Journal {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut own = Fields::default();
        event.record(&mut own);
        // Whoever reads without asking for fields sees them in the message.
        let mut message = own.0.remove("MESSAGE").unwrap_or_default();
        for (name, value) in &own.0 {
            let name = name.trim_start_matches("HOTCELL_").to_ascii_lowercase();
            // Writing to a string does not fail.
            let _ = write!(message, " {name}={value}");
        }
        let mut all = Fields::default();
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(fields) = span.extensions().get::<Fields>() {
                for (name, value) in &fields.0 {
                    // The inner span knows better.
                    all.0.entry(name.clone()).or_insert_with(|| value.clone());
                }
            }
        }
        all.0.extend(own.0);
        let metadata = event.metadata();
        let mut datagram = Vec::with_capacity(512);
        put(&mut datagram, "MESSAGE", &message);
        put(&mut datagram, "PRIORITY", priority(*metadata.level()));
        put(&mut datagram, "SYSLOG_IDENTIFIER", "hotcell");
        put(&mut datagram, "HOTCELL_TARGET", metadata.target());
        for (name, value) in &all.0 {
            put(&mut datagram, name, value);
        }
        // There is nowhere else to tell it.
        let _ = self.socket.send(&datagram);
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    fn parse(mut bytes: &[u8]) -> BTreeMap<String, String> {
        let mut fields = BTreeMap::new();
        while !bytes.is_empty() {
            let end = bytes
                .iter()
                .position(|b| matches!(b, b'=' | b'\n'))
                .unwrap();
            let name = String::from_utf8(bytes[..end].to_vec()).unwrap();
            let value = if bytes[end] == b'=' {
                let length = bytes.iter().position(|b| *b == b'\n').unwrap();
                let value = &bytes[end + 1..length];
                bytes = &bytes[length + 1..];
                value
            } else {
                let (length, rest) = bytes[end + 1..].split_first_chunk::<8>().unwrap();
                let (value, rest) = rest.split_at(u64::from_le_bytes(*length) as usize);
                bytes = rest.strip_prefix(b"\n").unwrap();
                value
            };
            let old = fields.insert(name, String::from_utf8(value.to_vec()).unwrap());
            assert!(old.is_none());
        }
        fields
    }

    #[test]
    fn events_carry_the_fields_of_the_spans_around_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let journald = UnixDatagram::bind(&path).unwrap();
        let layer = Journal::at(&path).unwrap();
        let receive = || {
            let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
            let bytes = journald.recv(&mut buffer).unwrap();
            parse(&buffer[..bytes])
        };
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!(
                "request",
                request_id = "rq_1",
                workspace = "w1",
                lease = tracing::field::Empty
            );
            let _entered = span.enter();
            span.record("lease", "ls_1");
            tracing::warn!(
                error = "line one\nPRIORITY=0",
                latency_ms = 7_u64,
                "it failed"
            );
            let fields = receive();
            let wanted = [
                (
                    "MESSAGE",
                    " it failed error=line one\nPRIORITY=0 latency_ms=7".trim_start(),
                ),
                ("PRIORITY", "4"),
                ("SYSLOG_IDENTIFIER", "hotcell"),
                ("HOTCELL_REQUEST", "rq_1"),
                ("HOTCELL_WORKSPACE", "w1"),
                ("HOTCELL_LEASE", "ls_1"),
                ("HOTCELL_ERROR", "line one\nPRIORITY=0"),
                ("HOTCELL_LATENCY_MS", "7"),
            ];
            for (name, value) in wanted {
                assert_eq!(fields.get(name).map(String::as_str), Some(value), "{name}");
            }
            // An event's own field stands over the span's.
            tracing::info!(lease = %"ls_2", "another");
            assert_eq!(receive()["HOTCELL_LEASE"], "ls_2");
            // However long it is, it is one datagram with a message.
            tracing::error!(output = "ü".repeat(200_000), "long");
            let fields = receive();
            assert!(fields["MESSAGE"].starts_with("long output=üü"));
            assert!(fields["HOTCELL_OUTPUT"].ends_with('…'));
        });
        // A journal that is gone holds nobody up.
        drop(journald);
        let layer = Journal::at(&path);
        assert!(layer.is_err());
    }

    #[test]
    fn only_the_very_stream_is_the_journal() {
        assert!(is_stream("8:42", 8, 42));
        for other in ["8:43", "9:42", "8", ":", "", "8:42:1", "a:b"] {
            assert!(!is_stream(other, 8, 42), "{other}");
        }
    }
}
