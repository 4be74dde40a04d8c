use crate::forward::{FragmentError, fragment_v4};
use crate::packet::{self, Packet};
use crate::wire::Ipv6;
use crate::{Family, packet::proto};

/// Bytes of IPv6's fragment header (RFC 8200 section 4.5).
const FRAGMENT_HEADER: usize = 8;

/// Cuts the outer packet of a frame that [`encapsulate`](super::encapsulate) made into fragments of at most `mtu` bytes, and hands
/// each to `emit` as a frame. The tunnel's entry is the outer packet's source, so it may do that over IPv6 too (RFC 2473 section
/// 7.2); `id` is the identification there, over IPv4 it is in the header already.
///
/// # Errors
/// DF is set in the outer header, the MTU leaves no room, or this is no such frame; nothing was emitted.
pub fn fragment(frame: &[u8], mtu: usize, id: u32, emit: &mut dyn FnMut(&[u8])) -> Result<(), FragmentError> {
    let p = packet::parse(frame).map_err(|_| FragmentError::Mismatch)?;
    match p.family {
        Family::V4 => fragment_v4(frame, &p, mtu, emit),
        Family::V6 => fragment_v6(frame, &p, mtu, id, emit),
    }
}

fn fragment_v6(
    frame: &[u8],
    p: &Packet,
    mtu: usize,
    id: u32,
    emit: &mut dyn FnMut(&[u8]),
) -> Result<(), FragmentError> {
    let behind = p.l3 + 40;
    if p.l4 != behind {
        return Err(FragmentError::Mismatch);
    }
    let headers = frame.get(..behind).ok_or(FragmentError::Mismatch)?;
    let data = frame.get(behind..p.end).ok_or(FragmentError::Mismatch)?;
    let next = Ipv6::new(&headers[p.l3..]).ok_or(FragmentError::Mismatch)?.next_header();
    let room = mtu.min(0xffff).saturating_sub(40 + FRAGMENT_HEADER) & !7;
    if room == 0 {
        return Err(FragmentError::MtuTooSmall);
    }
    let pieces = data.len().div_ceil(room);
    let mut out = Vec::with_capacity(behind + FRAGMENT_HEADER + room.min(data.len()));
    out.extend_from_slice(headers);
    for (i, piece) in data.chunks(room).enumerate() {
        out.truncate(behind);
        let more = u16::from(i + 1 != pieces);
        let offset = (i * room) as u16 & !7;
        out.extend_from_slice(&[next, 0]);
        out.extend_from_slice(&(offset | more).to_be_bytes());
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(piece);
        let mut ip = Ipv6::new_mut(&mut out[p.l3..]).ok_or(FragmentError::Mismatch)?;
        ip.set_payload_len((FRAGMENT_HEADER + piece.len()) as u16);
        ip.set_next_header(proto::FRAGMENT);
        emit(&out);
    }
    Ok(())
}
