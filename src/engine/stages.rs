//! The stages that frames of a batch go through before they are judged, so that the memory works on many look-ups at once.
//!
//! A batch is a pipeline of steps of [`STEP`] frames. While the memory fetches what some frames need next, others are
//! parsed or judged:
//!
//! | step | fetch | parse | hint | hint again | judge |
//! | --- | --- | --- | --- | --- | --- |
//! | does | asks for the headers | hash; asks for the first bucket | asks for the entry, or the second bucket | asks for the entry | all the rest |
//! | frames of step | s + 1 | s | s - 1 | s - 2 | s - 3 |
//!
//! Stages only read, and a hint may be wrong by the time it is used; so frames are judged as if one after the other.

use std::ops::Range;

use modes::Family;
use modes::packet::{self, Fragment, Packet, ParseError, proto};

use super::director::Director;
use super::reason::Reason;
use super::tagged::is_tagged;
use super::{Frame, PROTO_TCP, PROTO_UDP, Verdict};
use crate::conn::{Hint, Tuple};
use crate::mem;

/// Frames of a batch that are in the same stage: about as many cache lines as a processor waits for at a time.
pub(super) const STEP: usize = 16;
/// Stages from parsing to judgement.
pub(super) const STAGES: usize = 4;

/// A frame on its way to judgement.
pub(super) enum Parsed {
    /// There is nothing more to judge.
    Judged(Verdict),
    /// It begins with a VLAN tag.
    Tagged,
    /// ICMP, which may speak of a connection.
    Icmp(Packet),
    /// TCP or UDP with ports, its tuple's hash, and where its connection probably is.
    Flow(Packet, u64, Hint),
}

/// A packet's 5-tuple.
#[inline(always)]
pub(super) fn tuple(p: &Packet) -> Tuple {
    Tuple { family: p.family, proto: p.proto, src: p.src, dst: p.dst, sport: p.sport, dport: p.dport }
}

/// The frames of one step of a batch of `n`; none where there is no such step.
pub(super) fn part(step: Option<usize>, n: usize) -> Range<usize> {
    let Some(step) = step else { return 0..0 };
    let first = (step * STEP).min(n);
    first..(first + STEP).min(n)
}

/// Asks the memory for the headers.
pub(super) fn fetch(frames: &[Frame<'_>]) {
    for frame in frames {
        mem::prefetch_head(frame.bytes());
    }
}

/// The first stage: parses, and asks the memory for the index.
pub(super) fn parse(director: &Director, frames: &[Frame<'_>], parsed: &mut Vec<Parsed>) {
    for frame in frames {
        let bytes = frame.bytes();
        let Some(start) = bytes.first_chunk::<8>() else {
            parsed.push(tiny(director, frame));
            continue;
        };
        if !director.routes.is_to_us(frame.port, start) {
            parsed.push(Parsed::Judged(Verdict::Pass));
            continue;
        }
        // The usual packet is put together right where it stays: copied, it would be read wider than it was just written,
        // for which a processor waits longer than the whole parsing takes.
        match packet::parse_plain_v4(bytes) {
            Some(Ok(p)) if has_ports(&p) => {
                let hash = director.table.hash(&tuple(&p));
                director.table.prefetch(p.family, hash);
                parsed.push(Parsed::Flow(p, hash, Hint::NONE));
            }
            Some(Ok(p)) => parsed.push(without_ports(p)),
            Some(Err(e)) => parsed.push(unparsed(e)),
            None if is_tagged(bytes) => parsed.push(Parsed::Tagged),
            None => parsed.push(parse_untagged(director, bytes)),
        }
    }
}

/// A frame that is no frame: shorter than its header.
#[cold]
fn tiny(director: &Director, frame: &Frame<'_>) -> Parsed {
    let to_us = frame.bytes().first_chunk().is_none_or(|to| director.routes.is_our_mac(frame.port, *to));
    Parsed::Judged(if to_us { Verdict::Drop(Reason::FrameTooShort) } else { Verdict::Pass })
}

/// The same for IPv6, and for frames whose tag was taken off.
#[inline(never)]
pub(super) fn parse_untagged(director: &Director, bytes: &[u8]) -> Parsed {
    match packet::parse(bytes) {
        Ok(p) if has_ports(&p) => {
            let hash = director.table.hash(&tuple(&p));
            director.table.prefetch(p.family, hash);
            Parsed::Flow(p, hash, Hint::NONE)
        }
        Ok(p) => without_ports(p),
        Err(e) => unparsed(e),
    }
}

/// Whether it is TCP or UDP, and its ports are in it.
#[inline(always)]
fn has_ports(p: &Packet) -> bool {
    // no short cut: which of the two it is can't be foreseen
    p.fragment != Fragment::Later && (p.proto == PROTO_TCP) | (p.proto == PROTO_UDP)
}

#[cold]
fn without_ports(p: Packet) -> Parsed {
    let icmp = match p.family {
        Family::V4 => proto::ICMP,
        Family::V6 => proto::ICMPV6,
    };
    if p.proto == icmp { Parsed::Icmp(p) } else { Parsed::Judged(Verdict::Pass) }
}

#[cold]
fn unparsed(e: ParseError) -> Parsed {
    Parsed::Judged(if e.is_malformed() { Verdict::Drop(e.into()) } else { Verdict::Pass })
}

/// The second stage: asks for the entries that the index names; for few frames it does not yet.
pub(super) fn hint(director: &Director, parsed: &mut [Parsed]) {
    for flow in parsed {
        if let Parsed::Flow(p, hash, hint) = flow {
            *hint = director.table.prefetch_entry(p.family, *hash);
        }
    }
}

/// The third stage: for those few the index has another place.
pub(super) fn hint_again(director: &Director, parsed: &mut [Parsed]) {
    for flow in parsed {
        if let Parsed::Flow(p, hash, hint) = flow
            && hint.is_none()
        {
            *hint = director.table.prefetch_entry_again(p.family, *hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_cover_a_batch_once_and_never_run_ahead_of_parsing() {
        for n in 0..=3 * STEP + 1 {
            let mut judged = 0;
            for step in 0..n.div_ceil(STEP) + STAGES - 1 {
                let parsed = part(Some(step), n).end;
                for stage in 1..STAGES {
                    assert!(part(step.checked_sub(stage), n).end <= parsed, "{n} {step} {stage}");
                }
                let last = part(step.checked_sub(STAGES - 1), n);
                assert!(last.is_empty() || last.start == judged, "{n} {step}");
                judged += last.len();
            }
            assert_eq!(judged, n);
        }
    }
}
