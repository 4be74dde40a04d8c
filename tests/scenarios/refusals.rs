//! What is refused: connections nobody can take (field case 45), a full table, wrong commands.
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::Output;

use crate::capture::{Capture, decode};
use crate::client::{KeptAlive, PATIENCE, connect, udp, udp_ask};
use crate::lab::{Family, Lab, Mode};
use crate::servers::UdpEcho;
use crate::wait::{secs, until};
use crate::{matrix, probe};

/// The schedulers of this version.
const SCHEDULERS: [&str; 8] = ["rr", "wrr", "lc", "wlc", "sh", "dh", "mh", "maglev"];

matrix!(every_weight_is_zero);
/// Field case 45: refused with an ICMP error and without leaving an entry, for every scheduler; back at the first packet
/// after a weight is given.
fn every_weight_is_zero(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(mode);
    let on = match mode {
        Mode::Nat => lab.rip(family, 1),
        Mode::Dr | Mode::Ipip | Mode::Gre => lab.vip(family),
    };
    let _echo = UdpEcho::start(&lab.servers[0].ns, "s1", on, 8080);
    lab.start_lvsd();
    let vip = lab.vip_port(family, 8080);
    let rip = SocketAddr::new(lab.rip(family, 1), 8080);
    let method = mode.flag();
    for scheduler in SCHEDULERS {
        lab.d().ctl_ok(&format!("-A -t {vip} -s {scheduler}"));
        lab.d().ctl_ok(&format!("-A -u {vip} -s {scheduler}"));
        refused(&lab, vip, scheduler, "no server at all");
        for proto in ["-t", "-u"] {
            lab.d().ctl_ok(&format!("-a {proto} {vip} -r {rip} {method} -w 0"));
        }
        refused(&lab, vip, scheduler, "weight 0");
        for proto in ["-t", "-u"] {
            lab.d().ctl_ok(&format!("-e {proto} {vip} -r {rip} {method} -w 1"));
        }
        let mut c =
            KeptAlive::open(&lab.client, vip).unwrap_or_else(|e| panic!("{scheduler}, weight 1: {e}"));
        assert_eq!(c.get().expect("an answer"), "s1", "{scheduler}");
        assert_eq!(udp_ask(&udp(&lab.client, vip), b"u").expect("an echo"), "s1", "{scheduler}");
        lab.d().ctl_ok("-C");
        assert_eq!(lab.d().ctl_ok("-S -n"), "");
    }
}

fn refused(lab: &Lab, vip: SocketAddr, scheduler: &str, why: &str) {
    let before = lab.d().connections().len();
    let tcp = connect(&lab.client, vip, PATIENCE).expect_err("no server can take it");
    assert_eq!(tcp.kind(), ErrorKind::ConnectionRefused, "{scheduler}, {why}: TCP: {tcp}");
    let datagram = udp_ask(&udp(&lab.client, vip), b"u").expect_err("no server can take it");
    assert_eq!(datagram.kind(), ErrorKind::ConnectionRefused, "{scheduler}, {why}: UDP: {datagram}");
    assert_eq!(lab.d().connections().len(), before, "{scheduler}, {why}: an entry was left");
}

/// A full table takes no more connections, says so, and those that it has go on.
#[test]
fn a_full_table() {
    if !probe::ready() {
        return;
    }
    const LIMIT: usize = 256;
    let mut lab = Lab::with_nginx(Mode::Nat);
    lab.start_lvsd_limited(LIMIT as u32);
    let vip = lab.vip_port(Family::V4, 8080);
    lab.service("-t", vip, "rr", [1, 1, 1], 8080);
    let mut open = crate::http::many(&lab.client, vip, LIMIT);
    let names = crate::http::ask_all(&mut open);
    assert_eq!(lab.d().connections().len(), LIMIT);

    let dropped = lab.d().counter("drop_table_full");
    for _ in 0..3 {
        assert!(connect(&lab.client, vip, secs(2)).is_err(), "one connection more than the limit");
    }
    assert_eq!(lab.d().connections().len(), LIMIT);
    assert!(lab.d().counter("drop_table_full") >= dropped + 3, "the drops are counted");
    until("the log tells of it", secs(5), || lab.d().log().contains("WARN drop_table_full: ").then_some(()));
    assert_eq!(crate::http::ask_all(&mut open), names, "the connections that it has go on");

    // Room again as soon as one has gone.
    let gone = open.pop().expect("a connection");
    rustix::net::sockopt::set_socket_linger(gone.socket(), Some(std::time::Duration::ZERO)).expect("linger");
    drop(gone);
    until("a reset connection has left the table", secs(30), || {
        (lab.d().connections().len() < LIMIT).then_some(())
    });
    let mut new = KeptAlive::open(&lab.client, vip).expect("a connection");
    new.get().expect("an answer");
}

/// Field case 18: a server that calls its own service by NAT would get a packet from itself. It gets nothing, under a counter
/// with a name; another server's answer is none of that.
#[test]
fn a_server_balanced_to_itself() {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(Mode::Nat);
    lab.start_lvsd();
    let dropped = |lab: &Lab| -> u64 {
        let text = lab.d().ctl_ok("status");
        let line = text.lines().find_map(|l| l.strip_prefix("drop_hairpin ")).expect("the counter");
        line.parse().expect("a number")
    };
    for family in Family::BOTH {
        let (vip, rip) = (lab.vip_port(family, 8080), lab.rip(family, 1));
        lab.d().ctl_ok(&format!("-A -t {vip} -s rr"));
        lab.d().ctl_ok(&format!("-a -t {vip} -r {} -m", SocketAddr::new(rip, 8080)));
        let to_itself = Capture::start(&lab.servers[0].ns, move |f| {
            decode(f).filter(|p| p.from == rip && p.to == rip).map(|_| ())
        });
        let before = dropped(&lab);
        let ns = &lab.servers[0].ns;
        assert!(
            connect(ns, vip, std::time::Duration::from_millis(500)).is_err(),
            "{vip}: a server answered itself"
        );
        assert!(dropped(&lab) > before, "{vip}: not counted");
        to_itself.look(|p| assert!(p.is_empty(), "{vip}: a packet from the server to itself"));
        let mut other = KeptAlive::open(&lab.client, vip).expect("a connection");
        assert_eq!(other.get().expect("an answer"), "s1");
    }
}

/// One line on standard error, and the exit status says that it failed.
#[track_caller]
pub(crate) fn one_clear_line(out: &Output, about: &str) -> String {
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    assert!(!out.status.success(), "{about}: it succeeded\n{text}");
    assert!(out.status.code().is_some(), "{about}: it was killed: {}", out.status);
    assert_eq!(lines.len(), 1, "{about}: not one line:\n{text}");
    lines[0].to_string()
}

/// Wrong commands change nothing and say what is wrong.
#[test]
fn wrong_commands_change_nothing() {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::new(Mode::Nat);
    lab.start_lvsd();
    let vip = lab.vip_port(Family::V4, 80);
    lab.service("-t", vip, "rr", [1, 2, 3], 80);
    let before = lab.d().ctl_ok("-S -n");
    assert_eq!(before.lines().count(), 4, "{before}");
    for (line, says) in [
        ("-A -t 192.0.2.10:80 -s rr", "exists"),
        ("-a -t 192.0.2.10:80 -r 10.0.0.11:80 -m", "exists"),
        ("-A -t 192.0.2.300:80 -s rr", "192.0.2.300"),
        ("-A -t 192.0.2.10:70000 -s rr", "70000"),
        ("-A -t 192.0.2.10:0 -s rr", "port"),
        ("-A -t 192.0.2.10:81 -s no-such", "no-such"),
        ("-D -t 192.0.2.10:81", "No such service"),
        ("-d -t 192.0.2.10:80 -r 10.0.0.99:80", "No such destination"),
        ("-e -t 192.0.2.10:80 -r 10.0.0.99:80 -m -w 1", "No such destination"),
        ("-a -t 192.0.2.10:81 -r 10.0.0.11:80 -m", "Service not defined"),
        ("-a -t 192.0.2.10:80 -r 10.0.0.11:80x -m", "10.0.0.11:80x"),
        ("-a -t 192.0.2.10:80 -r 10.0.0.14:80 -m -w -1", "weight"),
        ("-a -t 192.0.2.10:80 -r [2001:db8:a::11]:80 -m", "famil"),
        ("-a -t 192.0.2.10:80", "real-server"),
        ("--set 1 2", "3"),
        ("-A -C", "-C"),
    ] {
        let text = one_clear_line(&lab.d().ctl(line), line);
        let (t, s) = (text.to_lowercase(), says.to_lowercase());
        assert!(t.contains(&s), "lvsctl {line} does not speak of {says:?}: {text}");
        assert_eq!(lab.d().ctl_ok("-S -n"), before, "lvsctl {line} changed something");
    }
    let nobody = lab.dir.join("no-such.sock");
    let text = one_clear_line(&crate::director::ctl(&nobody, "-L -n"), "no daemon");
    assert!(text.contains(&*nobody.to_string_lossy()), "the socket is not named: {text}");
}
