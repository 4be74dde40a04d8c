//! What is kept beside a destination's line for the daemon that comes after: which server of which service it is for, and the point from
//! which its statistics count. A line's number means nothing to another daemon; this does.

use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering::*};

use ipvs_netlink::{Af, ServiceKey};
use modes::{Addr, Family};

use super::dest::{DestId, Dests, RawStats};

/// Words of what is kept of a destination.
const KEEP: usize = 8;
/// Bit 63: there is something; kind:8 from 48 on, protocol:8 from 40 on, port:16 from 16 on. Written last.
const HEAD: usize = 0;
/// The virtual address, high word first, or the mark in the second word.
const ADDR: [usize; 2] = [1, 2];
/// Where statistics count from, in the order of [`RawStats`].
const ZERO: usize = 3;

const KEPT: u64 = 1 << 63;
const KIND_SHIFT: u32 = 48;
const PROTO_SHIFT: u32 = 40;
const PORT_SHIFT: u32 = 16;

const V4: u8 = 0;
const V6: u8 = 1;
const MARK_V4: u8 = 2;
const MARK_V6: u8 = 3;

/// What another daemon's connections say of one of its destinations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Active connections.
    pub active: u32,
    /// Others.
    pub inactive: u32,
    /// Persistence templates.
    pub templates: u32,
}

impl Dests {
    /// Bytes of what is kept of `capacity` destinations.
    pub const fn key_bytes(capacity: u32) -> usize {
        capacity as usize * KEEP * 8
    }

    fn kept(&self, id: DestId) -> Option<&[AtomicU64; KEEP]> {
        self.keys.words().as_chunks().0.get(id as usize)
    }

    /// Notes which service a line is for; who takes it over will find it by that, and the line's own address and port.
    pub fn set_key(&self, id: DestId, service: &ServiceKey) {
        let Some(w) = self.kept(id) else { return };
        let (kind, proto, port, addr) = match *service {
            ServiceKey::Addr { protocol, addr, port } => {
                (if addr.is_ipv4() { V4 } else { V6 }, protocol, port, Addr::from(addr).0)
            }
            ServiceKey::Fwmark { mark, af } => {
                (if af == Af::V4 { MARK_V4 } else { MARK_V6 }, 0, 0, u128::from(mark.get()))
            }
        };
        w[ADDR[0]].store((addr >> 64) as u64, Relaxed);
        w[ADDR[1]].store(addr as u64, Relaxed);
        let head = KEPT
            | u64::from(kind) << KIND_SHIFT
            | u64::from(proto) << PROTO_SHIFT
            | u64::from(port) << PORT_SHIFT;
        w[HEAD].store(head, Release);
    }

    /// The service that a line is for; none of a free line.
    pub fn key(&self, id: DestId) -> Option<ServiceKey> {
        let w = self.kept(id)?;
        let head = w[HEAD].load(Acquire);
        if head & KEPT == 0 {
            return None;
        }
        let (high, low) = (w[ADDR[0]].load(Relaxed), w[ADDR[1]].load(Relaxed));
        let (protocol, port) = ((head >> PROTO_SHIFT) as u8, (head >> PORT_SHIFT) as u16);
        let addr = u128::from(high) << 64 | u128::from(low);
        let mark = |af| Some(ServiceKey::Fwmark { mark: NonZeroU32::new(low as u32)?, af });
        match (head >> KIND_SHIFT) as u8 {
            V4 => Some(ServiceKey::Addr { protocol, addr: Addr(addr).ip(Family::V4), port }),
            V6 => Some(ServiceKey::Addr { protocol, addr: IpAddr::V6(Ipv6Addr::from(addr)), port }),
            MARK_V4 => mark(Af::V4),
            MARK_V6 => mark(Af::V6),
            _ => None,
        }
    }

    pub(super) fn forget_key(&self, id: DestId) {
        for w in self.kept(id).into_iter().flatten() {
            w.store(0, Release);
        }
    }

    /// Notes from where a destination's statistics count.
    pub fn set_zero(&self, id: DestId, zero: RawStats) {
        let Some(w) = self.kept(id) else { return };
        let RawStats { conns, in_pkts, out_pkts, in_bytes, out_bytes } = zero;
        for (w, value) in w[ZERO..].iter().zip([conns, in_pkts, out_pkts, in_bytes, out_bytes]) {
            w.store(value, Relaxed);
        }
    }

    /// As it was noted.
    pub fn zero(&self, id: DestId) -> RawStats {
        let Some([.., conns, in_pkts, out_pkts, in_bytes, out_bytes]) = self.kept(id) else {
            return RawStats::default();
        };
        let get = |w: &AtomicU64| w.load(Relaxed);
        RawStats {
            conns: get(conns),
            in_pkts: get(in_pkts),
            out_pkts: get(out_pkts),
            in_bytes: get(in_bytes),
            out_bytes: get(out_bytes),
        }
    }

    /// Takes over what another daemon left: `tally` says what its connections refer to. Gives the lines that are for something. Before
    /// anybody else uses them.
    pub fn take_over(&self, tally: impl Fn(DestId) -> Tally) -> Vec<DestId> {
        self.find_free(|id| self.key(id).is_some());
        let used: Vec<DestId> = (0..self.capacity()).filter(|&id| self.key(id).is_some()).collect();
        for &id in &used {
            let Tally { active, inactive, templates } = tally(id);
            self.line(id).take_over(active, inactive, templates);
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_as_it_was_noted() {
        let dests = Dests::new(2, 1).unwrap();
        let id = dests.allocate().unwrap();
        assert_eq!(dests.key(id), None);
        let addr =
            |protocol, addr: &str, port| ServiceKey::Addr { protocol, addr: addr.parse().unwrap(), port };
        let mark = |n, af| ServiceKey::Fwmark { mark: NonZeroU32::new(n).unwrap(), af };
        for key in [
            addr(6, "192.0.2.10", 80),
            addr(132, "255.255.255.255", u16::MAX),
            addr(17, "2001:db8:ffff::fe", 0),
            mark(1, Af::V4),
            mark(u32::MAX, Af::V6),
        ] {
            dests.set_key(id, &key);
            assert_eq!(dests.key(id), Some(key));
            assert_eq!(dests.key(id + 1), None);
        }
        let zero = RawStats { conns: 1, in_pkts: 2, out_pkts: 3, in_bytes: u64::MAX, out_bytes: 5 };
        dests.set_zero(id, zero);
        assert_eq!(dests.zero(id), zero);
        assert!(dests.key(id).is_some());
        dests.release(id);
        assert_eq!((dests.key(id), dests.zero(id)), (None, RawStats::default()));
    }

    #[test]
    fn lines_of_another_daemon_are_not_given_away() {
        let dests = Dests::new(8, 1).unwrap();
        let key = ServiceKey::Fwmark { mark: NonZeroU32::MIN, af: Af::V4 };
        for id in [1, 4] {
            dests.set_key(id, &key);
        }
        // half-made or half-freed: for nothing, but not clean
        dests.line(2).set_load(7, 9, 0);
        dests.line(4).set_load(3, 10, 0);
        let used = dests.take_over(|id| {
            if id == 4 { Tally { active: 9, inactive: 2, templates: 1 } } else { Tally::default() }
        });
        assert_eq!(used, [1, 4]);
        let line = dests.line(4);
        assert_eq!((line.conns(), line.templates(), line.refs(), line.weight()), ((9, 2), 1, 12, 3));
        assert!(line.load().overloaded, "11 of 10");
        assert_eq!(dests.line(2).weight(), 0);
        let rest: Vec<DestId> = std::iter::from_fn(|| dests.allocate()).collect();
        assert_eq!(rest, [0, 2, 3, 5, 6, 7]);
    }
}
