//! ICMP: errors that the director makes, whom it may answer, and what others' errors are about.
//!
//! RFC 792, RFC 1122 section 3.2.2, RFC 1812 section 4.3; RFC 4443 for ICMPv6.

use crate::checksum::{Sum, pseudo_v6};
use crate::packet::{Fragment, Packet, proto};
use crate::wire::{Ethernet, Icmp, Icmpv6, Ipv4, Ipv6, icmp_type, icmpv6_type};
use crate::{Addr, Family};

mod embedded;
mod related;
pub use embedded::{Inner, embedded, inside, stated_len};
pub use related::{Told, Toward, tell, too_big, translate};

/// TTL and hop limit of packets that the director makes.
pub(crate) const TTL: u8 = 64;
/// Longest ICMPv4 error (RFC 1812 section 4.3.2.3), as IP packet.
const MAX_V4: usize = 576;
/// Longest ICMPv6 error (RFC 4443 section 2.4 c): IPv6's least MTU.
const MAX_V6: usize = 1280;
/// Type of service of ICMPv4 errors: internetwork control (RFC 1812 section 4.3.2.5).
const TOS_CONTROL: u8 = 0xc0;

/// What to tell a packet's sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Problem {
    /// TTL or hop limit ran out: v4 11/0, v6 3/0.
    TimeExceeded,
    /// Nobody serves this: v4 3/3, v6 1/4.
    PortUnreachable,
    /// The next hop does not answer: v4 3/1, v6 1/3.
    HostUnreachable,
    /// No way to the destination: v4 3/0, v6 1/0.
    NoRoute,
    /// Bigger than the way's MTU (bytes of an IP packet; for IPv4 at most 65,535 can be told): v4 3/4, v6 2/0.
    TooBig {
        /// The largest packet that would have passed.
        mtu: u32,
    },
    /// A bad header field: v4 12/0, v6 4/0.
    Parameter {
        /// Offset of the field from the start of the IP header.
        pointer: u8,
    },
}

impl Problem {
    /// Type, code and the header's bytes 4..8.
    fn v4(self) -> (u8, u8, u32) {
        use icmp_type::*;
        match self {
            Problem::TimeExceeded => (TIME_EXCEEDED, 0, 0),
            Problem::PortUnreachable => (DESTINATION_UNREACHABLE, 3, 0),
            Problem::HostUnreachable => (DESTINATION_UNREACHABLE, 1, 0),
            Problem::NoRoute => (DESTINATION_UNREACHABLE, 0, 0),
            // RFC 1191 section 4.
            Problem::TooBig { mtu } => (DESTINATION_UNREACHABLE, 4, mtu.min(0xffff)),
            Problem::Parameter { pointer } => (PARAMETER_PROBLEM, 0, u32::from(pointer) << 24),
        }
    }

    fn v6(self) -> (u8, u8, u32) {
        use icmpv6_type::*;
        match self {
            Problem::TimeExceeded => (TIME_EXCEEDED, 0, 0),
            Problem::PortUnreachable => (DESTINATION_UNREACHABLE, 4, 0),
            Problem::HostUnreachable => (DESTINATION_UNREACHABLE, 3, 0),
            Problem::NoRoute => (DESTINATION_UNREACHABLE, 0, 0),
            Problem::TooBig { mtu } => (PACKET_TOO_BIG, 0, mtu),
            Problem::Parameter { pointer } => (PARAMETER_PROBLEM, 0, pointer.into()),
        }
    }
}

/// Whether an ICMP error (or a reset) may be sent because of this packet (RFC 1122 section 3.2.2, RFC 4443 section 2.4 e): it
/// is not itself an error, not a later fragment, neither from nor to a group or broadcast address, on the link too. A subnet's own
/// broadcast address cannot be seen here. Later fragments of IPv6 stay unanswered as well: their first one is answered.
pub fn may_answer(p: &Packet, frame: &[u8]) -> bool {
    let Some(eth) = Ethernet::new(frame) else { return false };
    if eth.dst()[0] & 1 != 0 || eth.src()[0] & 1 != 0 || p.fragment == Fragment::Later {
        return false;
    }
    let l4 = frame.get(p.l4..p.end).unwrap_or_default();
    match p.family {
        Family::V4 => {
            // 0/8, loopback, and all from 224.0.0.0 up: groups, reserved, broadcast.
            let source_ok = !matches!(p.src.v4() >> 24, 0 | 127 | 224..);
            let error = p.proto == proto::ICMP && Icmp::new(l4).is_none_or(|h| !is_query_v4(h.kind()));
            source_ok && p.dst.v4() >> 28 < 14 && !error
        }
        Family::V6 => {
            let source_ok = p.src.0 > 1 && p.src.0 >> 120 != 0xff;
            let error = p.proto == proto::ICMPV6 && Icmpv6::new(l4).is_none_or(|h| is_error_v6(h.kind()));
            source_ok && p.dst.0 >> 120 != 0xff && !error
        }
    }
}

/// ICMP messages that are not errors; unknown types count as errors.
fn is_query_v4(kind: u8) -> bool {
    use icmp_type::*;
    matches!(kind, ECHO | ECHO_REPLY | 9 | 10 | TIMESTAMP..=18)
}

/// ICMPv6 messages that are errors, or count as such.
fn is_error_v6(kind: u8) -> bool {
    kind < 128 || kind == icmpv6_type::REDIRECT
}

/// Writes the frame of an ICMP error about `p` into `out` (whose contents go), from the address `from`: back to the sender of the
/// frame, with its VLAN tags. `ip_id` is the IPv4 identification, as the caller counts it. The quote is as long as the RFCs
/// allow. `false` and nothing written where [`may_answer`] forbids it.
pub fn error(frame: &[u8], p: &Packet, problem: Problem, from: Addr, ip_id: u16, out: &mut Vec<u8>) -> bool {
    out.clear();
    if !may_answer(p, frame) {
        return false;
    }
    let quote = frame.get(p.l3..p.end).unwrap_or_default();
    let done = match p.family {
        Family::V4 => error_v4(frame, p, problem, from, ip_id, quote, out),
        Family::V6 => error_v6(frame, p, problem, from, quote, out),
    };
    done.is_some()
}

/// Begins a frame that goes back where `frame` came from: Ethernet header and tags, then `header` zero bytes.
pub(crate) fn begin(frame: &[u8], l3: usize, header: usize, out: &mut Vec<u8>) -> Option<()> {
    out.clear();
    out.extend_from_slice(frame.get(..l3)?);
    let eth = Ethernet::new(frame)?;
    let (src, dst) = (eth.src(), eth.dst());
    let mut back = Ethernet::new_mut(out)?;
    back.set_dst(src);
    back.set_src(dst);
    out.resize(l3 + header, 0);
    Some(())
}

/// Fills in an IPv4 header of 20 bytes at `l3`, for all that lies behind.
pub(crate) fn finish_v4(
    out: &mut [u8],
    l3: usize,
    (src, dst): (Addr, Addr),
    (tos, proto): (u8, u8),
    (id, df): (u16, bool),
) -> Option<()> {
    let bytes = out.get_mut(l3..)?;
    let len = bytes.len();
    let mut ip = Ipv4::new_mut(bytes)?;
    ip.set_start(20, tos);
    ip.set_total_len(len as u16);
    ip.set_id(id);
    ip.set_fragment(df, false, 0);
    ip.set_ttl(TTL);
    ip.set_protocol(proto);
    ip.set_src(src.v4());
    ip.set_dst(dst.v4());
    ip.set_checksum(ip.sum().checksum());
    Some(())
}

/// Fills in an IPv6 header at `l3`, for all that lies behind.
pub(crate) fn finish_v6(out: &mut [u8], l3: usize, (src, dst): (Addr, Addr), next: u8) -> Option<()> {
    let bytes = out.get_mut(l3..)?;
    let len = bytes.len();
    let mut ip = Ipv6::new_mut(bytes)?;
    ip.set_start();
    ip.set_payload_len((len - 40) as u16);
    ip.set_next_header(next);
    ip.set_hop_limit(TTL);
    ip.set_src(src.0);
    ip.set_dst(dst.0);
    Some(())
}

fn error_v4(
    frame: &[u8],
    p: &Packet,
    problem: Problem,
    from: Addr,
    ip_id: u16,
    quote: &[u8],
    out: &mut Vec<u8>,
) -> Option<()> {
    begin(frame, p.l3, 28, out)?;
    out.extend_from_slice(&quote[..quote.len().min(MAX_V4 - 28)]);
    finish_v4(out, p.l3, (from, p.src), (TOS_CONTROL, proto::ICMP), (ip_id, false))?;
    seal_v4(out.get_mut(p.l3 + 20..)?, problem.v4())
}

/// Whether the checksum of an ICMP or ICMPv6 message is right.
pub fn is_sound(frame: &[u8], p: &Packet) -> bool {
    let Some(message) = frame.get(p.l4..p.end) else { return false };
    let mut sum = match p.family {
        Family::V4 => Sum::new(),
        Family::V6 => pseudo_v6(p.src.0, p.dst.0, proto::ICMPV6, message.len()),
    };
    sum.add_bytes(message);
    sum.fold() == 0xffff
}

/// Fills in an ICMP header in front of its quote.
fn seal_v4(message: &mut [u8], (kind, code, rest): (u8, u8, u32)) -> Option<()> {
    let mut h = Icmp::new_mut(message)?;
    h.set_kind(kind, code);
    h.set_rest(rest);
    let mut sum = Sum::new();
    sum.add_bytes(message);
    Icmp::new_mut(message)?.set_checksum(sum.checksum());
    Some(())
}

fn error_v6(
    frame: &[u8],
    p: &Packet,
    problem: Problem,
    from: Addr,
    quote: &[u8],
    out: &mut Vec<u8>,
) -> Option<()> {
    begin(frame, p.l3, 48, out)?;
    out.extend_from_slice(&quote[..quote.len().min(MAX_V6 - 48)]);
    finish_v6(out, p.l3, (from, p.src), proto::ICMPV6)?;
    seal_v6(out.get_mut(p.l3 + 40..)?, (from, p.src), problem.v6())
}

/// Fills in an ICMPv6 header in front of its quote.
fn seal_v6(message: &mut [u8], (src, dst): (Addr, Addr), (kind, code, rest): (u8, u8, u32)) -> Option<()> {
    let mut h = Icmpv6::new_mut(message)?;
    h.set_kind(kind, code);
    h.set_rest(rest);
    let mut sum = pseudo_v6(src.0, dst.0, proto::ICMPV6, message.len());
    sum.add_bytes(message);
    Icmpv6::new_mut(message)?.set_checksum(sum.checksum());
    Some(())
}

#[cfg(test)]
mod tests;
