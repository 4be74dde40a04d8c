//! HTTP through the VIP: every request answered, and spread exactly as the scheduler demands.
use std::net::SocketAddr;
use std::sync::Mutex;

use crate::client::{KeptAlive, curl};
use crate::director::until_counts;
use crate::lab::{Family, Lab, Mode};
use crate::netns::Netns;
use crate::wait::secs;
use crate::{matrix, probe, spread};

matrix!(a_thousand_requests_rr, all);
fn a_thousand_requests_rr(mode: Mode, family: Family) {
    requests(mode, family, "rr", [1, 1, 1], &spread::RR);
}

matrix!(a_thousand_requests_wrr, all);
fn a_thousand_requests_wrr(mode: Mode, family: Family) {
    requests(mode, family, "wrr", [4, 3, 2], &spread::WRR_432);
}

fn requests(mode: Mode, family: Family, scheduler: &str, weights: [u32; 3], period: &[&str]) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(mode);
    lab.start_lvsd();
    let vip = lab.vip_port(family, 80);
    lab.service("-t", vip, scheduler, weights, 80);
    let answers = curl(&lab.client, vip, 1000);
    spread::sequence(&answers, period).expect("the scheduler's sequence");
    // What the statistics count agrees with what the servers answered.
    for s in &lab.servers {
        let rip = SocketAddr::new(lab.rip(family, s.number), 80);
        let answered = answers.iter().filter(|a| **a == s.name).count() as u64;
        assert_eq!(lab.d().connections_ever(&format!("-t {vip}"), rip), answered, "counted for {}", s.name);
    }
}

matrix!(two_thousand_connections_at_once, all);
fn two_thousand_connections_at_once(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(mode);
    lab.start_lvsd();
    let vip = lab.vip_port(family, 8080);
    lab.service("-t", vip, "rr", [1, 1, 1], 8080);
    let selector = format!("-t {vip}");

    let mut open = many(&lab.client, vip, 2000);
    let first = ask_all(&mut open);
    spread::counts(&first, &[("s3", 667), ("s2", 667), ("s1", 666)]).expect("rr's shares");
    until_counts(lab.d(), &selector, 2000, 0, secs(5));
    assert_eq!(ask_all(&mut open), first, "each connection stays with its server");

    drop(open);
    until_counts(lab.d(), &selector, 0, 2000, secs(20));
}

/// Opens `n` connections from eight threads; all are open when this returns.
pub(crate) fn many(ns: &Netns, to: SocketAddr, n: usize) -> Vec<KeptAlive> {
    let open = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for t in 0..8 {
            let open = &open;
            s.spawn(move || {
                for _ in (t..n).step_by(8) {
                    let c = KeptAlive::open(ns, to).expect("a connection");
                    open.lock().expect("no panic under the lock").push(c);
                }
            });
        }
    });
    open.into_inner().expect("no panic under the lock")
}

/// Sends a request on every connection, then reads every answer.
pub(crate) fn ask_all(open: &mut [KeptAlive]) -> Vec<String> {
    for c in open.iter_mut() {
        c.send().expect("a request sent");
    }
    open.iter_mut().map(|c| c.receive().expect("an answer")).collect()
}

/// Clients on four queues share one scheduler: rr stays exact.
#[test]
fn rr_is_exact_over_several_queues() {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_queues(Mode::Nat, 4);
    lab.start_nginx();
    lab.start_lvsd();
    for family in Family::BOTH {
        let vip = lab.vip_port(family, 8080);
        lab.service("-t", vip, "rr", [1, 1, 1], 8080);
        let mut open = many(&lab.client, vip, 300);
        let names = ask_all(&mut open);
        spread::counts(&names, &[("s1", 100), ("s2", 100), ("s3", 100)]).expect("rr's shares");
    }
}

matrix!(the_director_is_a_server_too);
/// Local node: one of the servers is the director itself, and gets its share by its own stack.
fn the_director_is_a_server_too(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(mode);
    let _local = crate::servers::Nginx::start(&lab.director, "director", lab.dir.join("director"));
    lab.start_lvsd();
    let vip = lab.vip_port(family, 80);
    lab.d().ctl_ok(&format!("-A -t {vip} -s rr"));
    let local = SocketAddr::new(lab.dip(family), 80);
    lab.d().ctl_ok(&format!("-a -t {vip} -r {local} -g"));
    for s in &lab.servers[..2] {
        let rip = SocketAddr::new(lab.rip(family, s.number), 80);
        lab.d().ctl_ok(&format!("-a -t {vip} -r {rip} {}", mode.flag()));
    }
    spread::sequence(&curl(&lab.client, vip, 30), &["s2", "s1", "director"]).expect("rr's sequence");
    assert_eq!(lab.d().connections_ever(&format!("-t {vip}"), local), 10);
}

/// NAT changes ports too, and two services may share servers.
#[test]
fn nat_translates_ports() {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(Mode::Nat);
    lab.start_lvsd();
    for family in Family::BOTH {
        let (vip, other) = (lab.vip_port(family, 8000), lab.vip_port(family, 9000));
        lab.service("-t", vip, "rr", [1, 1, 1], 80);
        lab.service("-t", other, "rr", [1, 1, 1], 8080);
        spread::sequence(&curl(&lab.client, vip, 9), &spread::RR).expect("rr's sequence");
        spread::sequence(&curl(&lab.client, other, 1), &spread::RR).expect("rr's sequence");
        let seen = lab.d().connections();
        let has =
            |virt: u16, dest: u16| seen.iter().any(|c| c.virt.port() == virt && c.destination.port() == dest);
        assert!(has(8000, 80) && has(9000, 8080), "{seen:?}");
    }
}
