//! Looking through the audit trail.

use hotcell_core::model::{Actor, AuditRow};
use hotcell_types::{UnixMillis, limits};

use crate::{
    dto::{AuditDto, broken, decode},
    error::StoreError,
    read::AuditEntry,
    rows::{Order, Snapshot},
    tables::{Span, Table},
};

/// Which rows of the audit trail to read; the newest come first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Only what this one did.
    pub actor: Option<Actor>,
    /// Only actions that begin with this.
    pub action_prefix: Option<String>,
    /// Only about this.
    pub subject: Option<String>,
    /// Only at this time or after it.
    pub since: Option<UnixMillis>,
    /// Only before this time.
    pub until: Option<UnixMillis>,
    /// Only rows older than the row with this number.
    pub before: Option<u64>,
    /// How many at most; [`limits::MAX_PAGE_ROWS`] caps it.
    pub limit: usize,
}

impl AuditFilter {
    fn lets(&self, row: &AuditRow) -> bool {
        let begins = |prefix: &String| row.action.starts_with(prefix.as_str());
        self.actor.as_ref().is_none_or(|actor| row.actor == *actor)
            && self.action_prefix.as_ref().is_none_or(begins)
            && self
                .subject
                .as_ref()
                .is_none_or(|subject| row.subject == *subject)
            && self.since.is_none_or(|since| row.at >= since)
            && self.until.is_none_or(|until| row.at < until)
    }
}

impl Snapshot<'_> {
    /// The rows of a page, and where the next page begins: absent when everything was looked at.
    /// Looks at [`limits::MAX_AUDIT_ROWS_SCANNED`] rows at most, so a page may be short, even
    /// empty, and have a next one.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn audit_page(
        &self,
        filter: &AuditFilter,
    ) -> Result<(Vec<AuditEntry>, Option<u64>), StoreError> {
        let table = Table::Audit;
        let limit = filter.limit.min(limits::MAX_PAGE_ROWS);
        let mut found = Vec::new();
        let mut before = filter.before;
        let mut looked_at = 0;
        while looked_at < limits::MAX_AUDIT_ROWS_SCANNED {
            let span = before.map_or_else(Span::all, |at| Span::before(at.to_be_bytes()));
            let rows = self.scan(table, &span, Order::Descending, limits::MAX_PAGE_ROWS)?;
            if rows.is_empty() {
                return Ok((found, None));
            }
            for (key, value) in &rows {
                if found.len() == limit {
                    return Ok((found, before));
                }
                let number = <[u8; 8]>::try_from(key.as_slice())
                    .map(u64::from_be_bytes)
                    .map_err(|_| broken(table, key, "its key is no number"))?;
                let row: AuditRow = decode::<AuditDto>(table, key, value)?.into();
                before = Some(number);
                looked_at += 1;
                if filter.lets(&row) {
                    found.push(AuditEntry { number, row });
                }
            }
        }
        Ok((found, before))
    }
}
