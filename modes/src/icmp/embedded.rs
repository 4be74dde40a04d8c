use crate::packet::{Fragment, Packet, proto, walk};
use crate::wire::{Icmp, Icmpv6, Ipv4, Ipv6, icmp_type, icmpv6_type};
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
    if matches!(inner.proto, proto::TCP | proto::UDP | proto::SCTP) {
        let ports = quote.get(inner.l4..)?.first_chunk::<8>()?;
        inner.sport = u16::from_be_bytes([ports[0], ports[1]]);
        inner.dport = u16::from_be_bytes([ports[2], ports[3]]);
    }
    let off = p.l4 + 8;
    Some(Inner { off, l4: off + inner.l4, ..inner })
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
