//! Sending a file: ranges, validators, download headers, and never a byte more or less than said.
//!
//! The file is opened once, and that is what is sent: a rename or a removal does not touch it,
//! what is appended is not sent. When it turns out shorter than announced the connection is
//! broken off, so that the receiver cannot take a part for the whole.

use std::{fs::File, io, os::unix::fs::FileExt, sync::Arc};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::stream;
use hotcell_api::ErrorCode;
use hotcell_types::{UnixMillis, limits::FILE_CHUNK_BYTES};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use rustix::fs::Stat;

use super::{
    disposition,
    error::ApiError,
    range::{self, Wanted},
};

/// What is said about a file before its bytes.
pub(super) struct FileHead<'n> {
    /// The name that it is downloaded under.
    pub(super) name: &'n str,
    /// Its media type.
    pub(super) media_type: &'n str,
    /// Its length in bytes.
    pub(super) bytes: u64,
    /// A strong validator, without quotes.
    pub(super) etag: String,
    /// When its content last changed.
    pub(super) changed_at: UnixMillis,
}

/// A strong validator of a file that may change under its name: another file, another size or
/// another moment of change is another tag.
pub(super) fn etag_of(stat: &Stat) -> String {
    format!(
        "{:x}-{:x}-{:x}.{:x}-{:x}.{:x}",
        stat.st_ino,
        stat.st_size,
        stat.st_mtime,
        stat.st_mtime_nsec,
        stat.st_ctime,
        stat.st_ctime_nsec
    )
}

/// When a file's content last changed.
pub(super) fn changed_at(stat: &Stat) -> UnixMillis {
    let millis = i128::from(stat.st_mtime) * 1000 + i128::from(stat.st_mtime_nsec) / 1_000_000;
    UnixMillis(u64::try_from(millis).unwrap_or(0))
}

fn http_date(at: UnixMillis) -> Option<HeaderValue> {
    let time = std::time::UNIX_EPOCH.checked_add(std::time::Duration::from_secs(at.seconds()))?;
    // The formatter takes years up to 9999.
    const END_OF_9999_SECONDS: u64 = 253_402_300_800;
    if at.seconds() >= END_OF_9999_SECONDS {
        return None;
    }
    HeaderValue::from_str(&httpdate::fmt_http_date(time)).ok()
}

/// Whether a list of tags names this one. `*` names every one.
fn names(list: &HeaderValue, etag: &str) -> bool {
    list.to_str().is_ok_and(|text| {
        text.split(',').map(str::trim).any(|tag| {
            tag == "*" || tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"') == etag
        })
    })
}

fn wanted(method: &Method, headers: &HeaderMap, head: &FileHead<'_>) -> Wanted {
    let mut ranges = headers.get_all(header::RANGE).iter();
    let (Some(header), None) = (ranges.next(), ranges.next()) else {
        return Wanted::Whole;
    };
    if method != Method::GET {
        return Wanted::Whole;
    }
    // A date is no strong validator here, so it never matches.
    let same = headers.get(header::IF_RANGE).is_none_or(|tag| {
        tag.to_str()
            .is_ok_and(|tag| tag == format!("\"{}\"", head.etag))
    });
    match header.to_str() {
        Ok(text) if same => range::parse(text, head.bytes),
        _ => Wanted::Whole,
    }
}

/// Answers a GET or HEAD with the file as a download.
pub(super) fn file_response(
    method: &Method,
    request: &HeaderMap,
    head: &FileHead<'_>,
    file: File,
) -> Response {
    let wanted = wanted(method, request, head);
    let not_modified = request
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .any(|list| names(list, &head.etag));
    let (status, first, length) = match wanted {
        _ if not_modified => (StatusCode::NOT_MODIFIED, 0, 0),
        Wanted::Whole => (StatusCode::OK, 0, head.bytes),
        Wanted::Part { first, last } => (StatusCode::PARTIAL_CONTENT, first, last - first + 1),
        Wanted::Nothing => {
            let mut refused = ApiError::new(
                ErrorCode::RangeNotSatisfiable,
                format!("The file has {} bytes.", head.bytes),
            );
            if let Ok(value) = HeaderValue::from_str(&format!("bytes */{}", head.bytes)) {
                refused = refused.with_header(header::CONTENT_RANGE, value);
            }
            return refused.into_response();
        }
    };
    let mut headers = HeaderMap::new();
    if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", head.etag)) {
        headers.insert(header::ETAG, tag);
    }
    if let Some(date) = http_date(head.changed_at) {
        headers.insert(header::LAST_MODIFIED, date);
    }
    headers.insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("private, no-cache"),
    );
    if status == StatusCode::NOT_MODIFIED {
        return (status, headers).into_response();
    }
    if let Ok(value) = HeaderValue::from_str(head.media_type) {
        headers.insert(header::CONTENT_TYPE, value);
    }
    headers.insert(
        header::CONTENT_DISPOSITION,
        disposition::attachment(head.name),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("sandbox; default-src 'none'"),
    );
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_LENGTH, length.into());
    if status == StatusCode::PARTIAL_CONTENT {
        let text = format!("bytes {first}-{}/{}", first + length - 1, head.bytes);
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.insert(header::CONTENT_RANGE, value);
        }
    }
    let body = if method == Method::HEAD || length == 0 {
        Body::empty()
    } else {
        Body::from_stream(exactly(file, first, length))
    };
    (status, headers, body).into_response()
}

async fn read(file: Arc<File>, offset: u64, length: usize) -> io::Result<Bytes> {
    let read = tokio::task::spawn_blocking(move || {
        let mut chunk = vec![0; length];
        file.read_exact_at(&mut chunk, offset)?;
        Ok(Bytes::from(chunk))
    });
    read.await.map_err(io::Error::other)?
}

/// `length` bytes of a file, or an error in their midst. Reads one chunk ahead.
fn exactly(
    file: File,
    first: u64,
    length: u64,
) -> impl futures_util::Stream<Item = io::Result<Bytes>> {
    let file = Arc::new(file);
    let next = move |offset: u64, left: u64| {
        let size = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(FILE_CHUNK_BYTES);
        (size > 0).then(|| tokio::spawn(read(file.clone(), offset, size)))
    };
    let pending = next(first, length);
    stream::unfold(Some((pending, first, length)), move |state| {
        let next = next.clone();
        async move {
            let (pending, offset, left) = state?;
            let chunk = pending?.await.map_err(io::Error::other).flatten();
            match chunk {
                Ok(bytes) => {
                    let offset = offset + bytes.len() as u64;
                    let left = left - bytes.len() as u64;
                    let state = Some((next(offset, left), offset, left));
                    Some((Ok(bytes), state))
                }
                Err(error) => {
                    tracing::warn!(%error, "a file ended while it was sent; the connection is broken off");
                    Some((Err(error), None))
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use http_body_util::BodyExt;

    use super::*;

    fn head(bytes: u64) -> FileHead<'static> {
        FileHead {
            name: "x.txt",
            media_type: "text/plain",
            bytes,
            etag: "tag".into(),
            changed_at: UnixMillis(1_700_000_000_000),
        }
    }

    fn file(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file
    }

    async fn get(content: &[u8], headers: &[(&str, &str)]) -> (u16, HeaderMap, Vec<u8>) {
        let mut request = HeaderMap::new();
        for (name, value) in headers {
            request.append(
                http::HeaderName::try_from(*name).unwrap(),
                value.parse().unwrap(),
            );
        }
        let response = file_response(
            &Method::GET,
            &request,
            &head(content.len() as u64),
            file(content),
        );
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes().to_vec();
        (parts.status.as_u16(), parts.headers, bytes)
    }

    /// FA-12, as answers.
    #[tokio::test]
    async fn ranges() {
        let content: Vec<u8> = (0..100).collect();
        let (status, headers, body) = get(&content, &[("range", "bytes=0-10")]).await;
        assert_eq!(
            (status, &headers[header::CONTENT_RANGE]),
            (206, &"bytes 0-10/100".parse().unwrap())
        );
        assert_eq!(
            (body.len(), &headers[header::CONTENT_LENGTH]),
            (11, &"11".parse().unwrap())
        );
        let (status, headers, body) = get(&content, &[("range", "bytes=90-110")]).await;
        assert_eq!((status, body), (206, (90..100).collect::<Vec<u8>>()));
        assert_eq!(headers[header::CONTENT_RANGE], "bytes 90-99/100");
        for asked in ["bytes=100-", "bytes=-0"] {
            let (status, headers, _) = get(&content, &[("range", asked)]).await;
            assert_eq!(
                (status, &headers[header::CONTENT_RANGE]),
                (416, &"bytes */100".parse().unwrap())
            );
        }
        for asked in ["bytes=5-2", "bytes=abc", "lines=0-1", "bytes=0-0,2-2"] {
            let (status, headers, body) = get(&content, &[("range", asked)]).await;
            assert_eq!((status, body.len()), (200, 100), "{asked}");
            assert!(!headers.contains_key(header::CONTENT_RANGE));
        }
        for asked in ["bytes=0-", "bytes=-5"] {
            let (status, headers, _) = get(b"", &[("range", asked)]).await;
            assert_eq!(
                (status, &headers[header::CONTENT_RANGE]),
                (416, &"bytes */0".parse().unwrap())
            );
        }
        let (status, headers, body) = get(b"", &[]).await;
        assert_eq!(
            (status, body.len(), &headers[header::CONTENT_LENGTH]),
            (200, 0, &"0".parse().unwrap())
        );

        let mut request = HeaderMap::new();
        request.insert(header::RANGE, "bytes=0-9".parse().unwrap());
        let response = file_response(&Method::HEAD, &request, &head(100), file(&content));
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()[header::CONTENT_LENGTH], "100");
        assert!(
            response
                .into_body()
                .collect()
                .await
                .unwrap()
                .to_bytes()
                .is_empty()
        );
    }

    #[tokio::test]
    async fn validators() {
        let (status, headers, body) = get(b"abc", &[("if-none-match", "\"x\", W/\"tag\"")]).await;
        assert_eq!((status, body.len()), (304, 0));
        assert_eq!(headers[header::ETAG], "\"tag\"");
        let (status, ..) = get(b"abc", &[("if-none-match", "\"other\"")]).await;
        assert_eq!(status, 200);
        let part = ("range", "bytes=1-1");
        assert_eq!(get(b"abc", &[part, ("if-range", "\"tag\"")]).await.0, 206);
        for old in ["\"old\"", "W/\"tag\"", "Tue, 14 Nov 2023 22:13:20 GMT"] {
            let (status, _, body) = get(b"abc", &[part, ("if-range", old)]).await;
            assert_eq!((status, body.as_slice()), (200, &b"abc"[..]), "{old}");
        }
        let (_, headers, _) = get(b"abc", &[]).await;
        assert_eq!(
            headers[header::LAST_MODIFIED],
            "Tue, 14 Nov 2023 22:13:20 GMT"
        );
        assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
    }

    /// FA-11, the body: the length that was announced, or an error.
    #[tokio::test]
    async fn a_file_that_changes_is_never_passed_off_as_whole() {
        let content = vec![b'x'; 3 * FILE_CHUNK_BYTES];
        let mut grown = file(&content);
        grown.write_all(b"more").unwrap();
        let response = file_response(
            &Method::GET,
            &HeaderMap::new(),
            &head(content.len() as u64),
            grown,
        );
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body.len(), content.len());

        let shrinking = file(&content);
        let same = shrinking.try_clone().unwrap();
        let response = file_response(
            &Method::GET,
            &HeaderMap::new(),
            &head(content.len() as u64),
            shrinking,
        );
        same.set_len(10).unwrap();
        assert!(response.into_body().collect().await.is_err());
    }

    /// FA-11, the validator.
    #[test]
    fn the_tag_of_a_changing_file_changes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let tag = || etag_of(&rustix::fs::stat(&path).unwrap());
        std::fs::write(&path, "one").unwrap();
        let one = tag();
        assert_eq!(one, tag());
        std::fs::write(&path, "four").unwrap();
        let longer = tag();
        assert_ne!(one, longer);
        std::fs::write(dir.path().join("g"), "four").unwrap();
        std::fs::rename(dir.path().join("g"), &path).unwrap();
        assert_ne!(longer, tag());
        let before = tag();
        let times = std::fs::FileTimes::new()
            .set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_nanos(1_000_000_001));
        File::open(&path).unwrap().set_times(times).unwrap();
        assert_ne!(before, tag());
    }
}
