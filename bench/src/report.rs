//! Rows: one measured number each, with its bar and all that it was computed from.

use serde::Serialize;
use serde_json::{Value, json};

/// What a value must reach.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bar {
    AtLeast(f64),
    AtMost(f64),
    /// Nothing: the value is there to look at.
    Nothing,
}

impl Bar {
    fn limit(self) -> Option<f64> {
        match self {
            Bar::AtLeast(x) | Bar::AtMost(x) => Some(x),
            Bar::Nothing => None,
        }
    }

    fn met(self, value: f64) -> Option<bool> {
        match self {
            Bar::AtLeast(x) => Some(value >= x),
            Bar::AtMost(x) => Some(value <= x),
            Bar::Nothing => None,
        }
    }

    fn sense(self) -> &'static str {
        match self {
            Bar::AtLeast(_) => ">=",
            Bar::AtMost(_) => "<=",
            Bar::Nothing => "",
        }
    }
}

/// One line of the results.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) id: String,
    /// None where the measurement failed; `raw` says why.
    pub(crate) value: Option<f64>,
    pub(crate) unit: &'static str,
    /// None where nothing is asked of the value; then `met` is none, too.
    pub(crate) bar: Option<f64>,
    pub(crate) sense: &'static str,
    pub(crate) met: Option<bool>,
    pub(crate) raw: Value,
}

impl Row {
    pub(crate) fn new(id: impl Into<String>, value: f64, unit: &'static str, bar: Bar, raw: Value) -> Row {
        let value = (value * 1000.0).round() / 1000.0;
        Row {
            id: id.into(),
            value: Some(value),
            unit,
            bar: bar.limit(),
            sense: bar.sense(),
            met: bar.met(value),
            raw,
        }
    }

    /// A row whose measurement could not be made.
    pub(crate) fn failed(id: impl Into<String>, unit: &'static str, bar: Bar, error: &str) -> Row {
        let raw = json!({ "error": error });
        let met = bar.limit().map(|_| false);
        Row { id: id.into(), value: None, unit, bar: bar.limit(), sense: bar.sense(), met, raw }
    }

    /// The bar is not met whatever the value is, if what it stands for did not come about.
    pub(crate) fn unless(mut self, came_about: bool, why: String) -> Row {
        if !came_about {
            self.met = self.bar.map(|_| false);
            self.raw["not_met_because"] = why.into();
        }
        self
    }

    /// The row as a line of the table.
    pub(crate) fn line(&self) -> String {
        let value = self.value.map_or("failed".to_owned(), |v| format!("{v:.3}"));
        let bar = self.bar.map_or(String::new(), |b| format!("{} {b}", self.sense));
        let met = match self.met {
            Some(true) => "met",
            Some(false) => "NOT MET",
            None => "",
        };
        let line = format!("{:<30} {value:>14} {:<12} {bar:<10} {met}", self.id, self.unit);
        line.trim_end().to_owned()
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
        let row = |bar, value| Row::new("x", value, "u", bar, json!({}));
        let met = |bar, value| row(bar, value).met == Some(true);
        assert!(met(Bar::AtMost(120.0), 120.0) && !met(Bar::AtMost(120.0), 120.1));
        assert!(met(Bar::AtLeast(0.8), 0.8) && !met(Bar::AtLeast(0.8), 0.799));
        assert_eq!(Row::failed("x", "u", Bar::AtMost(1.0), "why").met, Some(false));
        assert_eq!(row(Bar::Nothing, 1.0).met, None);
    }

    #[test]
    fn what_did_not_come_about_meets_no_bar() {
        let row = Row::new("x", 1.0, "u", Bar::AtLeast(0.9), json!({}));
        assert_eq!(row.clone().unless(true, "why".into()).met, Some(true));
        let not = row.unless(false, "why".into());
        assert_eq!((not.met, not.raw["not_met_because"].as_str()), (Some(false), Some("why")));
    }
}
