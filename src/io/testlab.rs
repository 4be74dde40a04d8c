//! Tests of ports with rings, in namespaces of their own:
//!
//! ```text
//! client 10.9.0.2 (vc) ── (vd) 10.9.0.1 director 10.9.1.1 (vs) ── (vr) 10.9.1.2 server, with VIP 10.9.9.9 on lo
//! ```
//!
//! The director is also a plain router between the two; the VIP is routed to it by the client and by nobody else.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::conn::{Config, ConnTable, NewConn};
use crate::engine::{Frame, FrameHandler, Gso, Out, RxChecksum, Verdict};
use crate::io::rings::{QueueStats, Running, socket};
use crate::io::testnet::{Net, until};
use crate::io::{BpfTables, SetupError, TableShape, netdev};
use crate::route::PortId;
use crate::time::{Now, Tick, ticks};
use modes::{Addr, Family};

pub(crate) const VIP: &str = "10.9.9.9";
pub(crate) const CONFIG: Config = Config { max_v4: 1000, max_v6: 1000, hash_key: [3, 4], shards: 1 };

/// What handlers have seen.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) frames: Vec<(PortId, Vec<u8>)>,
    pub(crate) by_worker: Vec<u64>,
    pub(crate) count: u64,
    pub(crate) gso: Option<Gso>,
    pub(crate) partial: u64,
}

/// Sends what comes in by port 0 to the server and what comes in by port 1 to the client, or passes everything.
pub(crate) struct Switch {
    worker: usize,
    pass: bool,
    /// (destination, source) of what goes out by each port
    macs: [([u8; 6], [u8; 6]); 2],
    seen: Arc<Mutex<Seen>>,
}

impl FrameHandler for Switch {
    fn batch(&mut self, _: Now, frames: &mut [Frame<'_>], verdicts: &mut Vec<Verdict>) {
        let mut seen = self.seen.lock().unwrap();
        for f in frames.iter_mut() {
            seen.count += 1;
            seen.by_worker.resize(8, 0);
            seen.by_worker[self.worker] += 1;
            seen.gso = f.gso.max_by_size(seen.gso);
            if f.checksum == RxChecksum::Unknown {
                let bytes = f.bytes();
                let partial =
                    modes::packet::parse(bytes).is_ok_and(|p| modes::checksum::is_partial(bytes, &p));
                f.checksum = if partial { RxChecksum::Partial } else { RxChecksum::Complete };
            }
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

pub(crate) struct Lab {
    pub(crate) client: Net,
    pub(crate) director: Net,
    pub(crate) server: Net,
    pub(crate) tables: Arc<BpfTables>,
    pub(crate) seen: Arc<Mutex<Seen>>,
}

impl Lab {
    pub(crate) fn new() -> Lab {
        let (client, director, server) = (Net::new(), Net::new(), Net::new());
        client.link(("vc", "10.9.0.2/24"), &director, ("vd", "10.9.0.1/24"));
        director.link(("vs", "10.9.1.1/24"), &server, ("vr", "10.9.1.2/24"));
        client.sh("ip route add default via 10.9.0.1");
        server.sh(&format!("ip route add default via 10.9.1.1; ip addr add {VIP}/32 dev lo"));
        director.sh("sysctl -qw net.ipv4.ip_forward=1");
        let tables = BpfTables::create(TableShape::of(&CONFIG), 0xa5a5_0001).unwrap();
        Lab { client, director, server, tables: Arc::new(tables), seen: Arc::default() }
    }

    pub(crate) fn service(&self, proto: u8, address: &str, port: u16) {
        self.tables.service_added(Family::V4, proto, addr(address), port);
    }

    /// The handler of a worker.
    pub(crate) fn switch(&self, worker: usize, pass: bool) -> Box<dyn FrameHandler + Send> {
        let macs = [
            (self.client.mac("vc"), self.director.mac("vd")),
            (self.server.mac("vr"), self.director.mac("vs")),
        ];
        Box::new(Switch { worker, pass, macs, seen: Arc::clone(&self.seen) })
    }

    /// All counters together.
    pub(crate) fn totals(running: &dyn Running) -> QueueStats {
        let mut sum = QueueStats::default();
        for port in running.stats() {
            port.queues.iter().for_each(|q| sum += *q);
        }
        sum
    }
}

pub(crate) fn addr(text: &str) -> Addr {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

/// Bytes that a shifted, repeated or lost piece would change the sum of.
pub(crate) fn pattern(n: usize) -> Vec<u8> {
    (0..n as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

pub(crate) const BULK: usize = 20 << 20;

/// A server for one connection: takes in everything, then sends it back.
pub(crate) fn echo_once(net: &Net, address: &str) -> JoinHandle<()> {
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
pub(crate) fn upload_and_download(mut stream: TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    let data = pattern(BULK);
    stream.write_all(&data).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    assert!(data == back, "{} bytes came back of {}", back.len(), data.len());
}

pub(crate) fn connect(net: &Net, address: &str) -> TcpStream {
    net.run(|| TcpStream::connect_timeout(&address.parse().unwrap(), Duration::from_secs(10)).unwrap())
}

/// Connects from a port whose connection is in the table, so that the replies are the ring's, too.
pub(crate) fn connect_known(lab: &Lab) -> (TcpStream, ConnTable) {
    let table = ConnTable::with_memory(CONFIG, lab.tables.memory().unwrap(), Tick(1)).unwrap();
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
            half_open: false,
            is_template: false,
        };
        table.insert(Tick(1), &new).unwrap();
        rustix::net::connect(&socket, &at("10.9.9.9:8000")).unwrap();
        TcpStream::from(socket)
    });
    (stream, table)
}

/// Starts a port in the director; again while a lock of its predecessor is still there: a child that another test is just starting
/// has copies of this process's descriptors until it runs its program.
pub(crate) fn start_port<R: Send>(lab: &Lab, start: impl Fn() -> Result<R, SetupError> + Sync) -> R {
    let mut running = None;
    until("the interfaces' locks", || {
        match lab.director.run(&start) {
            Ok(port) => running = Some(port),
            Err(SetupError::InUse(_)) => {}
            Err(e) => panic!("{e}"),
        }
        running.is_some()
    });
    running.unwrap()
}

/// Bulk data through the ring, both ways; what the handler saw is in the lab.
pub(crate) fn bulk_both_ways<R: Running>(lab: &Lab, start: impl FnOnce() -> R) -> R {
    lab.service(6, VIP, 8000);
    let running = start();
    let server = echo_once(&lab.server, "10.9.9.9:8000");
    let (stream, _table) = connect_known(lab);
    upload_and_download(stream);
    server.join().unwrap();
    let t = Lab::totals(&running);
    assert_eq!((t.rx_truncated, t.tx_too_big, t.tx_refused, t.no_verdict), (0, 0, 0, 0), "{t:?}");
    assert_eq!((t.rx_invalid, t.tx_invalid, t.rx_super_packet), (0, 0, 0), "{t:?}");
    assert!(t.tx_bytes as usize > 2 * BULK, "{t:?}");
    assert!(lab.seen.lock().unwrap().partial > 0, "no partial checksum came by");
    running
}

/// With a port whose handler passes every frame to the director's own address, its listener answers; what is not ours goes on unseen;
/// and with the port gone nothing is taken any more.
pub(crate) fn passed_frames_reach_the_stack<R: Running>(lab: &Lab, start: impl FnOnce() -> R) {
    let talk = |to: &Net, address: &str| {
        let server = echo_once(to, address);
        upload_and_download(connect(&lab.client, address));
        server.join().unwrap();
    };
    lab.service(6, "10.9.0.1", 9000);
    let before = state(&lab.director);
    let running = start();
    talk(&lab.director, "10.9.0.1:9000");
    let totals = Lab::totals(&running);
    assert!(totals.passed > 0 && totals.passed == totals.rx_frames, "{totals:?}");
    assert_eq!((totals.tx_frames, totals.pass_dropped), (0, 0), "{totals:?}");
    let seen_before = lab.seen.lock().unwrap().count;
    assert_eq!(seen_before, totals.rx_frames, "each frame once");
    // another port of the director, and the server through it as plain router
    talk(&lab.director, "10.9.0.1:9001");
    talk(&lab.server, "10.9.1.2:9000");
    assert_eq!(lab.seen.lock().unwrap().count, seen_before);
    drop(running);
    as_before(lab, &before);
    talk(&lab.director, "10.9.0.1:9000");
    assert_eq!(lab.seen.lock().unwrap().count, seen_before);
}

/// Sends `n` datagrams, each from a port of its own, and expects each once, whichever queue it took.
pub(crate) fn datagrams_arrive_once(lab: &Lab, running: &dyn Running, n: u8) {
    let server = lab.server.run(|| UdpSocket::bind("10.9.9.9:53").unwrap());
    server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    for i in 0..n {
        let client = lab.client.run(|| UdpSocket::bind("10.9.0.2:0").unwrap());
        client.send_to(&[i], "10.9.9.9:53").unwrap();
    }
    let (mut buf, mut got) = ([0; 64], Vec::new());
    for _ in 0..n {
        let received = server.recv_from(&mut buf);
        let (length, _) = received.unwrap_or_else(|e| {
            let rows = running.queues();
            panic!("{e}; {} arrived; {:#?} {rows:#?}", got.len(), Lab::totals(running))
        });
        got.push(buf[..length][0]);
    }
    got.sort_unstable();
    assert!(got.iter().copied().eq(0..n), "{got:?}");
}

/// That so many frames were seen, and by more than one worker.
pub(crate) fn several_workers_saw(lab: &Lab, frames: u64) {
    let seen = lab.seen.lock().unwrap();
    assert_eq!(seen.count, frames);
    assert!(seen.by_worker.iter().filter(|&&n| n > 0).count() > 1, "{:?}", seen.by_worker);
}

/// The link and qdisc state of the director's interfaces, without counters.
pub(crate) fn state(net: &Net) -> String {
    net.sh("ip -d link show; tc qdisc show; tc filter show dev vd ingress; tc filter show dev vd egress")
}

/// Waits until the director is as it was: what is attached by a descriptor goes a moment after it was closed, if a process that another
/// test starts still holds a copy between its fork and its exec.
pub(crate) fn as_before(lab: &Lab, before: &str) {
    until("the director is as it was", || state(&lab.director) == before);
}

/// An Ethernet frame with a UDP datagram from the client to the VIP, with tags.
pub(crate) fn udp_frame(lab: &Lab, tags: &[u16], dst: [u8; 6], payload: &[u8]) -> Vec<u8> {
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

pub(crate) fn send_raw(net: &Net, device: &str, frame: &[u8]) {
    net.run(|| {
        let fd = socket::packet_socket().unwrap();
        socket::bind(fd.as_fd(), netdev::index(device).unwrap(), 0).unwrap();
        rustix::net::send(&fd, frame, rustix::net::SendFlags::empty()).unwrap();
    });
}
