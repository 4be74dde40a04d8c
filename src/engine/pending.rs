//! Frames that wait for their next hop's link address: few, and not for long.

use crate::engine::Out;
use crate::route::{Hop, HopState, NextHopId};
use crate::time::Now;

/// Frames a next hop may have waiting (the kernel keeps a hundred kilobytes, or about as many small frames).
const PER_HOP: usize = 16;
/// Frames in all.
const IN_ALL: usize = 256;
/// How long one waits: the kernel gives a neighbour three probes, a second apart.
const PATIENCE_NS: u64 = 3_000_000_000;

/// The waiting frames, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Pending {
    frames: Vec<(Now, NextHopId, Out)>,
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Takes a frame in, or refuses it for want of room.
    pub(super) fn push(&mut self, now: Now, id: NextHopId, out: Out) -> bool {
        let same = self.frames.iter().filter(|f| f.1 == id).count();
        if same >= PER_HOP || self.frames.len() >= IN_ALL {
            return false;
        }
        self.frames.push((now, id, out));
        true
    }

    /// Hands over the frames whose next hop is ready now; tells of each that is given up.
    pub(super) fn release(
        &mut self,
        now: Now,
        hop: impl Fn(NextHopId) -> Hop,
        mut send: impl FnMut(Out, Hop),
        mut give_up: impl FnMut(NextHopId),
    ) {
        let mut kept = Vec::new();
        for (since, id, out) in self.frames.drain(..) {
            let h = hop(id);
            match h.state {
                HopState::Ready => send(out, h),
                HopState::Unresolved if now.0.saturating_sub(since.0) < PATIENCE_NS => {
                    kept.push((since, id, out))
                }
                _ => give_up(id),
            }
        }
        self.frames = kept;
    }
}
