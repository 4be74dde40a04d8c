//! Software segmentation: a super-packet becomes the segments that it stands for.
//!
//! A port hands TCP segments of one flow, or UDP datagrams of one size, over as one packet of up to 64 kB (TSO, GRO, USO), and takes such
//! packets back where a device or the kernel can cut them. Inside a tunnel nobody can: the note that goes with the frame describes one
//! transport header behind one IP header. So they are cut before.
//!
//! May assume: the [`Packet`] was parsed from this frame. Every segment gets the super-packet's headers with these changes, as Linux
//! cuts them: lengths; the IPv4 identification counts up; the TCP sequence number counts up, FIN and PSH are on the last segment only, CWR on
//! the first only; all checksums are complete, whatever the super-packet's was. (What a UDP sender left without checksum stays
//! without, over IPv4.)

use crate::Family;
use crate::checksum::{Checksum, Sum, pseudo_of};
use crate::packet::{Fragment, Packet, proto, tcp_flags};
use crate::wire::{Ipv4, Ipv6, Tcp, Udp};

/// Most segments of a super-packet: 64 kB at the least MSS that Linux accepts (48) are 1,366.
pub const MAX_SEGMENTS: usize = 1366;

/// Congestion window reduced (RFC 3168 section 6.1.2).
const CWR: u8 = 0x80;

/// Why a super-packet cannot be cut. Nothing was emitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentError {
    /// Neither TCP nor UDP, a fragment, a TCP segment with SYN or RST, or a UDP length that is not the packet's.
    Unfit,
    /// Segments of 0 bytes, or more than [`MAX_SEGMENTS`].
    TooMany,
    /// The packet was not parsed from this frame.
    Mismatch,
}

impl std::fmt::Display for SegmentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SegmentError::Unfit => "packet is of a kind that cannot be cut into segments",
            SegmentError::TooMany => "packet would become too many segments",
            SegmentError::Mismatch => "packet does not fit its frame",
        })
    }
}

impl std::error::Error for SegmentError {}

/// Cuts the super-packet `p` into segments with `size` bytes of payload each (the last may have fewer) and hands each to `emit`: a
/// buffer in which the frame begins at `room` and ends with the packet, and the packet in it (its ports and offsets are `p`'s).
/// Answers how many there were.
pub fn segment(
    frame: &[u8],
    p: &Packet,
    size: u16,
    room: usize,
    emit: &mut dyn FnMut(Vec<u8>, Packet),
) -> Result<usize, SegmentError> {
    let ip_header = match p.family {
        Family::V4 => 20,
        Family::V6 => 40,
    };
    if p.l3.saturating_add(ip_header) > p.l4 {
        return Err(SegmentError::Mismatch);
    }
    let l4 = frame.get(p.l4..p.end).ok_or(SegmentError::Mismatch)?;
    let data_at = p.l4 + header_len(l4, p)?;
    let headers = frame.get(..data_at).ok_or(SegmentError::Mismatch)?;
    let data = frame.get(data_at..p.end).ok_or(SegmentError::Mismatch)?;
    let size = usize::from(size);
    if size == 0 || data.len().div_ceil(size) > MAX_SEGMENTS {
        return Err(SegmentError::TooMany);
    }
    let count = data.len().div_ceil(size).max(1);
    for i in 0..count {
        let from = i * size;
        let piece = &data[from..data.len().min(from + size)];
        let mut out = Vec::with_capacity(room + data_at + piece.len());
        out.resize(room, 0);
        out.extend_from_slice(headers);
        out.extend_from_slice(piece);
        let place = Place { index: i, offset: from, last: i + 1 == count };
        let mut q = Packet { end: data_at + piece.len(), ..*p };
        finish(&mut out[room..], &mut q, &place).ok_or(SegmentError::Mismatch)?;
        emit(out, q);
    }
    Ok(count)
}

/// The transport header's length, of what can be cut.
fn header_len(l4: &[u8], p: &Packet) -> Result<usize, SegmentError> {
    if p.fragment != Fragment::Whole {
        return Err(SegmentError::Unfit);
    }
    match p.proto {
        proto::TCP => {
            let tcp = Tcp::new(l4).ok_or(SegmentError::Mismatch)?;
            if tcp.flags() & (tcp_flags::SYN | tcp_flags::RST) != 0 {
                return Err(SegmentError::Unfit);
            }
            if tcp.header_len() < 20 { Err(SegmentError::Mismatch) } else { Ok(tcp.header_len()) }
        }
        proto::UDP => {
            let udp = Udp::new(l4).ok_or(SegmentError::Mismatch)?;
            if udp.length() == l4.len() { Ok(8) } else { Err(SegmentError::Unfit) }
        }
        _ => Err(SegmentError::Unfit),
    }
}

/// Where a segment is in its super-packet.
struct Place {
    index: usize,
    /// Bytes of payload before it.
    offset: usize,
    last: bool,
}

/// Makes the headers those of this segment.
fn finish(frame: &mut [u8], p: &mut Packet, place: &Place) -> Option<()> {
    let packet = frame.get_mut(p.l3..)?;
    let (length, header) = (packet.len(), p.l4 - p.l3);
    match p.family {
        Family::V4 => {
            let bytes = packet.get_mut(..header)?;
            let mut ip = Ipv4::new_mut(bytes)?;
            ip.set_total_len(length as u16);
            ip.set_id(ip.id().wrapping_add(place.index as u16));
            ip.set_checksum(Checksum(0));
            let mut sum = Sum::new();
            sum.add_bytes(bytes);
            Ipv4::new_mut(bytes)?.set_checksum(sum.checksum());
        }
        Family::V6 => Ipv6::new_mut(packet)?.set_payload_len((length - 40) as u16),
    }
    let mut sum = pseudo_of(frame, p, length - header)?;
    let l4 = frame.get_mut(p.l4..)?;
    if p.proto == proto::UDP {
        let mut udp = Udp::new_mut(l4)?;
        udp.set_length((length - header) as u16);
        if udp.checksum().0 == 0 && p.family == Family::V4 {
            return Some(());
        }
        udp.set_checksum(Checksum(0));
        sum.add_bytes(l4);
        Udp::new_mut(l4)?.set_checksum(sum.checksum().udp());
        return Some(());
    }
    let mut tcp = Tcp::new_mut(l4)?;
    tcp.set_seq(tcp.seq().wrapping_add(place.offset as u32));
    let mut flags = tcp.flags();
    if !place.last {
        flags &= !(tcp_flags::FIN | tcp_flags::PSH);
    }
    if place.index > 0 {
        flags &= !CWR;
    }
    p.tcp_flags = flags;
    tcp.set_flag_bits(flags);
    tcp.set_checksum(Checksum(0));
    sum.add_bytes(l4);
    Tcp::new_mut(l4)?.set_checksum(sum.checksum());
    Some(())
}

#[cfg(test)]
mod tests;
