use std::ops::{Deref, DerefMut};

use super::{be16, be32, view};
use crate::checksum::Checksum;

mod field {
    use std::ops::Range;
    pub(super) const SPORT: Range<usize> = 0..2;
    pub(super) const DPORT: Range<usize> = 2..4;
    pub(super) const SEQ: Range<usize> = 4..8;
    pub(super) const ACK: Range<usize> = 8..12;
    pub(super) const DATA_OFFSET: usize = 12;
    pub(super) const FLAGS: usize = 13;
    pub(super) const CHECKSUM: Range<usize> = 16..18;
}

view! {
    /// A TCP header (RFC 9293 section 3.1) without options.
    Tcp, 20
}

impl<B: Deref<Target = [u8; 20]>> Tcp<B> {
    /// Source port.
    #[inline(always)]
    pub fn sport(&self) -> u16 {
        be16(&self.0, field::SPORT.start)
    }
    /// Destination port.
    #[inline(always)]
    pub fn dport(&self) -> u16 {
        be16(&self.0, field::DPORT.start)
    }
    /// Sequence number.
    pub fn seq(&self) -> u32 {
        be32(&self.0, field::SEQ.start)
    }
    /// Acknowledgement number.
    pub fn ack(&self) -> u32 {
        be32(&self.0, field::ACK.start)
    }
    /// Length of header and options: 0..=60 bytes, 20 at least in a good header.
    #[inline(always)]
    pub fn header_len(&self) -> usize {
        usize::from(self.0[field::DATA_OFFSET] >> 4) * 4
    }
    /// The flags' byte: see [`crate::packet::tcp_flags`].
    #[inline(always)]
    pub fn flags(&self) -> u8 {
        self.0[field::FLAGS]
    }
    /// Checksum.
    #[inline(always)]
    pub fn checksum(&self) -> Checksum {
        Checksum(be16(&self.0, field::CHECKSUM.start))
    }
}

impl<B: DerefMut<Target = [u8; 20]>> Tcp<B> {
    /// Sets the source port.
    #[inline(always)]
    pub fn set_sport(&mut self, v: u16) {
        self.0[field::SPORT].copy_from_slice(&v.to_be_bytes());
    }
    /// Sets the destination port.
    #[inline(always)]
    pub fn set_dport(&mut self, v: u16) {
        self.0[field::DPORT].copy_from_slice(&v.to_be_bytes());
    }
    /// Sets the sequence number.
    pub fn set_seq(&mut self, v: u32) {
        self.0[field::SEQ].copy_from_slice(&v.to_be_bytes());
    }
    /// Sets the acknowledgement number.
    pub fn set_ack(&mut self, v: u32) {
        self.0[field::ACK].copy_from_slice(&v.to_be_bytes());
    }
    /// Sets the length of the header (a multiple of 4, at most 60) and the flags.
    pub fn set_flags(&mut self, header_len: usize, flags: u8) {
        self.0[field::DATA_OFFSET] = ((header_len / 4) as u8) << 4;
        self.0[field::FLAGS] = flags;
    }
    /// Sets the flags alone.
    pub fn set_flag_bits(&mut self, flags: u8) {
        self.0[field::FLAGS] = flags;
    }
    /// Sets the checksum.
    #[inline(always)]
    pub fn set_checksum(&mut self, v: Checksum) {
        self.0[field::CHECKSUM].copy_from_slice(&v.0.to_be_bytes());
    }
}
