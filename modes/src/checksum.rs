//! The Internet checksum (RFC 1071), its incremental update (RFC 1624), and partial checksums.
//!
//! Two types keep apart what a bare `u16` would mix up: [`Sum`] is a running one's complement sum, [`Checksum`] is what a
//! header stores, the folded sum's complement. A one's complement sum of 16-bit words has no byte order of its own
//! (RFC 1071 section 2.B): summing words in the machine's order and swapping the folded result gives the same as summing
//! words in network order. [`Sum`] holds network-order words as numbers; only [`Sum::add_bytes`] uses the freedom, for
//! speed. Since 2^16 is 1 modulo 2^16 - 1, wider words can be added whole and folded later.
//!
//! An update subtracts the old words and adds the new ones (RFC 1624 equation 3, `HC' = ~(~HC + ~m + m')`). A sum of words
//! that are not all zero never folds to 0, so an update gives the same representation of zero as a recomputation.
//!
//! A *partial* checksum (`CHECKSUM_PARTIAL` in Linux) is the folded, **not complemented** sum of the pseudo-header alone,
//! standing in the checksum field until whoever sends the frame adds the segment. Addresses are in it, ports are not.

use crate::packet::{Fragment, Packet, proto};
use crate::wire::{Ipv4, Ipv6, Tcp, Udp};
use crate::{Addr, Family};

/// A running one's complement sum of 16-bit words in network order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum(u64);

/// A checksum as a header stores it (the number that its two bytes are in network order).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checksum(pub u16);

impl Sum {
    /// The empty sum.
    pub const fn new() -> Sum {
        Sum(0)
    }

    /// The sum behind a partial (not complemented) checksum field.
    pub const fn from_partial(field: u16) -> Sum {
        Sum(field as u64)
    }

    /// Adds a word.
    #[inline]
    pub fn add_u16(&mut self, v: u16) {
        self.0 += u64::from(v);
    }

    /// Adds two words.
    #[inline]
    pub fn add_u32(&mut self, v: u32) {
        self.0 += u64::from(v);
    }

    /// Adds eight words.
    #[inline]
    pub fn add_u128(&mut self, v: u128) {
        for i in 0..4 {
            self.0 += u64::from((v >> (32 * i)) as u32);
        }
    }

    /// Takes a word away.
    #[inline]
    pub fn sub_u16(&mut self, v: u16) {
        self.add_u16(!v);
    }

    /// Takes two words away.
    #[inline]
    pub fn sub_u32(&mut self, v: u32) {
        self.add_u32(!v);
    }

    /// Takes eight words away.
    #[inline]
    pub fn sub_u128(&mut self, v: u128) {
        self.add_u128(!v);
    }

    /// Adds another sum.
    #[inline]
    pub fn add(&mut self, other: Sum) {
        self.0 += u64::from(other.fold());
    }

    /// Adds bytes that begin at an even place of what is summed; an odd last byte is padded with zero (RFC 1071 section 1).
    #[inline]
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        let mut sum = 0u64;
        let (words, rest) = bytes.as_chunks::<4>();
        for w in words {
            sum += u64::from(u32::from_ne_bytes(*w));
        }
        let mut last = [0; 4];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        sum += u64::from(u32::from_ne_bytes(last));
        self.add_u16(u16::from_be(Sum(sum).fold()));
    }

    /// The sum as one word: 0 only if every word was 0.
    #[inline]
    pub fn fold(self) -> u16 {
        let s = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        let s = (s >> 16) + (s & 0xffff);
        let s = (s >> 16) + (s & 0xffff);
        let s = (s >> 16) + (s & 0xffff);
        s as u16
    }

    /// The checksum to store: the folded sum's complement.
    #[inline]
    pub fn checksum(self) -> Checksum {
        Checksum(!self.fold())
    }
}

impl Checksum {
    /// The sum that a stored checksum stands for, to be changed and stored again.
    #[inline]
    pub fn sum(self) -> Sum {
        Sum(u64::from(!self.0))
    }

    /// The checksum of the same words with `removed` taken away and `added` put in.
    #[inline]
    pub fn updated(self, change: Sum) -> Checksum {
        let mut s = self.sum();
        s.add(change);
        s.checksum()
    }

    /// As UDP sends it: 0 would mean "none" and goes out as 0xffff (RFC 768).
    #[inline]
    pub fn udp(self) -> Checksum {
        if self.0 == 0 { Checksum(0xffff) } else { self }
    }
}

/// The sum of an IPv4 pseudo-header (RFC 9293 section 3.1): `len` is the transport header's and its data's length.
#[inline]
pub fn pseudo_v4(src: u32, dst: u32, proto: u8, len: usize) -> Sum {
    let mut s = Sum::new();
    s.add_u32(src);
    s.add_u32(dst);
    s.add_u16(proto.into());
    s.add_u32(len as u32);
    s
}

/// The sum of an IPv6 pseudo-header (RFC 8200 section 8.1): `len` is the upper-layer packet's length.
#[inline]
pub fn pseudo_v6(src: u128, dst: u128, proto: u8, len: usize) -> Sum {
    let mut s = Sum::new();
    s.add_u128(src);
    s.add_u128(dst);
    s.add_u16(proto.into());
    s.add_u32(len as u32);
    s
}

/// The pseudo-header's sum for either family.
#[inline]
pub fn pseudo(family: Family, src: Addr, dst: Addr, proto: u8, len: usize) -> Sum {
    match family {
        Family::V4 => pseudo_v4(src.v4(), dst.v4(), proto, len),
        Family::V6 => pseudo_v6(src.0, dst.0, proto, len),
    }
}

/// The pseudo-header's sum of a packet, by the addresses that are in its bytes now (which a rewrite may have changed).
pub(crate) fn pseudo_of(frame: &[u8], p: &Packet, len: usize) -> Option<Sum> {
    let l3 = frame.get(p.l3..)?;
    Some(match p.family {
        Family::V4 => {
            let ip = Ipv4::new(l3)?;
            pseudo_v4(ip.src(), ip.dst(), p.proto, len)
        }
        Family::V6 => {
            let ip = Ipv6::new(l3)?;
            pseudo_v6(ip.src(), ip.dst(), p.proto, len)
        }
    })
}

/// Whether a TCP or UDP checksum field holds just its pseudo-header's sum, as a sender behind a veth leaves it; for receivers
/// that are not told (AF_XDP, a capture file). A complete checksum that happens to look so is as good after completion.
pub fn is_partial(frame: &[u8], p: &Packet) -> bool {
    let check = || {
        let l4 = frame.get(p.l4..p.end)?;
        let stored = match p.proto {
            proto::TCP => Tcp::new(l4)?.checksum(),
            proto::UDP => Udp::new(l4)?.checksum(),
            _ => return None,
        };
        Some(stored.0 == pseudo_of(frame, p, l4.len())?.fold())
    };
    p.fragment == Fragment::Whole && check() == Some(true)
}

/// Puts the pseudo-header's sum into a TCP or UDP checksum field, so that it is a partial one; for super-packets whose field holds
/// the checksum of their first segment. `false` (and nothing done) for other protocols and for fragments.
pub fn make_partial(frame: &mut [u8], p: &Packet) -> bool {
    if p.fragment != Fragment::Whole || p.end < p.l4 {
        return false;
    }
    let Some(sum) = pseudo_of(frame, p, p.end - p.l4) else { return false };
    let Some(l4) = frame.get_mut(p.l4..p.end) else { return false };
    let partial = Checksum(sum.fold());
    match p.proto {
        proto::TCP => Tcp::new_mut(l4).map(|mut h| h.set_checksum(partial)).is_some(),
        proto::UDP => Udp::new_mut(l4).map(|mut h| h.set_checksum(partial)).is_some(),
        _ => false,
    }
}

/// Completes a partial TCP or UDP checksum: sums the segment over the pseudo-header's sum that stands in the field. `false`
/// (and nothing done) for other protocols and for fragments, which have no such field.
pub fn complete_partial(frame: &mut [u8], p: &Packet) -> bool {
    if p.fragment != Fragment::Whole {
        return false;
    }
    let Some(l4) = frame.get_mut(p.l4..p.end) else { return false };
    let mut s = Sum::new();
    s.add_bytes(l4);
    let c = s.checksum();
    match p.proto {
        proto::TCP => Tcp::new_mut(l4).map(|mut h| h.set_checksum(c)).is_some(),
        proto::UDP => Udp::new_mut(l4).map(|mut h| h.set_checksum(c.udp())).is_some(),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
