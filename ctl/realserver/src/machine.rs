//! What a machine has that matters to a real server, as plain data: interfaces, addresses, routes, settings, listeners.
//! [`Machine::read`] asks the kernel; plans and checks are functions of what it found.

mod read;

use std::net::IpAddr;

pub(crate) use read::family_name;

/// Settings of one interface under `net.ipv4.conf`, or of `all`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Conf {
    pub(crate) arp_ignore: u32,
    pub(crate) arp_announce: u32,
    pub(crate) rp_filter: u32,
}

impl Conf {
    /// What holds on an interface: the larger of its own and of `all`'s, for each of these settings
    /// (the kernel's networking/ip-sysctl).
    pub(crate) fn effective(self, all: Conf) -> Conf {
        Conf {
            arp_ignore: self.arp_ignore.max(all.arp_ignore),
            arp_announce: self.arp_announce.max(all.arp_announce),
            rp_filter: self.rp_filter.max(all.rp_filter),
        }
    }
}

/// A program at an interface's XDP hook.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum AtXdp {
    /// None, or nobody has looked.
    Nothing,
    /// Our decapsulator, and the addresses it knows.
    Decap(Vec<IpAddr>),
    /// Somebody else's.
    Other {
        /// Its name and number.
        program: String,
        remedy: Remedy,
    },
}

/// How somebody else's program goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Remedy {
    /// The word by which iproute2 takes it away, if it can.
    pub(crate) word: &'static str,
    /// Whether a BPF link holds it, so that nobody but the link's owner can; None: not known.
    pub(crate) by_link: Option<bool>,
}

impl Remedy {
    /// The command that takes it away; None where no command can.
    pub(crate) fn command(self, dev: &str) -> Option<String> {
        (self.by_link != Some(true)).then(|| format!("ip link set dev {dev} {} off", self.word))
    }

    /// What to do, with a command if there is one.
    pub(crate) fn sentence(self, dev: &str) -> String {
        const LINK: &str = "it goes when its owner ends or its pin is removed (`bpftool link' tells of both)";
        match (self.command(dev), self.by_link) {
            (None, _) => format!("a BPF link holds it: {LINK}"),
            (Some(command), Some(_)) => format!("`{command}' removes it"),
            (Some(command), None) => {
                format!("`{command}' removes it, unless a BPF link holds it: then {LINK}")
            }
        }
    }
}

/// An interface.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) up: bool,
    pub(crate) loopback: bool,
    /// Answers no ARP and no neighbour solicitation: a tunnel, a dummy.
    pub(crate) noarp: bool,
    /// Bytes.
    pub(crate) mtu: u32,
    /// As rtnetlink names it: `veth`, `ipip`; empty for hardware.
    pub(crate) kind: String,
    /// Its own settings, without those of `all`.
    pub(crate) conf: Conf,
    pub(crate) xdp: AtXdp,
}

impl Link {
    /// Whether ARP requests can arrive at it.
    pub(crate) fn answers_arp(&self) -> bool {
        !self.loopback && !self.noarp
    }
}

/// An address of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Address {
    /// The interface's index.
    pub(crate) index: u32,
    pub(crate) ip: IpAddr,
    pub(crate) prefix: u8,
    /// Of more than the link.
    pub(crate) global: bool,
    /// Not chosen as a source (a preferred lifetime of 0).
    pub(crate) deprecated: bool,
    pub(crate) tentative: bool,
    pub(crate) dad_failed: bool,
}

/// A unicast route of the main table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    /// Network; unspecified with prefix 0 for the default route.
    pub(crate) to: IpAddr,
    pub(crate) prefix: u8,
    pub(crate) gateway: Option<IpAddr>,
    /// Interface's index; None for several next hops.
    pub(crate) index: Option<u32>,
    pub(crate) metric: u32,
    pub(crate) source: Option<IpAddr>,
    /// As iproute2 names it, or a number.
    pub(crate) protocol: String,
    pub(crate) link_scope: bool,
    pub(crate) mtu: Option<u32>,
    pub(crate) advmss: Option<u32>,
    /// Learned from a router's advertisement, of several next hops or otherwise not to be written anew as it is.
    pub(crate) fixed: bool,
}

/// The way to an address, as the kernel would take it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Path {
    pub(crate) to: IpAddr,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) index: u32,
}

/// A socket that takes connections or datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Listener {
    pub(crate) ip: IpAddr,
    pub(crate) port: u16,
    pub(crate) tcp: bool,
}

/// What there is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Machine {
    pub(crate) links: Vec<Link>,
    pub(crate) addresses: Vec<Address>,
    pub(crate) routes: Vec<Route>,
    /// `net.ipv4.conf.all`.
    pub(crate) all: Conf,
    /// `net.ipv4.conf.default`: what an interface gets when it is made.
    pub(crate) default: Conf,
    /// `net.ipv4.ip_forward`.
    pub(crate) forwards_v4: bool,
    /// `net.ipv6.conf.all.forwarding`.
    pub(crate) forwards_v6: bool,
    /// `net.ipv6.bindv6only`.
    pub(crate) bindv6only: bool,
    pub(crate) listeners: Vec<Listener>,
    /// Ways that were asked for; an address without one has no route.
    pub(crate) paths: Vec<Path>,
}

impl Machine {
    pub(crate) fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|l| l.name == name)
    }

    pub(crate) fn link_of(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|l| l.index == index)
    }

    /// Where an address is, with the interface.
    pub(crate) fn holders(&self, ip: IpAddr) -> impl Iterator<Item = (&Link, &Address)> {
        self.addresses.iter().filter(move |a| a.ip == ip).filter_map(|a| Some((self.link_of(a.index)?, a)))
    }

    /// Addresses of an interface of more than the link, without those in `but`.
    pub(crate) fn own_addresses<'a>(
        &'a self,
        index: u32,
        but: &'a [IpAddr],
    ) -> impl Iterator<Item = IpAddr> + 'a {
        let own = self.addresses.iter().filter(move |a| a.index == index && a.global);
        own.map(|a| a.ip).filter(move |ip| !but.contains(ip))
    }

    /// The default route of a family: that of the least metric.
    pub(crate) fn default_route(&self, v6: bool) -> Option<&Route> {
        let all = self.routes.iter().filter(|r| r.to.is_ipv6() == v6 && r.prefix == 0);
        all.min_by_key(|r| r.metric)
    }

    pub(crate) fn path(&self, to: IpAddr) -> Option<&Path> {
        self.paths.iter().find(|p| p.to == to)
    }
}

/// The prefix length of one address alone.
pub(crate) fn host_prefix(ip: IpAddr) -> u8 {
    if ip.is_ipv6() { 128 } else { 32 }
}
