use std::ops::{Deref, DerefMut};

use super::{be16, be32, view};
use crate::checksum::{Checksum, Sum};

mod field {
    use std::ops::Range;
    pub(super) const VERSION_IHL: usize = 0;
    pub(super) const TOS: usize = 1;
    pub(super) const TOTAL_LENGTH: Range<usize> = 2..4;
    pub(super) const ID: Range<usize> = 4..6;
    pub(super) const FLAGS_OFFSET: Range<usize> = 6..8;
    pub(super) const TTL: usize = 8;
    pub(super) const PROTOCOL: usize = 9;
    pub(super) const CHECKSUM: Range<usize> = 10..12;
    pub(super) const SRC: Range<usize> = 12..16;
    pub(super) const DST: Range<usize> = 16..20;
}

/// The DF bit in the word of flags and offset.
const DF: u16 = 0x4000;
/// The MF bit.
const MF: u16 = 0x2000;

view! {
    /// An IPv4 header (RFC 791) without its options.
    Ipv4, 20
}

impl<B: Deref<Target = [u8; 20]>> Ipv4<B> {
    /// Version, 4 in a good header.
    #[inline(always)]
    pub fn version(&self) -> u8 {
        self.0[field::VERSION_IHL] >> 4
    }
    /// Length of header and options: 0..=60 bytes, 20 at least in a good header.
    #[inline(always)]
    pub fn header_len(&self) -> usize {
        usize::from(self.0[field::VERSION_IHL] & 15) * 4
    }
    /// Type of service: DSCP and ECN (RFC 2474, RFC 3168).
    #[inline(always)]
    pub fn tos(&self) -> u8 {
        self.0[field::TOS]
    }
    /// Identification.
    #[inline(always)]
    pub fn id(&self) -> u16 {
        be16(&self.0, field::ID.start)
    }
    /// Length of the packet, header included.
    #[inline(always)]
    pub fn total_len(&self) -> usize {
        be16(&self.0, field::TOTAL_LENGTH.start).into()
    }
    /// Don't fragment.
    #[inline(always)]
    pub fn dont_fragment(&self) -> bool {
        be16(&self.0, field::FLAGS_OFFSET.start) & DF != 0
    }
    /// More fragments follow.
    #[inline(always)]
    pub fn more_fragments(&self) -> bool {
        be16(&self.0, field::FLAGS_OFFSET.start) & MF != 0
    }
    /// Where the fragment's data belongs, in bytes: a multiple of 8.
    #[inline(always)]
    pub fn fragment_offset(&self) -> usize {
        usize::from(be16(&self.0, field::FLAGS_OFFSET.start) & 0x1fff) * 8
    }
    /// TTL.
    #[inline(always)]
    pub fn ttl(&self) -> u8 {
        self.0[field::TTL]
    }
    /// Protocol.
    #[inline(always)]
    pub fn protocol(&self) -> u8 {
        self.0[field::PROTOCOL]
    }
    /// Header checksum.
    #[inline(always)]
    pub fn checksum(&self) -> Checksum {
        Checksum(be16(&self.0, field::CHECKSUM.start))
    }
    /// Source.
    #[inline(always)]
    pub fn src(&self) -> u32 {
        be32(&self.0, field::SRC.start)
    }
    /// Destination.
    #[inline(always)]
    pub fn dst(&self) -> u32 {
        be32(&self.0, field::DST.start)
    }
    /// Whether these 20 bytes have a good checksum, if they are the whole header.
    #[inline(always)]
    pub fn adds_up(&self) -> bool {
        // all ones is the same in any byte order
        let sum: u64 = self.0.as_chunks().0.iter().map(|w| u64::from(u32::from_ne_bytes(*w))).sum();
        let sum = (sum >> 32) + (sum & 0xffff_ffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        (sum >> 16) + (sum & 0xffff) == 0xffff
    }
    /// The sum of these 20 bytes, checksum field included.
    #[inline(always)]
    pub fn sum(&self) -> Sum {
        let mut s = Sum::new();
        for i in 0..5 {
            s.add_u32(be32(&self.0, 4 * i));
        }
        s
    }
}

impl<B: DerefMut<Target = [u8; 20]>> Ipv4<B> {
    /// Sets version 4, the header's length in bytes (a multiple of 4, at most 60), and the type of service.
    pub fn set_start(&mut self, header_len: usize, tos: u8) {
        self.0[field::VERSION_IHL] = 0x40 | (header_len / 4) as u8 & 15;
        self.0[field::TOS] = tos;
    }
    /// Sets the length of the packet.
    pub fn set_total_len(&mut self, v: u16) {
        self.0[field::TOTAL_LENGTH].copy_from_slice(&v.to_be_bytes());
    }
    /// Sets the identification.
    pub fn set_id(&mut self, v: u16) {
        self.0[field::ID].copy_from_slice(&v.to_be_bytes());
    }
    /// Sets DF, MF and the offset in bytes (a multiple of 8).
    pub fn set_fragment(&mut self, dont_fragment: bool, more_fragments: bool, offset: usize) {
        let flags = if dont_fragment { DF } else { 0 } | if more_fragments { MF } else { 0 };
        let v = flags | ((offset / 8) as u16 & 0x1fff);
        self.0[field::FLAGS_OFFSET].copy_from_slice(&v.to_be_bytes());
    }
    /// Sets the TTL.
    #[inline(always)]
    pub fn set_ttl(&mut self, v: u8) {
        self.0[field::TTL] = v;
    }
    /// Sets the protocol.
    pub fn set_protocol(&mut self, v: u8) {
        self.0[field::PROTOCOL] = v;
    }
    /// Sets the header checksum.
    #[inline(always)]
    pub fn set_checksum(&mut self, v: Checksum) {
        self.0[field::CHECKSUM].copy_from_slice(&v.0.to_be_bytes());
    }
    /// Sets the source.
    #[inline(always)]
    pub fn set_src(&mut self, v: u32) {
        self.0[field::SRC].copy_from_slice(&v.to_be_bytes());
    }
    /// Sets the destination.
    #[inline(always)]
    pub fn set_dst(&mut self, v: u32) {
        self.0[field::DST].copy_from_slice(&v.to_be_bytes());
    }
}
