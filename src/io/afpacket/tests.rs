//! The port in namespaces of its own:
//!
//! ```text
//! client 10.9.0.2 (vc) ── (vd) 10.9.0.1 director 10.9.1.1 (vs) ── (vr) 10.9.1.2 server, with VIP 10.9.9.9 on lo
//! ```
//!
//! The director is also a plain router between the two; the VIP is routed to it by the client and by nobody else.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::ring::RxRing;
use super::*;
use crate::conn::{Config, ConnTable, NewConn};
use crate::engine::{Frame, Gso, Out, RxChecksum, Verdict};
use crate::io::TableShape;
use crate::io::testnet::{Net, cannot, until};
use crate::time::{Now, Tick, ticks};
use modes::{Addr, Family};

const VIP: &str = "10.9.9.9";
const CONFIG: Config = Config { max_v4: 1000, max_v6: 1000, hash_key: [3, 4], shards: 1 };

/// What handlers have seen.
#[derive(Default)]
struct Seen {
    frames: Vec<(PortId, Vec<u8>)>,
    by_worker: Vec<u64>,
    count: u64,
    gso: Option<Gso>,
    partial: u64,
}

/// Sends what comes in by port 0 to the server and what comes in by port 1 to the client, or passes everything.
struct Switch {
    worker: usize,
    pass: bool,
    /// (destination, source) of what goes out by each port
    macs: [([u8; 6], [u8; 6]); 2],
    seen: Arc<Mutex<Seen>>,
}

impl FrameHandler for Switch {
    fn batch(&mut self, _: Now, frames: &mut [Frame<'_>], verdicts: &mut Vec<Verdict>) {
        let mut seen = self.seen.lock().unwrap();
        for f in frames {
            seen.count += 1;
            seen.by_worker.resize(8, 0);
            seen.by_worker[self.worker] += 1;
            seen.gso = f.gso.max_by_size(seen.gso);
            seen.partial += u64::from(f.checksum == RxChecksum::Partial);
            if seen.frames.len() < 1000 {
                seen.frames.push((f.port, f.bytes()[..f.bytes().len().min(128)].to_vec()));
            }
            assert!(f.start >= 64, "head room {}", f.start);
            if self.pass {
                verdicts.push(Verdict::Pass);
                continue;
            }
            let out = 1 - f.port.0;
            let (to, from) = self.macs[usize::from(out)];
            f.bytes_mut()[..6].copy_from_slice(&to);
            f.bytes_mut()[6..12].copy_from_slice(&from);
            verdicts.push(Verdict::Forward(PortId(out)));
        }
    }
    fn drain_outbox(&mut self, _: &mut dyn FnMut(Out)) {}
    fn tick(&mut self, _: Now) {}
    fn next_deadline(&self, now: Now) -> Now {
        Now(now.0 + 1_000_000_000)
    }
}

trait MaxBySize {
    fn max_by_size(self, other: Self) -> Self;
}

impl MaxBySize for Option<Gso> {
    fn max_by_size(self, other: Self) -> Self {
        if self.map_or(0, |g| g.size) > other.map_or(0, |g| g.size) { self } else { other }
    }
}

struct Lab {
    client: Net,
    director: Net,
    server: Net,
    tables: Arc<BpfTables>,
    seen: Arc<Mutex<Seen>>,
}

impl Lab {
    fn new() -> Lab {
        let (client, director, server) = (Net::new(), Net::new(), Net::new());
        client.link(("vc", "10.9.0.2/24"), &director, ("vd", "10.9.0.1/24"));
        director.link(("vs", "10.9.1.1/24"), &server, ("vr", "10.9.1.2/24"));
        client.sh("ip route add default via 10.9.0.1");
        server.sh(&format!("ip route add default via 10.9.1.1; ip addr add {VIP}/32 dev lo"));
        director.sh("sysctl -qw net.ipv4.ip_forward=1");
        let tables = BpfTables::create(TableShape::of(&CONFIG), 0xa5a5_0001).unwrap();
        Lab { client, director, server, tables: Arc::new(tables), seen: Arc::default() }
    }

    fn config(workers: usize) -> AfPacketConfig {
        let ring = RingShape { frames: 2048 };
        let interfaces = vec![(PortId(0), "vd".into()), (PortId(1), "vs".into())];
        AfPacketConfig { ring, ..AfPacketConfig::new(interfaces, workers) }
    }

    fn service(&self, proto: u8, address: &str, port: u16) {
        self.tables.service_added(Family::V4, proto, addr(address), port);
    }

    fn start(&self, config: AfPacketConfig, pass: bool) -> Running {
        let macs = [
            (self.client.mac("vc"), self.director.mac("vd")),
            (self.server.mac("vr"), self.director.mac("vs")),
        ];
        let make = |worker| -> Box<dyn FrameHandler + Send> {
            Box::new(Switch { worker, pass, macs, seen: Arc::clone(&self.seen) })
        };
        self.director.run(|| start(config, &self.tables, make)).unwrap()
    }

    fn totals(running: &Running) -> QueueStats {
        let mut sum = QueueStats::default();
        for port in running.stats() {
            port.queues.iter().for_each(|q| sum += *q);
        }
        sum
    }
}

fn addr(text: &str) -> Addr {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

/// Bytes that a shifted, repeated or lost piece would change the sum of.
fn pattern(n: usize) -> Vec<u8> {
    (0..n as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

const BULK: usize = 20 << 20;

/// A server for one connection: takes in everything, then sends it back.
fn echo_once(net: &Net, address: &str) -> JoinHandle<()> {
    let listener = net.run(|| TcpListener::bind(address).unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut data = Vec::new();
        stream.read_to_end(&mut data).unwrap();
        stream.write_all(&data).unwrap();
    })
}

/// Sends bulk data to an echo server and compares what comes back.
fn upload_and_download(mut stream: TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    let data = pattern(BULK);
    stream.write_all(&data).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    assert!(data == back, "{} bytes came back of {}", back.len(), data.len());
}

fn connect(net: &Net, address: &str) -> TcpStream {
    net.run(|| TcpStream::connect_timeout(&address.parse().unwrap(), Duration::from_secs(10)).unwrap())
}

/// The link and qdisc state of the director's interfaces, without counters.
fn state(net: &Net) -> String {
    net.sh("ip -d link show; tc qdisc show; tc filter show dev vd ingress; tc filter show dev vd egress")
}

#[test]
fn super_packets_are_forwarded_both_ways() {
    if cannot() {
        return;
    }
    let lab = Lab::new();
    lab.service(6, VIP, 8000);
    // the replies are the ring's too: their connection is in the table
    let table = ConnTable::with_memory(CONFIG, lab.tables.memory().unwrap(), Tick(1)).unwrap();
    let before = state(&lab.director);
    let running = lab.start(Lab::config(1), false);
    let server = echo_once(&lab.server, "10.9.9.9:8000");
    let stream = lab.client.run(|| {
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
        let socket = socket.unwrap();
        let at = |text: &str| text.parse::<std::net::SocketAddrV4>().unwrap();
        rustix::net::bind(&socket, &at("10.9.0.2:4321")).unwrap();
        let new = NewConn {
            family: Family::V4,
            proto: 6,
            client: (addr("10.9.0.2"), 4321),
            virt: (addr(VIP), 1),
            real: (addr(VIP), 8000),
            dest: 1,
            method: 0,
            state: 1,
            flags: 0,
            timeout: ticks(60),
            template: None,
            fwmark: 0,
            index_out: true,
            is_template: false,
        };
        table.insert(Tick(1), &new).unwrap();
        rustix::net::connect(&socket, &at("10.9.9.9:8000")).unwrap();
        TcpStream::from(socket)
    });
    upload_and_download(stream);
    server.join().unwrap();

    let totals = Lab::totals(&running);
    assert_eq!((totals.rx_truncated, totals.tx_too_big, totals.tx_refused, totals.no_verdict), (0, 0, 0, 0));
    assert!(totals.tx_bytes as usize > 2 * BULK, "{totals:?}");
    {
        let seen = lab.seen.lock().unwrap();
        assert!(seen.gso.is_some() && seen.partial > 0, "no super-packet came by");
        assert!((seen.count as usize) < 2 * BULK / 1448, "{} frames: super-packets were cut", seen.count);
        for port in [0, 1] {
            assert!(seen.frames.iter().any(|(p, _)| *p == PortId(port)), "port {port} saw nothing");
        }
    }
    running.stop();
    assert_eq!(state(&lab.director), before);
}

fn passed_frames_reach_the_stack(hook: Hook) {
    let lab = Lab::new();
    // the director's own address: with every frame passed, its own listener answers
    lab.service(6, "10.9.0.1", 9000);
    let before = state(&lab.director);
    let running = lab.start(AfPacketConfig { hook, ..Lab::config(2) }, true);
    let server = echo_once(&lab.director, "10.9.0.1:9000");
    upload_and_download(connect(&lab.client, "10.9.0.1:9000"));
    server.join().unwrap();
    let totals = Lab::totals(&running);
    assert!(totals.passed > 0 && totals.passed == totals.rx_frames, "{totals:?}");
    assert_eq!((totals.tx_frames, totals.pass_dropped), (0, 0), "{totals:?}");
    let seen_before = lab.seen.lock().unwrap().count;
    assert_eq!(seen_before, totals.rx_frames, "each frame once");
    assert!(lab.seen.lock().unwrap().gso.is_some(), "no super-packet came by");

    // what is not ours goes on unseen: another port of the director, and the server through it as plain router
    let server = echo_once(&lab.director, "10.9.0.1:9001");
    upload_and_download(connect(&lab.client, "10.9.0.1:9001"));
    server.join().unwrap();
    let server = echo_once(&lab.server, "10.9.1.2:9000");
    upload_and_download(connect(&lab.client, "10.9.1.2:9000"));
    server.join().unwrap();
    assert_eq!(lab.seen.lock().unwrap().count, seen_before);
    running.stop();
    assert_eq!(state(&lab.director), before);
    // and with the port gone, nothing is taken any more
    let server = echo_once(&lab.director, "10.9.0.1:9000");
    upload_and_download(connect(&lab.client, "10.9.0.1:9000"));
    server.join().unwrap();
    assert_eq!(lab.seen.lock().unwrap().count, seen_before);
}

#[test]
fn passed_frames_reach_the_stack_with_tcx() {
    if !cannot() {
        passed_frames_reach_the_stack(Hook::Auto);
    }
}

#[test]
fn passed_frames_reach_the_stack_with_clsact() {
    if !cannot() {
        passed_frames_reach_the_stack(Hook::Clsact);
    }
}

#[test]
fn each_frame_has_one_worker() {
    if cannot() {
        return;
    }
    let lab = Lab::new();
    lab.service(17, VIP, 53);
    let running = lab.start(Lab::config(4), false);
    let server = lab.server.run(|| UdpSocket::bind("10.9.9.9:53").unwrap());
    server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut got = Vec::new();
    for i in 0..64u8 {
        let client = lab.client.run(|| UdpSocket::bind("10.9.0.2:0").unwrap());
        client.send_to(&[i], "10.9.9.9:53").unwrap();
    }
    let mut buf = [0; 64];
    for _ in 0..64 {
        let (n, _) = server.recv_from(&mut buf).unwrap();
        got.push(buf[..n][0]);
    }
    got.sort_unstable();
    assert!(got.iter().copied().eq(0..64), "{got:?}");
    let seen = lab.seen.lock().unwrap();
    assert_eq!(seen.count, 64);
    assert!(seen.by_worker.iter().filter(|&&n| n > 0).count() > 1, "{:?}", seen.by_worker);
    drop(seen);
    running.stop();
}

/// An Ethernet frame with a UDP datagram from the client to the VIP, with tags.
fn udp_frame(lab: &Lab, tags: &[u16], dst: [u8; 6], payload: &[u8]) -> Vec<u8> {
    let mut f = Vec::new();
    f.extend(dst);
    f.extend(lab.client.mac("vc"));
    for tag in tags {
        f.extend([0x81, 0]);
        f.extend(tag.to_be_bytes());
    }
    f.extend([8, 0, 0x45, 0]);
    f.extend((28 + payload.len() as u16).to_be_bytes());
    f.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 9, 0, 2, 10, 9, 9, 9]);
    f.extend([0x10, 0, 0, 53]);
    f.extend((8 + payload.len() as u16).to_be_bytes());
    f.extend([0, 0]);
    f.extend(payload);
    f
}

/// Opens a packet socket that hears everything on an interface, by a ring of our own.
fn capture(net: &Net, device: &str) -> RxRing {
    net.run(|| {
        let fd = socket::packet_socket().unwrap();
        let on: libc::c_int = 1;
        socket::option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_VNET_HDR, &on).unwrap();
        let ring = RxRing::new(fd, RingShape { frames: 512 }, 1500).unwrap();
        socket::bind(ring.fd(), netdev::index(device).unwrap(), libc::ETH_P_ALL as u16).unwrap();
        ring
    })
}

/// The next captured frame that holds `mark`.
fn captured(ring: &mut RxRing, mark: &[u8]) -> Vec<u8> {
    let end = Instant::now() + Duration::from_secs(10);
    while Instant::now() < end {
        let Some(mut burst) = ring.burst() else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        while let Some(frame) = burst.next() {
            let frame = frame.expect("whole frames");
            // SAFETY: the burst is still ours, and this is the only slice.
            let bytes = unsafe { frame.bytes() };
            if bytes[frame.start..].windows(mark.len()).any(|w| w == mark) {
                return bytes[frame.start..].to_vec();
            }
        }
    }
    panic!("no such frame within 10 s");
}

fn send_raw(net: &Net, device: &str, frame: &[u8]) {
    net.run(|| {
        let fd = socket::packet_socket().unwrap();
        socket::bind(fd.as_fd(), netdev::index(device).unwrap(), 0).unwrap();
        rustix::net::send(&fd, frame, rustix::net::SendFlags::empty()).unwrap();
    });
}

#[test]
fn frames_arrive_byte_for_byte_with_their_tags() {
    if cannot() {
        return;
    }
    let lab = Lab::new();
    lab.service(17, VIP, 53);
    let running = lab.start(Lab::config(1), false);
    let mut ring = capture(&lab.server, "vr");
    for (n, tags) in [&[][..], &[0xa000]].into_iter().enumerate() {
        let payload = format!("payload number {n} with {} tags", tags.len());
        let sent = udp_frame(&lab, tags, lab.director.mac("vd"), payload.as_bytes());
        send_raw(&lab.client, "vc", &sent);
        let got = captured(&mut ring, payload.as_bytes());
        let mut want = sent.clone();
        want[..6].copy_from_slice(&lab.server.mac("vr"));
        want[6..12].copy_from_slice(&lab.director.mac("vs"));
        assert_eq!(got, want, "tags {tags:x?}");
        until("the handler's note", || lab.seen.lock().unwrap().frames.len() > n);
        assert_eq!(lab.seen.lock().unwrap().frames[n].1, sent[..sent.len().min(128)], "tags {tags:x?}");
    }
    running.stop();
}

/// Frames with the number of a VLAN stay with the kernel, whether the outer tag is taken out by the device or by the stack.
#[test]
fn frames_of_a_vlan_are_left_to_the_kernel() {
    if cannot() {
        return;
    }
    for offload in ["on", "off"] {
        let lab = Lab::new();
        lab.client.sh(&format!("ethtool -K vc txvlan {offload} rxvlan {offload}"));
        lab.director.sh(&format!("ethtool -K vd txvlan {offload} rxvlan {offload}"));
        lab.service(17, VIP, 53);
        let running = lab.start(Lab::config(1), false);
        let mut ring = capture(&lab.director, "vd");
        let mac = lab.director.mac("vd");
        for (n, tags) in
            [&[0x2005][..], &[0x0fff], &[0x0064, 0x00c8], &[0xa000, 0x0064]].into_iter().enumerate()
        {
            let mark = format!("number {n} of a VLAN");
            let sent = udp_frame(&lab, tags, mac, mark.as_bytes());
            send_raw(&lab.client, "vc", &sent);
            assert_eq!(captured(&mut ring, mark.as_bytes()), sent, "tags {tags:x?}, offload {offload}");
        }
        send_raw(&lab.client, "vc", &udp_frame(&lab, &[], mac, b"the last one"));
        until("the last frame", || lab.seen.lock().unwrap().count > 0);
        let seen = lab.seen.lock().unwrap();
        assert_eq!((seen.count, seen.frames[0].1.ends_with(b"the last one")), (1, true), "offload {offload}");
        drop(seen);
        running.stop();
    }
}

#[test]
fn passed_tags_survive_and_strangers_are_left_alone() {
    if cannot() {
        return;
    }
    let lab = Lab::new();
    lab.service(17, VIP, 53);
    let running = lab.start(Lab::config(1), true);
    // on the same interface behind the ingress hook: what comes up the receive path (the first time and again)
    let mut ring = capture(&lab.director, "vd");
    let ours = udp_frame(&lab, &[0xe000], lab.director.mac("vd"), b"ours, with a tag");
    send_raw(&lab.client, "vc", &ours);
    assert_eq!(captured(&mut ring, b"ours, with a tag"), ours);
    assert_eq!(captured(&mut ring, b"ours, with a tag"), ours, "the second time, put back");
    let strange = udp_frame(&lab, &[], [2, 0, 0, 0, 0, 99], b"to another MAC");
    send_raw(&lab.client, "vc", &strange);
    assert_eq!(captured(&mut ring, b"to another MAC"), strange);
    let after = udp_frame(&lab, &[], lab.director.mac("vd"), b"the last one");
    send_raw(&lab.client, "vc", &after);
    until("the last frame", || {
        lab.seen.lock().unwrap().frames.iter().any(|(_, f)| f.ends_with(b"the last one"))
    });
    assert_eq!(lab.seen.lock().unwrap().count, 2, "the one to another MAC was not ours");
    running.stop();
}

#[test]
fn an_interface_may_vanish_and_come_back() {
    if cannot() {
        return;
    }
    let lab = Lab::new();
    lab.service(17, VIP, 53);
    let running = lab.start(Lab::config(2), false);
    let attached = |port: usize| running.stats()[port].attached;
    assert!(attached(0) && attached(1));
    lab.director.sh("ip link del vs");
    until("the loss to be noticed", || !attached(1));
    // a frame for the port that is not there
    send_raw(&lab.client, "vc", &udp_frame(&lab, &[], lab.director.mac("vd"), b"nowhere to go"));
    until("the drop to be counted", || Lab::totals(&running).tx_down == 1);
    lab.director.link(("vs", "10.9.1.1/24"), &lab.server, ("vr", "10.9.1.2/24"));
    until("the return to be noticed", || attached(1));
    let mut ring = capture(&lab.server, "vr");
    // a worker opens its mail when it wakes, which is soon; until then the frame is dropped, so repeat it
    let mark = b"here again";
    until("traffic to go on", || {
        send_raw(&lab.client, "vc", &udp_frame(&lab, &[], lab.director.mac("vd"), mark));
        Lab::totals(&running).tx_frames > 0
    });
    captured(&mut ring, mark);
    assert!(running.healthy());
    lab.director.sh("ip link set vs down; ip link set vs up");
    until("traffic after down and up", || {
        let before = Lab::totals(&running).tx_frames;
        send_raw(&lab.client, "vc", &udp_frame(&lab, &[], lab.director.mac("vd"), mark));
        std::thread::sleep(Duration::from_millis(5));
        Lab::totals(&running).tx_frames > before
    });
    running.stop();
}

#[test]
fn set_up_errors_name_the_interface() {
    if cannot() {
        return;
    }
    let lab = Lab::new();
    let attempt = |names: &[&str], workers| {
        let interfaces = names.iter().enumerate().map(|(i, n)| (PortId(i as u16), (*n).into())).collect();
        let make = |_| -> Box<dyn FrameHandler + Send> { unreachable!() };
        let config = AfPacketConfig::new(interfaces, workers);
        lab.director.run(|| start(config, &lab.tables, make)).unwrap_err().to_string()
    };
    let before = state(&lab.director);
    assert!(attempt(&[], 1).contains("--interface"));
    assert!(attempt(&["vd"], 0).contains("1 to 64"));
    assert!(attempt(&["vd"], 65).contains("1 to 64"));
    assert!(attempt(&["vd", "nothere"], 1).contains("interface nothere: there is no such interface"));
    assert!(attempt(&["lo"], 1).contains("interface lo: the loopback"));
    assert!(attempt(&["vd", "vd"], 1).contains("interface vd is named twice"));
    let running = lab.start(Lab::config(1), true);
    assert!(attempt(&["vs"], 1).contains("interface vs: another lvsd"));
    running.stop();
    assert_eq!(state(&lab.director), before);
}

#[test]
fn filters_of_a_killed_director_are_replaced() {
    if cannot() {
        return;
    }
    let lab = Lab::new();
    let filters = || {
        lab.director
            .sh("tc filter show dev vd ingress; tc filter show dev vd egress")
            .matches("handle")
            .count()
    };
    lab.director.run(|| {
        let index = netdev::index("vd").unwrap();
        std::mem::forget(crate::io::attach::Attachment::new(&lab.tables, "vd", index, Hook::Clsact).unwrap());
    });
    assert_eq!(filters(), 2);
    let running = lab.start(AfPacketConfig { hook: Hook::Clsact, ..Lab::config(1) }, true);
    assert_eq!(filters(), 2);
    running.stop();
    assert_eq!(filters(), 0);
}
