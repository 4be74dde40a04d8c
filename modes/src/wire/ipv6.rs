use std::ops::{Deref, DerefMut};

use super::{be16, be128, view};

mod field {
    use std::ops::Range;
    pub(super) const VERSION: usize = 0;
    pub(super) const PAYLOAD_LENGTH: Range<usize> = 4..6;
    pub(super) const NEXT_HEADER: usize = 6;
    pub(super) const HOP_LIMIT: usize = 7;
    pub(super) const SRC: Range<usize> = 8..24;
    pub(super) const DST: Range<usize> = 24..40;
}

view! {
    /// An IPv6 header (RFC 8200) without extension headers.
    Ipv6, 40
}

impl<B: Deref<Target = [u8; 40]>> Ipv6<B> {
    /// Version, 6 in a good header.
    #[inline(always)]
    pub fn version(&self) -> u8 {
        self.0[field::VERSION] >> 4
    }
    /// Traffic class: DSCP and ECN (RFC 2474, RFC 3168).
    #[inline(always)]
    pub fn traffic_class(&self) -> u8 {
        (be16(&self.0, field::VERSION) >> 4) as u8
    }
    /// Length of what follows the header.
    #[inline(always)]
    pub fn payload_len(&self) -> usize {
        be16(&self.0, field::PAYLOAD_LENGTH.start).into()
    }
    /// What follows the header: an extension header or an upper-layer protocol.
    #[inline(always)]
    pub fn next_header(&self) -> u8 {
        self.0[field::NEXT_HEADER]
    }
    /// Hop limit.
    #[inline(always)]
    pub fn hop_limit(&self) -> u8 {
        self.0[field::HOP_LIMIT]
    }
    /// Source.
    #[inline(always)]
    pub fn src(&self) -> u128 {
        be128(&self.0, field::SRC.start)
    }
    /// Destination.
    #[inline(always)]
    pub fn dst(&self) -> u128 {
        be128(&self.0, field::DST.start)
    }
}

impl<B: DerefMut<Target = [u8; 40]>> Ipv6<B> {
    /// Sets version 6, traffic class 0 and flow label 0.
    pub fn set_start(&mut self) {
        self.0[..field::PAYLOAD_LENGTH.start].copy_from_slice(&[0x60, 0, 0, 0]);
    }
    /// Sets the traffic class; version and flow label stay.
    pub fn set_traffic_class(&mut self, v: u8) {
        self.0[0] = self.0[0] & 0xf0 | v >> 4;
        self.0[1] = self.0[1] & 0x0f | v << 4;
    }
    /// Sets the length of what follows the header.
    pub fn set_payload_len(&mut self, v: u16) {
        self.0[field::PAYLOAD_LENGTH].copy_from_slice(&v.to_be_bytes());
    }
    /// Sets what follows the header.
    pub fn set_next_header(&mut self, v: u8) {
        self.0[field::NEXT_HEADER] = v;
    }
    /// Sets the hop limit.
    #[inline(always)]
    pub fn set_hop_limit(&mut self, v: u8) {
        self.0[field::HOP_LIMIT] = v;
    }
    /// Sets the source.
    #[inline(always)]
    pub fn set_src(&mut self, v: u128) {
        self.0[field::SRC].copy_from_slice(&v.to_be_bytes());
    }
    /// Sets the destination.
    #[inline(always)]
    pub fn set_dst(&mut self, v: u128) {
        self.0[field::DST].copy_from_slice(&v.to_be_bytes());
    }
}
