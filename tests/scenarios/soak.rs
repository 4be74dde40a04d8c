//! The soak: mixed traffic for long, with changes of the configuration each second, after which all is as before: no entry in
//! the table, no frame astray, no descriptor, no memory, no drop that is not explained, nothing left on the interfaces.
//!
//! Two labs at once, one with NAT, one with direct routing and both tunnels; each with both families and the services of
//! [`SERVICES`]. Every byte that a server sends tells whose it is, and for which service (`servers::Service::Mark`).
//!
//! `LVSD_SOAK_SECS` sets the length of the long form, `LVSD_SOAK_SEED` repeats the changes of another run; a failure prints both.

mod accounts;
mod changes;
mod traffic;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::lab::{Family, Lab, Mode};
use crate::netns::Netns;
use crate::probe;
use crate::servers::{Service, TcpServer, UdpEcho};
use crate::wait::{secs, until};
use accounts::Account;
use changes::Changes;
use traffic::Tally;

/// Length of the short form, seconds.
const SHORT: u64 = 20;
/// Length of the long form unless `LVSD_SOAK_SECS` says otherwise: `make test-long` runs it on both kinds of rings.
const LONG: u64 = 600;
/// Connections that a director may have: more than two minutes of closed ones, of IPv6 as well, which has an eighth of these.
const LIMIT: u32 = 40_000;
/// Changes of the configuration of each director, a second.
const CHANGES: usize = 3;

/// What may happen to a service while it is in use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Weights, thresholds and the scheduler change; one server always takes connections, so none may fail.
    Core,
    /// Its servers come and go as well.
    Servers,
    /// The service itself comes and goes.
    Whole,
}

/// A virtual service of both families in both labs.
struct Spec {
    proto: &'static str,
    port: u16,
    /// Method in the lab that is not NAT's, where the servers have all that is needed for each.
    method: &'static str,
    persistent: bool,
    kind: Kind,
}

const TALK: usize = 0;
const BULK: usize = 1;
const PERSISTENT: usize = 2;
const UDP: usize = 3;
const SERVERS: usize = 4;
const WHOLE: usize = 5;

const SERVICES: [Spec; 6] = [
    Spec { proto: "-t", port: 7, method: "-g", persistent: false, kind: Kind::Core },
    Spec { proto: "-t", port: 8, method: "-i", persistent: false, kind: Kind::Core },
    Spec { proto: "-t", port: 11, method: "-i --tun-type gre", persistent: true, kind: Kind::Core },
    Spec { proto: "-u", port: 7, method: "-i", persistent: false, kind: Kind::Core },
    Spec { proto: "-t", port: 9, method: "-g", persistent: false, kind: Kind::Servers },
    Spec { proto: "-t", port: 10, method: "-i --tun-type gre", persistent: false, kind: Kind::Whole },
];

/// What a server's bytes are marked with.
fn mark(service: usize, server: usize) -> u8 {
    (service as u8 + 1) << 4 | server as u8
}

/// Numbers that look random, the same for the same seed (xorshift64*).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// One below `n`.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// What all threads of a run share.
struct Run {
    /// Traffic ends.
    stop: AtomicBool,
    /// What went wrong first.
    failure: Mutex<Option<String>>,
    tally: Tally,
}

impl Run {
    fn fail(&self, what: String) {
        self.failure.lock().expect("no panic under the lock").get_or_insert(what);
        self.stop.store(true, Ordering::Relaxed);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Ends the traffic whatever happens, or a failure would wait for it for ever.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A lab with its servers, and what its director was like before any traffic.
struct Site {
    _tcp: Vec<TcpServer>,
    _udp: Vec<UdpEcho>,
    lab: Lab,
    found: String,
    before: Account,
}

fn site(mode: Mode) -> Site {
    let mut lab = Lab::new(mode);
    let mut tcp = Vec::new();
    for s in &lab.servers {
        for (number, service) in SERVICES.iter().enumerate().filter(|(_, service)| service.proto == "-t") {
            let how = Service::Mark(mark(number, s.number));
            tcp.push(TcpServer::start(&s.ns, &s.name, service.port, how));
        }
    }
    let udp: Vec<UdpEcho> = Family::BOTH
        .into_iter()
        .flat_map(|family| crate::udp::echoes(&lab, family, SERVICES[UDP].port))
        .collect();
    Family::BOTH.into_iter().for_each(|family| lab.acquaint(family));
    let found = crate::daemon::snapshot(&lab.director, lab.director_devs());
    lab.start_lvsd_limited(LIMIT);
    let before = Account::take(lab.d());
    Site { _tcp: tcp, _udp: udp, lab, found, before }
}

/// The environment's number, or another.
fn from_env(name: &str, other: impl FnOnce() -> u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")),
        Err(_) => other(),
    }
}

#[test]
fn short_soak() {
    soak(SHORT);
}

#[test]
#[ignore = "long: make test-long"]
fn long_soak() {
    let length = from_env("LVSD_SOAK_SECS", || LONG);
    assert!(length >= SHORT, "LVSD_SOAK_SECS={length}: at least {SHORT}, or not everything happens");
    soak(length);
}

fn soak(length: u64) {
    if !probe::ready() {
        return;
    }
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_secs());
    let seed = from_env("LVSD_SOAK_SEED", now);
    println!("LVSD_SOAK_SECS={length} LVSD_SOAK_SEED={seed}");
    let mut sites = [site(Mode::Nat), site(Mode::Ipip)];
    let mut changes: Vec<Changes> =
        sites.iter().zip(1..).map(|(site, n)| Changes::new(&site.lab, seed + n)).collect();
    let run = Run { stop: AtomicBool::new(false), failure: Mutex::new(None), tally: Tally::default() };
    let warm = std::thread::scope(|scope| {
        let _stop = Stop(&run.stop);
        for (site, n) in sites.iter().zip(1..) {
            for family in Family::BOTH {
                let vip = site.lab.vip(family);
                let seed = seed * 64 + n * 16 + u64::from(family == Family::V6) * 8;
                for (client, work) in traffic::CLIENTS.iter().enumerate() {
                    let (ns, run): (&Netns, &Run) = (&site.lab.client, &run);
                    scope.spawn(move || {
                        let mut random = Random::new(seed + client as u64);
                        if let Err(what) = ns.run(|| work(vip, &mut random, run)) {
                            run.fail(format!("client {client} of {vip}: {what}"));
                        }
                    });
                }
            }
        }
        change(&sites, &mut changes, &run, length)
    });
    println!("{}", run.tally);
    if let Some(what) = run.failure.lock().expect("no panic under the lock").take() {
        let told: Vec<String> = changes.iter().map(Changes::last).collect();
        panic!(
            "{what}\nLVSD_SOAK_SEED={seed}; the last changes with NAT:\n{}\nand with the others:\n{}",
            told[0], told[1]
        );
    }
    run.tally.check(length);
    drop(changes);
    settle(&mut sites, &warm);
}

/// Changes the configurations each second until the end, and returns the accounts of the middle.
fn change(sites: &[Site], changes: &mut [Changes], run: &Run, length: u64) -> Vec<Account> {
    let start = Instant::now();
    let mut warm = Vec::new();
    for second in 1..=length {
        // a rate, not a wait for something
        std::thread::sleep((start + secs(second)).saturating_duration_since(Instant::now()));
        if run.stopped() {
            break;
        }
        for c in &mut *changes {
            (0..CHANGES).for_each(|_| c.step());
        }
        // Entries of closed connections live for two minutes: until then the table takes up more and more memory.
        if warm.is_empty() && second >= (length / 2).min(150) {
            warm = sites.iter().map(|site| Account::take(site.lab.d())).collect();
        }
    }
    warm
}

/// After the traffic: all entries expire, and then all is as before.
fn settle(sites: &mut [Site; 2], warm: &[Account]) {
    // TIME_WAIT is the longest, with two minutes.
    let deadline = Instant::now() + secs(160);
    for (site, warm) in sites.iter_mut().zip(warm) {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
        until("the table is empty", left, || (accounts::entries(site.lab.d()) == 0).then_some(()));
        accounts::check(site.lab.d(), &site.before, warm);
        // It still works; and then it goes without a trace.
        for family in Family::BOTH {
            let vip = site.lab.vip_port(family, SERVICES[TALK].port);
            traffic::one(&site.lab.client, vip, TALK).expect("a conversation after all");
        }
        fill(&site.lab);
        assert!(site.lab.lvsd.as_mut().is_some_and(|d| d.runs()), "the daemon has ended");
        let lvsd = site.lab.lvsd.take().expect("the daemon was started");
        let socket = lvsd.socket().to_path_buf();
        lvsd.terminate();
        crate::daemon::take_down(&socket);
        let left = crate::daemon::snapshot(&site.lab.director, site.lab.director_devs());
        assert_eq!(left, site.found, "SIGTERM left something changed");
    }
}

/// Every slot of the table has come back: new flows fill it to its limit, and none is refused before.
fn fill(lab: &Lab) {
    lab.d().ctl_ok("--set 0 0 300");
    let vip = lab.vip_port(Family::V6, SERVICES[UDP].port);
    until("a full table", secs(60), || {
        traffic::begin_flows(&lab.client, vip, 250);
        (lab.d().counter("drop_table_full") > 0).then_some(())
    });
    let status = lab.d().ctl_ok("status");
    let both: Option<(u64, u64)> = status.lines().find_map(|l| {
        let (_, ipv6) = l.split_once("connections: ")?.1.split_once("IPv6 ")?;
        let (used, limit) = ipv6.split_once(" of ")?;
        Some((used.parse().ok()?, limit.parse().ok()?))
    });
    let (used, limit) = both.unwrap_or_else(|| panic!("no connections in\n{status}"));
    assert_eq!(used, limit, "entries when the table was full, and its limit");
}
