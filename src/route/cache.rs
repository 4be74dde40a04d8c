use modes::{Addr, Family};

use super::{Hop, HopState, NextHopId, RouteError, Routes};

/// A worker's own memory of look-ups: for destinations whose next hop is kept nowhere else, as the clients that
/// replies go to. Direct-mapped, of fixed size; an answer holds as long as the epoch stands.
#[derive(Debug)]
pub struct HopCache {
    /// A power of two.
    slots: Box<[Option<Slot>]>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    family: Family,
    dst: Addr,
    flow: u32,
    epoch: u32,
    id: NextHopId,
}

impl HopCache {
    /// A cache of at least `slots` destinations (rounded up to a power of two, at most 2^20; 48 bytes each).
    pub fn new(slots: usize) -> HopCache {
        let slots = slots.clamp(1, 1 << 20).next_power_of_two();
        HopCache { slots: vec![None; slots].into_boxed_slice() }
    }

    /// As [`Routes::lookup`] and then [`Routes::get`], without a lock where the answer is remembered.
    ///
    /// # Errors
    /// As [`Routes::lookup`]; errors are not remembered.
    #[inline]
    pub fn hop(
        &mut self,
        routes: &Routes,
        family: Family,
        dst: Addr,
        flow: u32,
    ) -> Result<(NextHopId, Hop), RouteError> {
        let epoch = routes.epoch();
        let index = self.index(dst);
        let slot = self.slots.get(index).copied().flatten();
        let fits = |s: &Slot| s.epoch == epoch && s.dst == dst && s.family == family && s.flow == flow;
        if let Some(s) = slot.filter(fits) {
            let hop = routes.get(s.id);
            if hop.state != HopState::Gone {
                return Ok((s.id, hop));
            }
        }
        let id = routes.lookup(family, dst, flow)?;
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Some(Slot { family, dst, flow, epoch, id });
        }
        Ok((id, routes.get(id)))
    }

    fn index(&self, dst: Addr) -> usize {
        // Multiplicative hashing; who finds collisions gains only that a few look-ups take a read lock.
        let folded = (dst.0 as u64) ^ ((dst.0 >> 64) as u64);
        let hash = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        hash as usize & (self.slots.len() - 1)
    }
}
