//! Frames that Linux IPVS took in and gave out (`tests/golden/d-packets.txt`), reproduced byte for byte with this crate.
//!
//! What is decided here (which server, which answer) is as little as the rows need; the bytes are the crate's.

mod director;
mod rows;

use director::{Director, Outcome};

/// Rows that the kernel's own stack answers, or that translate an ICMP error.
const NOT_OURS: [&str; 2] = ["echo request to the VIP", "schedule_icmp=1: error about an unknown connection"];

/// Runs a section and answers how many rows were compared.
fn run(section: &str) -> usize {
    let mut director = Director::default();
    let mut compared = 0;
    for row in rows::section(section) {
        let (title, side, frame, expected) = match &row {
            rows::Row::Command(c) => {
                director.command(c);
                continue;
            }
            rows::Row::Frames { title, side, frame, out } => (title, *side, frame, out),
        };
        let mut outs = match director.frame(side, frame, expected.first().map(|e| &e.1[..])) {
            Outcome::Out(outs) => outs,
            Outcome::NotOurs => {
                assert!(NOT_OURS.contains(&&title[..]), "{section}: {title:?} was passed on");
                continue;
            }
        };
        assert_eq!(outs.len(), expected.len(), "{section}: {title}: number of frames");
        for (ours, theirs) in outs.iter_mut().zip(expected) {
            rows::copy_noise(&mut ours.1, &theirs.1);
            assert_eq!(ours.0, theirs.0, "{section}: {title}: side");
            assert_eq!(rows::hex(&ours.1), rows::hex(&theirs.1), "{section}: {title}");
        }
        compared += 1;
    }
    compared
}

#[test]
fn nat_v4() {
    assert_eq!(run("IPv4 NAT"), 36);
}

#[test]
fn direct_routing_v4() {
    assert_eq!(run("IPv4 DR"), 27);
}

#[test]
fn nat_v6() {
    assert_eq!(run("IPv6 NAT"), 28);
}

#[test]
fn direct_routing_v6() {
    assert_eq!(run("IPv6 DR"), 20);
}

#[test]
fn refusals_v4() {
    assert_eq!(run("IPv4 refusals"), 18);
}

#[test]
fn refusals_v6() {
    assert_eq!(run("IPv6 refusals"), 18);
}
