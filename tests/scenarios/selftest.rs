//! The harness itself, with the kernel's own routing and NAT in the director's place: clients, servers and checks work,
//! and say so when something is wrong.
use std::net::SocketAddr;

use crate::bulk::{SINK, both_ways, offer, sinks};
use crate::client::{Echo, connect, curl, udp, udp_ask};
use crate::http::{ask_all, many};
use crate::lab::{Family, Lab, Mode};
use crate::servers::{Service, TcpServer};
use crate::udp::echoes;
use crate::wait::{secs, until};
use crate::{probe, spread};

/// nftables takes the servers in the order in which they are given.
const NFT: [&str; 3] = ["s1", "s2", "s3"];

#[test]
fn http_and_its_spread() {
    if !probe::nft_ready() {
        return;
    }
    let lab = Lab::with_nginx(Mode::Nat);
    for family in Family::BOTH {
        let vip = lab.vip_port(family, 80);
        let _nft = lab.start_nft(family, 80, "tcp");
        let answers = curl(&lab.client, vip, 100);
        spread::sequence(&answers, &NFT).expect("in turn");
        assert!(spread::sequence(&answers, &spread::RR).is_err(), "another order must be noticed");
        assert!(spread::counts(&answers, &[("s1", 33), ("s2", 34), ("s3", 33)]).is_err());
    }
}

#[test]
fn many_connections() {
    if !probe::nft_ready() {
        return;
    }
    let lab = Lab::with_nginx(Mode::Nat);
    let _nft = lab.start_nft(Family::V4, 8080, "tcp");
    let mut open = many(&lab.client, lab.vip_port(Family::V4, 8080), 2000);
    let names = ask_all(&mut open);
    spread::counts(&names, &[("s1", 667), ("s2", 667), ("s3", 666)]).expect("in turn");
    assert_eq!(ask_all(&mut open), names);
}

#[test]
fn bulk_and_its_sums() {
    if !probe::ready() {
        return;
    }
    let lab = Lab::with_nginx(Mode::Nat);
    let mut big = offer(&lab, 10_000_000);
    let _sinks = sinks(&lab);
    for family in Family::BOTH {
        // Past the director's VIP, as a plain router.
        let (to, sink) = (SocketAddr::new(lab.rip(family, 1), 80), SocketAddr::new(lab.rip(family, 2), SINK));
        both_ways(&lab.client, to, sink, &big).expect("the file, whole");
    }
    let right = std::mem::replace(&mut big.sha256, "0".repeat(64));
    let to = SocketAddr::new(lab.rip(Family::V4, 1), 80);
    let sink = SocketAddr::new(lab.rip(Family::V4, 2), SINK);
    assert!(both_ways(&lab.client, to, sink, &big).is_err(), "a wrong sum must be noticed");
    assert_eq!(right.len(), 64);
}

#[test]
fn udp_echo() {
    if !probe::nft_ready() {
        return;
    }
    let lab = Lab::new(Mode::Nat);
    for family in Family::BOTH {
        let _echoes = echoes(&lab, family, 7);
        let _nft = lab.start_nft(family, 7, "udp");
        let names: Vec<String> = (0..9)
            .map(|_| udp_ask(&udp(&lab.client, lab.vip_port(family, 7)), b"hello").expect("an echo"))
            .collect();
        spread::counts(&names, &[("s1", 3), ("s2", 3), ("s3", 3)]).expect("in turn");
    }
}

/// The DR topology: a server takes packets for the VIP that are sent to its MAC, and answers past the director.
#[test]
fn dr_servers_answer_for_the_vip() {
    if !probe::ready() {
        return;
    }
    let lab = Lab::with_nginx(Mode::Dr);
    for family in Family::BOTH {
        for s in &lab.servers {
            let vip = lab.vip(family);
            lab.client.ip(&format!("neigh replace {vip} lladdr {} dev c0", s.ns.mac("s0")));
            assert_eq!(curl(&lab.client, SocketAddr::new(vip, 80), 1), std::slice::from_ref(&s.name));
            lab.client.ip(&format!("neigh del {vip} dev c0"));
        }
    }
}

/// A client without an answer says so, and within its patience.
#[test]
fn silence_and_refusal_are_errors() {
    if !probe::ready() {
        return;
    }
    let lab = Lab::new(Mode::Nat);
    for family in Family::BOTH {
        let refused = connect(&lab.client, lab.vip_port(family, 80), secs(5)).expect_err("nobody listens");
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    }
    lab.servers[0].ns.ip("link set s0 down");
    let to = SocketAddr::new(lab.rip(Family::V4, 1), 80);
    assert!(connect(&lab.client, to, std::time::Duration::from_millis(300)).is_err());
}

/// A guard's end is the end of its programs and namespaces.
#[test]
fn nothing_is_left_behind() {
    if !probe::ready() {
        return;
    }
    let lab = Lab::with_nginx(Mode::Dr);
    let names: Vec<String> =
        [&lab.client, &lab.director, &lab.lan].into_iter().map(|n| n.name().to_string()).collect();
    let echo = TcpServer::start(&lab.servers[0].ns, "s1", 7, Service::Echo);
    let mut c =
        Echo::open(&lab.servers[0].ns, "127.0.0.1:7".parse().expect("an address")).expect("a connection");
    assert_eq!(c.server, "s1");
    c.say(b"hello").expect("an echo");
    drop(echo);
    assert!(c.say(b"hello").is_err(), "the server's end is seen");
    let dir = lab.dir.join("");
    drop(lab);
    for n in names {
        assert!(!std::path::Path::new("/run/netns").join(&n).exists(), "{n} is left");
    }
    assert!(!dir.exists());
    let mine = format!("nginx -e stderr -p {}", dir.display());
    until("nginx is gone", secs(5), || {
        let list = crate::netns::run(std::process::Command::new("ps").args(["-eo", "args"]));
        (!list.contains(&mine)).then_some(())
    });
}
