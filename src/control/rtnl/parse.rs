//! Messages of rtnetlink as the events of [`crate::route`]. Whatever does not concern IPv4 or IPv6 next hops is
//! nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use modes::Family;
use netlink_packet_core::{NLM_F_APPEND, NLM_F_CREATE, NLM_F_MULTIPART, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteType, RouteVia,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::route::{Event, IfAddr, Link, LinkKind, Mac, NeighState, Place, Route, RouteKind, Via};

/// The event that a message stands for. `flags` are those of its netlink header.
pub(super) fn event(message: RouteNetlinkMessage, flags: u16) -> Option<Event> {
    use RouteNetlinkMessage as M;
    match message {
        M::NewLink(m) => link(&m).map(Event::LinkNew),
        M::DelLink(m) => {
            // AF_BRIDGE: a port left its bridge, the link is still there.
            let gone = m.header.interface_family == AddressFamily::Unspec;
            gone.then_some(Event::LinkGone { ifindex: m.header.index })
        }
        M::NewAddress(m) => address(&m).map(Event::AddrNew),
        M::DelAddress(m) => {
            address(&m).map(|a| Event::AddrGone { ifindex: a.ifindex, addr: a.addr, prefix: a.prefix })
        }
        M::NewRoute(m) => {
            let route = route(&m)?;
            let place = place(route.family, flags);
            Some(Event::RouteNew { route, place })
        }
        M::DelRoute(m) => route(&m).map(Event::RouteGone),
        M::NewNeighbour(m) => neighbour(&m),
        M::DelNeighbour(m) => match neighbour(&m)? {
            Event::NeighNew { ifindex, addr, .. } => Some(Event::NeighGone { ifindex, addr }),
            _ => None,
        },
        _ => None,
    }
}

fn mac(bytes: &[u8]) -> Option<Mac> {
    bytes.try_into().ok()
}

fn link(m: &LinkMessage) -> Option<Link> {
    if m.header.interface_family != AddressFamily::Unspec || m.header.index == 0 {
        return None;
    }
    let mut link = Link {
        ifindex: m.header.index,
        name: String::new(),
        mac: None,
        mtu: 0,
        up: m.header.flags.contains(LinkFlags::Up),
        running: m.header.flags.contains(LinkFlags::LowerUp),
        kind: LinkKind::Other,
        parent: None,
    };
    let mut parent_elsewhere = false;
    for a in &m.attributes {
        match a {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Address(bytes) => link.mac = mac(bytes),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Link(index) => link.parent = Some(*index),
            LinkAttribute::LinkNetNsId(_) => parent_elsewhere = true,
            LinkAttribute::LinkInfo(info) if info.contains(&LinkInfo::Kind(InfoKind::MacVlan)) => {
                link.kind = LinkKind::Macvlan;
            }
            LinkAttribute::LinkInfo(info) if info.contains(&LinkInfo::Kind(InfoKind::Vlan)) => {
                link.kind = LinkKind::Vlan;
            }
            _ => {}
        }
    }
    if parent_elsewhere {
        link.parent = None;
    }
    // Without a name the message is about something else (wireless events).
    (!link.name.is_empty()).then_some(link)
}

fn address(m: &AddressMessage) -> Option<IfAddr> {
    if !matches!(m.header.family, AddressFamily::Inet | AddressFamily::Inet6) {
        return None;
    }
    let mut flags = AddressFlags::from_bits_retain(u32::from(m.header.flags.bits()));
    let (mut own, mut peer) = (None, None);
    for a in &m.attributes {
        match a {
            AddressAttribute::Local(a) => own = Some(*a),
            AddressAttribute::Address(a) => peer = Some(*a),
            AddressAttribute::Flags(f) => flags = *f,
            _ => {}
        }
    }
    // On a point-to-point link `Address` is the other end's.
    let addr = own.or(peer)?;
    let unusable = AddressFlags::Deprecated | AddressFlags::Dadfailed | AddressFlags::Tentative;
    Some(IfAddr {
        ifindex: m.header.index,
        addr,
        prefix: m.header.prefix_len,
        scope: m.header.scope.into(),
        // The same bit means "temporary" (RFC 8981) on IPv6.
        secondary: addr.is_ipv4() && flags.contains(AddressFlags::Secondary),
        unusable: flags.intersects(unusable),
    })
}

/// In a dump the order is the kernel's. A live IPv4 message says by its flags where the route was put; IPv6 appends.
fn place(family: Family, flags: u16) -> Place {
    if flags & NLM_F_MULTIPART != 0 {
        Place::Last
    } else if flags & NLM_F_REPLACE != 0 {
        Place::Replace
    } else if family == Family::V4 && flags & NLM_F_CREATE != 0 && flags & NLM_F_APPEND == 0 {
        Place::First
    } else {
        Place::Last
    }
}

fn ip(a: &RouteAddress) -> Option<IpAddr> {
    match a {
        RouteAddress::Inet(a) => Some((*a).into()),
        RouteAddress::Inet6(a) => Some((*a).into()),
        _ => None,
    }
}

fn kind(t: RouteType) -> Option<RouteKind> {
    Some(match t {
        RouteType::Unicast => RouteKind::Unicast,
        RouteType::Local => RouteKind::Local,
        RouteType::Broadcast | RouteType::Anycast | RouteType::Multicast => RouteKind::NotUnicast,
        RouteType::BlackHole => RouteKind::Blackhole,
        RouteType::Unreachable => RouteKind::Unreachable,
        RouteType::Prohibit => RouteKind::Prohibit,
        RouteType::Throw => RouteKind::Throw,
        _ => return None,
    })
}

/// What the attributes of a route, or of one way of a multipath route, say of the way.
#[derive(Default)]
struct WayParts {
    ifindex: u32,
    gateway: Option<IpAddr>,
    /// The kernel would encapsulate: a plain frame would be wrong.
    encapsulated: bool,
}

impl WayParts {
    fn take(&mut self, a: &RouteAttribute) {
        match a {
            RouteAttribute::Oif(i) => self.ifindex = *i,
            RouteAttribute::Gateway(g) => self.gateway = ip(g),
            RouteAttribute::Via(RouteVia::Inet(g)) => self.gateway = Some((*g).into()),
            RouteAttribute::Via(RouteVia::Inet6(g)) => self.gateway = Some((*g).into()),
            RouteAttribute::Via(_) | RouteAttribute::Encap(_) => self.encapsulated = true,
            _ => {}
        }
    }
    fn via(self, hops: u8) -> Via {
        Via {
            ifindex: if self.encapsulated { 0 } else { self.ifindex },
            gateway: self.gateway,
            weight: u16::from(hops) + 1,
        }
    }
}

fn route(m: &RouteMessage) -> Option<Route> {
    let h = &m.header;
    let (family, any): (_, IpAddr) = match h.address_family {
        AddressFamily::Inet => (Family::V4, Ipv4Addr::UNSPECIFIED.into()),
        AddressFamily::Inet6 => (Family::V6, Ipv6Addr::UNSPECIFIED.into()),
        _ => return None,
    };
    // Cached clones are no routes; those for certain sources only (IPv6) are not followed.
    if h.flags.contains(RouteFlags::Cloned) || h.source_prefix_length != 0 {
        return None;
    }
    let mut route = Route {
        table: h.table.into(),
        family,
        dst: (any, h.destination_prefix_length),
        metric: 0,
        tos: h.tos,
        kind: kind(h.kind)?,
        prefsrc: None,
        mtu: 0,
        via: Vec::new(),
    };
    let mut way = WayParts::default();
    let mut multipath = None;
    for a in &m.attributes {
        match a {
            RouteAttribute::Destination(a) => route.dst.0 = ip(a)?,
            RouteAttribute::Table(t) => route.table = *t,
            RouteAttribute::Priority(p) => route.metric = *p,
            RouteAttribute::PrefSource(a) => route.prefsrc = ip(a),
            RouteAttribute::Metrics(list) => {
                let mtu = list.iter().find_map(|m| if let RouteMetric::Mtu(v) = m { Some(*v) } else { None });
                route.mtu = mtu.unwrap_or(0);
            }
            RouteAttribute::MultiPath(ways) => multipath = Some(ways),
            a => way.take(a),
        }
    }
    match multipath {
        Some(ways) => route.via.extend(ways.iter().map(|w| {
            let mut parts = WayParts { ifindex: w.interface_index, ..WayParts::default() };
            w.attributes.iter().for_each(|a| parts.take(a));
            parts.via(w.hops)
        })),
        // An IPv6 reject route names `lo`, which says nothing.
        None if route.kind == RouteKind::Unicast || way.ifindex != 0 => route.via.push(way.via(0)),
        None => {}
    }
    Some(route)
}

fn neighbour(m: &NeighbourMessage) -> Option<Event> {
    let h = &m.header;
    if !matches!(h.family, AddressFamily::Inet | AddressFamily::Inet6)
        || h.flags.contains(NeighbourFlags::Proxy)
    {
        return None;
    }
    let (mut addr, mut lladdr) = (None, None);
    for a in &m.attributes {
        match a {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(a)) => addr = Some(IpAddr::from(*a)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(a)) => addr = Some(IpAddr::from(*a)),
            NeighbourAttribute::LinkLayerAddress(bytes) => lladdr = mac(bytes),
            _ => {}
        }
    }
    let state = match h.state {
        NeighbourState::Incomplete => NeighState::Incomplete,
        NeighbourState::Reachable => NeighState::Reachable,
        NeighbourState::Stale => NeighState::Stale,
        NeighbourState::Delay => NeighState::Delay,
        NeighbourState::Probe => NeighState::Probe,
        NeighbourState::Failed => NeighState::Failed,
        NeighbourState::Permanent | NeighbourState::Noarp => NeighState::Permanent,
        _ => NeighState::None,
    };
    Some(Event::NeighNew { ifindex: h.ifindex, addr: addr?, mac: lladdr, state })
}

/// The priority of a policy routing rule other than the kernel's own three.
pub(super) fn odd_rule(m: &RuleMessage) -> Option<u32> {
    // A dump of all families names multicast routing's rules too.
    if !matches!(m.header.family, AddressFamily::Inet | AddressFamily::Inet6) {
        return None;
    }
    let (mut priority, mut table, mut selects) = (0, u32::from(m.header.table), false);
    for a in &m.attributes {
        match a {
            RuleAttribute::Priority(p) => priority = *p,
            RuleAttribute::Table(t) => table = *t,
            // Defaults that the kernel always names.
            RuleAttribute::SuppressPrefixLen(_)
            | RuleAttribute::SuppressIfGroup(_)
            | RuleAttribute::Protocol(_) => {}
            _ => selects = true,
        }
    }
    let own = m.header.action == RuleAction::ToTable
        && !selects
        && matches!((priority, table), (0, 255) | (32766, 254) | (32767, 253));
    (!own).then_some(priority)
}
