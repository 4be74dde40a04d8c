//! The usual packet in one go: NAT of an unfragmented IPv4 packet without options, TCP or UDP, with its TTL and MAC addresses.
//!
//! The result is that of [`forward::decrement_ttl`](crate::forward::decrement_ttl), [`nat::apply`](crate::nat::apply) and
//! [`forward::set_macs`](crate::forward::set_macs), bit by bit (tests compare them); but each byte is written once, and each
//! checksum folded once. May assume: the [`Packet`] was parsed from this frame, and nothing was changed since.

use std::hint::select_unpredictable;

use crate::packet::{Fragment, Packet, proto};
use crate::wire::Mac;
use crate::{Addr, Family};

/// Which end of a packet is replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The source: a server's packet on its way to the client.
    Source,
    /// The destination: a client's packet on its way to the server.
    Destination,
}

/// Where bytes are in an IPv4 packet without options.
mod at {
    pub(super) const TTL: usize = 8;
    pub(super) const IP_CHECKSUM: usize = 10;
    pub(super) const SRC: usize = 12;
    pub(super) const DST: usize = 16;
    pub(super) const SPORT: usize = 20;
    pub(super) const DPORT: usize = 22;
    pub(super) const UDP_CHECKSUM: usize = 26;
    pub(super) const TCP_CHECKSUM: usize = 36;
}

/// Bytes of IPv4 header and UDP header.
const HEADERS: usize = 28;

/// Both MAC addresses of a frame as the two numbers that its first 12 bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Macs {
    /// The destination's first four bytes.
    pub first: u32,
    /// Its other two, and the source.
    pub rest: u64,
}

impl Macs {
    /// Of these addresses.
    pub const fn new(dst: Mac, src: Mac) -> Macs {
        let [a, b, c, d, e, f] = dst;
        let [g, h, i, j, k, l] = src;
        Macs { first: u32::from_be_bytes([a, b, c, d]), rest: u64::from_be_bytes([e, f, g, h, i, j, k, l]) }
    }
}

/// The one's complement sum in one word; 0 only of 0.
#[inline(always)]
fn fold(sum: u32) -> u16 {
    let sum = (sum >> 16) + (sum & 0xffff);
    ((sum >> 16) + sum) as u16
}

/// Two bytes as a number.
#[inline(always)]
fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

/// Replaces one end's address and port, takes one from the TTL, and sets the MAC addresses. `partial` as for
/// [`nat::apply`](crate::nat::apply).
///
/// `false`, and nothing is changed, for packets of other kinds, for those whose TTL has run out, and for UDP without checksum.
// Which end and which protocol it is changes from packet to packet, and a branch on it would go the wrong way half the time;
// so both are numbers here: places in the header.
#[inline(always)]
pub fn nat_v4(
    frame: &mut [u8],
    p: &Packet,
    end: End,
    (addr, port): (Addr, u16),
    partial: bool,
    macs: Macs,
) -> bool {
    let tcp = p.proto == proto::TCP;
    let usual = p.family == Family::V4
        && p.l4 == p.l3 + 20
        && p.fragment == Fragment::Whole
        && p.ttl > 1
        && tcp | (p.proto == proto::UDP);
    let checksum_at = select_unpredictable(tcp, at::TCP_CHECKSUM, at::UDP_CHECKSUM);
    let Some((ethernet, l3)) = frame.split_at_mut_checked(p.l3) else { return false };
    let (Some(ethernet), Some(headers)) = (ethernet.first_chunk_mut::<12>(), l3.first_chunk::<HEADERS>())
    else {
        return false;
    };
    let source = end == End::Source;
    let a = select_unpredictable(source, at::SRC, at::DST);
    let o = select_unpredictable(source, at::SPORT, at::DPORT);
    let old_addr = u32::from_be_bytes([headers[a], headers[a + 1], headers[a + 2], headers[a + 3]]);
    let old_port = u16::from_be_bytes([headers[o], headers[o + 1]]);
    let ip = u16::from_be_bytes([headers[at::IP_CHECKSUM], headers[at::IP_CHECKSUM + 1]]);
    let Some(old) = word(l3, checksum_at) else { return false };
    // UDP without checksum gets one
    let none = !tcp & (old == 0) & !partial;
    if !usual || none {
        return false;
    }
    // RFC 1624: the old words' complements and the new words are added to the sum
    let halves = |w: u32| (w >> 16) + (w & 0xffff);
    let addresses = halves(!old_addr) + halves(addr.v4());
    let new = if partial {
        fold(u32::from(old) + addresses)
    } else {
        let sum = u32::from(!old) + addresses + u32::from(!old_port) + u32::from(port);
        let new = !fold(sum);
        // UDP's checksum 0 is written as its other form: 0 says that there is none
        new | u16::from(!tcp & (new == 0)).wrapping_neg()
    };
    // the TTL is the high byte of its word
    let ip = !fold(u32::from(!ip) + addresses + u32::from(!0x0100u16));
    let Some(stored) = l3.get_mut(checksum_at..checksum_at + 2) else { return false };
    stored.copy_from_slice(&new.to_be_bytes());
    let Some(headers) = l3.first_chunk_mut::<HEADERS>() else { return false };
    headers[at::TTL] = p.ttl - 1;
    headers[at::IP_CHECKSUM..at::IP_CHECKSUM + 2].copy_from_slice(&ip.to_be_bytes());
    headers[a..a + 4].copy_from_slice(&addr.v4().to_be_bytes());
    headers[o..o + 2].copy_from_slice(&port.to_be_bytes());
    ethernet[..4].copy_from_slice(&macs.first.to_be_bytes());
    ethernet[4..].copy_from_slice(&macs.rest.to_be_bytes());
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packet::parse;
    use crate::testing::Build;
    use crate::{forward, nat};

    const MACS: (Mac, Mac) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);

    /// The same by the general functions.
    fn plain(f: &mut [u8], p: &Packet, end: End, to: (Addr, u16), partial: bool) {
        forward::decrement_ttl(f, p).expect("a TTL");
        match end {
            End::Source => nat::snat(f, p, to.0, to.1, partial),
            End::Destination => nat::dnat(f, p, to.0, to.1, partial),
        }
        .expect("can be translated");
        assert!(forward::set_macs(f, MACS.0, MACS.1));
    }

    fn compare(f: &[u8], end: End, to: (Addr, u16), partial: bool) -> bool {
        let p = parse(f).expect("a good frame");
        let mut fast = f.to_vec();
        if !nat_v4(&mut fast, &p, end, to, partial, Macs::new(MACS.0, MACS.1)) {
            assert_eq!(fast, f, "refused, and changed");
            return false;
        }
        let mut slow = f.to_vec();
        plain(&mut slow, &p, end, to, partial);
        assert_eq!(fast, slow, "{end:?} {to:?} {partial}");
        true
    }

    fn ends() -> impl Strategy<Value = End> {
        prop_oneof![Just(End::Source), Just(End::Destination)]
    }

    /// Addresses and ports among which extremes are frequent.
    fn new_end() -> impl Strategy<Value = (Addr, u16)> {
        let addr = prop_oneof![any::<u32>(), Just(0), Just(u32::MAX), Just(0xffff), Just(0xffff_0000)];
        (addr.prop_map(|a| Addr(a.into())), prop_oneof![any::<u16>(), Just(0), Just(u16::MAX)])
    }

    proptest! {
        #[test]
        fn equals_the_general_functions(
            (tcp, end, partial) in (any::<bool>(), ends(), any::<bool>()),
            (src, dst, to) in (new_end(), new_end(), new_end()),
            data in proptest::collection::vec(any::<u8>(), 0..60),
            (checksum, tags) in (any::<Option<u16>>(), 0..3usize),
        ) {
            let kind = if tcp { proto::TCP } else { proto::UDP };
            let b = Build {
                src: src.0, dst: dst.0, ports: (src.1, dst.1), data, tags: vec![0x8100; tags], ..Build::v4(kind)
            };
            let mut f = b.frame();
            // whatever stands in the checksum, right or wrong, is treated alike
            let at = parse(&f).expect("good").l4 + if tcp { 16 } else { 6 };
            if let Some(c) = checksum {
                f[at..at + 2].copy_from_slice(&c.to_be_bytes());
            }
            let none = !tcp && !partial && f[at..at + 2] == [0, 0];
            prop_assert_eq!(compare(&f, end, to, partial), !none);
        }
    }

    #[test]
    fn every_checksum_and_every_port() {
        for n in 0..=u16::MAX {
            for kind in [proto::TCP, proto::UDP] {
                let mut f = Build { data: vec![], ..Build::v4(kind) }.frame();
                let at = if kind == proto::TCP { 50 } else { 40 };
                f[at..at + 2].copy_from_slice(&n.to_be_bytes());
                for partial in [false, true] {
                    compare(&f, End::Destination, (Addr(0x0a00_0001), n), partial);
                }
            }
        }
    }

    #[test]
    fn others_are_refused_and_left_alone() {
        let to = (Addr(1), 1);
        let v4 = Build::v4(proto::TCP);
        for (b, why) in [
            (Build::v6(proto::TCP), "IPv6"),
            (Build { extra: vec![1; 4], ..v4.clone() }, "options"),
            (Build { fragment: 0x2000, ..v4.clone() }, "first fragment"),
            (Build { fragment: 0x0001, ..v4.clone() }, "later fragment"),
            (Build::v4(proto::ICMP), "ICMP"),
            (Build::v4(proto::SCTP), "SCTP"),
        ] {
            assert!(!compare(&b.frame(), End::Source, to, false), "{why}");
        }
        // a TTL that has run out: the header's sum is made anew
        let mut f = v4.frame();
        let p = parse(&f).expect("good");
        let p = Packet { ttl: 1, ..p };
        let before = f.clone();
        assert!(!nat_v4(&mut f, &p, End::Source, to, false, Macs::new(MACS.0, MACS.1)));
        // a packet that is not this frame's
        assert!(!nat_v4(&mut f[..40], &p, End::Source, to, false, Macs::new(MACS.0, MACS.1)));
        let p = Packet { ttl: 64, l3: 100, l4: 120, ..p };
        assert!(!nat_v4(&mut f, &p, End::Source, to, false, Macs::new(MACS.0, MACS.1)));
        assert_eq!(f, before);
    }
}
