//! Measurements of the daemon between network namespaces, beside other forwarders in the same place.

pub(crate) mod breadth;
pub(crate) mod bulk;
pub(crate) mod flood;
mod forwarder;
mod lab;
pub(crate) mod newconn;
mod process;
pub(crate) mod proxy;
pub(crate) mod rings;
pub(crate) mod rtt;
mod saturate;

pub(crate) use lab::is_there;

use std::time::{Duration, Instant};

use crate::Failure;

/// How long anything may take to get ready.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `look` finds something.
fn until<T>(what: &str, look: impl FnMut() -> Result<Option<T>, Failure>) -> Result<T, Failure> {
    until_within(PATIENCE, what, look)
}

/// The same for something that takes longer.
fn until_within<T>(
    patience: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let end = Instant::now() + patience;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() >= end {
            return Err(format!("waited {} s for: {what}", patience.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
