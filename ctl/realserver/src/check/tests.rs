//! Findings on machines that are only written down: kinds of device that not every kernel has, routes that cannot be changed.
//! What needs a real machine is in `tests/scenarios/realserver`.

use std::net::IpAddr;
use std::path::PathBuf;

use super::*;
use crate::machine::{Address, AtXdp, Conf, Link, Path, Remedy, Route};
use crate::plan::plan;
use crate::step::{Step, TunnelKind};
use crate::wish::Wish;

const LO: u32 = 1;
const ETH: u32 = 2;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn link(index: u32, name: &str) -> Link {
    Link {
        index,
        name: name.into(),
        up: true,
        loopback: index == LO,
        noarp: false,
        mtu: if index == LO { 65536 } else { 1500 },
        kind: String::new(),
        conf: Conf::default(),
        xdp: AtXdp::Nothing,
    }
}

fn address(index: u32, text: &str, prefix: u8) -> Address {
    let deprecated = prefix == 128;
    Address { index, ip: ip(text), prefix, global: true, deprecated, tentative: false, dad_failed: false }
}

fn default_route(gateway: &str) -> Route {
    let gateway = ip(gateway);
    Route {
        to: if gateway.is_ipv6() { ip("::") } else { ip("0.0.0.0") },
        prefix: 0,
        gateway: Some(gateway),
        index: Some(ETH),
        metric: 0,
        source: None,
        protocol: "static".into(),
        link_scope: false,
        mtu: None,
        advmss: None,
        fixed: false,
    }
}

/// A server for direct routing that is in order; of both families.
fn server() -> Machine {
    Machine {
        links: vec![link(LO, "lo"), link(ETH, "eth0")],
        addresses: vec![
            address(ETH, "10.0.0.11", 24),
            address(ETH, "2001:db8:a::11", 64),
            address(LO, "192.0.2.10", 32),
            address(LO, "2001:db8::10", 128),
        ],
        routes: vec![default_route("10.0.0.254"), default_route("2001:db8:a::fe")],
        all: Conf { arp_ignore: 1, arp_announce: 2, rp_filter: 0 },
        ..Machine::default()
    }
}

fn question(mode: Mode, vips: &[&str]) -> Question {
    Question {
        vips: vips.iter().map(|v| ip(v)).collect(),
        mode,
        dev: None,
        directors: Vec::new(),
        clients: Vec::new(),
        ports: Vec::new(),
    }
}

const BOTH: [&str; 2] = ["192.0.2.10", "2001:db8::10"];

fn ids(m: &Machine, q: &Question) -> Vec<&'static str> {
    examine(m, q).unwrap().findings.iter().map(|f| f.id).collect()
}

/// The same with the kernel's tunnel devices; routes that announce what fits.
fn with_tunnels(kinds: &[(&str, &str)]) -> Machine {
    let mut m = server();
    for (at, (kind, name)) in kinds.iter().enumerate() {
        let index = 10 + u32::try_from(at).unwrap();
        m.links.push(Link { kind: (*kind).into(), noarp: true, mtu: 1480, ..link(index, name) });
    }
    for r in &mut m.routes {
        r.advmss = Some(1300);
    }
    m
}

#[test]
fn a_server_in_order_has_no_findings() {
    assert_eq!(ids(&server(), &question(Mode::Dr, &BOTH)), [""; 0]);
}

#[test]
fn tunnel_devices_of_the_kernel() {
    let ipip = question(Mode::Ipip, &BOTH);
    let all = [("ipip", "tunl0"), ("sit", "sit0"), ("ip6tnl", "ip6tnl0")];
    assert_eq!(ids(&with_tunnels(&all), &ipip), [""; 0]);
    // One family of outer headers is enough while the director's is not known; known, it must be that one.
    assert_eq!(ids(&with_tunnels(&all[..2]), &ipip), [""; 0]);
    assert_eq!(ids(&with_tunnels(&all[2..]), &ipip), [""; 0]);
    let v6 = Question { directors: vec![ip("2001:db8:a::1")], ..ipip.clone() };
    assert_eq!(ids(&with_tunnels(&all[..2]), &v6), ["decap-missing"]);
    assert_eq!(ids(&with_tunnels(&all[2..]), &v6), [""; 0]);
    // IPv6 inside needs sit, and GRE is none of these.
    assert_eq!(ids(&with_tunnels(&all[..1]), &ipip), ["decap-missing"]);
    assert_eq!(ids(&with_tunnels(&all[..1]), &question(Mode::Ipip, &BOTH[..1])), [""; 0]);
    assert_eq!(ids(&with_tunnels(&all), &question(Mode::Gre, &BOTH)), ["decap-missing"]);
    assert_eq!(ids(&with_tunnels(&[("gre", "lvsd-gre")]), &question(Mode::Gre, &BOTH)), [""; 0]);
}

#[test]
fn a_tunnel_device_that_is_down_or_filters_strictly() {
    let q = question(Mode::Ipip, &BOTH[..1]);
    let mut m = with_tunnels(&[("ipip", "tunl0")]);
    m.links[2].up = false;
    let found = examine(&m, &q).unwrap().findings;
    assert_eq!(
        (found.len(), found[0].id, found[0].mend.as_str()),
        (1, "tunnel-down", "ip link set tunl0 up")
    );
    m.links[2].up = true;
    m.links[2].conf.rp_filter = 1;
    let found = examine(&m, &q).unwrap().findings;
    assert_eq!((found.len(), found[0].id), (1, "rp-filter"));
    assert_eq!(found[0].mend, "sysctl -w net.ipv4.conf.tunl0.rp_filter=2");
    m.links[2].conf.rp_filter = 2;
    // The larger of the two holds.
    m.all.rp_filter = 1;
    assert_eq!(ids(&m, &q), [""; 0]);
}

/// A route that a router advertises is not to be written anew: the MTU is what is left.
#[test]
fn advertised_routes_are_left_alone() {
    let mut m = server();
    m.links[1].xdp = AtXdp::Decap(vec![ip("10.0.0.11"), ip("2001:db8:a::11")]);
    m.routes[1].fixed = true;
    let q = question(Mode::Ipip, &BOTH[1..]);
    let found = examine(&m, &q).unwrap().findings;
    assert_eq!((found[0].id, found[0].mend.as_str()), ("mtu", "ip link set eth0 mtu 1600"));
    m.links[1].mtu = 1540;
    assert_eq!(ids(&m, &q), [""; 0]);
    m.links[1].mtu = 1539;
    assert_eq!(ids(&m, &q), ["mtu"]);
    // With a director that sends over IPv4 the header is smaller.
    let v4 = Question { directors: vec![ip("10.0.0.1")], ..q };
    assert_eq!(ids(&m, &v4), [""; 0]);
}

#[test]
fn what_a_route_announces() {
    let mut m = server();
    m.links[1].xdp = AtXdp::Decap(vec![ip("10.0.0.11"), ip("2001:db8:a::11")]);
    for (mode, v6, fits) in [
        (Mode::Ipip, false, 1440),
        (Mode::Ipip, true, 1420),
        (Mode::Gre, false, 1432),
        (Mode::Gre, true, 1412),
    ] {
        let director = if v6 { "2001:db8:a::1" } else { "10.0.0.1" };
        let q = Question { directors: vec![ip(director)], ..question(mode, &BOTH[..1]) };
        for (advmss, mtu, well) in [
            (Some(fits), None, true),
            (Some(fits + 1), None, false),
            (None, Some(fits + 40), true),
            (None, Some(fits + 41), false),
            (None, None, false),
        ] {
            (m.routes[0].advmss, m.routes[0].mtu) = (advmss, mtu);
            assert_eq!(ids(&m, &q).is_empty(), well, "{mode:?} {v6} {advmss:?} {mtu:?}");
        }
    }
}

#[test]
fn the_interface_is_found() {
    let mut m = server();
    m.links.push(link(3, "eth1"));
    m.addresses.push(address(3, "10.9.0.11", 24));
    let q = question(Mode::Dr, &BOTH[..1]);
    assert_eq!(examine(&m, &q).unwrap().dev, "eth0");
    m.paths = vec![Path { to: ip("10.9.0.1"), gateway: None, index: 3 }];
    let by_director = Question { directors: vec![ip("10.9.0.1")], ..q.clone() };
    assert_eq!(examine(&m, &by_director).unwrap().dev, "eth1");
    let named = Question { dev: Some("eth0".into()), ..by_director };
    assert_eq!(examine(&m, &named).unwrap().dev, "eth0");
    m.routes.clear();
    assert!(matches!(examine(&m, &q), Err(Error::WhichInterface)));
    m.links.pop();
    assert_eq!(examine(&m, &q).unwrap().dev, "eth0");
    let nowhere = Question { dev: Some("eth7".into()), ..q };
    assert!(matches!(examine(&m, &nowhere), Err(Error::NoSuchInterface(_))));
}

fn wish(mode: Mode, kernel_tunnel: bool) -> Wish {
    Wish {
        vips: BOTH.map(ip).to_vec(),
        mode,
        dev: None,
        kernel_tunnel,
        advmss: true,
        pin_dir: PathBuf::from("/pins"),
    }
}

#[test]
fn what_no_client_calls_is_no_virtual_address() {
    let m = server();
    for (vip, says) in [
        ("0.0.0.0", "it is the unspecified address; give one that clients can call"),
        ("::", "it is the unspecified address; give one that clients can call"),
        ("127.0.0.9", "it is a loopback address; give one that clients can call"),
        ("::1", "it is a loopback address; give one that clients can call"),
        ("224.0.0.18", "it is a multicast address; give one that clients can call"),
        ("ff02::12", "it is a multicast address; give one that clients can call"),
        ("169.254.7.7", "it is a link-local address; give one that clients can call"),
        ("fe80::1", "it is a link-local address; give one that clients can call"),
        ("febf::1", "it is a link-local address; give one that clients can call"),
        ("255.255.255.255", "it is the broadcast address; give one that clients can call"),
        ("::ffff:192.0.2.10", "it is IPv4 mapped into IPv6; give 192.0.2.10"),
        ("::ffff:127.0.0.1", "it is IPv4 mapped into IPv6; give 127.0.0.1"),
    ] {
        let vips = vec![ip("192.0.2.10"), ip(vip)];
        let planned = plan(&m, &Wish { vips, ..wish(Mode::Dr, false) }).unwrap_err();
        let checked = examine(&m, &question(Mode::Nat, &[vip])).unwrap_err();
        for e in [planned, checked] {
            assert_eq!(e.to_string(), format!("{vip} cannot be a virtual address: {says}"));
        }
    }
}

#[test]
fn nothing_arrives_at_the_loopback_interface() {
    let m = server();
    for mode in [Mode::Dr, Mode::Ipip] {
        let dev = Some("lo".to_owned());
        let planned = plan(&m, &Wish { dev: dev.clone(), ..wish(mode, false) }).unwrap_err();
        let checked = examine(&m, &Question { dev, ..question(mode, &BOTH) }).unwrap_err();
        for e in [planned, checked] {
            assert_eq!(
                e.to_string(),
                "interface lo: the loopback interface; name the one at which the director's packets arrive"
            );
        }
    }
}

/// What a BPF link holds no command takes away, and it is not said to.
#[test]
fn how_another_program_goes() {
    let mut m = server();
    for (by_link, mend) in [
        (Some(false), "ip link set dev eth0 xdpdrv off && lvsctl realserver decap --dev eth0"),
        (
            Some(true),
            "a BPF link holds it: it goes when its owner ends or its pin is removed (`bpftool link' tells of both); then `lvsctl \
             realserver decap --dev eth0'",
        ),
        (
            None,
            "`ip link set dev eth0 xdpdrv off' removes it, unless a BPF link holds it: then it goes when its owner ends or its pin is \
             removed (`bpftool link' tells of both); then `lvsctl realserver decap --dev eth0'",
        ),
    ] {
        let remedy = Remedy { word: "xdpdrv", by_link };
        m.links[1].xdp = AtXdp::Other { program: "`x', id 1, xdpdrv".into(), remedy };
        let found = examine(&m, &question(Mode::Ipip, &BOTH)).unwrap().findings;
        let found: Vec<&str> =
            found.iter().filter(|f| f.id == "xdp-other").map(|f| f.mend.as_str()).collect();
        assert_eq!(found, [mend]);
    }
}

/// The steps of a plan, carried out on paper: nothing is left to do then, and a check has nothing to say.
#[test]
fn planned_and_in_order() {
    for mode in [Mode::Dr, Mode::Ipip, Mode::Gre] {
        for kernel in [false, true] {
            let mut m = server();
            m.addresses.truncate(2);
            (m.all, m.default) =
                (Conf { rp_filter: 1, ..Conf::default() }, Conf { rp_filter: 1, ..Conf::default() });
            let steps = plan(&m, &wish(mode, kernel)).unwrap();
            for step in &steps {
                carry_out(&mut m, step);
            }
            assert_eq!(plan(&m, &wish(mode, kernel)).unwrap(), [], "{mode:?} {kernel}");
            assert_eq!(ids(&m, &question(mode, &BOTH)), [""; 0], "{mode:?} {kernel}: {steps:?}");
        }
    }
}

fn carry_out(m: &mut Machine, step: &Step) {
    match step {
        Step::Sysctl { key, new, .. } => {
            let words: Vec<&str> = key.split('/').collect();
            let ["net", "ipv4", "conf", name, setting] = words[..] else { panic!("{key}") };
            let conf = match name {
                "all" => &mut m.all,
                name => &mut m.links.iter_mut().find(|l| l.name == name).unwrap().conf,
            };
            let value = new.parse().unwrap();
            match setting {
                "arp_ignore" => conf.arp_ignore = value,
                "arp_announce" => conf.arp_announce = value,
                "rp_filter" => conf.rp_filter = value,
                s => panic!("{s}"),
            }
        }
        Step::Address { dev, ip } => {
            assert_eq!(dev, "lo");
            m.addresses.push(address(LO, &ip.to_string(), if ip.is_ipv6() { 128 } else { 32 }));
        }
        Step::Tunnel { kind, .. } => {
            let index = 10 + u32::try_from(m.links.len()).unwrap();
            let conf = m.default;
            m.links.push(Link { kind: kind.name().into(), noarp: true, conf, ..link(index, &kind.device()) });
        }
        Step::Decap { .. } => {
            let own: Vec<IpAddr> = m.own_addresses(ETH, &[]).collect();
            m.links[1].xdp = AtXdp::Decap(own);
        }
        Step::Advmss { route, new, .. } => {
            m.routes.iter_mut().find(|r| r.to == route.to).unwrap().advmss = Some(*new);
        }
    }
}

#[test]
fn plans_of_tunnel_devices() {
    let mut m = server();
    let kinds = |m: &Machine, mode| -> Vec<TunnelKind> {
        let steps = plan(m, &wish(mode, true)).unwrap();
        steps
            .iter()
            .filter_map(|s| if let Step::Tunnel { kind, .. } = s { Some(*kind) } else { None })
            .collect()
    };
    assert_eq!(kinds(&m, Mode::Ipip), [TunnelKind::Ipip, TunnelKind::Sit, TunnelKind::Ip6Tnl]);
    assert_eq!(kinds(&m, Mode::Gre), [TunnelKind::Gre, TunnelKind::Ip6Gre]);
    m.addresses.retain(|a| a.index == LO || a.ip.is_ipv4());
    assert_eq!(kinds(&m, Mode::Gre), [TunnelKind::Gre]);
    m.addresses.retain(|a| a.index == LO);
    assert!(matches!(plan(&m, &wish(Mode::Gre, true)), Err(Error::NoAddress(dev)) if dev == "eth0"));
}

/// `docs/realserver.md` has a sentence for every word, and no others.
#[test]
fn words_are_documented() {
    let sources = [
        include_str!("../check.rs"),
        include_str!("arp.rs"),
        include_str!("listen.rs"),
        include_str!("tunnel.rs"),
        include_str!("vip.rs"),
        include_str!("way.rs"),
    ];
    let mut used: Vec<&str> = Vec::new();
    for source in sources {
        for start in ["id: \"", "(\"vip-", "\n                \"vip-"] {
            let words = source.split(start).skip(1).filter_map(|rest| rest.split('"').next());
            used.extend(words.map(|w| w.trim_start_matches("vip-")));
        }
    }
    let docs = include_str!("../../../../docs/realserver.md");
    let (_, table) = docs.split_once("| word | what is wrong |").unwrap();
    let rows = table.lines().filter_map(|l| l.strip_prefix("| `")?.split_once("` |"));
    let mut told: Vec<&str> =
        rows.flat_map(|(words, _)| words.split("`, `")).map(|w| w.trim_start_matches("vip-")).collect();
    used.sort_unstable();
    used.dedup();
    told.sort_unstable();
    assert_eq!(told, used);
}
