//! What is asked of the kernel about links.

use std::io;

use futures_util::TryStreamExt;
use rtnetlink::Handle;

/// What went wrong, as the operating system says it.
pub fn nl(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other),
    }
}

/// Removes a pair by the name of one end; one that is not there is fine.
///
/// # Errors
/// When the kernel refuses.
pub async fn detach(handle: &Handle, name: &str) -> io::Result<()> {
    let index = match index_of(handle, name).await {
        Err(error) if is_missing(&error) => return Ok(()),
        other => other?,
    };
    match handle.link().del(index).execute().await.map_err(nl) {
        // The kernel was faster: the other end went with its namespace.
        Err(error) if is_missing(&error) => Ok(()),
        other => other,
    }
}

/// The number of a link.
///
/// # Errors
/// When there is none of this name; see [`is_missing`].
pub async fn index_of(handle: &Handle, name: &str) -> io::Result<u32> {
    let link = handle
        .link()
        .get()
        .match_name(name.to_owned())
        .execute()
        .try_next()
        .await
        .map_err(nl)?;
    link.map(|link| link.header.index)
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

/// Whether an error says that there is no such link.
#[must_use]
pub fn is_missing(error: &io::Error) -> bool {
    const NO_SUCH_DEVICE: i32 = 19;
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(NO_SUCH_DEVICE)
}
