//! Frames for tests.

use crate::checksum::{Sum, pseudo};
use crate::packet::proto;
use crate::wire::{Icmpv6, Ipv4, Tcp, Udp};
use crate::{Addr, Family};

/// Where the IP header of [`frame`] is.
pub(crate) const L3: usize = 14;

/// A frame described by its parts; lengths and checksums follow from them.
#[derive(Clone, Debug)]
pub(crate) struct Build {
    pub(crate) family: Family,
    pub(crate) src: Addr,
    pub(crate) dst: Addr,
    pub(crate) proto: u8,
    /// VLAN tags as EtherTypes.
    pub(crate) tags: Vec<u16>,
    /// IPv4 options (a multiple of 4 bytes) or IPv6 extension headers.
    pub(crate) extra: Vec<u8>,
    /// Of the first extension header.
    pub(crate) first: Option<u8>,
    pub(crate) ports: (u16, u16),
    pub(crate) flags: u8,
    pub(crate) data: Vec<u8>,
    /// IPv4 flags and offset.
    pub(crate) fragment: u16,
    pub(crate) padding: usize,
}

impl Build {
    pub(crate) fn v4(proto: u8) -> Build {
        Build {
            family: Family::V4,
            src: Addr(0x0a02_0001),
            dst: Addr(0x0a00_0001),
            proto,
            tags: Vec::new(),
            extra: Vec::new(),
            first: None,
            ports: (30000, 80),
            flags: 2,
            data: b"some data".to_vec(),
            fragment: 0x4000,
            padding: 0,
        }
    }

    pub(crate) fn v6(proto: u8) -> Build {
        Build {
            family: Family::V6,
            src: Addr(0x2001_0db8_0002_0000_0000_0000_0000_0001),
            dst: Addr(0x2001_0db8_0000_0000_0000_0000_0000_0001),
            ..Build::v4(proto)
        }
    }

    /// The transport header and its data, with the right checksum.
    fn segment(&self) -> Vec<u8> {
        let mut b = self.ports.0.to_be_bytes().to_vec();
        b.extend(self.ports.1.to_be_bytes());
        match self.proto {
            proto::TCP => {
                b.extend([0, 0, 0, 100, 0, 0, 0, 200, 0x50, self.flags, 0xfa, 0xf0, 0, 0, 0, 0]);
            }
            proto::UDP => {
                b.extend(((8 + self.data.len()) as u16).to_be_bytes());
                b.extend([0, 0]);
            }
            proto::SCTP => b.extend([1, 2, 3, 4, 0, 0, 0, 0]),
            proto::ICMP | proto::ICMPV6 => {
                b.clear();
                b.extend([self.flags, 0, 0, 0, 0, 0, 0, 0]);
            }
            _ => b.clear(),
        }
        b.extend(&self.data);
        let mut sum = pseudo(self.family, self.src, self.dst, self.proto, b.len());
        sum.add_bytes(&b);
        match self.proto {
            proto::TCP => Tcp::new_mut(&mut b).expect("built").set_checksum(sum.checksum()),
            proto::UDP => Udp::new_mut(&mut b).expect("built").set_checksum(sum.checksum().udp()),
            proto::ICMPV6 => Icmpv6::new_mut(&mut b).expect("built").set_checksum(sum.checksum()),
            _ => {}
        }
        b
    }

    pub(crate) fn frame(&self) -> Vec<u8> {
        let mut f = vec![2, 0, 0, 0, 0, 0xd0, 2, 0, 0, 0, 0, 0xc1];
        for tag in &self.tags {
            f.extend(tag.to_be_bytes());
            f.extend([0x20, 100]);
        }
        let segment = self.segment();
        let len = self.extra.len() + segment.len();
        match self.family {
            Family::V4 => {
                f.extend([8, 0]);
                let l3 = f.len();
                f.extend([0x45 + (self.extra.len() / 4) as u8, 0]);
                f.extend(((20 + len) as u16).to_be_bytes());
                f.extend([0x12, 0x34]);
                f.extend(self.fragment.to_be_bytes());
                f.extend([64, self.proto, 0, 0]);
                f.extend(self.src.v4().to_be_bytes());
                f.extend(self.dst.v4().to_be_bytes());
                f.extend(&self.extra);
                set_v4_checksum(&mut f, l3);
            }
            Family::V6 => {
                f.extend([0x86, 0xdd, 0x60, 0x01, 0x23, 0x45]);
                f.extend((len as u16).to_be_bytes());
                f.extend([self.first.unwrap_or(self.proto), 64]);
                f.extend(self.src.0.to_be_bytes());
                f.extend(self.dst.0.to_be_bytes());
                f.extend(&self.extra);
            }
        }
        f.extend(segment);
        f.resize(f.len() + self.padding, 0xee);
        f
    }
}

/// Makes an IPv4 header's checksum right.
pub(crate) fn set_v4_checksum(f: &mut [u8], l3: usize) {
    let header = usize::from(f[l3] & 15) * 4;
    f[l3 + 10..l3 + 12].fill(0);
    let mut sum = Sum::new();
    sum.add_bytes(&f[l3..(l3 + header).min(f.len())]);
    Ipv4::new_mut(&mut f[l3..]).expect("20 bytes").set_checksum(sum.checksum());
}
