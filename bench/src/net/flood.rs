//! `flood.good`: which share of good clients' connections succeed beside a SYN flood at half the rate of new connections that the
//! daemon can make.
//!
//! Flood and good clients call the same service, by NAT to one server. The server's namespace drops the flood as it comes in: what
//! a server's own stack makes of it is not the director's.
//!
//! The flood is counted where it comes in: frames that the director's interface received, less what the clients' stack sent. If
//! that is less than was asked for, the row is not met, whatever became of the good clients.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::forwarder::Traffic;
use super::lab::{CLIENT_MAC, Lab, Lvsd, SERVER, Serve, VIP, processors};
use super::process::{Net, Running};
use super::{until, until_within};
use crate::report::{Bar, Row, median, percentile};
use crate::{Datapath, Failure, Plan};

const PORT: u16 = 80;
/// Limit of connections; a flood of 100,000 a second would fill it in ten seconds.
const ROOM: u32 = 1 << 20;
/// Sources of the flood: none comes again within its minute.
const SOURCES: u32 = 1 << 30;
/// What is offered to find the rate of new connections.
const MOST: u64 = 600_000;
const MEASURED: Duration = Duration::from_secs(2);
/// How long a good client waits for its connection and its answer: some losses may be made up for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Share of the flood's rate that must have come in.
const REACHED: f64 = 0.95;
const CLIENTS: usize = 4;
/// What a good client waits after each connection, so that the flood keeps its share of the processors.
const PAUSE: Duration = Duration::from_millis(4);
/// As many as good clients, and some that wait for one that was lost.
const SERVERS: usize = 3 * CLIENTS;

pub(crate) fn afpacket(plan: &Plan) -> Result<Vec<Row>, Failure> {
    let lab = Lab::new()?;
    // frames that XDP redirects to a veth are taken only where NAPI is on
    lab.director.run("ethtool -K d0 gro on")?;
    lab.director.ip(&format!(
        "neigh replace 198.51.100.10 lladdr {CLIENT_MAC} dev d0 nud permanent
         route add 198.18.0.0/15 via 198.51.100.10"
    ))?;
    let rules = "add table ip flood; add chain ip flood pre { type filter hook prerouting priority -300; }; \
                 add rule ip flood pre ip saddr 198.18.0.0/15 drop";
    super::process::output(lab.server.command("nft").arg(rules))?;
    let possible = possible(&lab)?;
    lab.nothing_attached()?;
    let (_, cpu) = processors()?;
    let serve = Serve {
        cpu,
        workers: Some(1),
        connections: Some(ROOM),
        ..Serve::by(Datapath::Afpacket, ("-t", PORT))
    };
    let mut lvsd = Lvsd::start(&lab, &serve)?;
    let good = plan.pick(2000, 10_000);
    let measured = with_server(&lab.server, || {
        let before = clients(&lab.client, good / 4)?;
        let mut flood = flood(&lab, possible / 2)?;
        until_within(Duration::from_secs(60), "half-open connections that make way", || {
            flood.must_run()?;
            lvsd.process.must_run()?;
            Ok((lvsd.counter("half_open_evicted")? > 0).then_some(()))
        })?;
        let look = || Ok::<_, Failure>([lvsd.counter("conn_new")?, came_in(&lab)?]);
        let (first, begin) = (look()?, Instant::now());
        let during = clients(&lab.client, good)?;
        let (last, time) = (look()?, begin.elapsed());
        flood.must_run()?;
        let a_second = |i: usize| (last[i] - first[i]) as f64 / time.as_secs_f64();
        Ok((before, during, a_second(0), a_second(1), time))
    });
    let (before, during, rate, came, time) = measured?;
    let counters: serde_json::Map<_, _> =
        lvsd.counters()?.into_iter().filter(|c| c.1 > 0).map(|(name, n)| (name, n.into())).collect();
    lvsd.process.terminate()?;
    let share = during.succeeded() as f64 / good as f64;
    let raw = json!({
        "formula": "during_flood.succeeded / good_connections",
        "good_connections": good,
        "possible_connections_a_second": possible,
        "asked_flood_pps": possible / 2,
        "reached_flood_pps": came.round(),
        "connections_a_second_during_flood": rate.round(),
        "seconds": time.as_secs_f64(),
        "before_flood": before.json(),
        "during_flood": during.json(),
        "patience_s": PATIENCE.as_secs(),
        "max_connections": ROOM,
        "counters": counters,
        "what": "TCP by NAT: connect, 16 bytes there and back, close; one worker, AF_PACKET",
    });
    let asked = possible as f64 / 2.0;
    let why = format!("the flood was {came:.0} SYNs a second, not {asked:.0}");
    let row = Row::new("flood.good", share, "share", Bar::AtLeast(0.999), raw);
    Ok(vec![row.unless(came >= REACHED * asked, why)])
}

/// Frames of the flood that have come to the director: all that its interface received, less what the clients' stack sent.
fn came_in(lab: &Lab) -> Result<u64, Failure> {
    let devices = lab.director.run("cat /proc/net/dev")?;
    let frames = crate::rate::frames_of(&devices, "d0").ok_or("interface d0 is gone")?;
    let snmp = lab.client.run("cat /proc/net/snmp")?;
    let segments = tcp_segments_sent(&snmp).ok_or("no OutSegs in /proc/net/snmp")?;
    Ok(frames.saturating_sub(segments))
}

/// `OutSegs` and `RetransSegs` of the two lines that begin with `Tcp:`, names and numbers.
fn tcp_segments_sent(snmp: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter(|l| l.starts_with("Tcp:"));
    let (names, numbers) = (lines.next()?.split_whitespace(), lines.next()?.split_whitespace());
    let mut sent = names.zip(numbers).filter(|(name, _)| matches!(*name, "OutSegs" | "RetransSegs"));
    sent.try_fold(0, |sum, (_, n)| Some(sum + n.parse::<u64>().ok()?)).filter(|n| *n > 0)
}

/// Starts a flood that lasts until it is dropped.
fn flood(lab: &Lab, rate: u64) -> Result<Running, Failure> {
    let mut c = lab.generator(VIP, &Traffic { port: PORT, ..Traffic::of(SOURCES) })?;
    // up to 20 ms late: the generator shares its processor with the good clients
    let burst = (rate / 50).max(256).to_string();
    c.args(["--syn", "--rate", &rate.to_string(), "--burst", &burst, "--seconds", "300"]);
    Running::start(&mut c, "flood", &lab.directory)
}

/// New connections a second that the daemon makes of all the SYNs that it can get.
fn possible(lab: &Lab) -> Result<u64, Failure> {
    lab.nothing_attached()?;
    let (_, cpu) = processors()?;
    // room for all of them: nothing is evicted
    let serve = Serve {
        cpu,
        workers: Some(1),
        connections: Some(1 << 22),
        ..Serve::by(Datapath::Afpacket, ("-t", PORT))
    };
    let lvsd = Lvsd::start(lab, &serve)?;
    lvsd.ctl("sysctl half_open_percent=0")?;
    let mut flood = flood(lab, MOST)?;
    let made = || lvsd.counter("conn_new");
    until("the first connections", || {
        flood.must_run()?;
        Ok((made()? > 10_000).then_some(()))
    })?;
    let (first, begin) = (made()?, Instant::now());
    until("the end of the measurement", || Ok((begin.elapsed() >= MEASURED).then_some(())))?;
    let rate = (made()? - first) as f64 / begin.elapsed().as_secs_f64();
    drop(flood);
    lvsd.process.terminate()?;
    Ok(rate as u64)
}

/// What came of good clients' connections: how long each took, in milliseconds, and why the others failed.
#[derive(Default)]
struct Outcome {
    ms: Vec<f64>,
    failures: Vec<String>,
}

impl Outcome {
    fn succeeded(&self) -> usize {
        self.ms.len()
    }

    fn json(&self) -> Value {
        json!({
            "succeeded": self.ms.len(), "failed": self.failures.len(),
            "first_failures": &self.failures[..self.failures.len().min(5)],
            "ms": {"p50": median(&self.ms), "p99": percentile(&self.ms, 99), "max": percentile(&self.ms, 100)},
        })
    }
}

/// Makes so many connections, some at a time, each with an answer.
fn clients(client: &Net, connections: usize) -> Result<Outcome, Failure> {
    let next = AtomicUsize::new(0);
    let to: SocketAddr = format!("{VIP}:{PORT}").parse()?;
    let work = || -> Result<Outcome, String> {
        client.enter().map_err(|e| e.to_string())?;
        let mut out = Outcome::default();
        while next.fetch_add(1, Ordering::Relaxed) < connections {
            let begin = Instant::now();
            match exchange(to, next.load(Ordering::Relaxed) as u128) {
                Ok(()) => out.ms.push(begin.elapsed().as_secs_f64() * 1e3),
                Err(e) => out.failures.push(e.to_string()),
            }
            std::thread::sleep(PAUSE);
        }
        Ok(out)
    };
    let outcomes: Vec<_> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..CLIENTS).map(|_| s.spawn(work)).collect();
        threads.into_iter().map(|t| t.join()).collect()
    });
    let mut all = Outcome::default();
    for outcome in outcomes {
        let outcome = outcome.map_err(|_| "a client panicked")??;
        all.ms.extend(outcome.ms);
        all.failures.extend(outcome.failures);
    }
    Ok(all)
}

/// One good connection: 16 bytes there and back.
pub(super) fn exchange(to: SocketAddr, message: u128) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let message = message.to_be_bytes();
    stream.write_all(&message)?;
    let mut answer = [0; 16];
    stream.read_exact(&mut answer)?;
    if answer == message { Ok(()) } else { Err(std::io::Error::other("another connection's answer")) }
}

/// Runs `f` while the server sends back what it gets.
pub(super) fn with_server<T>(server: &Net, f: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let listener = std::thread::scope(|s| {
        let listen = || -> Result<TcpListener, String> {
            server.enter().map_err(|e| e.to_string())?;
            let listener = TcpListener::bind((SERVER, PORT)).map_err(|e| e.to_string())?;
            listener.set_nonblocking(true).map_err(|e| e.to_string())?;
            Ok(listener)
        };
        s.spawn(listen).join().map_err(|_| "the server panicked".to_owned())?
    })?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        for _ in 0..SERVERS {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    match listener.accept() {
                        // whose client is gone is the client's loss
                        Ok((stream, _)) => drop(answer(stream)),
                        Err(_) => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
            });
        }
        let result = f();
        stop.store(true, Ordering::Relaxed);
        result
    })
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut message = [0; 16];
    stream.read_exact(&mut message)?;
    stream.write_all(&message)?;
    // until the client has closed: then the port is the client's to keep for its TIME_WAIT
    stream.read(&mut message).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_found_by_name() {
        let snmp = "Ip: A B\nIp: 1 2\nTcp: RtoMin InSegs OutSegs RetransSegs InErrs\nTcp: 200 5 70 3 0\nUdp: OutSegs\nUdp: 9\n";
        assert_eq!(tcp_segments_sent(snmp), Some(73));
        assert_eq!(tcp_segments_sent("Tcp: OutSegs\n"), None);
    }
}
