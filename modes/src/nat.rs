//! Network address translation: addresses and ports of a packet are replaced in place, and its checksums follow.
//!
//! May assume: the [`Packet`] was parsed from this frame. Touches: the IPv4 header checksum, addresses, ports, and the transport
//! checksum (TCP, UDP, ICMPv6; SCTP's CRC32c); nothing else, neither TTL nor MAC addresses (see [`crate::forward`]).
//!
//! TCP and UDP checksums are updated incrementally (RFC 1624), so that damage on the way stays visible to the receiver. A
//! *partial* one (see [`crate::checksum`]) has only the addresses in it. A UDP datagram without checksum gets a full one, as
//! the kernel's IPVS gives it; a fragment of one stays without.

use crate::checksum::{Checksum, Sum, pseudo_of};
use crate::crc32c;
use crate::packet::{Fragment, Packet, proto};
use crate::wire::{Icmpv6, Ipv4, Ipv6, Tcp, Udp};
use crate::{Addr, Family};

/// What to replace: source, destination, or both (full NAT). Ports are ignored where the protocol has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rewrite {
    /// New source address and port.
    pub src: Option<(Addr, u16)>,
    /// New destination address and port.
    pub dst: Option<(Addr, u16)>,
}

/// Why a packet cannot be translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NatError {
    /// The packet was not parsed from this frame, which may be spoilt now.
    Mismatch,
    /// New ports in a fragment of an SCTP packet: its CRC covers data that is not here. It is unchanged; reassemble first.
    SctpFragment,
}

impl std::fmt::Display for NatError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            NatError::Mismatch => "packet does not fit its frame",
            NatError::SctpFragment => "SCTP fragment cannot be translated",
        })
    }
}

impl std::error::Error for NatError {}

/// Replaces the destination (client to server).
#[inline]
pub fn dnat(frame: &mut [u8], p: &Packet, addr: Addr, port: u16, partial: bool) -> Result<(), NatError> {
    apply(frame, p, &Rewrite { src: None, dst: Some((addr, port)) }, partial)
}

/// Replaces the source (server to client).
#[inline]
pub fn snat(frame: &mut [u8], p: &Packet, addr: Addr, port: u16, partial: bool) -> Result<(), NatError> {
    apply(frame, p, &Rewrite { src: Some((addr, port)), dst: None }, partial)
}

/// Replaces addresses and ports. `partial`: the frame's TCP or UDP checksum is a partial one, and stays one.
///
/// What is replaced is read from the frame, so rewrites of one packet may follow each other.
#[inline]
pub fn apply(frame: &mut [u8], p: &Packet, to: &Rewrite, partial: bool) -> Result<(), NatError> {
    if p.l3 > p.l4 || p.l4 > p.end || p.end > frame.len() {
        return Err(NatError::Mismatch);
    }
    let ports = (to.src.map(|s| s.1), to.dst.map(|d| d.1));
    let later = p.fragment == Fragment::Later;
    if p.proto == proto::SCTP && p.fragment == Fragment::First && changes_ports(p, ports) {
        return Err(NatError::SctpFragment);
    }
    let l3 = &mut frame[p.l3..p.end];
    let change = match p.family {
        Family::V4 => addresses_v4(l3, to),
        Family::V6 => addresses_v6(l3, to),
    };
    let change = change.ok_or(NatError::Mismatch)?;
    if later {
        return Ok(());
    }
    let l4 = &mut l3[p.l4 - p.l3..];
    match p.proto {
        proto::TCP => tcp(l4, change, ports, partial),
        proto::UDP => {
            if !partial && Udp::new(l4).is_some_and(|u| u.checksum().0 == 0) {
                udp_without_checksum(frame, p, ports)
            } else {
                udp(l4, change, ports, partial)
            }
        }
        proto::SCTP => sctp(l4, ports),
        proto::ICMPV6 if p.family == Family::V6 => {
            Icmpv6::new_mut(l4).map(|mut h| h.set_checksum(h.checksum().updated(change)))
        }
        _ => Some(()),
    }
    .ok_or(NatError::Mismatch)
}

type Ports = (Option<u16>, Option<u16>);

fn changes_ports(p: &Packet, (src, dst): Ports) -> bool {
    src.is_some_and(|s| s != p.sport) || dst.is_some_and(|d| d != p.dport)
}

/// Replaces IPv4 addresses with the header checksum; answers what that adds to the pseudo-header's sum.
#[inline]
fn addresses_v4(l3: &mut [u8], to: &Rewrite) -> Option<Sum> {
    let mut ip = Ipv4::new_mut(l3)?;
    let mut change = Sum::new();
    if let Some((addr, _)) = to.src {
        change.sub_u32(ip.src());
        change.add_u32(addr.v4());
        ip.set_src(addr.v4());
    }
    if let Some((addr, _)) = to.dst {
        change.sub_u32(ip.dst());
        change.add_u32(addr.v4());
        ip.set_dst(addr.v4());
    }
    ip.set_checksum(ip.checksum().updated(change));
    Some(change)
}

/// Replaces IPv6 addresses; answers what that adds to the pseudo-header's sum.
#[inline]
fn addresses_v6(l3: &mut [u8], to: &Rewrite) -> Option<Sum> {
    let mut ip = Ipv6::new_mut(l3)?;
    let mut change = Sum::new();
    if let Some((addr, _)) = to.src {
        change.sub_u128(ip.src());
        change.add_u128(addr.0);
        ip.set_src(addr.0);
    }
    if let Some((addr, _)) = to.dst {
        change.sub_u128(ip.dst());
        change.add_u128(addr.0);
        ip.set_dst(addr.0);
    }
    Some(change)
}

/// The stored checksum after a change of the pseudo-header and, if it is a complete one, of the ports.
#[inline]
fn adjusted(stored: Checksum, addresses: Sum, ports: Sum, partial: bool) -> Checksum {
    if partial {
        let mut s = Sum::from_partial(stored.0);
        s.add(addresses);
        return Checksum(s.fold());
    }
    let mut change = addresses;
    change.add(ports);
    stored.updated(change)
}

#[inline]
fn tcp(l4: &mut [u8], addresses: Sum, (src, dst): Ports, partial: bool) -> Option<()> {
    let mut h = Tcp::new_mut(l4)?;
    let mut ports = Sum::new();
    if let Some(port) = src {
        ports.sub_u16(h.sport());
        ports.add_u16(port);
        h.set_sport(port);
    }
    if let Some(port) = dst {
        ports.sub_u16(h.dport());
        ports.add_u16(port);
        h.set_dport(port);
    }
    h.set_checksum(adjusted(h.checksum(), addresses, ports, partial));
    Some(())
}

/// Replaces UDP ports; answers what that adds to the sum.
#[inline]
fn udp_ports(l4: &mut [u8], (src, dst): Ports) -> Option<Sum> {
    let mut h = Udp::new_mut(l4)?;
    let mut change = Sum::new();
    if let Some(port) = src {
        change.sub_u16(h.sport());
        change.add_u16(port);
        h.set_sport(port);
    }
    if let Some(port) = dst {
        change.sub_u16(h.dport());
        change.add_u16(port);
        h.set_dport(port);
    }
    Some(change)
}

#[inline]
fn udp(l4: &mut [u8], addresses: Sum, ports: Ports, partial: bool) -> Option<()> {
    let ports = udp_ports(l4, ports)?;
    let mut h = Udp::new_mut(l4)?;
    let new = adjusted(h.checksum(), addresses, ports, partial);
    h.set_checksum(if partial { new } else { new.udp() });
    Some(())
}

/// A datagram with checksum 0: computes one, over the length that the UDP header names.
fn udp_without_checksum(frame: &mut [u8], p: &Packet, ports: Ports) -> Option<()> {
    let l4 = frame.get_mut(p.l4..p.end)?;
    udp_ports(l4, ports)?;
    if p.fragment != Fragment::Whole {
        return Some(());
    }
    let len = Udp::new(l4)?.length();
    let mut sum = pseudo_of(frame, p, len)?;
    sum.add_bytes(frame.get(p.l4..p.l4 + len)?);
    let l4 = frame.get_mut(p.l4..p.end)?;
    Udp::new_mut(l4)?.set_checksum(sum.checksum().udp());
    Some(())
}

/// Replaces SCTP ports and moves the CRC32c with them; addresses are not in it.
fn sctp(l4: &mut [u8], (src, dst): Ports) -> Option<()> {
    let len = l4.len();
    let h: &mut [u8; 12] = l4.first_chunk_mut()?;
    let old = [h[0], h[1], h[2], h[3]];
    let mut new = old;
    if let Some(port) = src {
        new[..2].copy_from_slice(&port.to_be_bytes());
    }
    if let Some(port) = dst {
        new[2..].copy_from_slice(&port.to_be_bytes());
    }
    if new == old {
        return Some(());
    }
    h[..4].copy_from_slice(&new);
    // RFC 9260 appendix A: the CRC goes out low byte first.
    let change = crc32c::change(old, new, len - 4);
    let crc = u32::from_le_bytes([h[8], h[9], h[10], h[11]]) ^ change;
    h[8..].copy_from_slice(&crc.to_le_bytes());
    Some(())
}

#[cfg(test)]
mod tests;
