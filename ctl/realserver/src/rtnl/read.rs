//! What rtnetlink tells of the machine.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};
use netlink_packet_route::address::{AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteScope,
    RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;

use super::{Attached, Rtnl, TRIES, own_address, programs};
use crate::machine::{Address, AtXdp, Conf, Link, Path, Route, host_prefix};

impl Rtnl {
    /// All interfaces, with the XDP programs on each; settings and programs are not looked at yet.
    pub(crate) fn links(&self) -> Result<Vec<(Link, Vec<Attached>)>, Errno> {
        self.listing(RouteNetlinkMessage::GetLink(LinkMessage::default()), |reply| match reply {
            RouteNetlinkMessage::NewLink(m) => link(&m),
            _ => None,
        })
    }

    /// All addresses.
    pub(crate) fn all_addresses(&self) -> Result<Vec<Address>, Errno> {
        self.listing(RouteNetlinkMessage::GetAddress(AddressMessage::default()), |reply| match reply {
            RouteNetlinkMessage::NewAddress(m) => address(&m),
            _ => None,
        })
    }

    /// The unicast routes of the main tables of both families.
    pub(crate) fn routes(&self) -> Result<Vec<Route>, Errno> {
        Ok(self.route_messages()?.iter().filter_map(route).collect())
    }

    /// The same as they came.
    pub(super) fn route_messages(&self) -> Result<Vec<RouteMessage>, Errno> {
        let mut all = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut m = RouteMessage::default();
            m.header.address_family = family;
            let listed = self.listing(RouteNetlinkMessage::GetRoute(m), |reply| match reply {
                RouteNetlinkMessage::NewRoute(m) => Some(m),
                _ => None,
            });
            match listed {
                Ok(listed) => all.extend(listed),
                // a kernel without IPv6
                Err(Errno::OPNOTSUPP) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(all)
    }

    /// The way that a packet to `to` would take.
    pub(crate) fn path(&self, to: IpAddr) -> Result<Path, Errno> {
        let mut m = RouteMessage::default();
        m.header.address_family = family(to);
        m.header.destination_prefix_length = host_prefix(to);
        m.attributes.push(RouteAttribute::Destination(to.into()));
        let mut found = None;
        self.ask(RouteNetlinkMessage::GetRoute(m), NLM_F_ACK, &mut |reply| {
            if let RouteNetlinkMessage::NewRoute(m) = reply {
                let index = m.attributes.iter().find_map(|a| match a {
                    RouteAttribute::Oif(index) => Some(*index),
                    _ => None,
                });
                found = index.map(|index| Path { to, gateway: gateway(&m), index });
            }
        })?;
        found.ok_or(Errno::NETUNREACH)
    }

    /// A listing of one moment.
    fn listing<T>(
        &self,
        request: RouteNetlinkMessage,
        each: impl Fn(RouteNetlinkMessage) -> Option<T>,
    ) -> Result<Vec<T>, Errno> {
        for _ in 0..TRIES {
            let mut found = Vec::new();
            if self.ask(request.clone(), NLM_F_DUMP, &mut |reply| found.extend(each(reply)))? {
                return Ok(found);
            }
        }
        Err(Errno::AGAIN)
    }
}

pub(super) fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet }
}

fn link(m: &LinkMessage) -> Option<(Link, Vec<Attached>)> {
    let flags = m.header.flags;
    let mut link = Link {
        index: m.header.index,
        name: String::new(),
        up: flags.contains(LinkFlags::Up),
        loopback: flags.contains(LinkFlags::Loopback),
        noarp: flags.contains(LinkFlags::Noarp),
        mtu: 0,
        kind: String::new(),
        conf: Conf::default(),
        xdp: AtXdp::Nothing,
    };
    for attribute in &m.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::LinkInfo(all) => {
                let kind = all.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
                link.kind = kind.unwrap_or_default();
            }
            _ => {}
        }
    }
    (!link.name.is_empty()).then(|| (link, programs(m)))
}

fn address(m: &AddressMessage) -> Option<Address> {
    use netlink_packet_route::address::AddressAttribute;
    let ip = own_address(m)?;
    // The attribute has all flags, where there is one.
    let flags = m.attributes.iter().find_map(|a| match a {
        AddressAttribute::Flags(flags) => Some(*flags),
        _ => None,
    });
    let flags = flags.unwrap_or(AddressFlags::from_bits_retain(header_bits(m.header.flags)));
    Some(Address {
        index: m.header.index,
        ip,
        prefix: m.header.prefix_len,
        global: matches!(m.header.scope, AddressScope::Universe | AddressScope::Site),
        deprecated: flags.contains(AddressFlags::Deprecated),
        tentative: flags.contains(AddressFlags::Tentative),
        dad_failed: flags.contains(AddressFlags::Dadfailed),
    })
}

fn header_bits(flags: AddressHeaderFlags) -> u32 {
    flags.bits().into()
}

/// What a route is to us; None for other tables and types, and for what no client is behind.
pub(super) fn route(m: &RouteMessage) -> Option<Route> {
    let h = &m.header;
    let v6 = h.address_family == AddressFamily::Inet6;
    let mut r = Route {
        to: if v6 { IpAddr::from([0; 16]) } else { IpAddr::from([0; 4]) },
        prefix: h.destination_prefix_length,
        gateway: gateway(m),
        index: None,
        metric: 0,
        source: None,
        protocol: protocol(h.protocol),
        link_scope: h.scope == RouteScope::Link,
        mtu: None,
        advmss: None,
        fixed: h.protocol == RouteProtocol::Ra || h.tos != 0 || h.source_prefix_length != 0,
    };
    let mut table = u32::from(h.table);
    for attribute in &m.attributes {
        match attribute {
            RouteAttribute::Destination(a) => r.to = plain(a)?,
            RouteAttribute::Oif(index) => r.index = Some(*index),
            RouteAttribute::Priority(metric) => r.metric = *metric,
            RouteAttribute::PrefSource(a) => r.source = plain(a),
            RouteAttribute::Table(t) => table = *t,
            RouteAttribute::Metrics(all) => {
                for metric in all {
                    match metric {
                        RouteMetric::Mtu(mtu) => r.mtu = Some(*mtu),
                        RouteMetric::Advmss(mss) => r.advmss = Some(*mss),
                        _ => {}
                    }
                }
            }
            RouteAttribute::MultiPath(_) | RouteAttribute::NhId(_) | RouteAttribute::Encap(_) => {
                r.fixed = true;
            }
            RouteAttribute::Expires(_) => r.fixed = true,
            _ => {}
        }
    }
    let link_local = match r.to {
        IpAddr::V4(to) => to.is_link_local() || to.is_multicast(),
        IpAddr::V6(to) => to.is_unicast_link_local() || to.is_multicast(),
    };
    let ours = table == u32::from(RouteHeader::RT_TABLE_MAIN) && h.kind == RouteType::Unicast && !link_local;
    ours.then_some(r)
}

fn plain(a: &RouteAddress) -> Option<IpAddr> {
    match a {
        RouteAddress::Inet(a) => Some((*a).into()),
        RouteAddress::Inet6(a) => Some((*a).into()),
        _ => None,
    }
}

fn gateway(m: &RouteMessage) -> Option<IpAddr> {
    m.attributes.iter().find_map(|a| match a {
        RouteAttribute::Gateway(a) => plain(a),
        RouteAttribute::Via(RouteVia::Inet(a)) => Some((*a).into()),
        RouteAttribute::Via(RouteVia::Inet6(a)) => Some((*a).into()),
        _ => None,
    })
}

fn protocol(p: RouteProtocol) -> String {
    match p {
        RouteProtocol::Kernel => "kernel".into(),
        RouteProtocol::Boot => "boot".into(),
        RouteProtocol::Static => "static".into(),
        RouteProtocol::Ra => "ra".into(),
        RouteProtocol::Dhcp => "dhcp".into(),
        other => u8::from(other).to_string(),
    }
}
