//! What every forwarded packet needs: a hop less to live, new MAC addresses, and a size that fits.
//!
//! Order of work, as in the kernel's IPVS (its ICMP errors show it): [`options::process`](crate::options::process) → TTL (an
//! expired packet is quoted as it came) → [`decrement_ttl`] → [`needs_fragmentation`] (a packet too big is quoted with the
//! lower TTL, but its old addresses) → NAT → fragments or one frame → MAC addresses. Direct routing is all of that without NAT.

use crate::Family;
use crate::checksum::Sum;
use crate::packet::{Packet, proto};
use crate::wire::{Ethernet, Ipv4, Ipv6, Mac, Tcp};

mod fragment;
pub use fragment::{FragmentError, fragment_v4};

/// The packet may not travel on: answer "time exceeded" with the unchanged packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TtlExpired;

/// Takes one from TTL or hop limit, with IPv4's header checksum; a packet that arrives with 1 or 0 is left unchanged.
#[inline]
pub fn decrement_ttl(frame: &mut [u8], p: &Packet) -> Result<(), TtlExpired> {
    let l3 = frame.get_mut(p.l3..).ok_or(TtlExpired)?;
    match p.family {
        Family::V4 => {
            let mut ip = Ipv4::new_mut(l3).ok_or(TtlExpired)?;
            let ttl = ip.ttl();
            if ttl <= 1 {
                return Err(TtlExpired);
            }
            ip.set_ttl(ttl - 1);
            // TTL is the high byte of its word.
            let mut change = Sum::new();
            change.sub_u16(0x0100);
            ip.set_checksum(ip.checksum().updated(change));
        }
        Family::V6 => {
            let mut ip = Ipv6::new_mut(l3).ok_or(TtlExpired)?;
            let hops = ip.hop_limit();
            if hops <= 1 {
                return Err(TtlExpired);
            }
            ip.set_hop_limit(hops - 1);
        }
    }
    Ok(())
}

/// Gives the frame a new Ethernet source and destination; type and VLAN tags stay. `false` if it is shorter than a header.
#[inline]
pub fn set_macs(frame: &mut [u8], dst: Mac, src: Mac) -> bool {
    let Some(mut eth) = Ethernet::new_mut(frame) else { return false };
    eth.set_dst(dst);
    eth.set_src(src);
    true
}

/// Direct routing: the packet goes on as it is, but for its TTL and MAC addresses.
#[inline]
pub fn direct_route(frame: &mut [u8], p: &Packet, dst: Mac, src: Mac) -> Result<(), TtlExpired> {
    decrement_ttl(frame, p)?;
    set_macs(frame, dst, src);
    Ok(())
}

/// Whether a packet is too big for `mtu` (bytes of an IP packet). For a super-packet (`gso`: payload bytes of a segment) the
/// segments count, not their sum.
#[inline]
pub fn needs_fragmentation(frame: &[u8], p: &Packet, mtu: usize, gso: Option<u16>) -> bool {
    let len = p.end - p.l3;
    let Some(size) = gso.filter(|s| *s > 0 && len > mtu) else { return len > mtu };
    let l4 = frame.get(p.l4..p.end).unwrap_or_default();
    let header = match p.proto {
        proto::TCP => Tcp::new(l4).map_or(20, |h| h.header_len()),
        proto::UDP => 8,
        _ => return true,
    };
    p.l4 - p.l3 + header + usize::from(size) > mtu
}

#[cfg(test)]
mod tests;
