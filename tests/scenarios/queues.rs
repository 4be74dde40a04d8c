//! Devices with four queues, as NICs have them, and four workers: a flow's two directions arrive on different queues of different
//! interfaces, and are judged by different workers. Nothing is misrouted, and nothing overtakes inside a flow.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::bulk::{SINK, both_ways, offer, sinks};
use crate::client::{curl, udp};
use crate::lab::{Family, Lab, Mode};
use crate::netns::Netns;
use crate::{probe, spread};

const QUEUES: u32 = 4;
const PORT: u16 = 5353;
/// Flows, datagrams that each has under way at once, and how often. All of it fits the sockets' buffers and the queues.
const FLOWS: usize = 24;
const BURST: u64 = 8;
const ROUNDS: u64 = 100;

/// What a server has seen of its clients.
#[derive(Default)]
struct Seen {
    /// The last number of each client.
    last: BTreeMap<SocketAddr, u64>,
    /// Numbers that came after a larger one, or twice.
    late: Vec<(SocketAddr, u64)>,
}

/// Answers a number with its name and the number, and notes in which order they come.
struct Noting {
    seen: Arc<Mutex<Seen>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Noting {
    fn start(ns: &Netns, number: u8, address: IpAddr) -> Noting {
        let socket = ns.run(|| UdpSocket::bind(SocketAddr::new(address, PORT))).expect("a port to listen on");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
        let (seen, stop) = (Arc::new(Mutex::new(Seen::default())), Arc::new(AtomicBool::new(false)));
        let (s, end) = (seen.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while !end.load(Ordering::Relaxed) {
                let Ok((8, from)) = socket.recv_from(&mut buffer) else { continue };
                let n = u64::from_be_bytes(*buffer.first_chunk().expect("eight bytes"));
                let mut seen = s.lock().expect("no panic under the lock");
                if seen.last.insert(from, n).is_some_and(|last| last >= n) {
                    seen.late.push((from, n));
                }
                buffer[8] = number;
                // A reply that cannot be sent is one that does not arrive, which the client checks.
                let _ = socket.send_to(&buffer[..9], from);
            }
        });
        Noting { seen, stop, thread: Some(thread) }
    }
}

impl Drop for Noting {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

/// A lab like machines with NICs: what arrives on a queue is taken from it in order, by NAPI. (veth does that where its receiving
/// end does GRO and the sending end has no super-packets; else it hands packets to whatever processor the sender runs on.)
fn lab() -> Lab {
    let lab = Lab::with_queues(Mode::Nat, QUEUES);
    let like_a_nic = |ns: &Netns, dev: &str| drop(ns.sh(&format!("ethtool -K {dev} gro on tso off")));
    like_a_nic(&lab.client, "c0");
    for dev in lab.director_devs() {
        like_a_nic(&lab.director, dev);
    }
    for port in ["dir", "s1", "s2", "s3"] {
        like_a_nic(&lab.lan, port);
    }
    for s in &lab.servers {
        like_a_nic(&s.ns, "s0");
    }
    lab
}

/// Queues of a device on which packets have arrived.
fn busy_queues(ns: &Netns, dev: &str) -> usize {
    let text = ns.sh(&format!("ethtool -S {dev}"));
    let counts =
        text.lines().filter_map(|l| l.trim().strip_prefix("rx_queue_")?.split_once("_xdp_packets: "));
    counts.filter(|(_, n)| n.trim() != "0").count()
}

/// Sends numbers in bursts on all flows at once; each answer must come from the flow's server, in order and once.
fn flows(ns: &Netns, to: SocketAddr) -> BTreeMap<SocketAddr, u8> {
    let sockets: Vec<UdpSocket> = (0..FLOWS).map(|_| udp(ns, to)).collect();
    let mut server: Vec<Option<u8>> = vec![None; FLOWS];
    for round in 0..ROUNDS {
        let numbers = round * BURST..(round + 1) * BURST;
        for n in numbers.clone() {
            for socket in &sockets {
                socket.send(&n.to_be_bytes()).expect("sent");
            }
        }
        for (socket, server) in sockets.iter().zip(&mut server) {
            for n in numbers.clone() {
                let mut answer = [0; 16];
                let len = socket.recv(&mut answer).unwrap_or_else(|e| panic!("no answer to {n}: {e}"));
                assert_eq!((len, &answer[..8]), (9, &n.to_be_bytes()[..]), "an answer out of order");
                assert_eq!(*server.get_or_insert(answer[8]), answer[8], "a flow with two servers");
            }
        }
    }
    let addresses = sockets.iter().map(|s| s.local_addr().expect("an address"));
    addresses.zip(server.into_iter().flatten()).collect()
}

#[test]
fn datagrams_stay_in_order_v4() {
    datagrams_stay_in_order(Family::V4);
}

#[test]
fn datagrams_stay_in_order_v6() {
    datagrams_stay_in_order(Family::V6);
}

fn datagrams_stay_in_order(family: Family) {
    if !probe::ready() {
        return;
    }
    let mut lab = lab();
    let servers: Vec<Noting> =
        lab.servers.iter().map(|s| Noting::start(&s.ns, s.number as u8, lab.rip(family, s.number))).collect();
    lab.start_lvsd_with(&["--workers", "4"]);
    let vip = lab.vip_port(family, PORT);
    lab.service("-u", vip, "rr", [1, 1, 1], PORT);
    lab.acquaint(family);

    let served = flows(&lab.client, vip);

    assert_eq!(served.len(), FLOWS);
    for (server, number) in servers.iter().zip(1..) {
        let seen = server.seen.lock().expect("no panic under the lock");
        assert_eq!(seen.late, [], "s{number} got datagrams out of order");
        let theirs: BTreeSet<SocketAddr> =
            served.iter().filter(|(_, s)| **s == number).map(|(client, _)| *client).collect();
        assert_eq!(
            seen.last.keys().copied().collect::<BTreeSet<_>>(),
            theirs,
            "s{number} serves whom it should"
        );
        assert!(seen.last.values().all(|last| *last == ROUNDS * BURST - 1));
    }
    for dev in lab.director_devs() {
        let busy = busy_queues(&lab.director, dev);
        assert!(busy >= 2, "{dev}: {busy} of {QUEUES} queues were used: the test is not what it should be");
    }
}

/// Transfers both ways at once, and exact shares.
#[test]
fn transfers_arrive_whole() {
    if !probe::ready() {
        return;
    }
    let mut lab = lab();
    lab.start_nginx();
    let big = offer(&lab, 30_000_000);
    let _sinks = sinks(&lab);
    lab.start_lvsd_with(&["--workers", "4"]);
    for family in Family::BOTH {
        let (vip, sink) = (lab.vip_port(family, 80), lab.vip_port(family, SINK));
        lab.service("-t", vip, "rr", [1, 1, 1], 80);
        lab.service("-t", sink, "rr", [1, 1, 1], SINK);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| both_ways(&lab.client, vip, sink, &big).expect("the file, whole"));
            }
        });
        let names = curl(&lab.client, vip, 60);
        spread::counts(&names, &[("s1", 20), ("s2", 20), ("s3", 20)]).expect("rr's shares");
    }
}
