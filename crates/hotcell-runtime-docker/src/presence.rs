//! Whether the engine has been the same all the time.
//!
//! Docker ends its containers when it starts again, and afterwards shows them as if they had
//! ended by themselves. A connection that is held open tells: it breaks when the engine goes.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hotcell_types::InstallationId;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::sleep,
};
use tokio_util::task::AbortOnDropHandle;

use crate::{config::EngineSocket, labels::INSTALLATION};

/// Between two tries to reach an engine that is away.
const AGAIN: Duration = Duration::from_millis(200);

/// Counts how often the engine went away.
pub(crate) struct Presence {
    absences: Arc<AtomicU64>,
    _watch: AbortOnDropHandle<()>,
}

impl Presence {
    /// Begins to watch, for as long as this lives.
    pub(crate) fn watch(socket: EngineSocket, installation: &InstallationId) -> Self {
        let absences = Arc::new(AtomicU64::new(0));
        // A stream that the engine keeps open and has little to say on.
        let filters = format!(r#"{{"label":["{INSTALLATION}={installation}"]}}"#);
        let filters = utf8_percent_encode(&filters, NON_ALPHANUMERIC);
        let request = format!("GET /events?filters={filters} HTTP/1.1\r\nHost: engine\r\n\r\n");
        let count = Arc::clone(&absences);
        let task = tokio::spawn(async move {
            loop {
                if let Ok(stream) = UnixStream::connect(socket.as_str()).await {
                    let error = hold(stream, request.as_bytes()).await.err();
                    tracing::debug!(%socket, ?error, "the engine has gone");
                    count.fetch_add(1, Ordering::Relaxed);
                }
                sleep(AGAIN).await;
            }
        });
        Self {
            absences,
            _watch: AbortOnDropHandle::new(task),
        }
    }

    pub(crate) fn absences(&self) -> u64 {
        self.absences.load(Ordering::Relaxed)
    }
}

/// Reads past everything until the other side goes.
async fn hold(mut stream: UnixStream, request: &[u8]) -> io::Result<()> {
    stream.write_all(request).await?;
    let mut ignored = [0; 4_096];
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn every_end_of_the_engine_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("engine.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let socket = path.to_str().unwrap().parse().unwrap();
        let presence = Presence::watch(socket, &InstallationId::from_bits(1));
        for seen in 0..3 {
            let (mut engine, _) = listener.accept().await.unwrap();
            let mut head = [0; 11];
            engine.read_exact(&mut head).await.unwrap();
            assert_eq!(&head, b"GET /events");
            assert_eq!(presence.absences(), seen);
            engine
                .write_all(b"HTTP/1.1 200 OK\r\n\r\n{}")
                .await
                .unwrap();
        }
    }
}
