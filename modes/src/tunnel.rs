//! Tunnels: the client's packet travels whole inside another one, to a server that may be anywhere.
//!
//! May assume: the [`Packet`] was parsed from this frame, its TTL was decremented, its transport checksum is complete (nobody
//! could complete it later: a port's offload finds the outer packet), and it is no super-packet ([`crate::segment`]). Touches: nothing
//! of the inner packet; puts the outer headers between it and the Ethernet header, whose type may change.
//!
//! The outer header, as the kernel's IPVS makes it:
//!
//! | field | from |
//! | --- | --- |
//! | source, destination | the director's address on the way to the server, the server's |
//! | TTL, hop limit | the inner packet's, as decremented |
//! | DSCP | the inner packet's |
//! | ECN | the inner packet's, but "congestion experienced" becomes ECT(0) (RFC 3168 section 9.1.1, full functionality) |
//! | DF | an inner IPv4 packet's; clear around IPv6 |
//! | identification | 0 with DF (RFC 6864 section 4.1), else the caller's |
//! | flow label | 0 |
//!
//! IP in IP is RFC 2003 (IPv4 in IPv4), RFC 4213 (IPv6 in IPv4), RFC 2473 (in IPv6); GRE is RFC 2784 (without key and sequence number),
//! over IPv6 RFC 7676.

use crate::checksum::{Checksum, Sum};
use crate::packet::{Packet, proto};
use crate::wire::{Ipv4, Ipv6, ethertype};
use crate::{Addr, Family};

mod fragment;
pub use fragment::fragment;

/// How a packet is wrapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encapsulation {
    /// IP directly in IP.
    Ipip,
    /// With a GRE header between.
    Gre {
        /// Whether GRE's checksum, over its header and the inner packet, is present.
        checksum: bool,
    },
}

impl Encapsulation {
    /// The most bytes that any encapsulation adds: head room for these serves all.
    pub const MAX_OVERHEAD: usize = 48;

    /// Bytes that this one adds to a packet.
    pub const fn overhead(self, outer: Family) -> usize {
        let ip = match outer {
            Family::V4 => 20,
            Family::V6 => 40,
        };
        ip + self.shim()
    }

    /// Bytes between outer and inner IP header.
    const fn shim(self) -> usize {
        match self {
            Encapsulation::Ipip => 0,
            Encapsulation::Gre { checksum: false } => 4,
            Encapsulation::Gre { checksum: true } => 8,
        }
    }

    const fn protocol(self, inner: Family) -> u8 {
        match (self, inner) {
            (Encapsulation::Ipip, Family::V4) => proto::IPIP,
            (Encapsulation::Ipip, Family::V6) => proto::IPV6,
            (Encapsulation::Gre { .. }, _) => proto::GRE,
        }
    }
}

/// The ends of a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outer {
    /// Of both addresses; need not be the inner packet's.
    pub family: Family,
    /// The director's address.
    pub src: Addr,
    /// The server's address.
    pub dst: Addr,
    /// IPv4 identification, for packets that may be fragmented.
    pub id: u16,
}

/// Why a packet cannot be wrapped. The frame is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TunnelError {
    /// Fewer bytes before the frame than the outer headers need.
    NoHeadRoom,
    /// The outer packet would be longer than its length field can tell.
    TooLong,
    /// The packet was not parsed from this frame.
    Mismatch,
}

impl std::fmt::Display for TunnelError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TunnelError::NoHeadRoom => "no room for the outer headers before the frame",
            TunnelError::TooLong => "packet is too long for a tunnel",
            TunnelError::Mismatch => "packet does not fit its frame",
        })
    }
}

impl std::error::Error for TunnelError {}

/// What the outer header takes from the inner one.
struct Inner {
    class: u8,
    ttl: u8,
    dont_fragment: bool,
}

impl Inner {
    fn read(packet: &[u8], family: Family) -> Option<Inner> {
        Some(match family {
            Family::V4 => {
                let ip = Ipv4::new(packet)?;
                Inner { class: ip.tos(), ttl: ip.ttl(), dont_fragment: ip.dont_fragment() }
            }
            Family::V6 => {
                let ip = Ipv6::new(packet)?;
                Inner { class: ip.traffic_class(), ttl: ip.hop_limit(), dont_fragment: false }
            }
        })
    }

    /// DSCP and ECN for the outside.
    fn outer_class(&self) -> u8 {
        if self.class & 3 == 3 { self.class & !1 } else { self.class }
    }
}

/// Wraps the packet `p` of the frame that begins at `start` of `buf`: the Ethernet header, VLAN tags included, moves down by
/// [`Encapsulation::overhead`] bytes. Answers where the frame begins now; it ends at `start + p.end`, so that padding falls off.
pub fn encapsulate(
    buf: &mut [u8],
    start: usize,
    p: &Packet,
    how: Encapsulation,
    outer: &Outer,
) -> Result<usize, TunnelError> {
    let overhead = how.overhead(outer.family);
    let begin = start.checked_sub(overhead).ok_or(TunnelError::NoHeadRoom)?;
    let end = start.checked_add(p.end).ok_or(TunnelError::Mismatch)?;
    let frame = buf.get_mut(begin..end).ok_or(TunnelError::Mismatch)?;
    if p.l3 < 14 || p.l3 > p.end {
        return Err(TunnelError::Mismatch);
    }
    let inner = Inner::read(&frame[overhead + p.l3..], p.family).ok_or(TunnelError::Mismatch)?;
    let length = p.end - p.l3 + overhead;
    let longest = match outer.family {
        Family::V4 => 0xffff,
        Family::V6 => 40 + 0xffff,
    };
    if length > longest {
        return Err(TunnelError::TooLong);
    }
    frame.copy_within(overhead..overhead + p.l3, 0);
    frame[p.l3 - 2..p.l3].copy_from_slice(&ethertype_of(outer.family).to_be_bytes());
    let (headers, packet) = frame[p.l3..].split_at_mut(overhead);
    let protocol = how.protocol(p.family);
    let ip_header = overhead - how.shim();
    match outer.family {
        Family::V4 => write_v4(headers, &inner, outer, protocol, length),
        Family::V6 => write_v6(headers, &inner, outer, protocol, length - 40),
    }
    .ok_or(TunnelError::Mismatch)?;
    if let Encapsulation::Gre { checksum } = how {
        write_gre(&mut headers[ip_header..], packet, p.family, checksum).ok_or(TunnelError::Mismatch)?;
    }
    Ok(begin)
}

pub(crate) fn ethertype_of(family: Family) -> u16 {
    match family {
        Family::V4 => ethertype::IPV4,
        Family::V6 => ethertype::IPV6,
    }
}

fn write_v4(headers: &mut [u8], inner: &Inner, outer: &Outer, protocol: u8, length: usize) -> Option<()> {
    let mut ip = Ipv4::new_mut(headers)?;
    ip.set_start(20, inner.outer_class());
    ip.set_total_len(length as u16);
    ip.set_id(if inner.dont_fragment { 0 } else { outer.id });
    ip.set_fragment(inner.dont_fragment, false, 0);
    ip.set_ttl(inner.ttl);
    ip.set_protocol(protocol);
    ip.set_src(outer.src.v4());
    ip.set_dst(outer.dst.v4());
    ip.set_checksum(Checksum(0));
    ip.set_checksum(ip.sum().checksum());
    Some(())
}

fn write_v6(headers: &mut [u8], inner: &Inner, outer: &Outer, next: u8, payload: usize) -> Option<()> {
    let mut ip = Ipv6::new_mut(headers)?;
    ip.set_start();
    ip.set_traffic_class(inner.outer_class());
    ip.set_payload_len(payload as u16);
    ip.set_next_header(next);
    ip.set_hop_limit(inner.ttl);
    ip.set_src(outer.src.0);
    ip.set_dst(outer.dst.0);
    Some(())
}

/// GRE's flag "checksum present".
const GRE_CHECKSUM: u16 = 0x8000;

/// Writes a GRE header (RFC 2784 section 2.1): flags and version 0, the inner packet's EtherType, then checksum and reserved word.
fn write_gre(header: &mut [u8], packet: &[u8], inner: Family, checksum: bool) -> Option<()> {
    let flags = if checksum { GRE_CHECKSUM } else { 0 };
    header.first_chunk_mut::<2>()?.copy_from_slice(&flags.to_be_bytes());
    header.get_mut(2..4)?.copy_from_slice(&ethertype_of(inner).to_be_bytes());
    if checksum {
        header.get_mut(4..8)?.fill(0);
        let mut sum = Sum::new();
        sum.add_bytes(header);
        sum.add_bytes(packet);
        header.get_mut(4..6)?.copy_from_slice(&sum.checksum().0.to_be_bytes());
    }
    Some(())
}

#[cfg(test)]
mod tests;
