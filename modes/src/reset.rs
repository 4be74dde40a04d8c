//! The TCP reset that answers a segment nobody is there for (RFC 9293 section 3.10.7.1).

use crate::checksum::{Sum, pseudo};
use crate::icmp::{begin, finish_v4, finish_v6, may_answer};
use crate::packet::{Fragment, Packet, proto, tcp_flags};
use crate::wire::Tcp;
use crate::{Addr, Family};

/// Writes the frame of a reset that answers the segment `p` into `out` (whose contents go): back to the sender of the frame, with
/// its VLAN tags, in the name of the segment's destination. IPv4 identification 0 with DF, as Linux sends it. `false` and nothing
/// written if `p` is not a whole TCP segment, is a reset itself, or may not be answered ([`may_answer`]).
pub fn reset(frame: &[u8], p: &Packet, out: &mut Vec<u8>) -> bool {
    out.clear();
    let answerable = p.proto == proto::TCP
        && p.fragment == Fragment::Whole
        && p.tcp_flags & tcp_flags::RST == 0
        && may_answer(p, frame);
    answerable && build(frame, p, out).is_some()
}

fn build(frame: &[u8], p: &Packet, out: &mut Vec<u8>) -> Option<()> {
    let segment = frame.get(p.l4..p.end)?;
    let tcp = Tcp::new(segment)?;
    let (seq, ack, flags) = if tcp.flags() & tcp_flags::ACK != 0 {
        (tcp.ack(), 0, tcp_flags::RST)
    } else {
        let data = segment.len().checked_sub(tcp.header_len())?;
        let syn = u32::from(tcp.flags() & tcp_flags::SYN != 0);
        let fin = u32::from(tcp.flags() & tcp_flags::FIN != 0);
        let ack = tcp.seq().wrapping_add(data as u32).wrapping_add(syn + fin);
        (0, ack, tcp_flags::RST | tcp_flags::ACK)
    };
    let ip_header = match p.family {
        Family::V4 => 20,
        Family::V6 => 40,
    };
    begin(frame, p.l3, ip_header + 20, out)?;
    match p.family {
        Family::V4 => finish_v4(out, p.l3, (p.dst, p.src), (0, proto::TCP), (0, true))?,
        Family::V6 => finish_v6(out, p.l3, (p.dst, p.src), proto::TCP)?,
    }
    let bytes = out.get_mut(p.l3 + ip_header..)?;
    let mut h = Tcp::new_mut(bytes)?;
    h.set_sport(p.dport);
    h.set_dport(p.sport);
    h.set_seq(seq);
    h.set_ack(ack);
    h.set_flags(20, flags);
    finish(bytes, p.family, p.dst, p.src)
}

fn finish(segment: &mut [u8], family: Family, src: Addr, dst: Addr) -> Option<()> {
    let mut sum: Sum = pseudo(family, src, dst, proto::TCP, segment.len());
    sum.add_bytes(segment);
    Tcp::new_mut(segment)?.set_checksum(sum.checksum());
    Some(())
}

#[cfg(test)]
mod tests;
