//! Which MACs a port answers to: read for every frame, without a lock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::event::Mac;
use super::{MAX_PORTS, PortError, PortId};

/// Most MACs of macvlans (virtual routers) on one port: as many as there are VRRP identifiers.
pub(super) const MAX_EXTRA_MACS: usize = 255;

/// Set beside a MAC that is there, so that all zeros never match.
const PRESENT: u64 = 1 << 48;

struct Slot {
    name: String,
    own: AtomicU64,
    extra_len: AtomicU32,
    extra: [AtomicU64; MAX_EXTRA_MACS],
}

impl Slot {
    #[inline(never)]
    fn has_extra(&self, mac: u64) -> bool {
        let len = self.extra_len.load(Ordering::Acquire) as usize;
        self.extra.iter().take(len).any(|m| m.load(Ordering::Relaxed) == mac)
    }
}

pub(super) struct Ports {
    slots: [OnceLock<Box<Slot>>; MAX_PORTS],
}

fn word(mac: Mac) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_be_bytes([0, 0, a, b, c, d, e, f]) | PRESENT
}

impl Ports {
    pub(super) fn new() -> Ports {
        Ports { slots: [const { OnceLock::new() }; MAX_PORTS] }
    }

    #[inline(always)]
    fn slot(&self, port: PortId) -> Option<&Slot> {
        self.slots.get(usize::from(port.0))?.get().map(|s| &**s)
    }

    pub(super) fn add(&self, port: PortId, name: &str) -> Result<(), PortError> {
        let slot = self.slots.get(usize::from(port.0)).ok_or(PortError::TooMany(port))?;
        let set = slot.get_or_init(|| {
            Box::new(Slot {
                name: name.to_owned(),
                own: AtomicU64::new(0),
                extra_len: AtomicU32::new(0),
                extra: [const { AtomicU64::new(0) }; MAX_EXTRA_MACS],
            })
        });
        if set.name == name { Ok(()) } else { Err(PortError::Taken(port)) }
    }

    pub(super) fn name(&self, port: PortId) -> Option<&str> {
        Some(&self.slot(port)?.name)
    }

    pub(super) fn by_name(&self, name: &str) -> Option<PortId> {
        self.iter().find(|(_, n)| *n == name).map(|(p, _)| p)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PortId, &str)> {
        (0..).zip(&self.slots).filter_map(|(i, s)| Some((PortId(i), s.get()?.name.as_str())))
    }

    /// Sets the MACs of a port; returns how many of `extra` found no room.
    pub(super) fn set(&self, port: PortId, own: Option<Mac>, extra: &[Mac]) -> usize {
        let Some(slot) = self.slot(port) else { return extra.len() };
        slot.own.store(own.map_or(0, word), Ordering::Relaxed);
        for (to, mac) in slot.extra.iter().zip(extra) {
            to.store(word(*mac), Ordering::Relaxed);
        }
        let len = extra.len().min(MAX_EXTRA_MACS);
        slot.extra_len.store(len as u32, Ordering::Release);
        extra.len() - len
    }

    #[inline]
    pub(super) fn has_mac(&self, port: PortId, mac: Mac) -> bool {
        self.has(port, word(mac))
    }

    /// [`Ports::has_mac`] for the MAC in a frame's first bytes, taken as one number.
    #[inline(always)]
    pub(super) fn is_to_us(&self, port: PortId, start: &[u8; 8]) -> bool {
        self.has(port, u64::from_be_bytes(*start) >> 16 | PRESENT)
    }

    #[inline(always)]
    fn has(&self, port: PortId, mac: u64) -> bool {
        let Some(slot) = self.slot(port) else { return false };
        slot.own.load(Ordering::Relaxed) == mac || slot.has_extra(mac)
    }
}
