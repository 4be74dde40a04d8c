//! Frames with VLAN tags (`docs/vlan.md`): a port stands for its untagged network alone.
//!
//! What has a VLAN's number belongs to the VLAN's own device, which may be a port itself and is given its frames by the kernel. A tag
//! with number 0 only says a priority (IEEE 802.1Q-2022 section 9.6): the frame is one of the untagged network, and goes on
//! without the tag, as the kernel has it.

use modes::wire::ethertype;

use super::director::Director;
use super::reason::Count;
use super::stages::{Parsed, parse_untagged};
use super::worker::Worker;
use super::{Frame, Verdict};
use crate::conn::Hint;
use crate::time::Now;

/// Bytes of the two MAC addresses, behind which a tag stands.
const MACS: usize = 12;
const TAG: usize = 4;

fn is_tag(kind: [u8; 2]) -> bool {
    matches!(u16::from_be_bytes(kind), ethertype::VLAN | ethertype::QINQ)
}

/// Whether a frame begins with a tag.
pub(super) fn is_tagged(frame: &[u8]) -> bool {
    frame.get(MACS..).and_then(<[u8]>::first_chunk).is_some_and(|kind| is_tag(*kind))
}

/// The tag of a frame whose only one says nothing but a priority.
fn priority_tag(frame: &[u8]) -> Option<[u8; TAG]> {
    let [a, b, c, d, kind @ ..]: [u8; 6] = *frame.get(MACS..)?.first_chunk()?;
    let number = u16::from_be_bytes([c, d]) & 0xfff;
    (is_tag([a, b]) && number == 0 && !is_tag(kind)).then_some([a, b, c, d])
}

impl Worker {
    /// Judges a frame that begins with a tag.
    #[cold]
    pub(super) fn tagged(&mut self, director: &Director, now: Now, frame: &mut Frame<'_>) -> Verdict {
        let Some(tag) = priority_tag(frame.bytes()) else {
            self.counters().count(Count::Tagged);
            return Verdict::Pass;
        };
        let start = frame.start;
        frame.buf.copy_within(start..start + MACS, start + TAG);
        frame.start += TAG;
        let verdict = match parse_untagged(director, frame.bytes()) {
            Parsed::Judged(verdict) => verdict,
            Parsed::Flow(p, hash, _) => self.judge(director, now, frame, &p, (hash, Hint::NONE)),
            Parsed::Icmp(p) => self.icmp(director, now, frame, &p),
            // It had one tag.
            Parsed::Tagged => Verdict::Pass,
        };
        if verdict == Verdict::Pass {
            frame.start = start;
            frame.buf.copy_within(start + TAG..start + TAG + MACS, start);
            frame.buf[start + MACS..start + MACS + TAG].copy_from_slice(&tag);
        }
        verdict
    }
}
