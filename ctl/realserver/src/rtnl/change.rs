//! Changes by rtnetlink.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, CacheInfo,
};
use netlink_packet_route::link::{
    InfoData, InfoGre, InfoGre6, InfoIpTunnel, InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::route::{RouteAttribute, RouteFlags, RouteMessage, RouteMetric};
use rustix::io::Errno;

use super::Rtnl;
use super::read::{family, route};
use crate::machine::{Route, host_prefix};
use crate::step::TunnelKind;

/// A lifetime without end.
const FOREVER: u32 = u32::MAX;

impl Rtnl {
    /// Gives an interface an address of its own, with nothing of the network around it. An IPv6 address is at once usable
    /// (no duplicate address detection) and never chosen as a source.
    pub(crate) fn add_address(&self, index: u32, ip: IpAddr) -> Result<(), Errno> {
        let mut m = address(index, ip);
        if ip.is_ipv6() {
            m.header.flags = AddressHeaderFlags::Nodad;
            m.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
            let mut lifetime = CacheInfo::default();
            lifetime.ifa_preferred = 0;
            lifetime.ifa_valid = FOREVER;
            m.attributes.push(AddressAttribute::CacheInfo(lifetime));
        }
        self.change(RouteNetlinkMessage::NewAddress(m), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Takes that address away.
    pub(crate) fn remove_address(&self, index: u32, ip: IpAddr) -> Result<(), Errno> {
        self.change(RouteNetlinkMessage::DelAddress(address(index, ip)), 0)
    }

    /// Makes a tunnel device that takes packets to `local` from any far end, and switches it on.
    pub(crate) fn add_tunnel(&self, name: &str, kind: TunnelKind, local: IpAddr) -> Result<(), Errno> {
        let mut m = LinkMessage::default();
        let info = match (kind, local) {
            (TunnelKind::Ipip, _) => (InfoKind::IpIp, InfoData::IpTunnel(vec![InfoIpTunnel::Local(local)])),
            (TunnelKind::Sit, _) => (InfoKind::SitTun, InfoData::IpTunnel(vec![InfoIpTunnel::Local(local)])),
            (TunnelKind::Ip6Tnl, _) => {
                (InfoKind::Ip6Tnl, InfoData::IpTunnel(vec![InfoIpTunnel::Local(local)]))
            }
            (TunnelKind::Gre, IpAddr::V4(local)) => {
                (InfoKind::GreTun, InfoData::GreTun(vec![InfoGre::Local(local)]))
            }
            (TunnelKind::Ip6Gre, IpAddr::V6(local)) => {
                (InfoKind::GreTun6, InfoData::GreTun6(vec![InfoGre6::Local(local)]))
            }
            (TunnelKind::Gre | TunnelKind::Ip6Gre, _) => return Err(Errno::AFNOSUPPORT),
        };
        m.attributes.push(LinkAttribute::IfName(name.into()));
        m.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(info.0), LinkInfo::Data(info.1)]));
        m.header.flags = LinkFlags::Up;
        m.header.change_mask = LinkFlags::Up;
        self.change(RouteNetlinkMessage::NewLink(m), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Removes an interface.
    pub(crate) fn remove_link(&self, index: u32) -> Result<(), Errno> {
        let mut m = LinkMessage::default();
        m.header.index = index;
        self.change(RouteNetlinkMessage::DelLink(m), 0)
    }

    /// Sets or clears the MSS that a route announces; `ESRCH` where there is no such route any more.
    pub(crate) fn set_advmss(&self, which: &Route, mss: Option<u32>) -> Result<(), Errno> {
        let all = self.route_messages()?;
        let same = |r: &Route| {
            (r.to, r.prefix, r.gateway, r.index, r.metric)
                == (which.to, which.prefix, which.gateway, which.index, which.metric)
        };
        let found = all.into_iter().find(|m| route(m).as_ref().is_some_and(same));
        let m = with_advmss(found.ok_or(Errno::SRCH)?, mss);
        self.change(RouteNetlinkMessage::NewRoute(m), NLM_F_CREATE | NLM_F_REPLACE)
    }

    fn change(&self, m: RouteNetlinkMessage, flags: u16) -> Result<(), Errno> {
        self.ask(m, NLM_F_ACK | flags, &mut |_| {}).map(|_| ())
    }
}

fn address(index: u32, ip: IpAddr) -> AddressMessage {
    let mut m = AddressMessage::default();
    m.header.family = family(ip);
    m.header.prefix_len = host_prefix(ip);
    m.header.index = index;
    m.attributes.push(AddressAttribute::Local(ip));
    m.attributes.push(AddressAttribute::Address(ip));
    m
}

/// The route with another announced MSS and everything else as it was. What the kernel only tells (ages, caches) is left out.
fn with_advmss(mut m: RouteMessage, mss: Option<u32>) -> RouteMessage {
    let mut metrics = Vec::new();
    m.attributes.retain_mut(|a| match a {
        RouteAttribute::Metrics(all) => {
            metrics.append(all);
            false
        }
        RouteAttribute::CacheInfo(_) => false,
        _ => true,
    });
    m.header.flags &= RouteFlags::Onlink;
    metrics.retain(|metric| !matches!(metric, RouteMetric::Advmss(_)));
    metrics.extend(mss.map(RouteMetric::Advmss));
    if !metrics.is_empty() {
        m.attributes.push(RouteAttribute::Metrics(metrics));
    }
    m
}
