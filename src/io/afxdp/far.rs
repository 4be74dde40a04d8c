//! Whether frames that XDP redirects to an interface arrive: on a veth they are lost where the far end has neither an XDP program nor
//! NAPI (GRO on), and a NIC's driver may not know them at all. Nothing tells that beforehand, so a few frames are sent.

use std::time::{Duration, Instant};

use crate::io::BpfTables;

/// Frames that are sent: of an EtherType for local experiments (IEEE 802, 0x88b5), from the interface's own address to the same.
const FRAMES: u64 = 16;
/// How long it is waited until they are counted as sent.
const PATIENCE: Duration = Duration::from_millis(100);
const STEP: Duration = Duration::from_millis(2);

/// Whether frames that are redirected to an interface are sent by it. What else it sends meanwhile may make a no a yes.
pub(super) fn takes_redirected(tables: &BpfTables, name: &str, index: u32, mac: [u8; 6]) -> bool {
    let mut frame = [0; 60];
    frame[..6].copy_from_slice(&mac);
    frame[6..12].copy_from_slice(&mac);
    frame[12..14].copy_from_slice(&0x88b5u16.to_be_bytes());
    frame[14..18].copy_from_slice(&index.to_ne_bytes());
    let Some(before) = sent(name) else { return false };
    if let Err(e) = tables.probe(&frame, FRAMES as u32) {
        tracing::debug!("interface {name}: no frames could be redirected to it: {e}");
        return false;
    }
    let begin = Instant::now();
    loop {
        match sent(name) {
            Some(now) if now >= before + FRAMES => return true,
            Some(_) if begin.elapsed() < PATIENCE => std::thread::sleep(STEP),
            _ => return false,
        }
    }
}

/// Packets that an interface of this thread's network namespace has sent.
fn sent(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").ok()?;
    sent_of(&text, name)
}

fn sent_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    // receive has eight columns; then bytes, packets
    line.split_whitespace().nth(9)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_column_of_sent_packets() {
        let text = "Inter-|   Receive                                                |  Transmit\n \
                    face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
                    lo:       1       2    3    4    5     6          7         8        9      10   11   12   13    14      15         16\n  \
                    lo0: 0 0 0 0 0 0 0 0 0 77 0 0 0 0 0 0\n";
        assert_eq!(sent_of(text, "lo"), Some(10));
        assert_eq!(sent_of(text, "lo0"), Some(77));
        assert_eq!(sent_of(text, "eth0"), None);
    }
}
