//! Rows: one measured number each, with its bar and all that it was computed from.

use serde::Serialize;
use serde_json::{Value, json};

/// What a value must reach.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

impl Bar {
    fn limit(self) -> f64 {
        match self {
            Bar::AtLeast(x) | Bar::AtMost(x) => x,
        }
    }

    fn met(self, value: f64) -> bool {
        match self {
            Bar::AtLeast(x) => value >= x,
            Bar::AtMost(x) => value <= x,
        }
    }
}

/// One line of the results.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) id: &'static str,
    /// None where the measurement failed; `raw` says why.
    pub(crate) value: Option<f64>,
    pub(crate) unit: &'static str,
    pub(crate) bar: f64,
    pub(crate) met: bool,
    pub(crate) raw: Value,
    #[serde(skip)]
    at_most: bool,
}

impl Row {
    pub(crate) fn new(id: &'static str, value: f64, unit: &'static str, bar: Bar, raw: Value) -> Row {
        let value = (value * 1000.0).round() / 1000.0;
        let met = bar.met(value);
        Row {
            id,
            value: Some(value),
            unit,
            bar: bar.limit(),
            met,
            raw,
            at_most: matches!(bar, Bar::AtMost(_)),
        }
    }

    /// A row whose measurement could not be made.
    pub(crate) fn failed(id: &'static str, unit: &'static str, bar: Bar, error: &str) -> Row {
        let at_most = matches!(bar, Bar::AtMost(_));
        let raw = json!({ "error": error });
        Row { id, value: None, unit, bar: bar.limit(), met: false, raw, at_most }
    }

    /// The row as a line of the table.
    pub(crate) fn line(&self) -> String {
        let value = self.value.map_or("failed".to_owned(), |v| format!("{v:.3}"));
        let sense = if self.at_most { "<=" } else { ">=" };
        let met = if self.met { "met" } else { "NOT MET" };
        format!("{:<24} {value:>10} {:<10} {sense} {:<7} {met}", self.id, self.unit, self.bar)
    }
}

/// The middle value; 0 of none.
pub(crate) fn median(values: &[f64]) -> f64 {
    percentile(values, 50)
}

/// The value below which `percent` of the values lie (nearest rank); of an even number the median is the mean of both
/// middle ones. 0 of none.
pub(crate) fn percentile(values: &[f64], percent: usize) -> f64 {
    per_mille(values, percent * 10)
}

/// The same in thousandths.
pub(crate) fn per_mille(values: &[f64], part: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len();
    if n == 0 {
        return 0.0;
    }
    if part == 500 && n.is_multiple_of(2) {
        return (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0;
    }
    sorted[(n * part).div_ceil(1000).clamp(1, n) - 1]
}

/// Median, smallest and largest of some rounds.
pub(crate) fn spread(values: &[f64]) -> Value {
    json!({
        "median": median(values),
        "min": percentile(values, 0),
        "max": percentile(values, 100),
        "rounds": values.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&hundred, 99), 99.0);
        assert_eq!((per_mille(&hundred, 999), per_mille(&hundred, 990)), (100.0, 99.0));
        assert_eq!((percentile(&hundred, 0), percentile(&hundred, 100)), (1.0, 100.0));
    }

    #[test]
    fn bars_have_a_direction() {
        let row = |bar, value| Row::new("x", value, "u", bar, Value::Null).met;
        assert!(row(Bar::AtMost(120.0), 120.0) && !row(Bar::AtMost(120.0), 120.1));
        assert!(row(Bar::AtLeast(0.8), 0.8) && !row(Bar::AtLeast(0.8), 0.799));
        assert!(!Row::failed("x", "u", Bar::AtMost(1.0), "why").met);
    }
}
