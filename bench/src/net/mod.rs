//! Measurements of the daemon between network namespaces, beside other forwarders in the same place.

mod bulk;
mod lab;
mod process;
mod rings;
mod rtt;

pub(crate) use bulk::bulk;
pub(crate) use rings::rings;
pub(crate) use rtt::rtt;

use std::time::{Duration, Instant};

use crate::Failure;

/// How long anything may take to get ready.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `look` finds something.
fn until<T>(what: &str, mut look: impl FnMut() -> Result<Option<T>, Failure>) -> Result<T, Failure> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() >= end {
            return Err(format!("waited {} s for: {what}", PATIENCE.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
