//! A director without ports' hardware: routes and neighbours told as events, services added as the control socket would.
//!
//! Clients are behind port 0 in 198.18.0.0/15, servers 10.1.0.1 to 10.1.0.16 behind port 1, all their neighbours known.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use ipvs_netlink::{Af, Backend, Dest, FwdMethod, Netmask, Service, ServiceKey, Tunnel};
use lvsd::conn::{Config, ConnTable};
use lvsd::engine::Director;
use lvsd::route::{Event, IfAddr, Link, LinkKind, NeighState, Place, PortId, Route, RouteKind, Routes, Via};
use lvsd::time::Now;

use crate::Failure;

pub(crate) const CLIENTS: PortId = PortId(0);
pub(crate) const SERVERS: PortId = PortId(1);
pub(crate) const CLIENTS_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xd0];
pub(crate) const SERVERS_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xd1];
pub(crate) const GATEWAY_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xc1];
pub(crate) const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
/// Port of the services.
pub(crate) const PORT: u16 = 80;
/// Port of the servers.
pub(crate) const REAL_PORT: u16 = 8080;
/// Servers of each service.
pub(crate) const SERVER_COUNT: u8 = 16;
/// Names of the ports; nothing is attached to any.
pub(crate) const PORT_NAMES: [&str; 2] = ["clients", "servers"];

pub(crate) fn server(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 1, 0, n + 1)
}

pub(crate) fn server_mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 1, n]
}

/// A director whose table lies in plain memory (huge pages where the kernel gives them), with the services.
pub(crate) fn director(max: u32, now: Now) -> Result<Arc<Director>, Failure> {
    let routes = Arc::new(Routes::new(&[(CLIENTS, PORT_NAMES[0]), (SERVERS, PORT_NAMES[1])])?);
    let config =
        Config { max_v4: max, max_v6: 0, hash_key: [0x1234_5678_9abc_def0, 0x0fed_cba9], shards: 16 };
    let director = Arc::new(Director::new(ConnTable::new(config)?, routes, 1, 7)?);
    furnish(&director, now)?;
    Ok(director)
}

/// Tells a director of links, routes and neighbours, and adds a TCP and a UDP service.
pub(crate) fn furnish(director: &Director, now: Now) -> Result<(), Failure> {
    let mut events = Vec::new();
    for (ifindex, name, mac, address) in [
        (2, PORT_NAMES[0], CLIENTS_MAC, Ipv4Addr::new(10, 0, 0, 254)),
        (3, PORT_NAMES[1], SERVERS_MAC, Ipv4Addr::new(10, 1, 0, 254)),
    ] {
        events.push(Event::LinkNew(Link {
            ifindex,
            name: name.to_owned(),
            mac: Some(mac),
            mtu: 1500,
            up: true,
            running: true,
            kind: LinkKind::Other,
            parent: None,
        }));
        let addr = IpAddr::V4(address);
        let a = IfAddr { ifindex, addr, prefix: 24, scope: 0, secondary: false, unusable: false };
        events.push(Event::AddrNew(a));
        let [x, y, z, _] = address.octets();
        events.push(route(Ipv4Addr::new(x, y, z, 0), 24, None, ifindex));
    }
    let gateway = Ipv4Addr::new(10, 0, 0, 253);
    events.push(route(Ipv4Addr::new(198, 18, 0, 0), 15, Some(gateway), 2));
    events.push(neighbour(2, gateway, GATEWAY_MAC));
    events.extend((0..SERVER_COUNT).map(|n| neighbour(3, server(n), server_mac(n))));
    for event in events {
        director.routes.apply(event, now);
    }
    for protocol in [6, 17] {
        let key = ServiceKey::Addr { protocol, addr: VIP.into(), port: PORT };
        director.add_service(&service(key, "rr")).map_err(|e| format!("adding a service: {e:?}"))?;
        for n in 0..SERVER_COUNT {
            director.add_dest(&key, &dest(server(n))).map_err(|e| format!("adding a server: {e:?}"))?;
        }
    }
    Ok(())
}

/// Adds so many TCP services at other ports, each with a server.
pub(crate) fn add_services(director: &Director, services: u32) -> Result<(), Failure> {
    for n in 0..services {
        let key = ServiceKey::Addr { protocol: 6, addr: VIP.into(), port: 1000 + n as u16 };
        director.add_service(&service(key, "rr")).map_err(|e| format!("adding a service: {e:?}"))?;
        director.add_dest(&key, &dest(server(0))).map_err(|e| format!("adding a server: {e:?}"))?;
    }
    Ok(())
}

/// Gives the UDP service another scheduler, and so many servers in 10.2.0.0/16, whose neighbours are known.
pub(crate) fn replace_udp_servers(
    director: &Director,
    scheduler: &str,
    servers: u32,
    now: Now,
) -> Result<(), Failure> {
    let key = ServiceKey::Addr { protocol: 17, addr: VIP.into(), port: PORT };
    director.delete_service(&key).map_err(|e| format!("deleting a service: {e:?}"))?;
    director.add_service(&service(key, scheduler)).map_err(|e| format!("{scheduler}: {e:?}"))?;
    director.routes.apply(route(Ipv4Addr::new(10, 2, 0, 0), 16, None, 3), now);
    for n in 0..servers {
        let addr = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 2, 1, 0)) + n);
        director.routes.apply(neighbour(3, addr, server_mac(0)), now);
        director.add_dest(&key, &dest(addr)).map_err(|e| format!("adding a server: {e:?}"))?;
    }
    Ok(())
}

fn route(dst: Ipv4Addr, prefix: u8, gateway: Option<Ipv4Addr>, ifindex: u32) -> Event {
    let dst = IpAddr::V4(dst);
    Event::RouteNew {
        route: Route {
            table: 254,
            family: dst.into(),
            dst: (dst, prefix),
            metric: 0,
            tos: 0,
            kind: RouteKind::Unicast,
            prefsrc: None,
            mtu: 0,
            via: vec![Via { ifindex, gateway: gateway.map(IpAddr::V4), weight: 1 }],
        },
        place: Place::Last,
    }
}

fn neighbour(ifindex: u32, addr: Ipv4Addr, mac: [u8; 6]) -> Event {
    Event::NeighNew { ifindex, addr: addr.into(), mac: Some(mac), state: NeighState::Permanent }
}

/// More specific than the clients' route: what is cached of that holds no more.
pub(crate) fn change_of_route() -> Event {
    route(Ipv4Addr::new(198, 18, 0, 0), 16, Some(Ipv4Addr::new(10, 0, 0, 253)), 2)
}

pub(crate) fn service(key: ServiceKey, scheduler: &str) -> Service {
    debug_assert_eq!(key.af(), Af::V4);
    Service {
        key,
        scheduler: scheduler.into(),
        flags: 0,
        flags_mask: !0,
        timeout: 0,
        netmask: Netmask::V4(Ipv4Addr::BROADCAST),
        pe_name: None,
    }
}

pub(crate) fn dest(addr: Ipv4Addr) -> Dest {
    Dest {
        addr: addr.into(),
        port: REAL_PORT,
        method: FwdMethod::Masq,
        weight: 1,
        upper: 0,
        lower: 0,
        tunnel: Tunnel::default(),
    }
}
