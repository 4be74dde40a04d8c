use std::ops::{Deref, DerefMut};

use super::{be16, view};

/// A MAC address as on the wire.
pub type Mac = [u8; 6];

/// EtherTypes.
#[allow(missing_docs)]
pub mod ethertype {
    pub const IPV4: u16 = 0x0800;
    pub const ARP: u16 = 0x0806;
    pub const VLAN: u16 = 0x8100;
    pub const IPV6: u16 = 0x86dd;
    /// The outer tag of 802.1ad.
    pub const QINQ: u16 = 0x88a8;
}

mod field {
    pub(super) const DST: std::ops::Range<usize> = 0..6;
    pub(super) const SRC: std::ops::Range<usize> = 6..12;
    pub(super) const TYPE: usize = 12;
}

view! {
    /// An Ethernet header (IEEE 802.3), without VLAN tags: the type may be that of a tag.
    Ethernet, 14
}

impl<B: Deref<Target = [u8; 14]>> Ethernet<B> {
    /// Destination.
    #[inline]
    pub fn dst(&self) -> Mac {
        std::array::from_fn(|i| self.0[field::DST.start + i])
    }
    /// Source.
    #[inline]
    pub fn src(&self) -> Mac {
        std::array::from_fn(|i| self.0[field::SRC.start + i])
    }
    /// EtherType.
    #[inline]
    pub fn ethertype(&self) -> u16 {
        be16(&self.0, field::TYPE)
    }
}

impl<B: DerefMut<Target = [u8; 14]>> Ethernet<B> {
    /// Sets the destination.
    #[inline]
    pub fn set_dst(&mut self, mac: Mac) {
        self.0[field::DST].copy_from_slice(&mac);
    }
    /// Sets the source.
    #[inline]
    pub fn set_src(&mut self, mac: Mac) {
        self.0[field::SRC].copy_from_slice(&mac);
    }
    /// Sets the EtherType.
    #[inline]
    pub fn set_ethertype(&mut self, v: u16) {
        self.0[field::TYPE..].copy_from_slice(&v.to_be_bytes());
    }
}
