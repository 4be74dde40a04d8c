//! The life of connections: weight 0, deleted servers, idleness, half-visible ones, thresholds (field cases 3, 5, 7, 19,
//! 43).
use std::net::SocketAddr;
use std::time::Duration;

use crate::capture::{Capture, Packet, RST, SYN, TCP, decode, mac};
use crate::client::{Echo, KeptAlive, PATIENCE, connect, curl};
use crate::director::until_counts;
use crate::lab::{Family, Lab, Mode, Server};
use crate::netns::Netns;
use crate::servers::{Service, TcpServer};
use crate::wait::{secs, until};
use crate::{matrix, probe};

const PORT: u16 = 7;

/// A lab with echo servers, the daemon, and an rr service on them.
fn echo_lab(mode: Mode, family: Family) -> (Lab, Vec<TcpServer>, SocketAddr) {
    let mut lab = Lab::new(mode);
    let servers = lab.servers.iter().map(|s| TcpServer::start(&s.ns, &s.name, PORT, Service::Echo)).collect();
    lab.start_lvsd();
    let vip = lab.vip_port(family, PORT);
    lab.service("-t", vip, "rr", [1, 1, 1], PORT);
    (lab, servers, vip)
}

/// A server's address as the service has it.
fn address(lab: &Lab, family: Family, server: &Server) -> SocketAddr {
    SocketAddr::new(lab.rip(family, server.number), PORT)
}

/// What a client socket is called in the connection table.
fn source(c: &Echo) -> SocketAddr {
    c.socket().local_addr().expect("an address")
}

/// Packets of TCP that arrive at a server for itself.
fn arrivals(server: &Server) -> Capture<Packet> {
    let own = mac(&server.ns.mac("s0"));
    Capture::start(&server.ns, move |f| decode(f).filter(|p| p.to_mac == own && p.protocol == TCP))
}

matrix!(weight_zero_ends_no_connection);
/// Field case 5, and "a connection that outlives its server's weight 0".
fn weight_zero_ends_no_connection(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let (lab, _servers, vip) = echo_lab(mode, family);
    let selector = format!("-t {vip}");
    let mut old = Echo::open(&lab.client, vip).expect("a connection");
    let server = lab.server(&old.server);
    let rip = address(&lab, family, server);
    old.say(b"before").expect("an echo");
    lab.d().ctl_ok(&format!("-e -t {vip} -r {rip} {} -w 0", mode.flag()));

    let row = lab.d().server(&selector, rip);
    assert_eq!((row.weight, row.active, row.inactive), (0, 1, 0));
    let new: Vec<Echo> = (0..10).map(|_| Echo::open(&lab.client, vip).expect("a connection")).collect();
    for c in &new {
        assert_ne!(c.server, old.server, "a new connection went to a server with weight 0");
    }
    old.say(&vec![b'w'; 1_000_000]).expect("an echo of a megabyte");

    // Every packet renews the whole timeout.
    until("the entry has aged", secs(10), || lab.d().connection_of(source(&old)).filter(|c| c.expire <= 897));
    old.say(b"again").expect("an echo");
    let entry = lab.d().connection_of(source(&old)).expect("an entry");
    assert!(entry.expire >= 899 && entry.state == "ESTABLISHED" && entry.destination == rip, "{entry:?}");

    drop(old);
    until("the server is empty of active connections", secs(10), || {
        (lab.d().server(&selector, rip).active == 0).then_some(())
    });
    assert_eq!(lab.d().server(&selector, rip).inactive, 1);
    // And back in.
    lab.d().ctl_ok(&format!("-e -t {vip} -r {rip} {} -w 1", mode.flag()));
    let names: Vec<String> =
        (0..6).map(|_| Echo::open(&lab.client, vip).expect("a connection").server).collect();
    assert_eq!(names.iter().filter(|n| **n == server.name).count(), 2, "{names:?}");
}

matrix!(a_deleted_server_comes_back);
/// Field case 3, (a) and (c), with expire_nodest_conn off as it is by default: packets to a deleted server are dropped, the
/// entry stays, and when the server is added again the connection goes on.
fn a_deleted_server_comes_back(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let (lab, _servers, vip) = echo_lab(mode, family);
    let selector = format!("-t {vip}");
    let mut c = Echo::open(&lab.client, vip).expect("a connection");
    c.say(b"before").expect("an echo");
    let client = source(&c);
    let server = lab.server(&c.server);
    let rip = address(&lab, family, server);
    lab.d().ctl_ok(&format!("-d -t {vip} -r {rip}"));

    let port_mac = mac(&lab.director.mac(lab.outer_dev()));
    // as the client sends them: in the director, XDP would take them before a packet socket sees them
    let sent = Capture::start(&lab.client, move |f| {
        decode(f).filter(|p| p.to_mac == port_mac && p.from_port == client.port() && p.payload_len > 0)
    });
    let arrived: Vec<Capture<Packet>> = lab.servers.iter().map(arrivals).collect();
    c.shout(b"into the void").expect("room in the socket's buffer");
    until("the segment and a retransmission at the director", secs(10), || {
        sent.look(|p| (p.len() >= 2).then_some(()))
    });
    for (s, seen) in lab.servers.iter().zip(&arrived) {
        seen.look(|p| {
            let wrong: Vec<_> = p.iter().filter(|p| p.from_port == client.port()).collect();
            assert!(wrong.is_empty(), "forwarded to {} although its server is deleted: {wrong:?}", s.name);
        });
    }
    let entry = lab.d().connection_of(client).expect("the entry stays");
    assert_eq!((entry.destination, entry.state.as_str()), (rip, "ESTABLISHED"));
    assert_eq!(lab.d().servers(&selector).len(), 2);

    lab.d().ctl_ok(&format!("-a -t {vip} -r {rip} {} -w 1", mode.flag()));
    c.hear(b"into the void").expect("the retransmission arrives and is answered");
    c.say(b"after").expect("an echo");
    let row = lab.d().server(&selector, rip);
    assert_eq!((row.active, row.inactive), (1, 0), "the connection counts for the server again");
}

matrix!(a_deleted_server_is_told_of);
/// Field case 3 (b), expire_nodest_conn on: the client learns at once, and the connection's place is free.
fn a_deleted_server_is_told_of(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let (lab, _servers, vip) = echo_lab(mode, family);
    lab.d().ctl_ok("sysctl expire_nodest_conn=1");
    let mut c = Echo::open(&lab.client, vip).expect("a connection");
    c.say(b"before").expect("an echo");
    let client = source(&c);
    let gone = c.server.clone();
    lab.d().ctl_ok(&format!("-d -t {vip} -r {}", address(&lab, family, lab.server(&gone))));
    let start = std::time::Instant::now();
    let end = c.say(b"anybody there?").expect_err("its server is deleted");
    assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset, "after {:?}: {end}", start.elapsed());
    assert!(start.elapsed() < secs(3), "the client learns of it after {:?}", start.elapsed());
    until("the entry is gone", secs(5), || lab.d().connection_of(client).is_none().then_some(()));
    for _ in 0..4 {
        assert_ne!(Echo::open(&lab.client, vip).expect("a connection").server, gone);
    }
}

matrix!(idle_longer_than_the_timeout);
/// Field case 7: within the timeout data goes on to the same server, later the client is told at once.
fn idle_longer_than_the_timeout(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let (lab, _servers, vip) = echo_lab(mode, family);
    lab.d().ctl_ok("--set 3 0 0");
    let shown = lab.d().ctl_ok("-L --timeout");
    assert_eq!(shown.trim_end(), "Timeout (tcp tcpfin udp): 3 120 300");
    let mut c = Echo::open(&lab.client, vip).expect("a connection");
    let client = source(&c);
    c.say(b"a").expect("an echo");
    until("the entry has aged a second", secs(10), || {
        lab.d().connection_of(client).filter(|e| e.expire <= 2).map(|_| ())
    });
    c.say(b"b").expect("an echo: the entry was there");
    until("the entry is gone", secs(15), || lab.d().connection_of(client).is_none().then_some(()));

    let arrived: Vec<Capture<Packet>> = lab.servers.iter().map(arrivals).collect();
    let start = std::time::Instant::now();
    let end = c.say(b"c").expect_err("the connection is unknown by now");
    assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset, "after {:?}", start.elapsed());
    assert!(start.elapsed() < secs(3), "the client learns of it after {:?}", start.elapsed());
    for seen in &arrived {
        seen.look(|p| assert!(p.iter().all(|p| p.from_port != client.port()), "data was scheduled: {p:?}"));
    }
    assert_eq!(lab.d().connection_of(client), None);
    // Longer timeouts are taken as well, and shown.
    lab.d().ctl_ok("--set 7200 0 0");
    assert_eq!(lab.d().ctl_ok("-L --timeout").trim_end(), "Timeout (tcp tcpfin udp): 7200 120 300");
    let mut c = Echo::open(&lab.client, vip).expect("a connection");
    c.say(b"d").expect("an echo");
    let entry = lab.d().connection_of(source(&c)).expect("an entry");
    assert!((7195..=7200).contains(&entry.expire), "{entry:?}");
}

#[test]
fn nat_with_the_client_among_the_servers_v4() {
    nat_with_the_client_among_the_servers(Family::V4);
}

#[test]
fn nat_with_the_client_among_the_servers_v6() {
    nat_with_the_client_among_the_servers(Family::V6);
}

/// Field case 19 (a): the server answers the client directly, which cannot work; the director sees the SYNs only.
fn nat_with_the_client_among_the_servers(family: Family) {
    if !probe::ready() {
        return;
    }
    let (lab, _servers, vip) = echo_lab(Mode::Nat, family);
    let near = Netns::new("near");
    lab.plug(&near, "n0", "near", "02:00:00:00:00:50");
    let (own, via) = match family {
        Family::V4 => ("10.0.0.50/24", lab.dip(family)),
        Family::V6 => ("2001:db8:a::50/64", lab.dip(family)),
    };
    let nodad = if family == Family::V6 { "nodad" } else { "" };
    near.ip(&format!("addr add {own} dev n0 {nodad}\nroute add {} via {via}", lab.vip(family)));
    half_visible(&lab, &near, vip, |resets| {
        assert!(resets > 0, "the client resets what the server's own address sends it");
    });
}

matrix!(servers_without_the_vip);
/// Field case 19 (b): no answer ever comes. With NAT the server drops, with DR it does not have the VIP.
fn servers_without_the_vip(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let (lab, _servers, vip) = echo_lab(mode, family);
    for s in &lab.servers {
        match mode {
            Mode::Dr | Mode::Ipip | Mode::Gre => {
                let length = if family == Family::V4 { 32 } else { 128 };
                s.ns.ip(&format!("addr del {}/{length} dev lo", lab.vip(family)));
            }
            // The server's way back leads nowhere.
            Mode::Nat => s.ns.ip(match family {
                Family::V4 => "route replace blackhole default",
                Family::V6 => "route del ::/0\nroute add blackhole ::/0",
            }),
        }
    }
    half_visible(&lab, &lab.client, vip, |_| {});
}

/// A client in `ns` connects in vain: all its SYNs go to one server, and are one entry in SYN_RECV.
fn half_visible(lab: &Lab, ns: &Netns, vip: SocketAddr, resets_seen: impl FnOnce(usize)) {
    let arrived: Vec<Capture<Packet>> = lab.servers.iter().map(arrivals).collect();
    let count = |flags: u8| -> Vec<usize> {
        arrived
            .iter()
            .map(|c| c.look(|p| p.iter().filter(|p| p.tcp_flags & flags == flags).count()))
            .collect()
    };
    std::thread::scope(|s| {
        let lost = s.spawn(|| connect(ns, vip, secs(6)));
        // At 0, 1 and 3 s.
        until("three SYNs at the servers", secs(8), || (count(SYN).iter().sum::<usize>() >= 3).then_some(()));
        let syns = count(SYN);
        assert_eq!(
            syns.iter().filter(|n| **n > 0).count(),
            1,
            "SYNs of one connection at two servers: {syns:?}"
        );
        let entries = lab.d().connections();
        assert_eq!(entries.len(), 1, "{entries:?}");
        assert!(entries[0].state == "SYN_RECV" && entries[0].expire <= 60, "{entries:?}");
        // The kernel counts SYN_RECV as active.
        until_counts(lab.d(), &format!("-t {vip}"), 1, 0, secs(1));
        assert!(lost.join().expect("no panic").is_err(), "a connection that cannot be");
        assert_eq!(lab.d().connections().len(), 1);
    });
    resets_seen(count(RST).iter().sum());
}

/// Field case 43: an upper threshold holds whatever the number of queues, and editing it takes effect at once.
#[test]
fn thresholds_hold_over_several_queues() {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_queues(Mode::Nat, 4);
    lab.start_nginx();
    lab.start_lvsd();
    for family in Family::BOTH {
        let vip = lab.vip_port(family, 8080);
        let selector = format!("-t {vip}");
        let [limited, other] = [1, 2].map(|n| SocketAddr::new(lab.rip(family, n), 8080));
        lab.d().ctl_ok(&format!("-A -t {vip} -s rr"));
        lab.d().ctl_ok(&format!("-a -t {vip} -r {limited} -m -x 4"));
        lab.d().ctl_ok(&format!("-a -t {vip} -r {other} -m"));
        let mut open = crate::http::many(&lab.client, vip, 40);
        let names = crate::http::ask_all(&mut open);
        crate::spread::counts(&names, &[("s1", 4), ("s2", 36)]).expect("the threshold's shares");
        assert_eq!(lab.d().server(&selector, limited).active, 4);

        // Down to two (a reset connection leaves after 10 s): below three quarters of four, so it takes new ones.
        let mut kept = Vec::new();
        let mut to_reset = 2;
        for (c, name) in open.into_iter().zip(&names) {
            if name == "s1" && to_reset > 0 {
                to_reset -= 1;
                reset(c);
            } else {
                kept.push(c);
            }
        }
        until("two connections are left", secs(30), || {
            let row = lab.d().server(&selector, limited);
            (row.active + row.inactive == 2).then_some(())
        });
        kept.extend(crate::http::many(&lab.client, vip, 10));
        assert_eq!(lab.d().server(&selector, limited).active, 4, "filled up to the threshold again");

        // No limit any more: at once every second one.
        lab.d().ctl_ok(&format!("-e -t {vip} -r {limited} -m -x 0"));
        let mut more = crate::http::many(&lab.client, vip, 10);
        let names = crate::http::ask_all(&mut more);
        crate::spread::counts(&names, &[("s1", 5), ("s2", 5)]).expect("rr's shares");

        // Both full: refused. As the kernel, a lowered threshold is noticed by the next connection, which still gets in.
        for rip in [limited, other] {
            lab.d().ctl_ok(&format!("-e -t {vip} -r {rip} -m -x 1"));
        }
        let _last = crate::http::many(&lab.client, vip, 2);
        let refused = connect(&lab.client, vip, PATIENCE).expect_err("no server takes it");
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused, "{refused}");
    }
}

/// Closes a connection with a RST.
fn reset(c: KeptAlive) {
    rustix::net::sockopt::set_socket_linger(c.socket(), Some(Duration::ZERO)).expect("linger");
}

/// Deleting a service leaves the other services' connections alone.
#[test]
fn deleting_a_service_leaves_others_alone() {
    if !probe::ready() {
        return;
    }
    let (mut lab, _servers, vip) = echo_lab(Mode::Nat, Family::V4);
    lab.start_nginx();
    let web = lab.vip_port(Family::V4, 80);
    lab.service("-t", web, "rr", [1, 1, 1], 80);
    let mut c = Echo::open(&lab.client, vip).expect("a connection");
    assert_eq!(curl(&lab.client, web, 3).len(), 3);
    lab.d().ctl_ok(&format!("-D -t {web}"));
    c.say(&vec![b'x'; 100_000]).expect("an echo");
    let refused = connect(&lab.client, web, PATIENCE).expect_err("no service");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(lab.d().servers(&format!("-t {vip}")).len(), 3);
}
