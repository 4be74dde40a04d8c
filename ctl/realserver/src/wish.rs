//! What is asked for: virtual addresses, a forwarding method, an interface.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::error::Error;
use crate::machine::{Link, Machine};

/// How the director sends packets to this server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Direct routing (`-g`).
    Dr,
    /// IP in IP (`-i`).
    Ipip,
    /// Generic routing encapsulation (`-i --tun-type gre`), with or without checksum.
    Gre,
    /// Address translation (`-m`).
    Nat,
}

impl Mode {
    /// Whether packets come inside others.
    pub fn tunnels(self) -> bool {
        matches!(self, Mode::Ipip | Mode::Gre)
    }

    /// As the command line names it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Dr => "dr",
            Mode::Ipip => "ipip",
            Mode::Gre => "gre",
            Mode::Nat => "nat",
        }
    }
}

/// What a server shall be set up for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wish {
    /// Virtual addresses.
    pub vips: Vec<IpAddr>,
    /// How their packets come; not [`Mode::Nat`].
    pub mode: Mode,
    /// The interface at which they arrive; None: found out where it must be known.
    pub dev: Option<String>,
    /// Take the kernel's tunnel devices instead of our decapsulator.
    pub kernel_tunnel: bool,
    /// Whether routes may be told to announce a smaller MSS.
    pub advmss: bool,
    /// Where a decapsulator is pinned.
    pub pin_dir: PathBuf,
}

/// What is known for a check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question {
    /// Virtual addresses.
    pub vips: Vec<IpAddr>,
    /// How their packets come.
    pub mode: Mode,
    /// The interface at which they arrive; None: found out.
    pub dev: Option<String>,
    /// The director's own addresses on the servers' side, one of a family.
    pub directors: Vec<IpAddr>,
    /// Clients whose ways back are looked at; without any the default route is.
    pub clients: Vec<IpAddr>,
    /// Ports on which somebody must listen.
    pub ports: Vec<u16>,
}

impl Question {
    /// Addresses to which the kernel shall say the way.
    pub(crate) fn ways(&self) -> Vec<IpAddr> {
        self.directors.iter().chain(&self.clients).copied().collect()
    }
}

/// Refuses what cannot be a virtual address.
pub(crate) fn check_vips(vips: &[IpAddr]) -> Result<(), Error> {
    for vip in vips {
        if let IpAddr::V6(six) = vip
            && let Some(four) = six.to_ipv4_mapped()
        {
            return Err(Error::MappedVip(*vip, four.into()));
        }
        if let Some(why) = nobody_calls(*vip) {
            return Err(Error::BadVip(*vip, why));
        }
    }
    Ok(())
}

/// What kind of address it is that no client calls a service by.
fn nobody_calls(ip: IpAddr) -> Option<&'static str> {
    let link_local = match ip {
        IpAddr::V4(four) => four.is_link_local(),
        IpAddr::V6(six) => six.is_unicast_link_local(),
    };
    match ip {
        _ if ip.is_unspecified() => Some("the unspecified address"),
        _ if ip.is_loopback() => Some("a loopback address"),
        _ if ip.is_multicast() => Some("a multicast address"),
        _ if link_local => Some("a link-local address"),
        _ if ip == IpAddr::from([255; 4]) => Some("the broadcast address"),
        _ => None,
    }
}

/// The interface at which the director's packets arrive: the one named, that on the way to the director, that of the
/// default route, or the only one there is.
pub(crate) fn ingress<'m>(
    m: &'m Machine,
    dev: Option<&str>,
    directors: &[IpAddr],
) -> Result<&'m Link, Error> {
    if let Some(dev) = dev {
        return match m.link(dev) {
            Some(link) if link.loopback => Err(Error::Loopback(dev.into())),
            Some(link) => Ok(link),
            None => Err(Error::NoSuchInterface(dev.into())),
        };
    }
    let by_director = directors.iter().find_map(|d| m.path(*d)).map(|p| p.index);
    let by_default = || [false, true].into_iter().find_map(|v6| m.default_route(v6)?.index);
    if let Some(link) = by_director.or_else(by_default).and_then(|index| m.link_of(index))
        && !link.loopback
    {
        return Ok(link);
    }
    let mut found = m
        .links
        .iter()
        .filter(|l| l.up && !l.loopback && !l.noarp && m.own_addresses(l.index, &[]).next().is_some());
    match (found.next(), found.next()) {
        (Some(link), None) => Ok(link),
        _ => Err(Error::WhichInterface),
    }
}
