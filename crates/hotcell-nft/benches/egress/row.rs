//! Rows as `cargo xtask bench` reads them.

use std::cmp::Ordering;

use serde_json::{Value, json};

/// What a figure should be.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
    None,
}

impl Target {
    fn text(self) -> String {
        match self {
            Self::AtLeast(limit) => format!("≥ {limit}"),
            Self::AtMost(limit) => format!("≤ {limit}"),
            Self::None => "–".to_owned(),
        }
    }

    fn met(self, value: f64) -> Option<bool> {
        match self {
            Self::AtLeast(limit) => Some(value >= limit),
            Self::AtMost(limit) => Some(value <= limit),
            Self::None => None,
        }
    }
}

/// Prints a figure.
pub(crate) fn row(name: &str, value: f64, unit: &str, target: Target, note: &str) {
    let row: Value = json!({
        "name": name, "value": value, "unit": unit, "target": target.text(),
        "met": target.met(value), "note": note,
    });
    println!("{row}");
}

/// Prints that a figure could not be had.
pub(crate) fn not_measured(name: &str, unit: &str, target: Target, why: &str) {
    let row: Value = json!({
        "name": name, "value": null, "unit": unit, "target": target.text(),
        "met": null, "note": format!("not measured: {why}"),
    });
    println!("{row}");
}

/// The middle of these.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// What `share` (0 to 1) of these do not exceed.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal));
    let last = values.len().saturating_sub(1);
    values[(last as f64 * share).round() as usize]
}
