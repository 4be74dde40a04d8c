//! A frame, parsed once: what the director needs to know of it, and where things are.

use crate::{Addr, Family};

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

/// A well-formed IP packet in an Ethernet frame. Offsets count from the frame's first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// IP version.
    pub family: Family,
    /// Upper-layer protocol, after IPv6 extension headers.
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

/// Why a frame is not a packet that can be balanced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum ParseError {
    /// Not IPv4 or IPv6 (ARP, LLDP, …), or more VLAN tags than two: not ours.
    NotIp,
    FrameTooShort,
    Ipv4Truncated,
    Ipv4BadVersion,
    Ipv4BadHeaderLength,
    Ipv4BadTotalLength,
    Ipv4BadChecksum,
    Ipv6Truncated,
    Ipv6BadVersion,
    Ipv6BadPayloadLength,
    Ipv6BadExtension,
    Ipv6TooManyExtensions,
    TcpTruncated,
    TcpBadOffset,
    UdpTruncated,
    UdpBadLength,
    SctpTruncated,
    IcmpTruncated,
}

/// Parses an Ethernet frame.
pub fn parse(frame: &[u8]) -> Result<Packet, ParseError> {
    let _ = frame;
    Err(ParseError::NotIp)
}
