//! `GET /v1/files`: exactly as many bytes as were announced, or a broken connection.

use std::{
    fs::File,
    io::{self, Read as _},
    os::{
        fd::AsRawFd as _,
        unix::{ffi::OsStrExt, fs::OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hotcell_agent_proto::{AgentError, AgentErrorCode, FileInfo};
use http_body::{Frame, SizeHint};
use rustix::fs::OFlags;
use tokio::sync::mpsc;

use super::{blocking, failed, info};
use hotcell_types::limits::agent::{FILE_QUEUE_PIECES, FILE_READ_BYTES};

/// A file on its way out.
#[derive(Debug)]
pub(crate) struct FileBody {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    left: u64,
}

/// Opens a regular file and starts to read it.
///
/// # Errors
/// [`AgentErrorCode::NotARegularFile`] at once for anything else, [`AgentErrorCode::NotFound`] for
/// what is not in `beneath` when links are followed, or from the file system.
pub(crate) async fn read(
    path: PathBuf,
    beneath: Option<PathBuf>,
) -> Result<(FileInfo, FileBody), AgentError> {
    let (file, info) = blocking(move || open(&path, beneath.as_deref())).await?;
    let left = info.bytes;
    let (sender, pieces) = mpsc::channel(FILE_QUEUE_PIECES);
    tokio::task::spawn_blocking(move || send(file, left, &sender));
    Ok((info, FileBody { pieces, left }))
}

fn open(path: &Path, beneath: Option<&Path>) -> Result<(File, FileInfo), AgentError> {
    // A FIFO would wait for a writer, a terminal would become ours.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let not_regular = || {
        AgentError::new(
            AgentErrorCode::NotARegularFile,
            format!("{} is no regular file", path.to_string_lossy()),
        )
    };
    let file = File::options()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            // What opening a socket or a device without a driver says.
            Some(errno) if errno == rustix::io::Errno::NXIO.raw_os_error() => not_regular(),
            _ => failed(path, &error),
        })?;
    let metadata = file.metadata().map_err(|error| failed(path, &error))?;
    if let Some(beneath) = beneath
        && !is_beneath(&file, beneath).map_err(|error| failed(path, &error))?
    {
        return Err(failed(path, &io::ErrorKind::NotFound.into()));
    }
    if !metadata.is_file() {
        return Err(not_regular());
    }
    let name = path.file_name().map_or(&[][..], OsStrExt::as_bytes);
    Ok((file, info(name, &metadata)))
}

/// Where the opened file really is, whatever links led there. gVisor has no `openat2` to ask for
/// that beforehand.
fn is_beneath(file: &File, directory: &Path) -> io::Result<bool> {
    let place = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    Ok(place.starts_with(directory.canonicalize()?))
}

/// Reads on a thread for file work, as fast as the pieces are taken.
fn send(file: File, length: u64, sender: &mpsc::Sender<io::Result<Bytes>>) {
    // One that grows is cut at what was announced.
    let mut file = file.take(length);
    let mut left = length;
    while left > 0 {
        let wanted = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(FILE_READ_BYTES);
        let mut piece = vec![0; wanted];
        let read = match file.read(&mut piece) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(0) => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the file became shorter",
            )),
            other => other,
        };
        let piece = read.map(|length| {
            piece.truncate(length);
            left -= length as u64;
            Bytes::from(piece)
        });
        let is_end = piece.is_err();
        if sender.blocking_send(piece).is_err() || is_end {
            return;
        }
    }
}

impl http_body::Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let piece = std::task::ready!(self.pieces.poll_recv(context));
        if let Some(Ok(bytes)) = &piece {
            self.left -= bytes.len() as u64;
        }
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
