//! A frame, parsed once: what the director needs to know of it, and where things are.

use std::hint::select_unpredictable;

use crate::wire::{Ethernet, Ipv4, Ipv6, Tcp, Udp, ethertype};
use crate::{Addr, Family};

mod error;
mod extensions;
pub use error::ParseError;
pub use extensions::MAX_EXTENSIONS;
pub(crate) use extensions::walk;

/// Whether a packet is part of a fragmented datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fragment {
    /// Not fragmented.
    Whole,
    /// First fragment: holds the transport header.
    First,
    /// A later fragment: no ports.
    Later,
}

/// TCP flag bits as in the header's 14th byte.
#[allow(missing_docs)]
pub mod tcp_flags {
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    pub const PSH: u8 = 8;
    pub const ACK: u8 = 16;
}

/// Protocol numbers (IANA), shared by IPv4's protocol field and IPv6's next header.
#[allow(missing_docs)]
pub mod proto {
    pub const HOP_BY_HOP: u8 = 0;
    pub const ICMP: u8 = 1;
    /// IPv4 inside.
    pub const IPIP: u8 = 4;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    /// IPv6 inside.
    pub const IPV6: u8 = 41;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const GRE: u8 = 47;
    pub const AH: u8 = 51;
    pub const ICMPV6: u8 = 58;
    pub const DESTINATION_OPTIONS: u8 = 60;
    pub const SCTP: u8 = 132;
}

/// A well-formed IP packet in an Ethernet frame. Offsets count from the frame's first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// IP version.
    pub family: Family,
    /// Upper-layer protocol, after IPv6 extension headers. In a later fragment of IPv6 it is what the fragment header names,
    /// which may be a further extension header.
    pub proto: u8,
    /// Source.
    pub src: Addr,
    /// Destination.
    pub dst: Addr,
    /// Source port, host order; 0 without ports.
    pub sport: u16,
    /// Destination port, host order; 0 without ports.
    pub dport: u16,
    /// TCP flags; 0 for other protocols.
    pub tcp_flags: u8,
    /// Fragmentation.
    pub fragment: Fragment,
    /// TTL or hop limit.
    pub ttl: u8,
    /// IPv4 DF bit; true for IPv6.
    pub dont_fragment: bool,
    /// Offset of the IP header.
    pub l3: usize,
    /// Offset of the transport header (of the payload, in a later fragment).
    pub l4: usize,
    /// End of the IP packet; bytes behind it are padding of the frame.
    pub end: usize,
}

/// Parses an Ethernet frame: up to two VLAN tags (802.1Q, 802.1ad), IPv4 with options, IPv6 with extension headers, the fixed
/// part of TCP, UDP, SCTP, ICMP and ICMPv6. Other protocols are packets without ports.
///
/// The IPv4 header checksum is verified, transport checksums are not: as in a router, they travel end to end. Of an `Ok` packet
/// `l3 < l4 <= end <= frame.len()` holds, and the protocol's fixed header is within `l4..end` unless it is a later fragment.
#[inline]
pub fn parse(frame: &[u8]) -> Result<Packet, ParseError> {
    let eth = Ethernet::new(frame).ok_or(ParseError::FrameTooShort)?;
    match eth.ethertype() {
        ethertype::IPV4 => parse_v4(frame, 14),
        ethertype::IPV6 => parse_v6(frame, 14),
        ethertype::VLAN | ethertype::QINQ => parse_tagged(frame),
        _ => Err(ParseError::NotIp),
    }
}

/// [`parse`] for IPv4 packets without VLAN tags; `None` for all other frames. Where it is called the packet is put together
/// field by field, and not copied.
#[inline(always)]
pub fn parse_plain_v4(frame: &[u8]) -> Option<Result<Packet, ParseError>> {
    let eth = Ethernet::new(frame)?;
    (eth.ethertype() == ethertype::IPV4).then(|| parse_v4(frame, 14))
}

/// A frame whose first EtherType is that of a tag.
fn parse_tagged(frame: &[u8]) -> Result<Packet, ParseError> {
    for l3 in [18, 22] {
        let kind: &[u8; 2] =
            frame.get(l3 - 2..l3).and_then(<[u8]>::first_chunk).ok_or(ParseError::FrameTooShort)?;
        match u16::from_be_bytes(*kind) {
            ethertype::IPV4 => return parse_v4(frame, l3),
            ethertype::IPV6 => return parse_v6(frame, l3),
            ethertype::VLAN | ethertype::QINQ => {}
            _ => return Err(ParseError::NotIp),
        }
    }
    Err(ParseError::NotIp)
}

#[inline(always)]
fn parse_v4(frame: &[u8], l3: usize) -> Result<Packet, ParseError> {
    let bytes = &frame[l3..];
    let ip = Ipv4::new(bytes).ok_or(ParseError::Ipv4Truncated)?;
    if ip.version() != 4 {
        return Err(ParseError::Ipv4BadVersion);
    }
    let header = ip.header_len();
    if header < 20 {
        return Err(ParseError::Ipv4BadHeaderLength);
    }
    // RFC 1071 section 1: the sum over a good header, its checksum included, is all ones.
    if header > 20 {
        let mut sum = ip.sum();
        sum.add_bytes(bytes.get(20..header).ok_or(ParseError::Ipv4Truncated)?);
        if sum.fold() != 0xffff {
            return Err(ParseError::Ipv4BadChecksum);
        }
    } else if !ip.adds_up() {
        return Err(ParseError::Ipv4BadChecksum);
    }
    let total = ip.total_len();
    if total < header || total > bytes.len() {
        return Err(if total == 0 && bytes.len() > 0xffff {
            ParseError::BigTcp
        } else {
            ParseError::Ipv4BadTotalLength
        });
    }
    let fragment = match (ip.fragment_offset(), ip.more_fragments()) {
        (0, false) => Fragment::Whole,
        (0, true) => Fragment::First,
        _ => Fragment::Later,
    };
    let (l4, end) = (l3 + header, l3 + total);
    let ports = transport(&frame[l4..end], Family::V4, ip.protocol(), fragment)?;
    Ok(Packet {
        family: Family::V4,
        proto: ip.protocol(),
        src: Addr(ip.src().into()),
        dst: Addr(ip.dst().into()),
        sport: ports.src,
        dport: ports.dst,
        tcp_flags: ports.flags,
        fragment,
        ttl: ip.ttl(),
        dont_fragment: ip.dont_fragment(),
        l3,
        l4,
        end,
    })
}

#[inline]
fn parse_v6(frame: &[u8], l3: usize) -> Result<Packet, ParseError> {
    let bytes = &frame[l3..];
    let ip = Ipv6::new(bytes).ok_or(ParseError::Ipv6Truncated)?;
    if ip.version() != 6 {
        return Err(ParseError::Ipv6BadVersion);
    }
    let total = 40 + ip.payload_len();
    if total > bytes.len() {
        return Err(ParseError::Ipv6BadPayloadLength);
    }
    if total == 40 && bytes.len() > 40 + 0xffff {
        return Err(ParseError::BigTcp);
    }
    let mut chain = extensions::Chain { proto: ip.next_header(), fragment: Fragment::Whole, len: 0 };
    if extensions::is_extension(chain.proto) {
        if total == 40 {
            // RFC 2675: a jumbogram's length field is 0, and its hop-by-hop header lies behind.
            let jumbo = chain.proto == proto::HOP_BY_HOP && extensions::is_jumbogram(&bytes[40..]);
            return Err(if jumbo { ParseError::BigTcp } else { ParseError::Ipv6BadExtension });
        }
        chain = walk(chain.proto, &bytes[40..total])?;
    }
    let (l4, end) = (l3 + 40 + chain.len, l3 + total);
    let ports = transport(&frame[l4..end], Family::V6, chain.proto, chain.fragment)?;
    Ok(Packet {
        family: Family::V6,
        proto: chain.proto,
        src: Addr(ip.src()),
        dst: Addr(ip.dst()),
        sport: ports.src,
        dport: ports.dst,
        tcp_flags: ports.flags,
        fragment: chain.fragment,
        ttl: ip.hop_limit(),
        dont_fragment: true,
        l3,
        l4,
        end,
    })
}

/// What a transport header tells; zeros where there is none.
#[derive(Clone, Copy, Default)]
struct Ports {
    src: u16,
    dst: u16,
    flags: u8,
}

/// Ports and flags of a good TCP or UDP header; none if there is anything wrong with it. Which of the two it is changes from
/// packet to packet, so it is a matter of numbers here and not of branches.
#[inline(always)]
fn usual_ports(l4: &[u8], tcp: bool) -> Option<Ports> {
    let pick = |a: usize, b: usize| select_unpredictable(tcp, a, b);
    // TCP's data offset and flags, UDP's length
    let (least, at) = (pick(20, 8), pick(12, 4));
    let [a, b, c, d] = *l4.first_chunk()?;
    let word = u16::from_be_bytes(*l4.get(at..at + 2)?.first_chunk()?);
    let length = pick(usize::from(word >> 12) * 4, word.into());
    let good = (l4.len() >= least) & (length >= least) & (length <= l4.len());
    let flags = pick(usize::from(word & 0xff), 0) as u8;
    good.then_some(Ports { src: u16::from_be_bytes([a, b]), dst: u16::from_be_bytes([c, d]), flags })
}

/// Reads ports and flags, and checks the transport header. Inlined, so that a packet is put together just once.
#[inline(always)]
fn transport(l4: &[u8], family: Family, proto: u8, fragment: Fragment) -> Result<Ports, ParseError> {
    let whole = fragment == Fragment::Whole;
    let tcp = proto == proto::TCP;
    if whole
        && tcp | (proto == proto::UDP)
        && let Some(ports) = usual_ports(l4, tcp)
    {
        return Ok(ports);
    }
    match proto {
        _ if fragment == Fragment::Later => Ok(Ports::default()),
        proto::TCP => {
            let tcp = Tcp::new(l4).ok_or(ParseError::TcpTruncated)?;
            let header = tcp.header_len();
            if header < 20 || whole && header > l4.len() {
                return Err(ParseError::TcpBadOffset);
            }
            Ok(Ports { src: tcp.sport(), dst: tcp.dport(), flags: tcp.flags() })
        }
        proto::UDP => {
            let udp = Udp::new(l4).ok_or(ParseError::UdpTruncated)?;
            if udp.length() < 8 || whole && udp.length() > l4.len() {
                return Err(ParseError::UdpBadLength);
            }
            Ok(Ports { src: udp.sport(), dst: udp.dport(), flags: 0 })
        }
        proto::SCTP => {
            // RFC 9260 section 3.1: ports, verification tag, checksum.
            let h: &[u8; 12] = l4.first_chunk().ok_or(ParseError::SctpTruncated)?;
            let (src, dst) = (u16::from_be_bytes([h[0], h[1]]), u16::from_be_bytes([h[2], h[3]]));
            Ok(Ports { src, dst, flags: 0 })
        }
        proto::ICMP if family == Family::V4 && l4.len() < 8 => Err(ParseError::IcmpTruncated),
        proto::ICMPV6 if family == Family::V6 && l4.len() < 8 => Err(ParseError::IcmpTruncated),
        _ => Ok(Ports::default()),
    }
}

#[cfg(test)]
pub(crate) mod tests;
