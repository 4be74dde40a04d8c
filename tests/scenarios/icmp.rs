//! ICMP errors about connections through the director (field case 24): path MTU discovery across it, closed ports behind it.
use std::net::{IpAddr, SocketAddr};

use crate::bulk::{SINK, both_ways, offer, sinks};
use crate::capture::{Capture, says_too_big};
use crate::client::{curl_sha256, udp};
use crate::director::cuts_anew;
use crate::lab::{Family, Lab, Mode};
use crate::netns::{Netns, run};
use crate::servers::{Nginx, Service, TcpServer};
use crate::wait::{secs, until};
use crate::{matrix, probe};

/// MTU of the narrow link.
const NARROW: u32 = 1400;

fn parse(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn far(family: Family) -> (IpAddr, IpAddr, u8) {
    match family {
        Family::V4 => (parse("203.0.113.10"), parse("203.0.113.1"), 24),
        Family::V6 => (parse("2001:db8:f::10"), parse("2001:db8:f::1"), 64),
    }
}

/// A namespace behind `router`, over a link that is narrow in the router's eyes alone: what is at the far end offers full segments, and
/// only the router's "too big" makes them smaller. (What it sends itself fits: its end of the link is not narrow, and a veth drops
/// in silence what is larger than the other end's MTU.)
fn behind(router: &Netns, role: &str) -> Netns {
    let ns = Netns::new(role);
    router
        .ip(&format!("link add n0 type veth peer name f0 netns {}\nlink set n0 mtu {NARROW} up", ns.name()));
    ns.ip("link set f0 up");
    for family in Family::BOTH {
        let (address, gateway, len) = far(family);
        let (nodad, offers) = if family == Family::V6 { (" nodad", 1440) } else { ("", 1460) };
        router.ip(&format!("addr add {gateway}/{len} dev n0{nodad}"));
        let route = format!("route add default via {gateway} mtu {NARROW} advmss {offers}");
        ns.ip(&format!("addr add {address}/{len} dev f0{nodad}\n{route}"));
    }
    router.sysctl("net.ipv4.ip_forward", "1");
    router.sysctl("net.ipv6.conf.all.forwarding", "1");
    ns
}

fn far_route(via: IpAddr, family: Family) -> String {
    let (address, _, len) = far(family);
    format!("route add {address}/{} via {via}", if len == 24 { 32 } else { 128 })
}

fn count(lab: &Lab, name: &str) -> u64 {
    let text = lab.d().ctl_ok("status");
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok());
    line.unwrap_or_else(|| panic!("no counter {name} in\n{text}"))
}

matrix!(download_over_a_narrow_link, all);
/// The client is behind a router with a narrow link. The server's full segments do not fit, and the router tells the virtual address so:
/// the server has to hear of it, else the download hangs.
fn download_over_a_narrow_link(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(mode);
    let big = offer(&lab, 20_000_000);
    let client = behind(&lab.client, "far");
    lab.director.ip(&far_route(lab.cip(family), family));
    if mode != Mode::Nat {
        for s in &lab.servers {
            s.ns.ip(&far_route(lab.cip(family), family));
        }
    }
    lab.start_lvsd();
    let vip = lab.vip_port(family, 80);
    lab.service("-t", vip, "rr", [1, 1, 1], 80);
    for _ in 0..3 {
        assert_eq!(curl_sha256(&client, vip, "/files/big"), big.sha256);
    }
    if cuts_anew() {
        return;
    }
    // Each of the three servers was told for itself.
    assert!(count(&lab, "icmp_related") >= 3, "the servers learned it by other means");
    for s in &lab.servers {
        let said = s.ns.sh(&format!("ip route get {}", far(family).0));
        assert!(said.contains(&format!("mtu {NARROW}")), "{}: {said}", s.name);
    }
}

mod closed_ports_behind_nat {
    crate::one!(closed_port_behind_nat, v4, Nat, V4);
    crate::one!(closed_port_behind_nat, v6, Nat, V6);
}
/// Nobody listens at the server: what it says of the datagram reaches the client's socket, as from the virtual address.
fn closed_port_behind_nat(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::new(mode);
    lab.start_lvsd();
    let vip = lab.vip_port(family, 53);
    lab.service("-u", vip, "rr", [1, 1, 1], 5353);
    let socket = udp(&lab.client, vip);
    socket.send(b"anybody there?").expect("sent");
    let error = socket.recv(&mut [0; 100]).expect_err("nobody listens");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(count(&lab, "icmp_related"), 1);
}

matrix!(upload_through_a_narrow_tunnel, tunnels);
/// The server is behind a router with a narrow link. What the tunnel makes of the client's full segments does not fit, and the router
/// tells the director so: the client has to hear of it, with an MTU that leaves room for the outer header.
fn upload_through_a_narrow_tunnel(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(mode);
    let big = offer(&lab, 20_000_000);
    drop(sinks(&lab));
    // The first server's place is a router's from now on.
    let router = &lab.servers[0].ns;
    router.ip(&format!(
        "addr del {}/{} dev lo",
        lab.vip(family),
        if family == Family::V4 { 32 } else { 128 }
    ));
    let server = behind(router, "narrow");
    let rip = far(family).0;
    lab.director.ip(&far_route(lab.rip(family, 1), family));
    let nodad = if family == Family::V6 { " nodad preferred_lft 0" } else { "" };
    let len = if family == Family::V4 { 32 } else { 128 };
    server.ip(&format!("addr add {}/{len} dev lo{nodad}", lab.vip(family)));
    let mut decap = server.command(&probe::lvsctl().to_string_lossy());
    run(decap.args(["realserver", "decap", "--dev", "f0", "--pin-dir"]).arg(lab.dir.join("pins")));
    let nginx = Nginx::start(&server, "narrow", lab.dir.join("narrow"));
    std::os::unix::fs::symlink(&big.path, nginx.files().join("big")).expect("a link");
    let _sink = TcpServer::start(&server, "narrow", SINK, Service::Sink);
    lab.start_lvsd();
    let (vip, sink) = (lab.vip_port(family, 80), lab.vip_port(family, SINK));
    for service in [vip, sink] {
        lab.d().ctl_ok(&format!("-A -t {service} -s rr"));
        let rip = SocketAddr::new(rip, service.port());
        lab.d().ctl_ok(&format!("-a -t {service} -r {rip} {}", mode.flag()));
    }
    let told = Capture::start(&lab.client, |f| says_too_big(f).then_some(()));
    both_ways(&lab.client, vip, sink, &big).expect("the file, whole");
    if cuts_anew() {
        return;
    }
    until("the client is told a smaller MTU", secs(5), || told.look(|t| (!t.is_empty()).then_some(())));
    assert!(count(&lab, "icmp_related") >= 1, "the client learned it by other means");
    let overhead = match (mode, family) {
        (Mode::Gre, Family::V4) => 24,
        (Mode::Gre, Family::V6) => 44,
        (_, Family::V4) => 20,
        (_, Family::V6) => 40,
    };
    let said = lab.client.sh(&format!("ip route get {}", lab.vip(family)));
    assert!(said.contains(&format!("mtu {}", NARROW - overhead)), "{said}");
}
