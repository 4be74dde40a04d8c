use std::ops::{Deref, DerefMut};

use super::{be16, view};
use crate::checksum::Checksum;

mod field {
    use std::ops::Range;
    pub(super) const SPORT: Range<usize> = 0..2;
    pub(super) const DPORT: Range<usize> = 2..4;
    pub(super) const LENGTH: usize = 4;
    pub(super) const CHECKSUM: Range<usize> = 6..8;
}

view! {
    /// A UDP header (RFC 768).
    Udp, 8
}

impl<B: Deref<Target = [u8; 8]>> Udp<B> {
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
    /// Length of header and data: 8 at least in a good header.
    #[inline(always)]
    pub fn length(&self) -> usize {
        be16(&self.0, field::LENGTH).into()
    }
    /// Checksum; 0 is none.
    #[inline(always)]
    pub fn checksum(&self) -> Checksum {
        Checksum(be16(&self.0, field::CHECKSUM.start))
    }
}

impl<B: DerefMut<Target = [u8; 8]>> Udp<B> {
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
    /// Sets the length of header and data.
    pub fn set_length(&mut self, v: u16) {
        self.0[field::LENGTH..field::LENGTH + 2].copy_from_slice(&v.to_be_bytes());
    }
    /// Sets the checksum; see [`Checksum::udp`].
    #[inline(always)]
    pub fn set_checksum(&mut self, v: Checksum) {
        self.0[field::CHECKSUM].copy_from_slice(&v.0.to_be_bytes());
    }
}
