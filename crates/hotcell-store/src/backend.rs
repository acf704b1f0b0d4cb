//! What redb reads and writes: the file itself, or the file under an overlay in memory.
//!
//! On an overlay everything can be tried out, repairs and migrations included, and the file stays as it is.

use std::{
    collections::BTreeMap,
    fmt, io,
    os::unix::fs::FileExt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use redb::StorageBackend;

use crate::file::StoreFile;

/// The file itself. Its lock is ours and outlives the database, so redb is told that there is none.
#[derive(Debug)]
pub(crate) struct Direct(pub(crate) Arc<StoreFile>);

impl StorageBackend for Direct {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.file.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.file.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        #[cfg(test)]
        self.0.faults.sync()?;
        self.0.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        #[cfg(test)]
        self.0.faults.write()?;
        self.0.file.write_all_at(data, offset)
    }
}

const PAGE: u64 = 4096;
type Page = [u8; PAGE as usize];

/// The file under pages that were "written" since.
pub(crate) struct Overlay {
    file: Arc<StoreFile>,
    state: Mutex<OverlayState>,
}

struct OverlayState {
    len: u64,
    /// What of the file is still to be seen: less than its length once the overlay was cut.
    visible: u64,
    pages: BTreeMap<u64, Box<Page>>,
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overlay")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl Overlay {
    pub(crate) fn new(file: Arc<StoreFile>) -> io::Result<Self> {
        let len = file.file.metadata()?.len();
        Ok(Self {
            file,
            state: Mutex::new(OverlayState {
                len,
                visible: len,
                pages: BTreeMap::new(),
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, OverlayState> {
        // The state is complete between any two statements that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the file; zeros where the overlay was cut or grown.
    fn read_file(&self, state: &OverlayState, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let visible = state.visible.saturating_sub(offset);
        let visible = usize::try_from(visible)
            .unwrap_or(usize::MAX)
            .min(out.len());
        let (from_file, zeros) = out.split_at_mut(visible);
        self.file.file.read_exact_at(from_file, offset)?;
        zeros.fill(0);
        Ok(())
    }
}

/// The pieces of a range that lie in one page each: page number, offset in the page, range of the buffer.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        (done < len).then(|| {
            let at = offset + done as u64;
            let inside = (at % PAGE) as usize;
            let take = (PAGE as usize - inside).min(len - done);
            let piece = (at / PAGE, inside, done..done + take);
            done += take;
            piece
        })
    })
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > state.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read_file(&state, offset, out)?;
        for (number, inside, range) in pieces(offset, out.len()) {
            if let Some(page) = state.pages.get(&number) {
                let take = range.len();
                out[range].copy_from_slice(&page[inside..inside + take]);
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state();
        if len < state.len {
            state.visible = state.visible.min(len);
            let cut = state.pages.split_off(&(len.div_ceil(PAGE)));
            drop(cut);
            if let Some(page) = state.pages.get_mut(&(len / PAGE)) {
                page[(len % PAGE) as usize..].fill(0);
            }
        }
        state.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        for (number, inside, range) in pieces(offset, data.len()) {
            if !state.pages.contains_key(&number) {
                let mut page: Box<Page> = Box::new([0; PAGE as usize]);
                self.read_file(&state, number * PAGE, &mut page[..])?;
                state.pages.insert(number, page);
            }
            if let Some(page) = state.pages.get_mut(&number) {
                let take = range.len();
                page[inside..inside + take].copy_from_slice(&data[range]);
            }
        }
        Ok(())
    }
}
