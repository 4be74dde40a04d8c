//! Traffic that is not ours must not notice the daemon: the director as plain router and as a host, and a segment that it
//! shares with others.
use std::net::SocketAddr;

use crate::bulk::offer;
use crate::capture::{Capture, SYN, TCP, decode, mac};
use crate::client::{Echo, PATIENCE, connect, curl, curl_sha256, udp, udp_ask};
use crate::lab::{Family, Lab, Mode};
use crate::netns::Netns;
use crate::servers::{Service, TcpServer, UdpEcho};
use crate::udp::echoes;
use crate::wait::{secs, until};
use crate::{matrix, probe, spread};

#[test]
fn servers_are_reached_past_the_service_v4() {
    servers_are_reached_past_the_service(Family::V4);
}

#[test]
fn servers_are_reached_past_the_service_v6() {
    servers_are_reached_past_the_service(Family::V6);
}

/// With NAT services on server:80 and server:7, the same ports are reached through the director as a router.
fn servers_are_reached_past_the_service(family: Family) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(Mode::Nat);
    let big = offer(&lab, 20_000_000);
    let _echoes = echoes(&lab, family, 7);
    lab.start_lvsd();
    let (web, echo) = (lab.vip_port(family, 80), lab.vip_port(family, 7));
    lab.service("-t", web, "rr", [1, 1, 1], 80);
    lab.service("-u", echo, "rr", [1, 1, 1], 7);

    for round in 0..3 {
        // Through the service, so that entries to the very same servers are there.
        client_ports(&lab, "40000 59999");
        spread::sequence(&curl(&lab.client, web, 3), &spread::RR).expect("rr's sequence");
        udp_ask(&udp(&lab.client, echo), b"through the service").expect("an echo");
        client_ports(&lab, "10000 29999");
        for s in &lab.servers {
            let rip = lab.rip(family, s.number);
            let direct = curl(&lab.client, SocketAddr::new(rip, 80), 5);
            assert!(direct.iter().all(|a| *a == s.name), "round {round}: {rip}:80 answered as {direct:?}");
            let socket = udp(&lab.client, SocketAddr::new(rip, 7));
            // Three fragments each way.
            for size in [1, 1400, 4000] {
                let name = udp_ask(&socket, &vec![b'u'; size]).expect("an echo, fragments or not");
                assert_eq!(name, s.name);
            }
        }
    }
    let sum = curl_sha256(&lab.client, SocketAddr::new(lab.rip(family, 1), 80), "/files/big");
    assert_eq!(sum, big.sha256, "super-packets through the router");

    traceroutes(&lab, family);

    // A server as client, from the services' ports' side of the director.
    let _there = TcpServer::start(&lab.client, "client", 7, Service::Echo);
    let to = SocketAddr::new(lab.cip(family), 7);
    let mut out = Echo::open(&lab.servers[1].ns, to).expect("a connection from a server");
    out.say(&[b'o'; 100_000]).expect("an echo");

    let entries = lab.d().connections();
    assert!(
        entries.iter().all(|c| c.virt == web || c.virt == echo),
        "entries for what is not ours: {entries:?}"
    );
    assert_eq!(entries.len(), 3 * 3 + 3, "one entry for each connection through the services");
}

/// The ports that the client's connections come from. Those through the service and those past it must differ: a server's
/// reply to a port that still has an entry cannot be told from a reply of that entry (nor can the kernel's IPVS).
fn client_ports(lab: &Lab, range: &str) {
    lab.client.sysctl("net.ipv4.ip_local_port_range", range);
}

/// Every kind of traceroute shows the director and then the server: time-exceeded errors are made by the director's
/// kernel, and what the server says of the probe comes back.
fn traceroutes(lab: &Lab, family: Family) {
    let rip = lab.rip(family, 1);
    for kind in ["-U -p 33434", "-T -p 80", "-I"] {
        let expected = [lab.outer(family).to_string(), rip.to_string()];
        // A probe may get lost on a busy machine.
        until(&format!("traceroute {kind} to show {expected:?}"), secs(20), || {
            let text = lab.client.sh(&format!("traceroute -n -q 1 -w 2 -m 5 {kind} {rip}"));
            text.lines()
                .skip(1)
                .filter_map(|l| l.split_whitespace().nth(1))
                .eq(expected.iter().map(String::as_str))
                .then_some(())
        });
    }
}

matrix!(the_director_as_a_host);
/// ssh-like traffic to the director itself, also to the VIP on a port without a service.
fn the_director_as_a_host(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(mode);
    let _ssh = TcpServer::start(&lab.director, "director", 22, Service::Echo);
    let _dns = UdpEcho::start(&lab.director, "director", lab.outer(family), 53);
    lab.start_lvsd();
    let vip = lab.vip_port(family, 80);
    lab.service("-t", vip, "rr", [1, 1, 1], 80);
    for address in [lab.outer(family), lab.vip(family), lab.dip(family)] {
        let mut c =
            Echo::open(&lab.client, SocketAddr::new(address, 22)).expect("a connection to the director");
        assert_eq!(c.server, "director");
        for size in [1, 100, 100_000] {
            c.say(&vec![b's'; size]).expect("an echo");
        }
        lab.client.sh(&format!("ping -n -c 2 -i 0.2 -W 2 {address}"));
        lab.client.sh(&format!("ping -n -c 1 -W 2 -s 4000 {address}"));
    }
    let socket = udp(&lab.client, SocketAddr::new(lab.outer(family), 53));
    for size in [1, 5000] {
        assert_eq!(udp_ask(&socket, &vec![b'd'; size]).expect("an echo"), "director");
    }
    // From the director outwards, to a server's service port.
    let direct = curl(&lab.director, SocketAddr::new(lab.rip(family, 2), 80), 2);
    assert_eq!(direct, ["s2", "s2"]);
    // Nobody listens here, and the kernel says so.
    let refused = connect(&lab.client, lab.vip_port(family, 81), PATIENCE).expect_err("nobody listens");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(lab.d().connections(), []);
    // And the service works beside all that.
    spread::sequence(&curl(&lab.client, vip, 3), &spread::RR).expect("rr's sequence");
}

#[test]
fn a_frame_to_another_mac_is_left_alone_v4() {
    a_frame_to_another_mac_is_left_alone(Family::V4);
}

#[test]
fn a_frame_to_another_mac_is_left_alone_v6() {
    a_frame_to_another_mac_is_left_alone(Family::V6);
}

/// On a segment that works as a hub the director sees frames for others, and forwards none of them.
fn a_frame_to_another_mac_is_left_alone(family: Family) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(Mode::Dr);
    // A bridge that learns nothing floods everything.
    for port in ["s1", "s2", "s3", "dir", "cli"] {
        lab.lan.ip(&format!("link set {port} type bridge_slave learning off"));
    }
    lab.lan.ip("link set br0 type bridge ageing_time 0");
    let bystander = Netns::new("bystander");
    const OTHER: &str = "02:00:00:00:00:99";
    lab.plug(&bystander, "b0", "by", OTHER);
    lab.start_lvsd();
    let vip = lab.vip_port(family, 80);
    lab.service("-t", vip, "rr", [1, 1, 1], 80);

    let other = mac(OTHER);
    let port_mac = mac(&lab.director.mac("d0"));
    let at_director =
        Capture::start(&lab.director, move |f| decode(f).filter(|p| p.to_mac == other && p.to_port == 80));
    let at_servers: Vec<_> = lab
        .servers
        .iter()
        .map(|s| {
            let own = mac(&s.ns.mac("s0"));
            Capture::start(&s.ns, move |f| decode(f).filter(|p| p.to_mac == own && p.to_port == 80))
        })
        .collect();
    lab.client.ip(&format!("neigh replace {} lladdr {OTHER} dev c0", lab.vip(family)));
    let (ns, to) = (&lab.client, vip);
    std::thread::scope(|s| {
        let lost = s.spawn(move || connect(ns, to, secs(4)));
        until("two SYNs for somebody else at the director", secs(5), || {
            at_director.look(|p| {
                let syns = p.iter().filter(|p| p.protocol == TCP && p.tcp_flags == SYN);
                (syns.count() >= 2).then_some(())
            })
        });
        assert!(lost.join().expect("no panic").is_err(), "nobody has that MAC and the VIP");
    });
    for c in &at_servers {
        c.look(|p| assert!(p.is_empty(), "forwarded although for another MAC: {p:?}"));
    }
    assert_eq!(lab.d().connections(), []);

    // The same, to the director's MAC, works on this segment.
    let director = port_mac.map(|b| format!("{b:02x}")).join(":");
    lab.client.ip(&format!("neigh replace {} lladdr {director} dev c0", lab.vip(family)));
    spread::sequence(&curl(&lab.client, vip, 3), &spread::RR).expect("rr's sequence");
}
