//! Waiting for conditions, with a deadline; never for a length of time.
use std::time::{Duration, Instant};

/// How often a condition is looked at.
const STEP: Duration = Duration::from_millis(10);

/// Calls `look` until it gives a value; `None` when that has not happened after `limit`.
pub(crate) fn within<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(v) = look() {
            return Some(v);
        }
        if start.elapsed() >= limit {
            return None;
        }
        std::thread::sleep(STEP);
    }
}

/// As [`within`], for what must come: fails the test naming `what` when it does not.
#[track_caller]
pub(crate) fn until<T>(what: &str, limit: Duration, look: impl FnMut() -> Option<T>) -> T {
    within(limit, look).unwrap_or_else(|| panic!("after {limit:?} still not so: {what}"))
}

/// Seconds.
pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}
