//! What the kernel says of links, addresses, routes and neighbours, in the director's own words.

use std::net::IpAddr;

use modes::Family;

/// An Ethernet address in transmission order.
pub type Mac = [u8; 6];

/// What kind of device a link is, as far as it matters to next hops.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LinkKind {
    /// Anything that is not told apart below.
    #[default]
    Other,
    /// A macvlan on top of [`Link::parent`] (VRRP with `use_vmac` makes these): frames to its MAC arrive on the parent.
    Macvlan,
    /// A VLAN (802.1Q, 802.1ad) on top of [`Link::parent`]: the kernel hands it the parent's frames with its tag, without it.
    Vlan,
}

/// A network interface (`RTM_NEWLINK`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// Interface index; not 0.
    pub ifindex: u32,
    /// Interface name.
    pub name: String,
    /// Its MAC, if it has one of six bytes.
    pub mac: Option<Mac>,
    /// Largest IP packet in bytes (`IFLA_MTU`).
    pub mtu: u32,
    /// Administratively up (`IFF_UP`).
    pub up: bool,
    /// Has a carrier (`IFF_LOWER_UP`).
    pub running: bool,
    /// What it is.
    pub kind: LinkKind,
    /// The device under it (`IFLA_LINK`), where that is in the same namespace.
    pub parent: Option<u32>,
}

/// An interface's address (`RTM_NEWADDR`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IfAddr {
    /// Interface index.
    pub ifindex: u32,
    /// The address itself (`IFA_LOCAL` where there is one, else `IFA_ADDRESS`).
    pub addr: IpAddr,
    /// Prefix length of its subnet.
    pub prefix: u8,
    /// `rt_scope_t` of the address: 0 universe, 253 link, 254 host.
    pub scope: u8,
    /// IPv4: a secondary address of its subnet; never chosen as a source by itself.
    pub secondary: bool,
    /// Deprecated or not usable (tentative, duplicate): never chosen as a source.
    pub unusable: bool,
}

/// What a route does (`rtm_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum RouteKind {
    /// To a next hop.
    Unicast,
    /// To this machine.
    Local,
    /// A broadcast, anycast or multicast address of the local network.
    NotUnicast,
    /// Drop silently.
    Blackhole,
    /// Drop, ICMP "host unreachable".
    Unreachable,
    /// Drop, ICMP "administratively prohibited".
    Prohibit,
    /// Go on with the next table.
    Throw,
}

/// One way of a route.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Via {
    /// Interface index of the way out; 0 where the director cannot follow the route (it encapsulates, or names a
    /// nexthop object that the kernel does not spell out).
    pub ifindex: u32,
    /// The gateway; none where the destination is on the link. May be IPv6 for an IPv4 route (RFC 8950).
    pub gateway: Option<IpAddr>,
    /// Share of the flows, 1 to 256 (`rtnh_hops` + 1).
    pub weight: u16,
}

/// A route (`RTM_NEWROUTE`, `RTM_DELROUTE`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// Table: 255 local, 254 main, 253 default. Others are not looked at.
    pub table: u32,
    /// Family of the destination.
    pub family: Family,
    /// Destination and prefix length.
    pub dst: (IpAddr, u8),
    /// `RTA_PRIORITY`; the lowest wins within a prefix.
    pub metric: u32,
    /// DSCP/TOS selector; routes with one are not looked at.
    pub tos: u8,
    /// What it does.
    pub kind: RouteKind,
    /// Preferred source address.
    pub prefsrc: Option<IpAddr>,
    /// `RTAX_MTU` in bytes; 0: the link's.
    pub mtu: u32,
    /// The ways, in the kernel's order; empty for routes that lead nowhere.
    pub via: Vec<Via>,
}

/// Where a new route goes among those with the same prefix and metric (flags of the netlink message).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Behind them (`NLM_F_APPEND`, and all of a dump).
    Last,
    /// Before them.
    First,
    /// In the stead of the first one (`NLM_F_REPLACE`).
    Replace,
}

/// State of a neighbour entry (NUD).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum NeighState {
    /// Nothing known.
    None,
    /// The kernel is asking.
    Incomplete,
    /// Confirmed a short while ago.
    Reachable,
    /// Usable, but not confirmed for a while.
    Stale,
    /// Usable, the kernel waits before it asks.
    Delay,
    /// Usable, the kernel asks the known MAC.
    Probe,
    /// Nobody answered.
    Failed,
    /// Set for good, by the administrator or because the link needs no resolution.
    Permanent,
}

impl NeighState {
    /// Whether a MAC in this state may be used.
    pub const fn usable(self) -> bool {
        matches!(
            self,
            NeighState::Reachable
                | NeighState::Stale
                | NeighState::Delay
                | NeighState::Probe
                | NeighState::Permanent
        )
    }
}

/// Bounds of a complete reading of the kernel's tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resync {
    /// All that is there follows, mixed with live changes.
    Begin,
    /// What was not named since [`Resync::Begin`] is gone.
    End,
    /// The reading failed half-way: forget that it began, remove nothing.
    Abort,
}

/// One change of the kernel's tables. Applying the same one twice does no harm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A link is there or has changed.
    LinkNew(Link),
    /// A link is gone.
    LinkGone {
        /// Its index.
        ifindex: u32,
    },
    /// An address is there or has changed.
    AddrNew(IfAddr),
    /// An address is gone.
    AddrGone {
        /// The interface.
        ifindex: u32,
        /// The address.
        addr: IpAddr,
        /// Prefix length of its subnet.
        prefix: u8,
    },
    /// A route is there.
    RouteNew {
        /// The route.
        route: Route,
        /// Where it goes among those with the same prefix and metric.
        place: Place,
    },
    /// A route (or some ways of an IPv6 multipath route) is gone.
    RouteGone(Route),
    /// A neighbour is there or has changed.
    NeighNew {
        /// The interface.
        ifindex: u32,
        /// Its IP address.
        addr: IpAddr,
        /// Its MAC, where known.
        mac: Option<Mac>,
        /// Its state.
        state: NeighState,
    },
    /// A neighbour entry is gone.
    NeighGone {
        /// The interface.
        ifindex: u32,
        /// The IP address.
        addr: IpAddr,
    },
    /// A complete reading begins, ends or fails.
    Resync(Resync),
}
