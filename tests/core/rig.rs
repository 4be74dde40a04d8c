//! A director in the recordings' topology: two ports, static neighbours, virtual time.
//!
//! ```text
//! clients 10.2.0.0/16, 2001:db8:2::/48                       server k: 10.1.0.k, 2001:db8:1::k
//!   gateway 10.0.0.253, ::253          director                  MAC 02:00:00:00:01:k
//!   MAC 02:00:00:00:00:c1 ── c0 10.0.0.254, VIP 10.0.0.1 | s0 10.1.0.254 ──
//!                            2001:db8::254, VIP ::1      | 2001:db8:1::254
//! ```

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use ipvs_netlink::{
    Af, Backend, Dest, DestEntry, Errno, FwdMethod, Netmask, SVC_F_ONEPACKET, SVC_F_PERSISTENT, SVC_F_SCHED1,
    SVC_F_SCHED2, Service, ServiceKey, Tunnel,
};
use lvsd::conn::{Config, ConnTable};
use lvsd::engine::{
    Count, Director, Frame, FrameHandler, Gso, MAX_DESTS, Out, Reason, RxChecksum, TierMemory, Verdict,
    Worker,
};
use lvsd::mem::Region;
use lvsd::route::{
    self as rt, IfAddr, Link, LinkKind, NeighState, Place, PortId, Route, RouteKind, Routes, Via,
};
use lvsd::service::{DestMemory, Dests};
use lvsd::time::Now;

use super::frames::ethernet;

pub const C0: PortId = PortId(0);
pub const S0: PortId = PortId(1);
pub const C0_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xd0];
pub const S0_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xd1];
pub const GW_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xc1];

/// The director's ports.
pub const PORTS: [(PortId, &str); 2] = [(C0, "c0"), (S0, "s0")];

/// A table with room for `max` connections of each family.
pub fn config(max: u32) -> Config {
    Config { max_v4: max, max_v6: max, hash_key: [1, 2], shards: 4 }
}

pub fn server_mac(k: u8) -> [u8; 6] {
    [2, 0, 0, 0, 1, k]
}

/// What came of a frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    Out(Vec<(PortId, Vec<u8>)>),
    Pass,
    Queued,
    Drop(Reason),
}

pub struct Rig {
    pub director: Arc<Director>,
    pub worker: Worker,
    pub now: Now,
}

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

pub fn link(ifindex: u32, name: &str, mac: [u8; 6], mtu: u32) -> rt::Event {
    rt::Event::LinkNew(Link {
        ifindex,
        name: name.to_owned(),
        mac: Some(mac),
        mtu,
        up: true,
        running: true,
        kind: LinkKind::Other,
        parent: None,
    })
}

fn route(
    dst: &str,
    prefix: u8,
    gateway: Option<&str>,
    ifindex: u32,
    kind: RouteKind,
    table: u32,
) -> rt::Event {
    let dst = ip(dst);
    rt::Event::RouteNew {
        route: Route {
            table,
            family: dst.into(),
            dst: (dst, prefix),
            metric: 0,
            tos: 0,
            kind,
            prefsrc: None,
            mtu: 0,
            via: vec![Via { ifindex, gateway: gateway.map(ip), weight: 1 }],
        },
        place: Place::Last,
    }
}

pub fn neighbour(ifindex: u32, addr: &str, mac: Option<[u8; 6]>) -> rt::Event {
    let state = if mac.is_some() { NeighState::Permanent } else { NeighState::Failed };
    rt::Event::NeighNew { ifindex, addr: ip(addr), mac, state }
}

/// The network that an address with a prefix length is of.
fn network(addr: IpAddr, prefix: u8) -> IpAddr {
    match addr {
        IpAddr::V4(a) => IpAddr::V4((u32::from(a) & (u32::MAX << (32 - prefix))).into()),
        IpAddr::V6(a) => IpAddr::V6((u128::from(a) & (u128::MAX << (128 - prefix))).into()),
    }
}

fn addr(ifindex: u32, addr: &str, prefix: u8) -> Vec<rt::Event> {
    let a = IfAddr { ifindex, addr: ip(addr), prefix, scope: 0, secondary: false, unusable: false };
    let host = if a.addr.is_ipv4() { 32 } else { 128 };
    let mut v = vec![rt::Event::AddrNew(a), route(addr, host, None, ifindex, RouteKind::Local, 255)];
    if prefix != host {
        let net = network(a.addr, prefix).to_string();
        v.push(route(&net, prefix, None, ifindex, RouteKind::Unicast, 254));
    }
    v
}

impl Rig {
    pub fn golden() -> Rig {
        Rig::with_limit(4096)
    }

    pub fn with_limit(max: u32) -> Rig {
        Rig::plain(max)
    }

    /// With a tier above it that is played by the test.
    #[allow(dead_code)] // not the fuzz targets' way
    pub fn with_tier(max: u32) -> Rig {
        let region = |bytes| Region::anonymous(bytes, false).unwrap();
        let dests = DestMemory {
            lines: region(Dests::bytes(MAX_DESTS)),
            stats: region(Dests::stat_bytes(MAX_DESTS, 1)),
            kernel: region(Dests::kernel_bytes(MAX_DESTS, 2)),
            keys: region(Dests::key_bytes(MAX_DESTS)),
        };
        let table = ConnTable::new(config(max)).unwrap();
        Rig::over(table, dests, Now::from_secs(1_000_000))
    }

    /// The same in memory that another rig's director may have used, and left as it is.
    #[allow(dead_code)] // as above
    pub fn over(table: ConnTable, dests: DestMemory, now: Now) -> Rig {
        let conf = Region::anonymous(64, false).unwrap();
        // it can send by all ports
        conf.words()[1].store(!0, std::sync::atomic::Ordering::Relaxed);
        Rig::make(table, Some(TierMemory { dests, conf }), now)
    }

    fn plain(max: u32) -> Rig {
        let table = ConnTable::new(config(max)).unwrap();
        Rig::make(table, None, Now::from_secs(1_000_000))
    }

    fn make(table: ConnTable, tier: Option<TierMemory>, now: Now) -> Rig {
        Rig::within(table, Routes::with_lines(&PORTS, 256).unwrap(), tier, now)
    }

    /// With routes whose next hops BPF programs see, too, or in memory of their own.
    pub fn within(table: ConnTable, routes: Routes, tier: Option<TierMemory>, now: Now) -> Rig {
        let routes = Arc::new(routes);
        let mut events = vec![link(2, "c0", C0_MAC, 1500), link(3, "s0", S0_MAC, 1500)];
        for (i, a, p) in [
            (2, "10.0.0.254", 24),
            (2, "10.0.0.1", 32),
            (3, "10.1.0.254", 24),
            (2, "2001:db8::254", 64),
            (2, "2001:db8::1", 128),
            (3, "2001:db8:1::254", 64),
        ] {
            events.extend(addr(i, a, p));
        }
        events.push(route("10.2.0.0", 16, Some("10.0.0.253"), 2, RouteKind::Unicast, 254));
        events.push(route("2001:db8:2::", 48, Some("2001:db8::253"), 2, RouteKind::Unicast, 254));
        events.push(neighbour(2, "10.0.0.253", Some(GW_MAC)));
        events.push(neighbour(2, "2001:db8::253", Some(GW_MAC)));
        for k in 1..30u8 {
            events.push(neighbour(3, &format!("10.1.0.{k}"), Some(server_mac(k))));
            events.push(neighbour(3, &format!("2001:db8:1::{k:x}"), Some(server_mac(k))));
        }
        for e in events {
            routes.apply(e, now);
        }
        let director = Arc::new(match tier {
            Some(memory) => Director::with_tier(table, routes, 1, 7, memory),
            None => Director::new(table, routes, 1, 7).unwrap(),
        });
        let worker = Worker::new(director.clone(), 0);
        let mut rig = Rig { director, worker, now };
        rig.worker.tick(now);
        rig
    }

    pub fn apply(&self, event: rt::Event) {
        self.director.routes.apply(event, self.now);
    }

    /// Lets time pass, with its timers.
    pub fn advance_ms(&mut self, ms: u64) {
        let end = self.now.0 + ms * 1_000_000;
        while self.now.0 < end {
            self.now = Now(end.min(self.now.0 + 1_000_000_000));
            self.tick();
        }
    }

    /// Runs timers until none is due, as a port's loop does.
    fn tick(&mut self) {
        self.worker.tick(self.now);
        for _ in 0..1_000_000 {
            if self.worker.next_deadline(self.now) > self.now {
                return;
            }
            self.worker.tick(self.now);
        }
        panic!("timers do not come to an end");
    }

    /// Lets much time pass at once: only what is left in the end counts.
    #[allow(dead_code)] // the fuzz targets' way
    pub fn leap(&mut self, secs: u64) {
        self.now = Now(self.now.0 + secs * 1_000_000_000);
        self.tick();
    }

    pub fn advance(&mut self, secs: u64) {
        self.advance_ms(secs * 1000);
    }

    /// Gives the director one frame.
    pub fn frame(&mut self, port: PortId, frame: &[u8]) -> Event {
        self.frame_with(port, frame, RxChecksum::Complete, None)
    }

    pub fn frame_with(
        &mut self,
        port: PortId,
        frame: &[u8],
        checksum: RxChecksum,
        gso: Option<Gso>,
    ) -> Event {
        self.frame_behind(64, port, frame, (checksum, gso)).0
    }

    /// Gives the director one frame with `room` bytes before it; answers what came of it, and the notes it was left with.
    pub fn frame_behind(
        &mut self,
        room: usize,
        port: PortId,
        frame: &[u8],
        (checksum, gso): (RxChecksum, Option<Gso>),
    ) -> (Event, (RxChecksum, Option<Gso>)) {
        let mut buf = vec![0u8; room];
        buf.extend_from_slice(frame);
        let end = buf.len();
        let mut verdicts = Vec::new();
        let mut frames = [Frame { buf: &mut buf, start: room, end, port, checksum, gso }];
        self.worker.batch(self.now, &mut frames, &mut verdicts);
        let (start, end) = (frames[0].start, frames[0].end);
        let notes = (frames[0].checksum, frames[0].gso);
        assert_eq!(verdicts.len(), 1);
        let mut out = Vec::new();
        if let Verdict::Forward(to) = verdicts[0] {
            out.push((to, buf[start..end].to_vec()));
        }
        out.extend(self.outbox());
        let event = match verdicts[0] {
            Verdict::Forward(_) | Verdict::Emitted => Event::Out(out),
            Verdict::Pass => {
                assert_eq!(&buf[start..end], frame, "a frame that is passed must be unchanged");
                assert!(out.is_empty());
                Event::Pass
            }
            Verdict::Queued => Event::Queued,
            Verdict::Drop(reason) => {
                assert!(out.is_empty());
                Event::Drop(reason)
            }
        };
        (event, notes)
    }

    pub fn outbox(&mut self) -> Vec<(PortId, Vec<u8>)> {
        let mut out = Vec::new();
        self.worker.drain_outbox(&mut |o: Out| out.push((o.port, o.data)));
        out
    }

    pub fn client(&mut self, packet: &[u8]) -> Event {
        self.frame(C0, &ethernet(C0_MAC, GW_MAC, packet))
    }

    pub fn server(&mut self, k: u8, packet: &[u8]) -> Event {
        self.frame(S0, &ethernet(S0_MAC, server_mac(k), packet))
    }

    pub fn counted(&self, what: Count) -> u64 {
        self.director.counters(0).counted(what)
    }

    pub fn dropped(&self, reason: Reason) -> u64 {
        self.director.counters(0).dropped(reason)
    }

    /// The destinations of the only service, in the order of their addresses.
    pub fn dests(&self, service: &str) -> Vec<DestEntry> {
        let key = parse_service(&mut service.split_whitespace().peekable());
        let mut list = Backend::dests(&*self.director, &key).unwrap();
        list.sort_by_key(|d| (d.dest.addr, d.dest.port));
        list
    }

    /// An ipvsadm command; panics where it fails.
    pub fn cli(&mut self, command: &str) {
        self.try_cli(command).unwrap_or_else(|e| panic!("{command}: {e:?}"));
    }

    pub fn try_cli(&mut self, command: &str) -> Result<(), Errno> {
        let mut words = command.split_whitespace().peekable();
        let verb = words.next().unwrap();
        let key = parse_service(&mut words);
        let d = &*self.director;
        match verb {
            "-A" | "-E" => {
                let service = parse_options(key, &mut words);
                if verb == "-A" { d.add_service(&service) } else { d.edit_service(&service) }
            }
            "-D" => d.delete_service(&key),
            "-a" | "-e" | "-d" => {
                let dest = parse_dest(&key, &mut words, verb != "-d");
                match verb {
                    "-a" => d.add_dest(&key, &dest),
                    "-e" => d.edit_dest(&key, &dest),
                    _ => d.delete_dest(&key, dest.addr, dest.port),
                }
            }
            v => panic!("{v} is not for this parser"),
        }
    }
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn end(text: &str) -> (IpAddr, u16) {
    if let Some(rest) = text.strip_prefix('[') {
        let (a, p) = rest.split_once(']').unwrap();
        return (ip(a), p.strip_prefix(':').map_or(0, |p| p.parse().unwrap()));
    }
    match text.split_once(':') {
        Some((a, p)) => (ip(a), p.parse().unwrap()),
        None => (ip(text), 0),
    }
}

fn parse_service(words: &mut Words<'_>) -> ServiceKey {
    let protocol = match words.next().unwrap() {
        "-t" => 6,
        "-u" => 17,
        "--sctp-service" => 132,
        "-f" => {
            let mark = NonZeroU32::new(words.next().unwrap().parse().unwrap()).unwrap();
            let af = if words.next_if_eq(&"-6").is_some() { Af::V6 } else { Af::V4 };
            return ServiceKey::Fwmark { mark, af };
        }
        w => panic!("no service in {w}"),
    };
    let (addr, port) = end(words.next().unwrap());
    ServiceKey::Addr { protocol, addr, port }
}

fn parse_options(key: ServiceKey, words: &mut Words<'_>) -> Service {
    let netmask = match key.af() {
        Af::V4 => Netmask::V4([255; 4].into()),
        Af::V6 => Netmask::V6(128),
    };
    let mut s = Service {
        key,
        scheduler: "wlc".into(),
        flags: 0,
        flags_mask: !0,
        timeout: 0,
        netmask,
        pe_name: None,
    };
    while let Some(w) = words.next() {
        match w {
            "-s" => s.scheduler = words.next().unwrap().into(),
            "-p" => {
                s.flags |= SVC_F_PERSISTENT;
                s.timeout = words.next().unwrap().parse().unwrap();
            }
            "-M" => s.netmask = Netmask::V4(words.next().unwrap().parse().unwrap()),
            "-o" => s.flags |= SVC_F_ONEPACKET,
            "-b" => {
                for f in words.next().unwrap().split(',') {
                    s.flags |= if f.ends_with("fallback") { SVC_F_SCHED1 } else { SVC_F_SCHED2 };
                }
            }
            w => panic!("service option {w}"),
        }
    }
    s
}

fn parse_dest(key: &ServiceKey, words: &mut Words<'_>, coerce: bool) -> Dest {
    let mut d = Dest {
        addr: ip("0.0.0.0"),
        port: 0,
        method: FwdMethod::Droute,
        weight: 1,
        upper: 0,
        lower: 0,
        tunnel: Tunnel::default(),
    };
    while let Some(w) = words.next() {
        match w {
            "-r" => (d.addr, d.port) = end(words.next().unwrap()),
            "-m" => d.method = FwdMethod::Masq,
            "-g" => d.method = FwdMethod::Droute,
            "-i" => d.method = FwdMethod::Tunnel,
            "--tun-type" => {
                d.tunnel.kind = match words.next().unwrap() {
                    "ipip" => 0,
                    "gue" => 1,
                    "gre" => 2,
                    w => panic!("tunnel type {w}"),
                }
            }
            "--tun-port" => d.tunnel.port = words.next().unwrap().parse().unwrap(),
            "--tun-csum" => d.tunnel.flags |= 1,
            "-w" => d.weight = words.next().unwrap().parse().unwrap(),
            "-x" => d.upper = words.next().unwrap().parse().unwrap(),
            "-y" => d.lower = words.next().unwrap().parse().unwrap(),
            w => panic!("server option {w}"),
        }
    }
    // As ipvsadm does: a server without a port has the service's, and by DR no other.
    if let ServiceKey::Addr { port, .. } = key
        && coerce
        && (d.port == 0 || d.method != FwdMethod::Masq)
    {
        d.port = *port;
    }
    d
}
