//! Others' errors about the director's connections: translated by NAT, or told anew where they are about a tunnel's outer packet.

use super::{Inner, MAX_V4, MAX_V6, Problem, TOS_CONTROL, begin, finish_v4, finish_v6, seal_v4, seal_v6};
use crate::checksum::{Checksum, Sum};
use crate::nat::{self, NatError, Rewrite};
use crate::packet::{Packet, proto};
use crate::wire::{Icmp, Icmpv6, Ipv4, Ipv6, icmp_type, icmpv6_type};
use crate::{Addr, Family};

/// Which way an error goes that NAT translates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Toward {
    /// It is about a packet of the virtual address, and goes to the server that sent it.
    Server,
    /// It is about a packet to the server, and goes to the client that sent it.
    Client,
}

/// Translates an error and the packet that it quotes, both at once: toward the server the error's destination and the quote's source
/// become `end`, the server's; toward the client the error's source and the quote's destination become `end`, the virtual one. The
/// checksums of the outer header and of the message follow by their change (RFC 1624), so that damage stays visible; that of the quoted
/// header, which routers leave wrong when they have lowered its TTL, is made right. What lies behind the quoted ports stays as it is, the
/// quoted transport checksum too: it is rarely there, nobody looks at it, and IPVS leaves it.
///
/// `inner` is what [`super::embedded`] found in this frame; its protocol must have ports.
///
/// # Errors
/// [`NatError::Mismatch`]: the packet or its quote is not this frame's, which may be spoilt now.
pub fn translate(
    frame: &mut [u8],
    p: &Packet,
    inner: &Inner,
    toward: Toward,
    (addr, port): (Addr, u16),
) -> Result<(), NatError> {
    let outer = match toward {
        Toward::Server => Rewrite { src: None, dst: Some((addr, 0)) },
        Toward::Client => Rewrite { src: Some((addr, 0)), dst: None },
    };
    nat::apply(frame, p, &outer, false)?;
    quote(frame, p, inner, toward, addr, port).ok_or(NatError::Mismatch)
}

fn quote(frame: &mut [u8], p: &Packet, inner: &Inner, toward: Toward, addr: Addr, port: u16) -> Option<()> {
    let mut change = Sum::new();
    let header = frame.get_mut(inner.off..inner.l4)?;
    match inner.family {
        Family::V4 => {
            let mut ip = Ipv4::new_mut(header)?;
            change.add_u32(addr.v4());
            match toward {
                Toward::Server => {
                    change.sub_u32(ip.src());
                    ip.set_src(addr.v4());
                }
                Toward::Client => {
                    change.sub_u32(ip.dst());
                    ip.set_dst(addr.v4());
                }
            }
            change.sub_u16(ip.checksum().0);
            ip.set_checksum(Checksum(0));
            let mut sum = Sum::new();
            sum.add_bytes(header);
            let new = sum.checksum();
            Ipv4::new_mut(header)?.set_checksum(new);
            change.add_u16(new.0);
        }
        Family::V6 => {
            let mut ip = Ipv6::new_mut(header)?;
            change.add_u128(addr.0);
            match toward {
                Toward::Server => {
                    change.sub_u128(ip.src());
                    ip.set_src(addr.0);
                }
                Toward::Client => {
                    change.sub_u128(ip.dst());
                    ip.set_dst(addr.0);
                }
            }
        }
    }
    let ports: &mut [u8; 4] = frame.get_mut(inner.l4..p.end)?.first_chunk_mut()?;
    let at = match toward {
        Toward::Server => 0,
        Toward::Client => 2,
    };
    let place: &mut [u8; 2] = ports[at..].first_chunk_mut()?;
    change.sub_u16(u16::from_be_bytes(*place));
    change.add_u16(port);
    *place = port.to_be_bytes();
    let message = frame.get_mut(p.l4..p.end)?;
    match p.family {
        Family::V4 => Icmp::new_mut(message).map(|mut h| h.set_checksum(h.checksum().updated(change))),
        Family::V6 => Icmpv6::new_mut(message).map(|mut h| h.set_checksum(h.checksum().updated(change))),
    }
}

/// What an error about a tunnel's outer packet tells the sender of the inner one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    /// Type of the new error.
    pub kind: u8,
    /// Its code.
    pub code: u8,
    /// Bytes 4..8 of its header.
    pub rest: u32,
}

impl Told {
    /// That a packet of this family is too big.
    pub fn too_big(family: Family, mtu: u32) -> Told {
        let problem = Problem::TooBig { mtu };
        let (kind, code, rest) = match family {
            Family::V4 => problem.v4(),
            Family::V6 => problem.v6(),
        };
        Told { kind, code, rest }
    }
}

/// Whether an error says that the packet was too big for a link on its way; if so, that link's MTU (RFC 1191, RFC 8201).
pub fn too_big(frame: &[u8], p: &Packet, inner: &Inner) -> Option<u32> {
    let says = match p.family {
        Family::V4 => (inner.icmp_type, inner.icmp_code) == (icmp_type::DESTINATION_UNREACHABLE, 4),
        Family::V6 => inner.icmp_type == icmpv6_type::PACKET_TOO_BIG,
    };
    let rest: &[u8; 4] = frame.get(p.l4 + 4..p.end)?.first_chunk()?;
    let mtu = match p.family {
        // The upper half is unused.
        Family::V4 => u32::from(u16::from_be_bytes([rest[2], rest[3]])),
        Family::V6 => u32::from_be_bytes(*rest),
    };
    says.then_some(mtu)
}

/// Writes the frame of an error about the packet `inner` (from [`super::inside`]) that the error `p` in `frame` quotes within an outer
/// one, from `from` to the inner packet's sender. MAC addresses are those of an answer to `frame`, to be replaced. `false` and
/// nothing written if the quote is not this frame's.
pub fn tell(
    frame: &[u8],
    p: &Packet,
    inner: &Inner,
    told: Told,
    from: Addr,
    ip_id: u16,
    out: &mut Vec<u8>,
) -> bool {
    let done = write(frame, p, inner, told, from, ip_id, out);
    if done.is_none() {
        out.clear();
    }
    done.is_some()
}

fn write(
    frame: &[u8],
    p: &Packet,
    inner: &Inner,
    told: Told,
    from: Addr,
    ip_id: u16,
    out: &mut Vec<u8>,
) -> Option<()> {
    let quote = frame.get(inner.off..p.end)?;
    let kind = (told.kind, told.code, told.rest);
    match inner.family {
        Family::V4 => {
            begin(frame, p.l3, 28, out)?;
            out.extend_from_slice(&quote[..quote.len().min(MAX_V4 - 28)]);
            finish_v4(out, p.l3, (from, inner.src), (TOS_CONTROL, proto::ICMP), (ip_id, false))?;
            seal_v4(out.get_mut(p.l3 + 20..)?, kind)?;
        }
        Family::V6 => {
            begin(frame, p.l3, 48, out)?;
            out.extend_from_slice(&quote[..quote.len().min(MAX_V6 - 48)]);
            finish_v6(out, p.l3, (from, inner.src), proto::ICMPV6)?;
            seal_v6(out.get_mut(p.l3 + 40..)?, (from, inner.src), kind)?;
        }
    }
    let kind = crate::tunnel::ethertype_of(inner.family).to_be_bytes();
    out.get_mut(p.l3 - 2..p.l3)?.copy_from_slice(&kind);
    Some(())
}

#[cfg(test)]
mod tests;
