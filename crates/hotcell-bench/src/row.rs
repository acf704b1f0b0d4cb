//! One measured figure.

use serde::Serialize;

/// A row of the table.
#[derive(Serialize)]
pub(crate) struct Row {
    /// Its name in the design's table.
    pub(crate) name: String,
    /// The figure; `None` when it was not measured.
    pub(crate) value: Option<f64>,
    /// `ms`, `ratio`, `MiB`.
    pub(crate) unit: &'static str,
    /// What it should be, such as `≤ 3`.
    pub(crate) target: &'static str,
    /// Whether it is.
    pub(crate) met: Option<bool>,
    /// What it was made of.
    pub(crate) note: String,
}

impl Row {
    /// A figure that should be at most `limit`.
    pub(crate) fn at_most(
        name: String,
        value: f64,
        unit: &'static str,
        limit: f64,
        target: &'static str,
        note: String,
    ) -> Self {
        Self {
            name,
            value: Some(value),
            unit,
            target,
            met: Some(value <= limit),
            note,
        }
    }

    /// A figure that should be at least `limit`.
    pub(crate) fn at_least(
        name: String,
        value: f64,
        unit: &'static str,
        limit: f64,
        target: &'static str,
        note: String,
    ) -> Self {
        Self {
            name,
            value: Some(value),
            unit,
            target,
            met: Some(value >= limit),
            note,
        }
    }

    /// A figure without a target.
    pub(crate) fn figure(name: String, value: f64, unit: &'static str, note: String) -> Self {
        Self {
            name,
            value: Some(value),
            unit,
            target: "",
            met: None,
            note,
        }
    }

    /// A figure that could not be had.
    pub(crate) fn not_measured(
        name: String,
        unit: &'static str,
        target: &'static str,
        why: &str,
    ) -> Self {
        Self {
            name,
            value: None,
            unit,
            target,
            met: None,
            note: format!("not measured: {why}"),
        }
    }

    /// One line of JSON.
    pub(crate) fn print(&self) {
        println!("{}", serde_json::to_string(self).unwrap_or_default());
    }
}

/// The middle of these.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// What `share` (0 to 1) of these do not exceed.
pub(crate) fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "small counts"
    )]
    let index = (last as f64 * share).round() as usize;
    values.get(index).copied().unwrap_or(f64::NAN)
}
