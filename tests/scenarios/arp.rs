//! Neighbours: who answers for which address, and a server whose MAC changes (field cases 34 and 36).
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::capture::{Arp, Capture, decode_arp, decode_na, mac};
use crate::client::{Echo, curl};
use crate::lab::{Family, Lab, Mode};
use crate::netns::Netns;
use crate::servers::{Service, TcpServer};
use crate::wait::{secs, until};
use crate::{matrix, probe};

fn v4(address: IpAddr) -> Ipv4Addr {
    match address {
        IpAddr::V4(a) => a,
        IpAddr::V6(_) => panic!("an IPv4 address is meant"),
    }
}

fn v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V6(a) => a,
        IpAddr::V4(_) => panic!("an IPv6 address is meant"),
    }
}

/// Asks from `ns` for the MAC of `address` on `dev` and waits for the outcome: `REACHABLE` or `FAILED`.
fn resolve(ns: &Netns, address: IpAddr, dev: &str) -> String {
    ns.try_sh(&format!("ip neigh del {address} dev {dev}"));
    ns.ip(&format!("route replace {address} dev {dev}"));
    ns.try_sh(&format!("ping -n -c 1 -W 1 {address}"));
    until(&format!("{address} is resolved or not"), secs(10), || {
        let text = ns.sh(&format!("ip neigh show {address} dev {dev}"));
        ["REACHABLE", "DELAY", "STALE", "FAILED"].into_iter().find(|s| text.contains(s)).map(|s| match s {
            "FAILED" => s.to_string(),
            _ => "REACHABLE".to_string(),
        })
    })
}

/// Field case 34 with two segments: the VIP is answered for once, on its own segment, by the device that has it.
#[test]
fn who_answers_for_what_nat() {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(Mode::Nat);
    lab.start_lvsd();
    for family in Family::BOTH {
        lab.service("-t", lab.vip_port(family, 80), "rr", [1, 1, 1], 80);
    }
    let outer_mac = mac(&lab.director.mac("o0"));
    let vip = v4(lab.vip(Family::V4));
    let near = Netns::new("near");
    lab.plug(&near, "n0", "near", "02:00:00:00:00:50");
    near.ip("addr add 10.0.0.50/24 dev n0\naddr add 2001:db8:a::50/64 dev n0 nodad");

    let outside = Capture::start(&lab.client, decode_arp);
    let inside = Capture::start(&near, decode_arp);
    assert_eq!(resolve(&lab.client, vip.into(), "c0"), "REACHABLE");
    for unknown in ["192.0.2.11", "10.0.0.11"] {
        let unknown: IpAddr = unknown.parse().expect("an address");
        assert_eq!(resolve(&lab.client, unknown, "c0"), "FAILED", "somebody answers for {unknown} outside");
        lab.client.ip(&format!("route del {unknown} dev c0"));
    }
    for not_here in ["192.0.2.10", "192.0.2.11"] {
        let address: IpAddr = not_here.parse().expect("an address");
        assert_eq!(resolve(&near, address, "n0"), "FAILED", "somebody answers for {address} inside");
    }
    outside.look(|seen| answered_once(seen, vip, outer_mac));
    inside.look(|seen| {
        let wrong: Vec<&Arp> = seen.iter().filter(|a| a.sender == vip).collect();
        assert!(wrong.is_empty(), "the VIP is claimed or used on the servers' segment: {wrong:?}");
    });

    // The director asks for a server with its own address, never the VIP.
    let at_server = Capture::start(&lab.servers[0].ns, decode_arp);
    for s in 1..=3 {
        lab.director.try_sh(&format!("ip neigh del {} dev i0", lab.rip(Family::V4, s)));
    }
    assert_eq!(curl(&lab.client, lab.vip_port(Family::V4, 80), 3).len(), 3);
    let dip = v4(lab.dip(Family::V4));
    let director_mac = mac(&lab.director.mac("i0"));
    at_server.look(|seen| {
        let asked: Vec<&Arp> = seen.iter().filter(|a| !a.reply && a.sender_mac == director_mac).collect();
        assert!(!asked.is_empty(), "the director asked for no server");
        assert!(asked.iter().all(|a| a.sender == dip), "{asked:?}");
    });
}

/// Field case 34 on one segment: the servers have the VIP too, and leave the answer to the director.
#[test]
fn who_answers_for_the_vip_dr() {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(Mode::Dr);
    lab.start_lvsd();
    for family in Family::BOTH {
        lab.service("-t", lab.vip_port(family, 80), "rr", [1, 1, 1], 80);
    }
    let director_mac = mac(&lab.director.mac("d0"));
    let vip4 = v4(lab.vip(Family::V4));
    let arp = Capture::start(&lab.client, decode_arp);
    assert_eq!(resolve(&lab.client, vip4.into(), "c0"), "REACHABLE");
    assert_eq!(curl(&lab.client, lab.vip_port(Family::V4, 80), 6).len(), 6);
    arp.look(|seen| answered_once(seen, vip4, director_mac));

    let vip6 = v6(lab.vip(Family::V6));
    let nd = Capture::start(&lab.client, decode_na);
    assert_eq!(resolve(&lab.client, vip6.into(), "c0"), "REACHABLE");
    assert_eq!(curl(&lab.client, lab.vip_port(Family::V6, 80), 6).len(), 6);
    nd.look(|seen| {
        let for_vip: Vec<_> = seen.iter().filter(|(target, _)| *target == vip6).collect();
        assert!(!for_vip.is_empty());
        assert!(
            for_vip.iter().all(|(_, mac)| mac.is_none_or(|m| m == director_mac)),
            "another than the director advertises the VIP: {for_vip:?}"
        );
    });
}

/// Every request for `address` was answered exactly once, by `owner`.
fn answered_once(seen: &[Arp], address: Ipv4Addr, owner: [u8; 6]) {
    let asked = seen.iter().filter(|a| !a.reply && a.target == address).count();
    let replies: Vec<&Arp> = seen.iter().filter(|a| a.reply && a.sender == address).collect();
    assert!(asked > 0, "nobody asked for {address}");
    assert_eq!(replies.len(), asked, "{asked} requests, replies {replies:?}");
    assert!(replies.iter().all(|a| a.sender_mac == owner), "{replies:?}");
}

matrix!(a_server_with_a_new_mac_that_says_so);
/// Field case 36 (a): the server announces its new MAC, and connections go on with the next packet.
fn a_server_with_a_new_mac_that_says_so(mode: Mode, family: Family) {
    new_mac(mode, family, true);
}

matrix!(a_server_with_a_new_mac_in_silence);
/// Field case 36 (b): nobody says so; the kernel's neighbour probes find out.
fn a_server_with_a_new_mac_in_silence(mode: Mode, family: Family) {
    new_mac(mode, family, false);
}

fn new_mac(mode: Mode, family: Family, announced: bool) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::new(mode);
    let _echo = TcpServer::start(&lab.servers[0].ns, "s1", 7, Service::Echo);
    let inner = *lab.director_devs().last().expect("a device");
    if !announced {
        // An entry is trusted for 30 s by default; a short time makes a short test.
        for version in ["ipv4", "ipv6"] {
            lab.director.sysctl(&format!("net.{version}.neigh.{inner}.base_reachable_time_ms"), "1000");
            lab.director.sysctl(&format!("net.{version}.neigh.{inner}.delay_first_probe_time"), "1");
        }
    }
    lab.start_lvsd();
    let vip = lab.vip_port(family, 7);
    let rip = SocketAddr::new(lab.rip(family, 1), 7);
    lab.d().ctl_ok(&format!("-A -t {vip} -s rr"));
    lab.d().ctl_ok(&format!("-a -t {vip} -r {rip} {}", mode.flag()));
    let mut c = Echo::open(&lab.client, vip).expect("a connection");
    c.say(b"before").expect("an echo");

    let server = &lab.servers[0].ns;
    let told = if announced { "1" } else { "0" };
    server.sysctl("net.ipv4.conf.s0.arp_notify", told);
    server.sysctl("net.ipv6.conf.s0.ndisc_notify", told);
    let new = "02:00:00:00:01:11";
    server.ip(&format!("link set s0 address {new}"));
    if announced {
        until("the director's kernel knows the new MAC", secs(5), || {
            let text = lab.director.sh(&format!("ip neigh show {} dev {inner}", rip.ip()));
            text.contains(new).then_some(())
        });
    }
    let start = std::time::Instant::now();
    c.socket().set_read_timeout(Some(secs(60))).expect("a timeout");
    c.say(b"after").expect("an echo from the server with its new MAC");
    let limit = if announced { secs(3) } else { secs(60) };
    assert!(start.elapsed() < limit, "the connection went on after {:?}", start.elapsed());
    let text = lab.director.sh(&format!("ip neigh show {} dev {inner}", rip.ip()));
    assert!(text.contains(new), "the director's kernel has {text}");
    // New connections too.
    Echo::open(&lab.client, vip).expect("a connection").say(b"new").expect("an echo");
}
