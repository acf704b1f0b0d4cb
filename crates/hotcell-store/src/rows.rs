//! Rows as bytes: the committed ones, and the changes that lie over them.
//!
//! ```text
//!  own      what this change has written so far
//!  batch    what earlier changes of the same commit wrote
//!  base     what is committed
//! ```
//! A lookup takes the topmost layer that knows the key. A change that fails is undone by
//! forgetting its own layer; redb never sees it.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, btree_map},
    ops::Bound,
};

use redb::{ReadOnlyTable, ReadTransaction, ReadableTable, TableError};

use crate::{
    error::StoreError,
    key::Vault,
    tables::{Span, Table},
};

/// Rows that are written (`Some`) or deleted (`None`).
pub(crate) type Layer = BTreeMap<(Table, Vec<u8>), Option<Vec<u8>>>;

static NO_LAYER: Layer = Layer::new();

type Open = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// A key and its value.
pub(crate) type Row = (Vec<u8>, Vec<u8>);

/// A row of a layer; without a value when it was deleted.
type LayerRow<'l> = (&'l [u8], Option<&'l [u8]>);

/// Which end of a span a scan starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Ascending,
    Descending,
}

/// The committed rows.
pub(crate) struct Base {
    transaction: ReadTransaction,
    open: Vec<OnceCell<Option<Open>>>,
}

impl Base {
    pub(crate) fn new(transaction: ReadTransaction) -> Self {
        Self {
            transaction,
            open: Table::ALL.iter().map(|_| OnceCell::new()).collect(),
        }
    }

    fn table(&self, table: Table) -> Result<Option<&Open>, StoreError> {
        let cell = &self.open[table as usize];
        if let Some(open) = cell.get() {
            return Ok(open.as_ref());
        }
        let open = match self.transaction.open_table(table.definition()) {
            Ok(open) => Some(open),
            Err(TableError::TableDoesNotExist(_)) => None,
            Err(error) => return Err(StoreError::io(error)),
        };
        Ok(cell.get_or_init(|| open).as_ref())
    }

    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(open) = self.table(table)? else {
            return Ok(None);
        };
        let value = ReadableTable::get(open, key).map_err(StoreError::io)?;
        Ok(value.map(|value| value.value().to_vec()))
    }
}

/// A consistent view of the store: what was committed when it was made and, inside a change, what that change wrote.
pub struct Snapshot<'a> {
    base: &'a Base,
    batch: &'a Layer,
    pub(crate) own: Layer,
    pub(crate) vault: &'a Vault,
}

impl<'a> Snapshot<'a> {
    pub(crate) fn new(base: &'a Base, vault: &'a Vault) -> Self {
        Self::over(base, &NO_LAYER, vault)
    }

    pub(crate) fn over(base: &'a Base, batch: &'a Layer, vault: &'a Vault) -> Self {
        Self {
            base,
            batch,
            own: Layer::new(),
            vault,
        }
    }

    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let layered = [&self.own, self.batch]
            .into_iter()
            .filter(|layer| !layer.is_empty())
            .find_map(|layer| layer.get(&(table, key.to_vec())));
        match layered {
            Some(row) => Ok(row.clone()),
            None => self.base.get(table, key),
        }
    }

    pub(crate) fn has(&self, table: Table, key: &[u8]) -> Result<bool, StoreError> {
        Ok(self.get(table, key)?.is_some())
    }

    /// At most `limit` rows of a span.
    pub(crate) fn scan(
        &self,
        table: Table,
        span: &Span,
        order: Order,
        limit: usize,
    ) -> Result<Vec<Row>, StoreError> {
        let mut layered: BTreeMap<&[u8], Option<&[u8]>> = BTreeMap::new();
        for layer in [self.batch, &self.own] {
            for (key, value) in layer_range(layer, table, span) {
                layered.insert(key, value);
            }
        }
        let mut over: Box<dyn Iterator<Item = LayerRow<'_>>> = match order {
            Order::Ascending => Box::new(layered.into_iter()),
            Order::Descending => Box::new(layered.into_iter().rev()),
        };
        let mut rows = Vec::new();
        let mut next_over = over.next();
        let push_over = |rows: &mut Vec<Row>, (key, value): LayerRow<'_>| {
            if let Some(value) = value {
                rows.push((key.to_vec(), value.to_vec()));
            }
        };
        if let Some(open) = self.base.table(table)? {
            let to = match &span.to {
                Some(to) => Bound::Excluded(to.as_slice()),
                None => Bound::Unbounded,
            };
            let mut range = open
                .range::<&[u8]>((Bound::Included(span.from.as_slice()), to))
                .map_err(StoreError::io)?;
            while rows.len() < limit {
                let next = match order {
                    Order::Ascending => range.next(),
                    Order::Descending => range.next_back(),
                };
                let Some(row) = next else { break };
                let (key, value) = row.map_err(StoreError::io)?;
                let key = key.value();
                // What lies over the base and comes before this key, or in its place.
                let mut replaced = false;
                while let Some(layer_row) = next_over {
                    let is_before = match order {
                        Order::Ascending => layer_row.0 < key,
                        Order::Descending => layer_row.0 > key,
                    };
                    if layer_row.0 != key && !is_before {
                        break;
                    }
                    replaced |= layer_row.0 == key;
                    push_over(&mut rows, layer_row);
                    next_over = over.next();
                }
                if !replaced {
                    rows.push((key.to_vec(), value.value().to_vec()));
                }
            }
        }
        while rows.len() < limit {
            let Some(layer_row) = next_over else { break };
            push_over(&mut rows, layer_row);
            next_over = over.next();
        }
        rows.truncate(limit);
        Ok(rows)
    }
}

fn layer_range<'l>(
    layer: &'l Layer,
    table: Table,
    span: &Span,
) -> impl Iterator<Item = LayerRow<'l>> {
    let range: btree_map::Range<'l, _, _> = layer.range((table, span.from.clone())..);
    let to = span.to.clone();
    range
        .take_while(move |((of, key), _)| *of == table && to.as_ref().is_none_or(|to| key < to))
        .map(|((_, key), value)| (key.as_slice(), value.as_deref()))
}
