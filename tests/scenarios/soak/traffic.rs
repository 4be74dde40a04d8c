//! The clients: each a thread with a rate of its own, looking at every byte that it gets.
use std::collections::VecDeque;
use std::fmt;
use std::io::{Error, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{BULK, PERSISTENT, Random, Run, SERVERS, SERVICES, TALK, UDP, WHOLE, mark};
use crate::client::{PATIENCE, read_line};
use crate::netns::Netns;
use crate::wait::secs;

/// A client of a virtual address: works until the run is stopped.
type Client = fn(IpAddr, &mut Random, &Run) -> Result<(), String>;

/// The clients of one virtual address.
pub(super) const CLIENTS: [Client; 7] =
    [talks, talks_persistent, bulk, idle, udp, with_servers_that_change, with_a_service_that_changes];

/// Time between two connections of a client.
const PACE: Duration = Duration::from_millis(150);
/// What a client of a service that comes and goes waits for.
const SHORT: Duration = Duration::from_secs(1);
/// What is sent and read back in one go: it fits the sockets' buffers.
const PIECE: usize = 1 << 16;

/// What was done.
#[derive(Default)]
pub(super) struct Tally {
    /// Conversations of core services, which must succeed.
    sure: AtomicU64,
    /// Of these, ended by a RST.
    aborted: AtomicU64,
    /// Idle connections that went on.
    idle: AtomicU64,
    /// Datagrams answered, and those sent again because no answer came.
    datagrams: AtomicU64,
    again: AtomicU64,
    /// Conversations with what comes and goes: whole, and those that failed.
    whole: AtomicU64,
    failed: AtomicU64,
    /// Bytes there and back.
    bytes: AtomicU64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = |a: &AtomicU64| a.load(Ordering::Relaxed);
        write!(
            f,
            "{} conversations ({} ended by RST, {} idle for a while), {} datagrams ({} sent again); of services that come and go \
             {} conversations whole and {} not; {} MB there and back",
            n(&self.sure),
            n(&self.aborted),
            n(&self.idle),
            n(&self.datagrams),
            n(&self.again),
            n(&self.whole),
            n(&self.failed),
            n(&self.bytes) / 1_000_000
        )
    }
}

impl Tally {
    /// There was traffic of each kind: at least one a second and lab, where six times as much is meant.
    pub(super) fn check(&self, length: u64) {
        let n = |a: &AtomicU64| a.load(Ordering::Relaxed);
        let kinds = [("conversations", &self.sure), ("datagrams", &self.datagrams), ("whole", &self.whole)];
        for (name, count) in kinds {
            assert!(n(count) >= 2 * length, "{name}: {}", n(count));
        }
        for (name, count) in [("RST", &self.aborted), ("idle", &self.idle), ("failed", &self.failed)] {
            assert!(n(count) > 0, "{name}: none");
        }
        // Nothing on the way loses a datagram, but a busy machine may answer late.
        assert!(n(&self.again) * 100 <= n(&self.datagrams), "datagrams sent again: {}", n(&self.again));
    }
}

fn add(to: &AtomicU64, n: u64) {
    to.fetch_add(n, Ordering::Relaxed);
}

/// A connection to a server that marks what it sends back.
struct Talk {
    stream: TcpStream,
    mark: u8,
}

impl Talk {
    fn open(to: SocketAddr, service: usize, patience: Duration) -> std::io::Result<Talk> {
        let mut stream = TcpStream::connect_timeout(&to, patience)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        let line = read_line(&mut stream)?;
        let server = match line.as_bytes() {
            [b's', n @ b'1'..=b'3', b' ', ..] => usize::from(n - b'0'),
            _ => return Err(Error::new(ErrorKind::InvalidData, format!("not a server's name: {line:?}"))),
        };
        let own = stream.local_addr()?;
        if line[3..] != own.to_string() {
            let what = format!("server and client are not of one mind who the client is, {own}: {line:?}");
            return Err(Error::new(ErrorKind::InvalidData, what));
        }
        Ok(Talk { stream, mark: mark(service, server) })
    }

    /// Sends bytes; the same must come back, marked by the server that gave its name, of the service that was asked.
    fn say(&mut self, bytes: &[u8], run: &Run) -> std::io::Result<()> {
        let mut back = vec![0; bytes.len().min(PIECE)];
        for piece in bytes.chunks(PIECE) {
            self.stream.write_all(piece)?;
            let back = &mut back[..piece.len()];
            self.stream.read_exact(back)?;
            if let Some(at) = (0..piece.len()).find(|&i| back[i] ^ self.mark != piece[i]) {
                let (is, sent) = (back[at], piece[at]);
                let what = format!("byte {at} has the mark {:#x}, not {:#x}", is ^ sent, self.mark);
                return Err(Error::new(ErrorKind::InvalidData, what));
            }
            add(&run.tally.bytes, piece.len() as u64);
        }
        Ok(())
    }

    /// Ends it in one of the ways in which clients do.
    fn end(mut self, random: &mut Random, run: &Run) -> std::io::Result<()> {
        match random.below(5) {
            0 => {
                add(&run.tally.aborted, 1);
                rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO))?;
            }
            // with an echo on its way
            1 => self.stream.write_all(b"farewell")?,
            2 => {
                self.stream.shutdown(std::net::Shutdown::Write)?;
                let n = self.stream.read(&mut [0; 8])?;
                if n > 0 {
                    return Err(Error::new(ErrorKind::InvalidData, "more than was asked for"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Bytes by chance.
fn payload(random: &mut Random, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// One conversation from inside `ns`.
pub(super) fn one(ns: &Netns, to: SocketAddr, service: usize) -> std::io::Result<()> {
    let run = Run { stop: false.into(), failure: None.into(), tally: Tally::default() };
    ns.run(|| Talk::open(to, service, PATIENCE)?.say(b"still there?", &run))
}

/// A datagram each of `n` new UDP flows; nobody waits for answers.
pub(super) fn begin_flows(ns: &Netns, to: SocketAddr, n: usize) {
    ns.run(|| {
        for _ in 0..n {
            let socket = UdpSocket::bind((std::net::Ipv6Addr::UNSPECIFIED, 0)).expect("a socket");
            socket.connect(to).expect("a route");
            // what comes back to a closed socket may be told to the next one
            let _ = socket.send(b"new");
        }
    });
}

/// Calls `work` once a `pace` until the end; an error is told with what it happened to.
fn each(pace: Duration, run: &Run, mut work: impl FnMut() -> std::io::Result<()>) -> Result<(), String> {
    let mut next = Instant::now();
    while !run.stopped() {
        work().map_err(|e| format!("{e} ({:?})", e.kind()))?;
        // late is late: what was missed is not made up for
        next = (next + pace).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

fn converse(
    vip: IpAddr,
    service: usize,
    patience: Duration,
    random: &mut Random,
    run: &Run,
) -> std::io::Result<()> {
    let mut talk = Talk::open(SocketAddr::new(vip, SERVICES[service].port), service, patience)?;
    for _ in 0..random.below(5) {
        let length = random.of(&[1, 100, 1460, 5000, 40_000]);
        talk.say(&payload(random, length), run)?;
    }
    talk.end(random, run)
}

fn talks(vip: IpAddr, random: &mut Random, run: &Run) -> Result<(), String> {
    each(PACE, run, || {
        converse(vip, TALK, PATIENCE, random, run)?;
        add(&run.tally.sure, 1);
        Ok(())
    })
}

fn talks_persistent(vip: IpAddr, random: &mut Random, run: &Run) -> Result<(), String> {
    each(PACE, run, || {
        converse(vip, PERSISTENT, PATIENCE, random, run)?;
        add(&run.tally.sure, 1);
        Ok(())
    })
}

/// Megabytes in one connection.
fn bulk(vip: IpAddr, random: &mut Random, run: &Run) -> Result<(), String> {
    each(secs(1), run, || {
        let mut talk = Talk::open(SocketAddr::new(vip, SERVICES[BULK].port), BULK, PATIENCE)?;
        talk.say(&payload(random, 2_000_000), run)?;
        add(&run.tally.sure, 1);
        talk.end(random, run)
    })
}

/// Connections that say nothing for some seconds, and go on.
fn idle(vip: IpAddr, random: &mut Random, run: &Run) -> Result<(), String> {
    let mut open: VecDeque<(Instant, Talk)> = VecDeque::new();
    each(Duration::from_millis(500), run, || {
        let mut talk = Talk::open(SocketAddr::new(vip, SERVICES[TALK].port), TALK, PATIENCE)?;
        talk.say(b"before", run)?;
        open.push_back((Instant::now() + secs(8), talk));
        while let Some((_, mut talk)) = open.pop_front_if(|(due, _)| *due <= Instant::now()) {
            talk.say(b"after", run)?;
            add(&run.tally.idle, 1);
            talk.end(random, run)?;
        }
        Ok(())
    })
}

/// A UDP flow, and the server that has answered it first.
struct Flow {
    socket: UdpSocket,
    server: Option<Vec<u8>>,
    sent: u64,
}

impl Flow {
    /// Sends a datagram until it is answered; the flow's server must do it.
    fn ask(&mut self, filler: &[u8], run: &Run) -> std::io::Result<()> {
        self.sent += 1;
        let mut question = self.sent.to_be_bytes().to_vec();
        question.extend_from_slice(filler);
        let mut buffer = vec![0; 4096];
        for attempt in 0..5 {
            if attempt > 0 {
                add(&run.tally.again, 1);
            }
            self.socket.send(&question)?;
            let n = match self.socket.recv(&mut buffer) {
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
                other => other?,
            };
            let (name, answer) = buffer[..n].split_at(3.min(n));
            // a late answer to an earlier attempt is one as well, but to no earlier question
            let server = self.server.get_or_insert_with(|| name.to_vec());
            if name != server.as_slice() || answer != question {
                let what = format!("an answer of {n} bytes from {:?}, not {:?}", ascii(name), ascii(server));
                return Err(Error::new(ErrorKind::InvalidData, what));
            }
            add(&run.tally.datagrams, 1);
            return Ok(());
        }
        Err(Error::new(ErrorKind::TimedOut, "five datagrams without an answer"))
    }
}

fn ascii(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Flows of thirty datagrams each, several beside each other.
fn udp(vip: IpAddr, random: &mut Random, run: &Run) -> Result<(), String> {
    let any: SocketAddr = if vip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().expect("an address");
    let mut flows: VecDeque<Flow> = VecDeque::new();
    each(Duration::from_millis(50), run, || {
        if flows.len() < 8 {
            let socket = UdpSocket::bind(any)?;
            socket.connect(SocketAddr::new(vip, SERVICES[UDP].port))?;
            socket.set_read_timeout(Some(secs(2)))?;
            flows.push_back(Flow { socket, server: None, sent: 0 });
        }
        let Some(mut flow) = flows.pop_front() else { return Ok(()) };
        let length = random.of(&[0, 100, 1300]);
        flow.ask(&payload(random, length), run)?;
        if flow.sent < 30 {
            flows.push_back(flow);
        }
        Ok(())
    })
}

/// Conversations that may fail, but may never be had with two servers.
fn tolerant(vip: IpAddr, service: usize, random: &mut Random, run: &Run) -> Result<(), String> {
    each(PACE, run, || match converse(vip, service, SHORT, random, run) {
        Ok(()) => {
            add(&run.tally.whole, 1);
            Ok(())
        }
        Err(e) if e.kind() == ErrorKind::InvalidData => Err(e),
        Err(_) => {
            add(&run.tally.failed, 1);
            Ok(())
        }
    })
}

fn with_servers_that_change(vip: IpAddr, random: &mut Random, run: &Run) -> Result<(), String> {
    tolerant(vip, SERVERS, random, run)
}

fn with_a_service_that_changes(vip: IpAddr, random: &mut Random, run: &Run) -> Result<(), String> {
    tolerant(vip, WHOLE, random, run)
}
