//! The log: lines on standard error, a bounded number a second.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{Event, Subscriber};
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Lines a second that are printed.
const LINES: u32 = 50;

/// Starts the log with the filter in `RUST_LOG`, `info` by default.
pub(crate) fn init() {
    let set = std::env::var("RUST_LOG").unwrap_or_default();
    let filter = if set.is_empty() { Ok(EnvFilter::new("info")) } else { EnvFilter::try_new(&set) };
    let (filter, bad) = match filter {
        Ok(filter) => (filter, None),
        Err(e) => (EnvFilter::new("info"), Some(e)),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_target(false);
    tracing_subscriber::registry().with(filter).with(Bound::default()).with(lines).init();
    if let Some(e) = bad {
        tracing::warn!("RUST_LOG={set}: {e}; logging at level info");
    }
}

/// Lets [`LINES`] events a second through and says how many it left out.
#[derive(Default)]
struct Bound(Mutex<Window>);

#[derive(Default)]
struct Window {
    start: Option<Instant>,
    seen: u32,
}

impl Window {
    /// Whether an event at `now` may be printed, and how many of the last window were not.
    fn pass(&mut self, now: Instant) -> (bool, u32) {
        let mut left_out = 0;
        if self.start.is_none_or(|s| now.duration_since(s) >= Duration::from_secs(1)) {
            left_out = self.seen.saturating_sub(LINES);
            *self = Window { start: Some(now), seen: 0 };
        }
        self.seen = self.seen.saturating_add(1);
        (self.seen <= LINES, left_out)
    }
}

impl<S: Subscriber> Layer<S> for Bound {
    fn event_enabled(&self, _event: &Event<'_>, _ctx: Context<'_, S>) -> bool {
        let (pass, left_out) = self.0.lock().unwrap_or_else(PoisonError::into_inner).pass(Instant::now());
        if left_out > 0 {
            let _ = writeln!(io::stderr(), "lvsd: {left_out} log lines left out");
        }
        pass
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_counted() {
        let mut w = Window::default();
        let t = Instant::now();
        let passed = (0..1000).filter(|_| w.pass(t).0).count();
        assert_eq!(passed, LINES as usize);
        assert_eq!(w.pass(t + Duration::from_secs(1)), (true, 1000 - LINES));
        assert_eq!(w.pass(t + Duration::from_secs(1)), (true, 0));
    }
}
