//! What operators met with directors of this kind ("field cases"), with the right outcome, in virtual time.
//!
//! Addresses are those of the rig. The parts of a case that need a real network are in `tests/scenarios`.

use std::net::IpAddr;

use ipvs_netlink::{Backend, ConnEntry, Timeouts};
use lvsd::engine::{Count, Gso, Reason, RxChecksum};

use super::frames::*;
use super::rig::{C0, C0_MAC, Event, GW_MAC, Rig, S0, S0_MAC, neighbour, server_mac};

const VIP: &str = "10.0.0.1";
const CLIENT: &str = "10.2.0.1";

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn to_vip(sport: u16, flags: u8, data: &[u8]) -> Vec<u8> {
    tcp(&Ip::new(ip(CLIENT), ip(VIP)), sport, 80, flags, data)
}

fn from_real(k: u8, dport: u16, flags: u8) -> Vec<u8> {
    tcp(&Ip::new(ip(&format!("10.1.0.{k}")), ip(CLIENT)), 80, dport, flags, b"")
}

/// Two NAT servers behind VIP:80 by rr; the first connection goes to server 2, the newest.
fn two_servers(method: &str) -> Rig {
    let mut rig = Rig::golden();
    rig.cli("-A -t 10.0.0.1:80 -s rr");
    for k in 1..=2 {
        rig.cli(&format!("-a -t 10.0.0.1:80 -r 10.1.0.{k}:80 {method} -w 1"));
    }
    rig
}

/// The server that a client's segment was sent to, told by its MAC.
#[track_caller]
fn server(event: Event) -> u8 {
    match event {
        Event::Out(f) if f.len() == 1 && f[0].0 == S0 => f[0].1[5],
        e => panic!("not forwarded: {e:?}"),
    }
}

#[track_caller]
fn establish(rig: &mut Rig, sport: u16) -> u8 {
    let k = server(rig.client(&to_vip(sport, SYN, b"")));
    assert!(matches!(rig.server(k, &from_real(k, sport, SYN | ACK)), Event::Out(_)));
    assert_eq!(server(rig.client(&to_vip(sport, ACK, b""))), k);
    k
}

fn conns(rig: &Rig) -> Vec<ConnEntry> {
    rig.director.conns(0, 1000).0
}

fn counts(rig: &Rig) -> Vec<(u32, u32)> {
    rig.dests("-t 10.0.0.1:80").iter().map(|d| (d.active, d.inactive)).collect()
}

fn port_unreachable(event: &Event) -> bool {
    matches!(event, Event::Out(f) if f.len() == 1 && f[0].0 == C0 && f[0].1[23] == 1 && f[0].1[34..36] == [3, 3])
}

/// Case 3: the server of an open connection is deleted.
#[test]
fn deleted_server_keeps_its_entries() {
    let mut rig = two_servers("-m");
    let k = establish(&mut rig, 40001);
    rig.cli(&format!("-d -t 10.0.0.1:80 -r 10.1.0.{k}:80"));
    assert_eq!(rig.client(&to_vip(40001, PSH | ACK, b"x")), Event::Drop(Reason::DestinationGone));
    assert_eq!(conns(&rig)[0].state, "ESTABLISHED");
    // (c) The server comes back: the connection goes on there, and counts there again.
    rig.advance(20);
    rig.cli(&format!("-a -t 10.0.0.1:80 -r 10.1.0.{k}:80 -m -w 1"));
    assert_eq!(server(rig.client(&to_vip(40001, PSH | ACK, b"x"))), k);
    assert_eq!(counts(&rig)[usize::from(k) - 1], (1, 0));
}

/// Case 3 (b): with `expire_nodest_conn` the entry goes at the first packet. The director's stack, which owns the virtual address,
/// answers the segment by a RST; a SYN is scheduled anew.
#[test]
fn deleted_server_expires_its_entries_when_told_to() {
    let mut rig = two_servers("-m");
    rig.director.sysctls.set("expire_nodest_conn", "1").unwrap();
    let k = establish(&mut rig, 40001);
    rig.cli(&format!("-d -t 10.0.0.1:80 -r 10.1.0.{k}:80"));
    assert_eq!(rig.client(&to_vip(40001, PSH | ACK, b"x")), Event::Pass);
    assert_eq!(conns(&rig), []);
    let other = server(rig.client(&to_vip(40001, SYN, b"")));
    assert_ne!(other, k);
}

/// Case 5: weight 0 keeps new connections away and lets the old ones live.
#[test]
fn weight_0_does_not_end_connections() {
    for family in ["v4", "v6"] {
        let mut rig = two_servers("-m");
        let k = establish(&mut rig, 40002);
        rig.cli(&format!("-e -t 10.0.0.1:80 -r 10.1.0.{k}:80 -m -w 0"));
        for _ in 0..20 {
            rig.advance(60);
            assert!(conns(&rig)[0].expires <= 840, "{family}");
            assert_eq!(server(rig.client(&to_vip(40002, PSH | ACK, b"x"))), k);
            assert!(conns(&rig)[0].expires >= 899, "{:?}", conns(&rig));
        }
        for sport in 40003..40008 {
            assert_ne!(server(rig.client(&to_vip(sport, SYN, b""))), k);
        }
        let drained = &rig.dests("-t 10.0.0.1:80")[usize::from(k) - 1];
        assert_eq!((drained.dest.weight, drained.active), (0, 1));
    }
}

/// Case 7: idle for longer than the TCP timeout.
#[test]
fn idle_beyond_the_timeout() {
    for (set, idle, lives) in [(0, 899, true), (0, 901, false), (7200, 901, true), (7200, 7201, false)] {
        let mut rig = two_servers("-m");
        rig.director.set_timeouts(Timeouts { tcp: set, tcp_fin: 0, udp: 0 }).unwrap();
        let k = establish(&mut rig, 40010);
        rig.advance(idle);
        let got = rig.client(&to_vip(40010, PSH | ACK, b"x"));
        if lives {
            assert_eq!(server(got), k, "{set} {idle}");
        } else {
            // To the stack that owns the address: it answers by a RST, and no server sees the segment.
            assert_eq!(got, Event::Pass, "{set} {idle}");
            assert_eq!(counts(&rig), [(0, 0), (0, 0)]);
        }
    }
    let rig = two_servers("-m");
    rig.director.set_timeouts(Timeouts { tcp: 7200, tcp_fin: 0, udp: 0 }).unwrap();
    assert_eq!(rig.director.timeouts(), Timeouts { tcp: 7200, tcp_fin: 120, udp: 300 });
}

/// A new value of `--set` reaches an open connection at its next packet (case 48's rule, needed by case 7).
#[test]
fn set_reaches_open_connections_at_their_next_packet() {
    let mut rig = two_servers("-m");
    establish(&mut rig, 40011);
    rig.director.set_timeouts(Timeouts { tcp: 300, tcp_fin: 0, udp: 0 }).unwrap();
    rig.advance(400);
    assert_eq!(conns(&rig).len(), 1);
    rig.client(&to_vip(40011, ACK, b""));
    assert!((299..=300).contains(&conns(&rig)[0].expires), "{:?}", conns(&rig));
    rig.advance(301);
    assert_eq!(conns(&rig), []);
}

/// Puts the pseudo-header's sum, folded and not complemented, into a TCP segment: what a sender with checksum offload leaves.
fn make_partial(packet: &mut [u8], src: IpAddr, dst: IpAddr) {
    let header = if packet[0] >> 4 == 4 { 20 } else { 40 };
    let s = sum(&Ip::new(src, dst).pseudo(6, packet.len() - header));
    packet[header + 16..header + 18].copy_from_slice(&s.to_be_bytes());
}

/// Case 15: a partial checksum stays one, for the new addresses; a complete one stays right.
#[test]
fn partial_checksums_follow_the_addresses() {
    let pairs = [("10.2.0.1", "10.0.0.1", "10.1.0.1"), ("2001:db8:2::1", "2001:db8::1", "2001:db8:1::1")];
    for (client, vip, real) in pairs {
        let mut rig = Rig::golden();
        let v = if vip.contains(':') { format!("[{vip}]") } else { vip.to_owned() };
        let r = if real.contains(':') { format!("[{real}]") } else { real.to_owned() };
        rig.cli(&format!("-A -t {v}:80 -s rr"));
        rig.cli(&format!("-a -t {v}:80 -r {r}:8080 -m"));
        let (client, vip, real) = (ip(client), ip(vip), ip(real));
        let complete = tcp(&Ip::new(client, vip), 40000, 80, SYN, b"");
        let Event::Out(out) = rig.client(&complete) else { panic!() };
        assert!(checksums_ok(&out[0].1));

        let mut partial = tcp(&Ip::new(client, vip), 40000, 80, PSH | ACK, b"hello");
        make_partial(&mut partial, client, vip);
        let frame = ethernet(C0_MAC, GW_MAC, &partial);
        let Event::Out(out) = rig.frame_with(C0, &frame, RxChecksum::Partial, None) else { panic!() };
        let mut want = tcp(&Ip::new(client, real), 40000, 8080, PSH | ACK, b"hello");
        make_partial(&mut want, client, real);
        let at = if client.is_ipv4() { 14 + 36 } else { 14 + 56 };
        assert_eq!(out[0].1[at..at + 2], want[at - 14..at - 12]);

        let mut back = tcp(&Ip::new(real, client), 8080, 40000, ACK, b"answer");
        make_partial(&mut back, real, client);
        let frame = ethernet(S0_MAC, server_mac(1), &back);
        let Event::Out(out) = rig.frame_with(S0, &frame, RxChecksum::Partial, None) else { panic!() };
        let mut want = tcp(&Ip::new(vip, client), 80, 40000, ACK, b"answer");
        make_partial(&mut want, vip, client);
        assert_eq!(out[0].1[at..at + 2], want[at - 14..at - 12]);
    }
}

/// Case 17: a super-packet passes whole where its segments fit the MTU, and counts as its segments; its client gets no ICMP.
#[test]
fn super_packets_pass_whole() {
    for method in ["-m", "-g"] {
        let mut rig = two_servers(method);
        let k = server(rig.client(&to_vip(40020, SYN, b"")));
        rig.client(&to_vip(40020, ACK, b""));
        let before = rig.dests("-t 10.0.0.1:80")[usize::from(k) - 1].stats;
        let data = vec![7; 20 * 1460];
        let mut big = to_vip(40020, PSH | ACK, &data);
        make_partial(&mut big, ip(CLIENT), ip(VIP));
        let frame = ethernet(C0_MAC, GW_MAC, &big);
        let out = rig.frame_with(C0, &frame, RxChecksum::Partial, Some(Gso { size: 1460, guessed: false }));
        let Event::Out(f) = &out else { panic!("{out:?}") };
        assert_eq!((f.len(), f[0].0, f[0].1.len()), (1, S0, frame.len()));
        let after = rig.dests("-t 10.0.0.1:80")[usize::from(k) - 1].stats;
        assert_eq!((after.in_pkts - before.in_pkts, after.in_bytes - before.in_bytes), (20, 20 * 1500));
        // Segments that do not fit are refused as a router would.
        let out = rig.frame_with(C0, &frame, RxChecksum::Partial, Some(Gso { size: 1461, guessed: false }));
        assert!(matches!(&out, Event::Out(f) if f[0].0 == C0 && f[0].1[34..36] == [3, 4]), "{out:?}");
        // But if their size is only a guess, they are made to fit: the sender may know already.
        let notes = (RxChecksum::Partial, Some(Gso { size: 9000, guessed: true }));
        let (out, (_, gso)) = rig.frame_behind(64, C0, &frame, notes);
        assert!(matches!(&out, Event::Out(f) if f[0].0 == S0 && f[0].1.len() == frame.len()), "{out:?}");
        assert_eq!(gso.map(|g| g.size), Some(1460));
    }
}

/// A super-packet that GRO made as a list of segments has the first segment's checksum, and leaves with a partial one.
#[test]
fn super_packets_of_lists_leave_with_a_partial_checksum() {
    for (method, to) in [("-m", "10.1.0.2"), ("-g", VIP)] {
        for (checksum, stale) in [(RxChecksum::Complete, [0x12, 0x34]), (RxChecksum::Partial, [0x56, 0x78])] {
            let mut rig = two_servers(method);
            assert_eq!(server(rig.client(&to_vip(40030, SYN, b""))), 2);
            let mut big = to_vip(40030, PSH | ACK, &vec![7; 20 * 1460]);
            big[36..38].copy_from_slice(&stale);
            let frame = ethernet(C0_MAC, GW_MAC, &big);
            let Event::Out(f) =
                rig.frame_with(C0, &frame, checksum, Some(Gso { size: 1460, guessed: false }))
            else {
                panic!("not forwarded")
            };
            make_partial(&mut big, ip(CLIENT), ip(to));
            assert_eq!(f[0].1[50..52], big[36..38], "{method} {checksum:?}");
        }
    }
}

/// Case 19: connections of which the director sees half.
#[test]
fn half_visible_connections() {
    for method in ["-m", "-g"] {
        let mut rig = two_servers(method);
        let k = server(rig.client(&to_vip(40030, SYN, b"")));
        for wait in [1, 2, 4] {
            rig.advance(wait);
            assert_eq!(server(rig.client(&to_vip(40030, SYN, b""))), k);
            let list = conns(&rig);
            assert_eq!((list.len(), list[0].state.as_str()), (1, "SYN_RECV"));
        }
        // IPVS counts a half-open connection as active.
        assert_eq!(counts(&rig).iter().map(|c| c.0 + c.1).sum::<u32>(), 1);
        rig.advance(59);
        assert_eq!(conns(&rig).len(), 1);
        rig.advance(2);
        assert_eq!(conns(&rig), []);
        assert_eq!(counts(&rig), [(0, 0), (0, 0)]);
    }
}

/// Case 36 (a): a server's new MAC holds for the next packet of every connection.
#[test]
fn changed_mac_takes_effect_at_once() {
    for method in ["-m", "-g"] {
        let mut rig = two_servers(method);
        let k = server(rig.client(&to_vip(40040, SYN, b"")));
        let new = [2, 0, 0, 0, 9, k];
        rig.apply(neighbour(3, &format!("10.1.0.{k}"), Some(new)));
        let Event::Out(f) = rig.client(&to_vip(40040, ACK, b"")) else { panic!() };
        assert_eq!(f[0].1[..6], new);
    }
}

/// An unknown MAC: a few frames wait, the rest is counted, and they go out once it is known.
#[test]
fn frames_wait_for_their_next_hop() {
    let mut rig = two_servers("-g");
    rig.cli("-d -t 10.0.0.1:80 -r 10.1.0.1:80");
    rig.apply(neighbour(3, "10.1.0.2", None));
    for sport in 0..16 {
        assert_eq!(rig.client(&to_vip(41000 + sport, SYN, b"")), Event::Queued);
    }
    assert_eq!(rig.client(&to_vip(41100, SYN, b"")), Event::Drop(Reason::NextHopQueueFull));
    rig.apply(neighbour(3, "10.1.0.2", Some([2, 0, 0, 0, 9, 9])));
    rig.advance_ms(10);
    let out = rig.outbox();
    assert_eq!(out.len(), 16);
    assert!(out.iter().all(|(p, f)| *p == S0 && f[..6] == [2, 0, 0, 0, 9, 9] && f[6..12] == S0_MAC));
    // Nobody answers: given up after three seconds, and counted.
    rig.apply(neighbour(3, "10.1.0.2", None));
    assert_eq!(rig.client(&to_vip(41200, SYN, b"")), Event::Queued);
    rig.advance(4);
    assert_eq!(rig.dropped(Reason::NextHopUnresolved), 1);
    assert_eq!(rig.outbox(), []);
}

fn record(rig: &mut Rig, base: u16) -> Vec<Option<u8>> {
    (0..1000u16)
        .map(|i| {
            let client = IpAddr::from([10, 2, (i >> 4) as u8, (i % 16 * 13 + 1) as u8]);
            let packet = tcp(&Ip::new(client, ip(VIP)), base, 80, SYN, b"");
            match rig.client(&packet) {
                Event::Out(f) if f.first().is_some_and(|f| f.0 == S0) => Some(f[0].1[5]),
                _ => None,
            }
        })
        .collect()
}

/// Case 40: `mh` with weight 0, without servers, with one.
#[test]
fn mh_with_weight_0_and_without_servers() {
    for fallback in [false, true] {
        let mut rig = Rig::with_limit(100_000);
        rig.cli(&format!("-A -t 10.0.0.1:80 -s mh{}", if fallback { " -b mh-fallback" } else { "" }));
        assert!(record(&mut rig, 1000).iter().all(Option::is_none), "no server");
        for (k, w) in [(1, 1), (2, 1), (3, 2)] {
            rig.cli(&format!("-a -t 10.0.0.1:80 -r 10.1.0.{k}:80 -g -w {w}"));
        }
        let all = record(&mut rig, 1001);
        let share = |k| all.iter().filter(|s| **s == Some(k)).count();
        assert!(
            (200..300).contains(&share(1))
                && (200..300).contains(&share(2))
                && (430..570).contains(&share(3))
        );
        rig.cli("-e -t 10.0.0.1:80 -r 10.1.0.2:80 -g -w 0");
        for (old, new) in all.iter().zip(record(&mut rig, 1002)) {
            match (old, fallback) {
                (Some(2), false) => assert_eq!(new, None),
                (Some(2), true) => assert!(matches!(new, Some(1 | 3))),
                _ => assert_eq!(*old, new),
            }
        }
        rig.cli("-e -t 10.0.0.1:80 -r 10.1.0.2:80 -g -w 1");
        assert_eq!(all, record(&mut rig, 1003));
        rig.cli("-d -t 10.0.0.1:80 -r 10.1.0.2:80");
        let without = record(&mut rig, 1004);
        let moved = all.iter().zip(&without).filter(|(o, n)| **o != Some(2) && o != n).count();
        assert!(moved < 50, "{moved}");
        for k in [1, 3] {
            rig.cli(&format!("-e -t 10.0.0.1:80 -r 10.1.0.{k}:80 -g -w 0"));
        }
        assert!(record(&mut rig, 1005).iter().all(Option::is_none), "all at 0");
        rig.cli("-d -t 10.0.0.1:80 -r 10.1.0.1:80");
        rig.cli("-e -t 10.0.0.1:80 -r 10.1.0.3:80 -g -w 1");
        assert!(record(&mut rig, 1006).iter().all(|s| *s == Some(3)), "one server");
    }
}

fn close(rig: &mut Rig, sport: u16) {
    rig.client(&to_vip(sport, RST, b""));
    rig.advance(11);
}

/// Case 43: connection thresholds.
#[test]
fn thresholds() {
    let mut rig = Rig::golden();
    rig.cli("-A -t 10.0.0.1:80 -s rr");
    rig.cli("-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 1 -x 4");
    for sport in 0..4 {
        establish(&mut rig, 42000 + sport);
    }
    assert!(port_unreachable(&rig.client(&to_vip(42010, SYN, b""))), "full");
    close(&mut rig, 42000);
    assert!(port_unreachable(&rig.client(&to_vip(42011, SYN, b""))), "3 of 4: not below three quarters");
    close(&mut rig, 42001);
    assert_eq!(establish(&mut rig, 42012), 1, "2 of 4");
    assert_eq!(establish(&mut rig, 42013), 1);
    // Full again with 4; with a lower threshold of 2 it must fall to 1.
    rig.cli("-e -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 1 -x 4 -y 2");
    for (sport, refused) in [(42002, true), (42003, true), (42012, false)] {
        close(&mut rig, sport);
        let got = rig.client(&to_vip(sport + 1000, SYN, b""));
        assert_eq!(port_unreachable(&got), refused, "after {sport}: {got:?}");
    }
    for sport in 0..3 {
        let got = rig.client(&to_vip(42100 + sport, SYN, b""));
        assert_eq!(port_unreachable(&got), sport == 2, "{got:?}");
    }
    rig.cli("-e -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 1 -x 0");
    assert_eq!(server(rig.client(&to_vip(42200, SYN, b""))), 1, "lifted at once");
}

/// Case 43: never more than the threshold, whatever the number of workers.
#[test]
fn threshold_holds_for_all_workers_together() {
    use lvsd::conn::{Config, ConnTable};
    use lvsd::engine::{Director, Frame, FrameHandler, Worker};
    use std::sync::Arc;
    let rig = Rig::golden();
    let table = ConnTable::new(Config { max_v4: 4096, max_v6: 0, hash_key: [5, 6], shards: 8 }).unwrap();
    let director = Arc::new(Director::new(table, rig.director.routes.clone(), 8, 1).unwrap());
    let mut other =
        Rig { director: director.clone(), worker: Worker::new(director.clone(), 0), now: rig.now };
    other.cli("-A -t 10.0.0.1:80 -s rr");
    other.cli("-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 1 -x 100");
    other.cli("-a -t 10.0.0.1:80 -r 10.1.0.2:80 -m -w 1 -x 100");
    std::thread::scope(|scope| {
        for w in 0..8u16 {
            let mut worker = Worker::new(director.clone(), w.into());
            let now = rig.now;
            scope.spawn(move || {
                for sport in 0..200 {
                    let mut buf = ethernet(C0_MAC, GW_MAC, &to_vip(10_000 + w * 200 + sport, SYN, b""));
                    let end = buf.len();
                    let mut verdicts = Vec::new();
                    let frame = Frame {
                        buf: &mut buf,
                        start: 0,
                        end,
                        port: C0,
                        checksum: RxChecksum::Complete,
                        gso: None,
                    };
                    worker.batch(now, &mut [frame], &mut verdicts);
                }
            });
        }
    });
    assert_eq!(counts(&other), [(100, 0), (100, 0)]);
}

/// Case 45: every weight is 0; and it works again at the first packet once one is not.
#[test]
fn all_weights_0() {
    for scheduler in ["rr", "wrr", "lc", "wlc", "sed", "nq", "fo", "ovf", "sh", "dh", "mh", "maglev"] {
        for kind in ["-t", "-u"] {
            let mut rig = Rig::golden();
            rig.cli(&format!("-A {kind} 10.0.0.1:80 -s {scheduler}"));
            for k in 1..=2 {
                rig.cli(&format!("-a {kind} 10.0.0.1:80 -r 10.1.0.{k}:80 -m -w 0"));
            }
            let packet = match kind {
                "-t" => to_vip(43000, SYN, b""),
                _ => udp(&Ip::new(ip(CLIENT), ip(VIP)), 43000, 80, b"x"),
            };
            let got = rig.client(&packet);
            assert!(port_unreachable(&got), "{scheduler} {kind}: {got:?}");
            assert_eq!(conns(&rig), [], "{scheduler} {kind}");
            assert_eq!(rig.dropped(Reason::NoDestination), 1);
            for k in 1..=2 {
                rig.cli(&format!("-e {kind} 10.0.0.1:80 -r 10.1.0.{k}:80 -m -w 1"));
            }
            server(rig.client(&packet));
        }
    }
}

/// A server that calls its own virtual service and is balanced to itself: counted, never sent.
#[test]
fn hairpin_is_counted() {
    let mut rig = Rig::golden();
    rig.cli("-A -t 10.0.0.1:80 -s rr");
    rig.cli("-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 1");
    let packet = tcp(&Ip::new(ip("10.1.0.1"), ip(VIP)), 50000, 80, SYN, b"");
    assert_eq!(rig.server(1, &packet), Event::Drop(Reason::Hairpin));
}

/// A table that is full refuses new connections by name and lets the old ones go on.
#[test]
fn full_table() {
    let mut rig = Rig::with_limit(8);
    rig.cli("-A -t 10.0.0.1:80 -s rr");
    rig.cli("-a -t 10.0.0.1:80 -r 10.1.0.1:80 -m -w 1");
    for sport in 0..8 {
        establish(&mut rig, 44000 + sport);
    }
    assert_eq!(rig.client(&to_vip(44100, SYN, b"")), Event::Drop(Reason::TableFull));
    assert_eq!(counts(&rig), [(8, 0)]);
    assert_eq!(server(rig.client(&to_vip(44003, ACK, b"x"))), 1);
    rig.advance(901);
    assert_eq!(establish(&mut rig, 44100), 1);
}

/// A frame to another machine's MAC on a shared segment, and packets to what is not a service, are not ours.
#[test]
fn not_ours_is_passed() {
    let mut rig = two_servers("-m");
    let syn = to_vip(45000, SYN, b"");
    assert_eq!(rig.frame(C0, &ethernet([2, 0, 0, 0, 0, 0x77], GW_MAC, &syn)), Event::Pass);
    let ssh = tcp(&Ip::new(ip(CLIENT), ip("10.0.0.254")), 45001, 22, SYN, b"");
    assert_eq!(rig.client(&ssh), Event::Pass);
    let through = tcp(&Ip::new(ip(CLIENT), ip("10.1.0.1")), 45002, 80, SYN, b"");
    assert_eq!(rig.client(&through), Event::Pass);
    let back = tcp(&Ip::new(ip("10.1.0.1"), ip(CLIENT)), 80, 45002, SYN | ACK, b"");
    assert_eq!(rig.server(1, &back), Event::Pass);
    assert_eq!(conns(&rig), []);
}

/// Malformed frames of every kind are drops with a reason of their own.
#[test]
fn malformed_frames_are_counted() {
    let good = ethernet(C0_MAC, GW_MAC, &to_vip(46000, SYN, b""));
    let six = tcp(&Ip::new(ip("2001:db8:2::1"), ip("2001:db8::1")), 46000, 80, SYN, b"");
    let six = ethernet(C0_MAC, GW_MAC, &six);
    let with = |f: &[u8], at: usize, v: u8| {
        let mut f = f.to_vec();
        f[at] = v;
        f
    };
    // As `with`, but with the IPv4 header's checksum made right again.
    let resum = |mut f: Vec<u8>| {
        f[24..26].fill(0);
        let c = !sum(&f[14..34]);
        f[24..26].copy_from_slice(&c.to_be_bytes());
        f
    };
    let udp4 = ethernet(C0_MAC, GW_MAC, &udp(&Ip::new(ip(CLIENT), ip(VIP)), 1, 80, b"x"));
    let cases: Vec<(Vec<u8>, Reason)> = vec![
        (good[..10].to_vec(), Reason::FrameTooShort),
        (good[..30].to_vec(), Reason::Ipv4Truncated),
        (with(&good, 14, 0x55), Reason::Ipv4BadVersion),
        (with(&good, 14, 0x44), Reason::Ipv4BadHeaderLength),
        (resum(with(&good, 16, 9)), Reason::Ipv4BadTotalLength),
        (with(&good, 24, good[24] ^ 1), Reason::Ipv4BadChecksum),
        (six[..50].to_vec(), Reason::Ipv6Truncated),
        (with(&six, 14, 0x50), Reason::Ipv6BadVersion),
        (with(&six, 18, 9), Reason::Ipv6BadPayloadLength),
        (with(&good, 46, 0x40), Reason::TcpBadOffset),
        (with(&udp4, 38, 9), Reason::UdpBadLength),
    ];
    for (frame, reason) in cases {
        let mut rig = two_servers("-m");
        assert_eq!(rig.frame(C0, &frame), Event::Drop(reason));
        assert_eq!(rig.dropped(reason), 1);
        assert_eq!(rig.counted(Count::ConnNew), 0);
    }
}

/// Every reason and count has its sentence in the documentation.
#[test]
fn every_counter_is_documented() {
    let doc = include_str!("../../docs/counters.md");
    let names = Reason::ALL.iter().map(|r| r.name()).chain(Count::ALL.iter().map(|c| c.name()));
    let missing: Vec<&str> = names.filter(|n| !doc.contains(&format!("`{n}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
