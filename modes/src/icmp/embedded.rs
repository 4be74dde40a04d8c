use crate::packet::{Fragment, Packet, proto, walk};
use crate::wire::{Icmp, Icmpv6, Ipv4, Ipv6, ethertype, icmp_type, icmpv6_type};
use crate::{Addr, Family};

/// The packet that an ICMP error is about, as its sender sent it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inner {
    /// Type of the error that quotes it.
    pub icmp_type: u8,
    /// Code of the error.
    pub icmp_code: u8,
    /// IP version of both.
    pub family: Family,
    /// Upper-layer protocol.
    pub proto: u8,
    /// Source.
    pub src: Addr,
    /// Destination.
    pub dst: Addr,
    /// Source port, host order; 0 without ports.
    pub sport: u16,
    /// Destination port, host order; 0 without ports.
    pub dport: u16,
    /// Offset of the quoted IP header in the frame.
    pub off: usize,
    /// Offset of the quoted transport header; at least 8 bytes of it are in the frame if the protocol is TCP, UDP or SCTP.
    pub l4: usize,
}

/// The packet quoted by an ICMP error: IPv4 destination unreachable, source quench, time exceeded, parameter problem; ICMPv6
/// types 1 to 4. `None` for other messages, and where the quote is broken, cut within the first 8 bytes of its transport
/// header, or a later fragment. Its lengths and checksums are not judged: routers quote as little as they like, and have
/// changed the header before.
pub fn embedded(frame: &[u8], p: &Packet) -> Option<Inner> {
    if p.fragment == Fragment::Later {
        return None;
    }
    let message = frame.get(p.l4..p.end)?;
    let quote = message.get(8..)?;
    let mut inner = match (p.family, p.proto) {
        (Family::V4, proto::ICMP) => {
            use icmp_type::*;
            let h = Icmp::new(message)?;
            let known = [DESTINATION_UNREACHABLE, SOURCE_QUENCH, TIME_EXCEEDED, PARAMETER_PROBLEM];
            let inner = known.contains(&h.kind()).then(|| inner_v4(quote))??;
            Inner { icmp_type: h.kind(), icmp_code: h.code(), ..inner }
        }
        (Family::V6, proto::ICMPV6) => {
            use icmpv6_type::*;
            let h = Icmpv6::new(message)?;
            let known = matches!(h.kind(), DESTINATION_UNREACHABLE..=PARAMETER_PROBLEM);
            let inner = known.then(|| inner_v6(quote))??;
            Inner { icmp_type: h.kind(), icmp_code: h.code(), ..inner }
        }
        _ => return None,
    };
    inner.read_ports(quote)?;
    let off = p.l4 + 8;
    Some(Inner { off, l4: off + inner.l4, ..inner })
}

/// The packet that a quoted packet of a tunnel (IPIP, or GRE without key and sequence number) carries; the error's type and code are
/// kept. `None` where `outer`, which [`embedded`] found in this frame, is none of a tunnel, or quoted too short.
pub fn inside(frame: &[u8], p: &Packet, outer: &Inner) -> Option<Inner> {
    let payload = frame.get(outer.l4..p.end)?;
    let (family, shim) = match outer.proto {
        proto::IPIP => (Family::V4, 0),
        proto::IPV6 => (Family::V6, 0),
        proto::GRE => {
            // RFC 2784 section 2.1: flags and version, of which only "checksum present" may be set, then the EtherType.
            let h: &[u8; 4] = payload.first_chunk()?;
            let shim = match u16::from_be_bytes([h[0], h[1]]) {
                0 => 4,
                0x8000 => 8,
                _ => return None,
            };
            match u16::from_be_bytes([h[2], h[3]]) {
                ethertype::IPV4 => (Family::V4, shim),
                ethertype::IPV6 => (Family::V6, shim),
                _ => return None,
            }
        }
        _ => return None,
    };
    let quote = payload.get(shim..)?;
    let mut inner = match family {
        Family::V4 => inner_v4(quote)?,
        Family::V6 => inner_v6(quote)?,
    };
    inner.read_ports(quote)?;
    let off = outer.l4 + shim;
    Some(Inner { icmp_type: outer.icmp_type, icmp_code: outer.icmp_code, off, l4: off + inner.l4, ..inner })
}

/// The length in bytes that the header of a quoted packet states, IP header included, however much of it is quoted; 40 for a
/// jumbogram. `None` where `inner` was not found in this frame.
pub fn stated_len(frame: &[u8], inner: &Inner) -> Option<usize> {
    let quote = frame.get(inner.off..)?;
    match inner.family {
        Family::V4 => Some(Ipv4::new(quote)?.total_len()),
        Family::V6 => Some(Ipv6::new(quote)?.payload_len() + 40),
    }
}

impl Inner {
    /// Reads the ports of a packet whose offsets are still those in its quote; `None` if the quote is too short for them.
    fn read_ports(&mut self, quote: &[u8]) -> Option<()> {
        if matches!(self.proto, proto::TCP | proto::UDP | proto::SCTP) {
            let ports = quote.get(self.l4..)?.first_chunk::<8>()?;
            self.sport = u16::from_be_bytes([ports[0], ports[1]]);
            self.dport = u16::from_be_bytes([ports[2], ports[3]]);
        }
        Some(())
    }
}

/// The quoted packet, with offsets in the quote; the caller fills in the error's type and code.
fn inner(family: Family, proto: u8, src: Addr, dst: Addr, l4: usize) -> Inner {
    Inner { icmp_type: 0, icmp_code: 0, family, proto, src, dst, sport: 0, dport: 0, off: 0, l4 }
}

fn inner_v4(quote: &[u8]) -> Option<Inner> {
    let ip = Ipv4::new(quote)?;
    let header = ip.header_len();
    if ip.version() != 4 || header < 20 || header > quote.len() || ip.fragment_offset() != 0 {
        return None;
    }
    Some(inner(Family::V4, ip.protocol(), Addr(ip.src().into()), Addr(ip.dst().into()), header))
}

fn inner_v6(quote: &[u8]) -> Option<Inner> {
    let ip = Ipv6::new(quote)?;
    if ip.version() != 6 {
        return None;
    }
    let chain = walk(ip.next_header(), &quote[40..]).ok()?;
    if chain.fragment == Fragment::Later {
        return None;
    }
    Some(inner(Family::V6, chain.proto, Addr(ip.src()), Addr(ip.dst()), 40 + chain.len))
}
