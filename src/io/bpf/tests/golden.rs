//! The tier's programs against the recorded frames (`tests/golden/d-packets.txt`), each connection marked as theirs: what they forward are
//! the recording's bytes.

#[path = "../../../../tests/core/frames.rs"]
#[allow(dead_code, unreachable_pub)]
mod frames;
#[path = "../../../../tests/core/golden.rs"]
#[allow(dead_code, unreachable_pub)]
mod recorded;
#[path = "../../../../tests/core/rig.rs"]
#[allow(dead_code, unreachable_pub)]
mod rig;

use std::collections::BTreeMap;

use recorded::{Line, SECTIONS, command, section, without_noise};
use rig::{C0_MAC, PORTS, Rig, S0_MAC};

use super::*;
use crate::conn::Tuple;
use crate::route::Routes;
use crate::time::Now;

const LO: u32 = 1;
/// Flags `MOVED` of both directions, and TCP's state ESTABLISHED (`src/engine/tier.rs`, `tcp.rs`).
const MOVED: u32 = 1 << 24 | 1 << 27;
const ESTABLISHED: u8 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Face {
    Skb,
    Xdp,
}

struct Both {
    tables: BpfTables,
    rig: Rig,
}

impl Both {
    fn new() -> Both {
        let config = rig::config(4096);
        let tables = BpfTables::with_tier(TableShape::of(&config), 0x1234_5678, &testnet::plan()).unwrap();
        tables.load_xdp().unwrap();
        // the programs run on the loopback device, for both ports
        tables.set_macs(&[(LO, C0_MAC), (LO, S0_MAC)]);
        tables.set_xdp_port(LO, XdpPortLine { mac: C0_MAC, generic: false, place: 0 }).unwrap();
        let tier = tables.tier().unwrap();
        let (hops, memory) = (tier.hops().unwrap(), tier.memory().unwrap());
        for (port, _) in PORTS {
            tier.set_port(port, LO).unwrap();
        }
        let now = Now::from_secs(1_000_000);
        let rig = Rig::within(
            ConnTable::with_memory(config, tables.memory().unwrap(), now.tick()).unwrap(),
            Routes::within(&PORTS, hops).unwrap(),
            Some(memory),
            now,
        );
        Both { tables, rig }
    }

    /// What a program sends for a frame, if it forwards it.
    fn tier(&self, face: Face, bytes: &[u8]) -> Option<Vec<u8>> {
        let programs = self.tables.programs();
        let mut out = vec![0; bytes.len() + 64];
        let options =
            TestRunOptions { data_in: Some(bytes), data_out: Some(&mut out), ..TestRunOptions::new() };
        let (ran, redirect) = match face {
            Face::Skb => match programs.program("lvsd_tier_ingress") {
                Some(Program::SchedClassifier(p)) => (p.test_run(options).unwrap(), 7),
                _ => panic!("no program"),
            },
            Face::Xdp => match programs.program("lvsd_tier_xdp") {
                Some(Program::Xdp(p)) => (p.test_run(options).unwrap(), 4),
                _ => panic!("no program"),
            },
        };
        out.truncate(ran.data_size_out as usize);
        (ran.return_value == redirect).then_some(out)
    }

    /// The same of a frame whose connection, if it has one, is the tier's meanwhile.
    fn tier_with_mark(&self, face: Face, bytes: &[u8]) -> Option<Vec<u8>> {
        let marked = modes::packet::parse(bytes).ok().filter(|p| p.l3 == 14).and_then(|p| {
            let t = Tuple {
                family: p.family,
                proto: p.proto,
                src: p.src,
                dst: p.dst,
                sport: p.sport,
                dport: p.dport,
            };
            let table = &self.rig.director.table;
            table.lookup(table.hash(&t), &t).map(|(conn, _)| (conn, p.proto))
        });
        let Some((conn, proto)) = marked else { return self.tier(face, bytes) };
        let before = conn.word();
        let state = if proto == modes::packet::proto::TCP { ESTABLISHED } else { before.state() };
        conn.try_set(before, state, before.flags() | MOVED).unwrap();
        let sent = self.tier(face, bytes);
        conn.try_set(conn.word(), before.state(), before.flags()).unwrap();
        sent
    }
}

/// How many rows of each section a program forwards.
fn compare(face: Face) -> BTreeMap<&'static str, usize> {
    let mut forwarded = BTreeMap::new();
    for name in SECTIONS {
        let mut both = Both::new();
        for line in section(name) {
            both.rig.advance_ms(1);
            match line {
                Line::Command(c) => command(&mut both.rig, &c),
                Line::Row { label, port, frame, out, .. } => {
                    // the core first: it makes the connection
                    both.rig.frame(port, &frame);
                    let Some(sent) = both.tier_with_mark(face, &frame) else { continue };
                    let [(_, want)] = &out[..] else {
                        panic!(
                            "{face:?}, {name}, {label}: forwarded, where {} frames were recorded",
                            out.len()
                        )
                    };
                    assert_eq!(
                        without_noise(&sent),
                        without_noise(want),
                        "{face:?}, {name}, {label}\nin   {frame:02x?}\nsent {sent:02x?}\nwant {want:02x?}"
                    );
                    *forwarded.entry(name).or_default() += 1;
                }
            }
        }
    }
    forwarded
}

/// Most recorded rows begin a connection or are odd, and go up. Those that do not are known by number, so that none is lost unseen.
#[test]
fn recorded_frames_come_out_of_the_tier_the_same() {
    if testnet::cannot() {
        return;
    }
    let expected: BTreeMap<&str, usize> = [
        ("IPv4 NAT", 9),
        ("IPv4 DR", 6),
        ("IPv4 TUN ipip", 5),
        ("IPv4 TUN gre", 5),
        ("IPv4 TUN gre csum", 5),
        ("IPv4 TUN ipip, server of the other family", 5),
        ("IPv4 TUN gre, server of the other family", 5),
        ("IPv6 NAT", 8),
        ("IPv6 DR", 4),
        ("IPv6 TUN ipip", 4),
        ("IPv6 TUN gre", 4),
        ("IPv6 TUN gre csum", 4),
        ("IPv6 TUN ipip, server of the other family", 4),
        ("IPv6 TUN gre, server of the other family", 4),
        ("IPv4 ICMP errors", 6),
        ("IPv6 ICMP errors", 9),
    ]
    .into();
    for face in [Face::Skb, Face::Xdp] {
        assert_eq!(compare(face), expected, "{face:?}");
    }
}
