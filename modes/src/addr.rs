use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IP version of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum Family {
    /// IPv4
    V4 = 4,
    /// IPv6
    V6 = 6,
}

/// An IP address as a number in host order: an IPv4 address fills the low 32 bits. Its family is kept beside it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Default)]
pub struct Addr(pub u128);

impl Addr {
    /// As an address of the standard library.
    pub fn ip(self, family: Family) -> IpAddr {
        match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::from(self.0 as u32)),
            Family::V6 => IpAddr::V6(Ipv6Addr::from(self.0)),
        }
    }
    /// The IPv4 address as a number in host order.
    pub fn v4(self) -> u32 {
        self.0 as u32
    }
}

impl From<IpAddr> for Addr {
    fn from(a: IpAddr) -> Addr {
        match a {
            IpAddr::V4(a) => Addr(u32::from(a).into()),
            IpAddr::V6(a) => Addr(a.into()),
        }
    }
}

impl From<IpAddr> for Family {
    fn from(a: IpAddr) -> Family {
        if a.is_ipv4() { Family::V4 } else { Family::V6 }
    }
}
