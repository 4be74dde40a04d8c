//! Frames received by an interface, by its own counters.

use std::error::Error;
use std::time::{Duration, Instant};

use crate::attached;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Interface to watch
    #[arg(long)]
    interface: String,
    /// There is an XDP program on it that drops them, as is meant
    #[arg(long)]
    dropped_at_xdp: bool,
    /// Seconds to count for
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

pub(crate) fn run(o: &Options) -> Result<serde_json::Value, Box<dyn Error>> {
    let duration =
        Duration::try_from_secs_f64(o.seconds).map_err(|e| format!("--seconds {}: {e}", o.seconds))?;
    if !o.dropped_at_xdp {
        attached::none([o.interface.as_str()])?;
    }
    let (begin, before) = (Instant::now(), received(&o.interface)?);
    std::thread::sleep(duration);
    let (seconds, after) = (begin.elapsed().as_secs_f64(), received(&o.interface)?);
    let frames = after.saturating_sub(before);
    Ok(serde_json::json!({
        "frames": frames, "seconds": seconds, "pps": frames as f64 / seconds, "interface": o.interface,
    }))
}

/// Frames received since the interface was made.
pub(crate) fn received(interface: &str) -> Result<u64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    frames_of(&text, interface)
        .ok_or_else(|| format!("interface {interface}: there is no such interface").into())
}

/// The received-packets column of `/proc/net/dev`.
pub(crate) fn frames_of(text: &str, interface: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.trim_start().strip_prefix(interface)?.strip_prefix(':'))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_right_column_of_the_right_line() {
        let text =
            "Inter-| Receive\n face |bytes packets\n  eth0: 100 7 0 0\nveth01: 5 6 0\n veth0: 1 2 0 0\n";
        assert_eq!(frames_of(text, "eth0"), Some(7));
        assert_eq!(frames_of(text, "veth0"), Some(2));
        assert_eq!(frames_of(text, "veth"), None);
    }
}
