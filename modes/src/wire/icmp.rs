use std::ops::{Deref, DerefMut};

use super::{be16, view};
use crate::checksum::Checksum;

/// ICMP message types (RFC 792).
#[allow(missing_docs)]
pub mod icmp_type {
    pub const ECHO_REPLY: u8 = 0;
    pub const DESTINATION_UNREACHABLE: u8 = 3;
    /// Deprecated (RFC 6633), but still translated by the kernel.
    pub const SOURCE_QUENCH: u8 = 4;
    pub const ECHO: u8 = 8;
    pub const TIME_EXCEEDED: u8 = 11;
    pub const PARAMETER_PROBLEM: u8 = 12;
    pub const TIMESTAMP: u8 = 13;
    pub const TIMESTAMP_REPLY: u8 = 14;
}

mod field {
    use std::ops::Range;
    pub(super) const TYPE: usize = 0;
    pub(super) const CODE: usize = 1;
    pub(super) const CHECKSUM: Range<usize> = 2..4;
    pub(super) const REST: Range<usize> = 4..8;
}

view! {
    /// The first 8 bytes of an ICMP message (RFC 792).
    Icmp, 8
}

impl<B: Deref<Target = [u8; 8]>> Icmp<B> {
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

impl<B: DerefMut<Target = [u8; 8]>> Icmp<B> {
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
