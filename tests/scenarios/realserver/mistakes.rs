//! Mistakes, one a test.

use std::net::{SocketAddr, TcpListener, UdpSocket};

use super::Rig;
use crate::netns::Proc;
use crate::probe;
use crate::wait::{secs, until};

/// Plants a mistake by `plant` on a server that is in order, and mends it as `check` says.
#[track_caller]
fn mistake(mode: &str, words: &str, plant: &str, id: &str, says: &str) {
    if !probe::ready() {
        return;
    }
    let rig = Rig::ready(mode);
    named_and_mended(&rig, &format!("--mode {mode} {words}"), || rig.shell(plant), id, says);
}

#[track_caller]
fn named_and_mended(rig: &Rig, words: &str, plant: impl FnOnce(), id: &str, says: &str) {
    assert_eq!(rig.check(words), [], "a false alarm");
    plant();
    let found = rig.check(words);
    let ids: Vec<&str> = found.iter().map(|f| f.id.as_str()).collect();
    assert_eq!(ids, [id], "{found:?}");
    assert!(found[0].what.contains(says), "{says}: {found:?}");
    // The one word that only the operator can fill in.
    let router = if found[0].mend.starts_with("ip -6") { "2001:db8:0:1::fe" } else { "192.0.2.254" };
    rig.shell(&found[0].mend.replace("ROUTER", router));
    assert_eq!(rig.check(words), [], "mended by {}", found[0].mend);
}

macro_rules! mistakes {
    ($($name:ident: $mode:literal, $words:literal, $plant:literal => $id:literal, $says:literal;)*) => {
        $(
            #[test]
            fn $name() {
                mistake($mode, $words, $plant, $id, $says);
            }
        )*
    };
}

mistakes! {
    vip_missing: "dr", "", "ip address del 192.0.2.10/32 dev lo" => "vip-missing", "192.0.2.10 is on no interface";
    vip_missing_v6: "dr", "", "ip address del 2001:db8:0:1::10/128 dev lo" => "vip-missing", "2001:db8:0:1::10";
    vip_missing_on_a_router: "dr", "", "sysctl -w net.ipv4.ip_forward=1; ip address del 192.0.2.10/32 dev lo"
        => "vip-loop", "round and round";
    vip_missing_on_a_router_v6: "dr", "",
        "sysctl -w net.ipv6.conf.all.forwarding=1; ip address del 2001:db8:0:1::10/128 dev lo"
        => "vip-loop", "2001:db8:0:1::10";
    vip_on_an_interface: "dr", "", "ip address del 192.0.2.10/32 dev lo; ip address add 192.0.2.10/24 dev s0"
        => "vip-on-interface", "ARP";
    vip_on_an_interface_too: "dr", "", "ip address add 192.0.2.10/32 dev t0" => "vip-on-interface", "t0";
    vip_on_an_interface_v6: "dr", "",
        "ip address del 2001:db8:0:1::10/128 dev lo; ip address add 2001:db8:0:1::10/128 dev s0 nodad"
        => "vip-on-interface", "neighbour solicitations";
    vip_with_its_whole_network: "dr", "",
        "ip address del 192.0.2.10/32 dev lo; ip address add 192.0.2.10/24 dev lo"
        => "vip-wide", "192.0.2.10/24";
    vip_as_a_source: "dr", "", "ip -6 address change 2001:db8:0:1::10/128 dev lo preferred_lft forever"
        => "vip-source", "2001:db8:0:1::10";
    arp_ignore: "dr", "", "sysctl -w net.ipv4.conf.all.arp_ignore=0" => "arp-ignore", "0 on s0, 0 on t0";
    arp_ignore_for_everything: "dr", "", "sysctl -w net.ipv4.conf.s0.arp_ignore=8" => "arp-ignore", "8 on s0";
    arp_ignore_on_one: "dr", "--dev s0",
        "sysctl -w net.ipv4.conf.all.arp_ignore=0 net.ipv4.conf.t0.arp_ignore=0" => "arp-ignore", "0 on s0";
    arp_announce: "dr", "", "sysctl -w net.ipv4.conf.all.arp_announce=1" => "arp-announce", "1 on s0";
    arp_of_a_tunnel_server: "ipip", "", "sysctl -w net.ipv4.conf.all.arp_ignore=0" => "arp-ignore", "clients";
    reverse_path_filter: "dr", "--dev s0",
        "sysctl -w net.ipv4.conf.s0.rp_filter=1; ip route replace default via 198.51.100.254"
        => "rp-filter", "strict on s0";
    reverse_path_filter_of_a_tunnel_server: "gre", "--dev s0 --client 203.0.113.7 2001:db8:c::7",
        "sysctl -w net.ipv4.conf.all.rp_filter=1; ip route add 203.0.113.0/24 via 198.51.100.254 advmss 1400"
        => "rp-filter", "strict on s0";
    no_decapsulator: "ipip", "", "lvsctl realserver decap --off --dev s0" => "decap-missing", "s0";
    no_decapsulator_gre: "gre", "--director 192.0.2.1", "lvsctl realserver decap --off --dev s0"
        => "decap-missing", "s0";
    decapsulator_elsewhere: "ipip", "",
        "lvsctl realserver decap --off --dev s0; lvsctl realserver decap --dev t0" => "decap-elsewhere", "on t0";
    decapsulator_older_than_an_address: "gre", "", "ip address add 192.0.2.12/24 dev s0"
        => "decap-stale", "192.0.2.12";
    no_room: "ipip", "", "ip route change default via 192.0.2.254" => "mtu", "1500";
    no_room_v6: "gre", "", "ip -6 route change default via 2001:db8:0:1::fe" => "mtu", "1500";
    no_room_in_a_smaller_mtu: "ipip", "", "ip link set s0 mtu 1400" => "mtu", "1400";
    no_default_route: "dr", "--dev s0", "ip route del default" => "no-default-route", "IPv4";
    no_default_route_v6: "dr", "", "ip -6 route del default" => "no-default-route", "IPv6";
    no_route_to_a_client: "dr", "--client 203.0.113.7 --dev s0", "ip route del default"
        => "no-route", "203.0.113.7";
    answers_through_the_director: "dr", "--director 192.0.2.1 2001:db8:0:1::1",
        "ip route replace default via 192.0.2.1" => "way-by-director", "default route for IPv4";
    answers_through_the_director_v6: "ipip", "--director 192.0.2.1 2001:db8:0:1::1 --client 2001:db8:c::7 203.0.113.7",
        "ip -6 route replace default via 2001:db8:0:1::1 advmss 1300" => "way-by-director", "2001:db8:c::7";
    interface_down: "dr", "--dev t0", "ip link set t0 down" => "interface-down", "t0";
}

/// The director is the servers' gateway, for every client.
#[test]
fn nat() {
    if !probe::ready() {
        return;
    }
    let rig = Rig::ready("nat");
    rig.shell("ip route replace default via 192.0.2.1; ip -6 route replace default via 2001:db8:0:1::1");
    let words = "--mode nat --director 192.0.2.1 2001:db8:0:1::1";
    let plant = |line: &'static str| || rig.shell(line);
    named_and_mended(
        &rig,
        words,
        plant("ip route replace default via 192.0.2.254"),
        "nat-gateway",
        "192.0.2.254",
    );
    named_and_mended(&rig, words, plant("ip -6 route del default"), "no-default-route", "IPv6");
    let by_another = format!("{words} --client 203.0.113.7 2001:db8:c::7");
    let plant_route = plant("ip route add 203.0.113.0/24 via 192.0.2.254");
    named_and_mended(&rig, &by_another, plant_route, "nat-gateway", "203.0.113.7");
    // A client on the servers' own network.
    let near = format!("{words} --client 192.0.2.100 2001:db8:c::7");
    let found = rig.check(&near);
    assert_eq!((found.len(), found[0].id.as_str()), (1, "nat-bypass"), "{found:?}");
    rig.shell(&found[0].mend);
    assert_eq!(rig.check(&near), []);

    let out = rig.lvsctl("check --vip 192.0.2.10 --mode nat");
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && text.contains("--director") && text.lines().count() == 1, "{text}");
}

/// A service that listens on the server's own address only, or not at all.
#[test]
fn listeners() {
    if !probe::ready() {
        return;
    }
    let rig = Rig::ready("dr");
    let on = |at: &str| {
        let at: SocketAddr = at.parse().expect("an address");
        // A program that another test starts holds the last listener for a moment, between its fork and its exec.
        until("a free port", secs(10), || rig.server.run(|| TcpListener::bind(at)).ok())
    };
    let ids = |words: &str| -> Vec<String> { rig.check(words).into_iter().map(|f| f.id).collect() };
    assert_eq!(ids("--port 80"), ["no-listener", "no-listener"]);
    let own = [on("192.0.2.11:80"), on("[2001:db8:0:1::11]:80")];
    assert_eq!(ids("--port 80"), ["listener-elsewhere", "listener-elsewhere"]);
    let v4 = on("192.0.2.10:80");
    assert_eq!(ids("--port 80"), ["listener-elsewhere"]);
    drop((own, v4));
    let everywhere = on("[::]:80");
    assert_eq!(rig.check("--port 80"), []);
    // Datagrams are served as well.
    let _dns = rig.server.run(|| UdpSocket::bind("192.0.2.10:53")).expect("a free port");
    assert_eq!(ids("--port 80 53"), ["listener-elsewhere"]);
    drop(everywhere);
    // With NAT it is the server's own address that is called.
    rig.shell("ip route replace default via 192.0.2.1; ip -6 route replace default via 2001:db8:0:1::1");
    let _own = [on("192.0.2.11:80"), on("[2001:db8:0:1::11]:80")];
    assert_eq!(rig.check("--mode nat --director 192.0.2.1 2001:db8:0:1::1 --port 80"), []);
}

/// Two machines with one IPv6 address: the virtual one on a server's interface, and the server's own.
#[test]
fn duplicate_addresses() {
    if !probe::ready() {
        return;
    }
    let rig = Rig::ready("dr");
    rig.net.ip("addr add 2001:db8:0:1::10/64 dev g0 nodad\naddr add 2001:db8:0:1::12/64 dev g0 nodad");
    rig.server.sysctl("net.ipv6.conf.s0.accept_dad", "1");
    rig.server.sysctl("net.ipv6.conf.all.accept_dad", "1");
    let fails = |ip: &str| {
        rig.shell(&format!("ip address add {ip}/64 dev s0"));
        until("duplicate address detection fails", secs(10), || {
            let all = rig.server.sh("ip -o -6 address show dev s0");
            let failed = all.lines().any(|l| l.contains(&format!("{ip}/")) && l.contains("dadfailed"));
            failed.then_some(())
        });
    };
    let plant = || {
        rig.shell("ip address del 2001:db8:0:1::10/128 dev lo");
        fails("2001:db8:0:1::10");
    };
    named_and_mended(&rig, "", plant, "vip-dad", "duplicate address detection");
    fails("2001:db8:0:1::12");
    let found = rig.check("");
    assert_eq!((found.len(), found[0].id.as_str()), (1, "address-dad"), "{found:?}");
}

/// Where the decapsulator should be, another program is.
#[test]
fn another_program() {
    if !probe::ready() {
        return;
    }
    let rig = Rig::ready("ipip");
    let object = crate::tunnel::other_program(&rig.dir);
    let plant = || {
        rig.shell("lvsctl realserver decap --off --dev s0");
        rig.server.ip(&format!("link set dev s0 xdpgeneric obj {} sec xdp", object.display()));
    };
    named_and_mended(&rig, "--mode ipip", plant, "xdp-other", "another XDP program");
}

/// A program that a BPF link holds cannot be taken away by `ip`, and that is not what anybody is told to do.
#[test]
fn another_program_by_a_link() {
    if !probe::ready() {
        return;
    }
    let rig = Rig::ready("ipip");
    rig.shell("lvsctl realserver decap --off --dev s0");
    let mut command = rig.server.command(probe::lvsd());
    command.args([
        "--datapath",
        "afxdp",
        "--xdp-mode",
        "generic",
        "--interface",
        "s0",
        "--max-connections",
        "1024",
    ]);
    command.arg("--socket").arg(rig.dir.join("s")).arg("--state-file").arg(rig.dir.join("state"));
    let mut lvsd = Proc::start(&mut command, rig.dir.join("lvsd.log"));
    until("lvsd's program is there", secs(20), || {
        assert!(lvsd.ended().is_none(), "{}", lvsd.output());
        rig.server.sh("ip link show dev s0").contains("prog/xdp").then_some(())
    });
    let goes = "a BPF link holds it: it goes when its owner ends or its pin is removed (`bpftool link' tells of both)";
    let found = rig.check("--mode ipip --dev s0");
    let other: Vec<_> = found.iter().filter(|f| f.id == "xdp-other").collect();
    assert!(other.len() == 1 && other[0].mend.starts_with(goes), "{found:?}");
    let out = rig.lvsctl("decap --dev s0");
    let why = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && why.contains(goes) && why.lines().count() == 1, "{why}");
    lvsd.signal(rustix::process::Signal::TERM);
    until("lvsd ends", secs(20), || lvsd.ended());
    rig.shell("lvsctl realserver decap --dev s0");
}

/// Several mistakes at once, and as JSON.
#[test]
fn all_mistakes_are_named_at_once() {
    if !probe::ready() {
        return;
    }
    let rig = Rig::bare();
    let mut ids: Vec<String> = rig.check("--mode gre --port 80").into_iter().map(|f| f.id).collect();
    ids.dedup();
    assert_eq!(ids, ["vip-missing", "arp-ignore", "arp-announce", "decap-missing", "mtu", "no-listener"]);
    let out = rig.lvsctl("check --vip 192.0.2.10 --json");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(out.status.code(), Some(1));
    for part in [
        "\"ok\":false",
        "\"id\":\"vip-missing\"",
        "\"mend\":\"ip address add 192.0.2.10/32 dev lo\"",
        "\"dev\":\"s0\"",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
