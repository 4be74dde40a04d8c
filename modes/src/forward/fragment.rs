use crate::checksum::Sum;
use crate::packet::Packet;
use crate::wire::Ipv4;
use crate::{Family, options};

/// Why a packet cannot be cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FragmentError {
    /// IPv6 (only the source fragments, RFC 8200 section 5), or DF: answer "too big".
    DontFragment,
    /// The MTU leaves no 8 bytes behind the header.
    MtuTooSmall,
    /// The packet's offsets do not fit the frame.
    Mismatch,
}

impl std::fmt::Display for FragmentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            FragmentError::DontFragment => "packet may not be fragmented",
            FragmentError::MtuTooSmall => "MTU leaves no room for a fragment",
            FragmentError::Mismatch => "packet does not fit its frame",
        })
    }
}

impl std::error::Error for FragmentError {}

/// Cuts an IPv4 packet into fragments of at most `mtu` bytes (RFC 791 section 3.2) and hands each to `emit` as a frame with this
/// frame's Ethernet header and VLAN tags. A fragment may be cut further. Later fragments keep the header's length; those
/// options that are not to be copied become no-operations, as Linux does.
///
/// A partial checksum must be completed before ([`crate::checksum::complete_partial`]). At most 8,191 frames are emitted.
pub fn fragment_v4(
    frame: &[u8],
    p: &Packet,
    mtu: usize,
    emit: &mut dyn FnMut(&[u8]),
) -> Result<(), FragmentError> {
    if p.family != Family::V4 || p.dont_fragment {
        return Err(FragmentError::DontFragment);
    }
    let header = frame.get(p.l3..p.l4).ok_or(FragmentError::Mismatch)?;
    let data = frame.get(p.l4..p.end).ok_or(FragmentError::Mismatch)?;
    let ip = Ipv4::new(header).ok_or(FragmentError::Mismatch)?;
    let room = mtu.min(0xffff).saturating_sub(header.len()) & !7;
    if room == 0 {
        return Err(FragmentError::MtuTooSmall);
    }
    let (start, more) = (ip.fragment_offset(), ip.more_fragments());
    let pieces = data.len().div_ceil(room);
    let mut out = Vec::with_capacity(p.l4 + room.min(data.len()));
    out.extend_from_slice(&frame[..p.l4]);
    for (i, piece) in data.chunks(room).enumerate() {
        out.truncate(p.l4);
        out.extend_from_slice(piece);
        if i == 1 {
            options::keep_copied(&mut out[p.l3 + 20..p.l4]);
        }
        let last = i + 1 == pieces;
        let (head, _) = out[p.l3..].split_at_mut(header.len());
        finish(head, header.len() + piece.len(), start + i * room, more || !last)?;
        emit(&out);
    }
    Ok(())
}

/// Sets what differs from fragment to fragment.
fn finish(header: &mut [u8], total: usize, offset: usize, more: bool) -> Result<(), FragmentError> {
    let mut ip = Ipv4::new_mut(header).ok_or(FragmentError::Mismatch)?;
    ip.set_total_len(total as u16);
    ip.set_fragment(false, more, offset);
    ip.set_checksum(crate::checksum::Checksum(0));
    let mut sum = Sum::new();
    sum.add_bytes(header);
    Ipv4::new_mut(header).ok_or(FragmentError::Mismatch)?.set_checksum(sum.checksum());
    Ok(())
}
