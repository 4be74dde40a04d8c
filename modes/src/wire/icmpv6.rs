use std::ops::{Deref, DerefMut};

use super::{be16, view};
use crate::checksum::Checksum;

/// ICMPv6 message types (RFC 4443); all errors are below 128.
#[allow(missing_docs)]
pub mod icmpv6_type {
    pub const DESTINATION_UNREACHABLE: u8 = 1;
    pub const PACKET_TOO_BIG: u8 = 2;
    pub const TIME_EXCEEDED: u8 = 3;
    pub const PARAMETER_PROBLEM: u8 = 4;
    /// RFC 4861; counts as an error for who may be answered (RFC 4443 section 2.4 e.2).
    pub const REDIRECT: u8 = 137;
}

mod field {
    use std::ops::Range;
    pub(super) const TYPE: usize = 0;
    pub(super) const CODE: usize = 1;
    pub(super) const CHECKSUM: Range<usize> = 2..4;
    pub(super) const REST: Range<usize> = 4..8;
}

view! {
    /// The first 8 bytes of an ICMPv6 message (RFC 4443).
    Icmpv6, 8
}

impl<B: Deref<Target = [u8; 8]>> Icmpv6<B> {
    /// Type.
    pub fn kind(&self) -> u8 {
        self.0[field::TYPE]
    }
    /// Code: what it means depends on the type.
    pub fn code(&self) -> u8 {
        self.0[field::CODE]
    }
    /// Checksum.
    pub fn checksum(&self) -> Checksum {
        Checksum(be16(&self.0, field::CHECKSUM.start))
    }
}

impl<B: DerefMut<Target = [u8; 8]>> Icmpv6<B> {
    /// Sets type and code.
    pub fn set_kind(&mut self, kind: u8, code: u8) {
        self.0[field::TYPE] = kind;
        self.0[field::CODE] = code;
    }
    /// Sets the checksum.
    pub fn set_checksum(&mut self, v: Checksum) {
        self.0[field::CHECKSUM].copy_from_slice(&v.0.to_be_bytes());
    }
    /// Sets bytes 4..8, which depend on the type.
    pub fn set_rest(&mut self, v: u32) {
        self.0[field::REST].copy_from_slice(&v.to_be_bytes());
    }
}
