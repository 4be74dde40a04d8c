//! The tier against the core: of whatever packets, what a program forwards is byte for byte what the core would send.

use std::net::IpAddr;
use std::sync::Arc;

use ipvs_netlink::{Backend, Dest, FwdMethod, Netmask, Service, Tunnel};
use modes::checksum::{Sum, pseudo};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config as Cases, TestRunner};

use super::*;
use crate::engine::{Director, Frame, FrameHandler, Reason, RxChecksum, Verdict, Worker};
use crate::route::{Event, IfAddr, Link, LinkKind, NeighState, Place, PortId, Route, RouteKind, Routes, Via};
use crate::time::Now;

const CLIENTS: PortId = PortId(0);
const SERVERS: PortId = PortId(1);
/// The loopback device, by which programs run for a test send and receive; its address is zeros.
const LO: u32 = 1;
const US: [u8; 6] = [0; 6];
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Addresses of one family: clients' network, virtual address, servers: by NAT, by direct routing, and those of [`TUNNELS`].
pub(super) struct Net {
    family: Family,
    client: &'static str,
    pub(super) vip: &'static str,
    servers: [&'static str; 5],
    ours: [&'static str; 2],
    length: u8,
}

pub(super) const NETS: [Net; 2] = [
    Net {
        family: Family::V4,
        client: "198.18.0.0",
        vip: "192.0.2.10",
        servers: ["10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5"],
        ours: ["198.18.255.254", "10.1.0.254"],
        length: 16,
    },
    Net {
        family: Family::V6,
        client: "2001:db8:c::",
        vip: "2001:db8::10",
        servers: ["2001:db8:a::1", "2001:db8:a::2", "2001:db8:a::3", "2001:db8:a::4", "2001:db8:a::5"],
        ours: ["2001:db8:c::ffff", "2001:db8:a::ffff"],
        length: 64,
    },
];

/// IPIP, GRE, and GRE with a checksum, as IPVS numbers them. Services of both families have them to servers of both.
const TUNNELS: [Tunnel; 3] = [
    Tunnel { kind: 0, port: 0, flags: 0 },
    Tunnel { kind: 2, port: 0, flags: 0 },
    Tunnel { kind: 2, port: 0, flags: 1 },
];

/// A client's address.
pub(super) fn client(net: &Net, n: u8) -> Addr {
    Addr(addr(net.client).0 + 1 + u128::from(n))
}

fn client_mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 2, n]
}

const CLIENT_COUNT: u8 = 4;

pub(super) fn now() -> Now {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Now(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

fn ip_of(a: Addr, family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(a.v4().into()),
        Family::V6 => IpAddr::V6(a.0.into()),
    }
}

fn route(dst: IpAddr, length: u8, ifindex: u32) -> Event {
    let route = Route {
        table: 254,
        family: dst.into(),
        dst: (dst, length),
        metric: 0,
        tos: 0,
        kind: RouteKind::Unicast,
        prefsrc: None,
        mtu: 0,
        via: vec![Via { ifindex, gateway: None, weight: 1 }],
    };
    Event::RouteNew { route, place: Place::Last }
}

/// Where a program is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Face {
    /// At the ingress hook.
    Skb,
    Xdp,
}

impl Face {
    fn program(self) -> &'static str {
        match self {
            Face::Skb => "lvsd_tier_ingress",
            Face::Xdp => "lvsd_tier_xdp",
        }
    }
}

/// What a program did with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Done {
    /// It went up, where nobody is to take it.
    Up,
    Stack,
    Forward,
}

const DONE: [Done; 3] = [Done::Up, Done::Stack, Done::Forward];

/// Both ends of the comparison, over the same memory.
pub(super) struct Both {
    tables: Arc<BpfTables>,
    pub(super) director: Arc<Director>,
    pub(super) worker: Worker,
}

impl Both {
    pub(super) fn new() -> Both {
        let tables =
            Arc::new(BpfTables::with_tier(TableShape::of(&CONFIG), 0x1234_5678, &testnet::plan()).unwrap());
        tables.load_xdp().unwrap();
        // without sockets: what goes up is dropped
        tables.set_xdp_port(LO, XdpPortLine { mac: US, generic: false, place: 0 }).unwrap();
        let table = ConnTable::with_memory(CONFIG, tables.memory().unwrap(), now().tick()).unwrap();
        let tier = tables.tier().unwrap();
        let (hops, memory) = (tier.hops().unwrap(), tier.memory().unwrap());
        let routes = Arc::new(Routes::within(&[(CLIENTS, "c"), (SERVERS, "s")], hops).unwrap());
        let director = Arc::new(Director::with_tier(table, routes, 1, 7, memory));
        for port in [CLIENTS, SERVERS] {
            tables.tier().unwrap().set_port(port, LO).unwrap();
        }
        furnish(&director);
        for net in &NETS {
            for proto in [TCP, UDP] {
                assert!(tables.service_added(net.family, proto, addr(net.vip), 80));
            }
        }
        let worker = Worker::new(director.clone(), 0);
        Both { tables, director, worker }
    }

    /// What the core makes of a frame. An XDP port does not know whether its checksum is partial, and completes it before it sends.
    pub(super) fn core(&mut self, face: Face, port: PortId, bytes: &[u8]) -> (Verdict, Vec<u8>) {
        const ROOM: usize = 64;
        let mut buf = vec![0; ROOM];
        buf.extend_from_slice(bytes);
        let end = buf.len();
        let checksum = if face == Face::Skb { RxChecksum::Complete } else { RxChecksum::Unknown };
        let mut frames = [Frame { buf: &mut buf, start: ROOM, end, port, checksum, gso: None }];
        let mut verdicts = Vec::new();
        self.worker.batch(now(), &mut frames, &mut verdicts);
        self.worker.drain_outbox(&mut |_| ());
        // nothing is in any ring: what wants to be handed to the tier may be
        while self.worker.marks_waiting() {
            self.worker.marks_ready();
        }
        let partial = frames[0].checksum == RxChecksum::Partial;
        let mut buf = frames[0].bytes().to_vec();
        if partial && matches!(verdicts[0], Verdict::Forward(_)) {
            let p = modes::packet::parse(&buf).unwrap();
            assert!(modes::checksum::complete_partial(&mut buf, &p));
        }
        (verdicts[0], buf)
    }

    /// What a program makes of it, and the frame.
    pub(super) fn tier(&self, face: Face, bytes: &[u8]) -> (Done, Vec<u8>) {
        let programs = self.tables.programs();
        let mut out = vec![0; bytes.len() + 64];
        let options =
            TestRunOptions { data_in: Some(bytes), data_out: Some(&mut out), ..TestRunOptions::new() };
        let (ran, names) = match (face, programs.program(face.program())) {
            (Face::Skb, Some(Program::SchedClassifier(p))) => (p.test_run(options), [2, u32::MAX, 7]),
            (Face::Xdp, Some(Program::Xdp(p))) => (p.test_run(options), [1, 2, 4]),
            _ => panic!("no program"),
        };
        let ran = ran.unwrap();
        out.truncate(ran.data_size_out as usize);
        let at = names.iter().position(|n| *n == ran.return_value);
        (at.map_or_else(|| panic!("return value {}", ran.return_value), |n| DONE[n]), out)
    }
}

fn furnish(director: &Director) {
    let mut events = Vec::new();
    for (place, (ifindex, name)) in [(2, "c"), (3, "s")].into_iter().enumerate() {
        events.push(Event::LinkNew(Link {
            ifindex,
            name: name.to_owned(),
            mac: Some(US),
            mtu: 1500,
            up: true,
            running: true,
            kind: LinkKind::Other,
            parent: None,
        }));
        for net in &NETS {
            let at: IpAddr = net.ours[place].parse().unwrap();
            let a =
                IfAddr { ifindex, addr: at, prefix: net.length, scope: 0, secondary: false, unusable: false };
            events.push(Event::AddrNew(a));
        }
    }
    let neigh =
        |ifindex, addr, mac| Event::NeighNew { ifindex, addr, mac: Some(mac), state: NeighState::Permanent };
    for net in &NETS {
        events.push(route(net.client.parse().unwrap(), net.length, 2));
        for n in 0..CLIENT_COUNT {
            events.push(neigh(2, ip_of(client(net, n), net.family), client_mac(n)));
        }
        for (n, server) in (1..).zip(net.servers) {
            let at: IpAddr = server.parse().unwrap();
            events.push(route(at, if net.family == Family::V4 { 32 } else { 128 }, 3));
            events.push(neigh(3, at, [2, 0, 0, 0, 1, n]));
        }
    }
    for event in events {
        director.routes.apply(event, now());
    }
    for net in &NETS {
        for protocol in [TCP, UDP] {
            let vip: IpAddr = net.vip.parse().unwrap();
            let key = ipvs_netlink::ServiceKey::Addr { protocol, addr: vip, port: 80 };
            let netmask = match net.family {
                Family::V4 => Netmask::V4(std::net::Ipv4Addr::BROADCAST),
                Family::V6 => Netmask::V6(128),
            };
            let service = Service {
                key,
                scheduler: "rr".into(),
                flags: 0,
                flags_mask: !0,
                timeout: 0,
                netmask,
                pe_name: None,
            };
            director.add_service(&service).unwrap();
            let mut dests = vec![
                (net.servers[0], FwdMethod::Masq, 8080, Tunnel::default()),
                (net.servers[1], FwdMethod::Droute, 80, Tunnel::default()),
            ];
            for outer in &NETS {
                let of = outer.servers[2..].iter().zip(TUNNELS);
                dests.extend(of.map(|(server, tunnel)| (*server, FwdMethod::Tunnel, 80, tunnel)));
            }
            for (server, method, port, tunnel) in dests {
                let addr: IpAddr = server.parse().unwrap();
                let dest = Dest { addr, port, method, weight: 1, upper: 0, lower: 0, tunnel };
                director.add_dest(&key, &dest).unwrap();
            }
        }
    }
}

/// A packet of one of a few flows, and what may be odd about it.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    v6: bool,
    tcp: bool,
    pub(super) client: u8,
    pub(super) sport: u16,
    /// From the NAT server, and to which of its ports.
    reply: bool,
    flags: u8,
    payload: usize,
    ttl: u8,
    tos: u8,
    /// Of IPv4: the fragment word.
    fragment: u16,
    /// Of IPv4 a number of option words, of IPv6 a destination options header if it is not 0.
    extra: usize,
    padding: usize,
    checksum: Option<u16>,
    /// The checksum is the sum over the pseudo-header alone.
    partial: bool,
    /// A byte of the frame to be changed afterwards, and to what.
    damage: Option<(usize, u8)>,
    to_us: bool,
}

/// Mostly plain packets.
fn plans() -> impl Strategy<Value = Plan> {
    let rarely = |n: u32| prop::bool::weighted(1.0 / f64::from(n));
    let which = (any::<bool>(), any::<bool>(), 0..CLIENT_COUNT, 40_000u16..40_008, any::<bool>());
    let flags = prop_oneof![20 => Just(0x10u8), 8 => Just(0x18), 3 => Just(0x02), 1 => any::<u8>()];
    let odd_word = |weight: u32, some: BoxedStrategy<u16>| prop_oneof![weight => Just(0u16), 1 => some];
    let shape = (
        flags,
        prop_oneof![6 => 0usize..80, 2 => 1380usize..1480, 1 => 1440usize..1600],
        prop_oneof![20 => Just(64u8), 1 => 0u8..4, 1 => any::<u8>()],
        any::<u8>(),
        odd_word(15, prop_oneof![Just(0x4000u16), Just(0x2000), Just(0x8000), any::<u16>()].boxed()),
        prop_oneof![20 => Just(0usize), 1 => 1usize..4],
        prop_oneof![6 => Just(0usize), 1 => 1usize..20],
    );
    let sums = prop_oneof![12 => Just(None), 1 => Just(Some(0u16)), 1 => Just(Some(0xffff)), 2 => any::<u16>().prop_map(Some)];
    let damage = prop_oneof![20 => Just(None), 1 => (0usize..90, any::<u8>()).prop_map(Some)];
    (which, shape, sums, damage, (rarely(40), rarely(4))).prop_map(
        |(
            (v6, tcp, client, sport, reply),
            (flags, payload, ttl, tos, fragment, extra, padding),
            checksum,
            damage,
            (not_us, partial),
        )| Plan {
            v6,
            tcp,
            client,
            sport,
            reply,
            flags,
            payload,
            ttl,
            tos,
            fragment,
            extra,
            padding,
            checksum,
            partial,
            damage,
            to_us: !not_us,
        },
    )
}

impl Plan {
    /// A UDP packet over IPv4 with nothing odd about it.
    pub(super) fn plain_udp(client: u8, sport: u16) -> Plan {
        Plan {
            v6: false,
            tcp: false,
            client,
            sport,
            reply: false,
            flags: 0,
            payload: 18,
            ttl: 64,
            tos: 0,
            fragment: 0,
            extra: 0,
            padding: 0,
            checksum: None,
            partial: false,
            damage: None,
            to_us: true,
        }
    }

    fn net(&self) -> &'static Net {
        &NETS[usize::from(self.v6)]
    }

    pub(super) fn frame(&self) -> (PortId, Vec<u8>) {
        let net = self.net();
        let client = (client(net, self.client), self.sport);
        let (from, to, port) = if self.reply {
            ((addr(net.servers[0]), 8080), client, SERVERS)
        } else {
            (client, (addr(net.vip), 80), CLIENTS)
        };
        let proto = if self.tcp { TCP } else { UDP };
        let mut l4 = Vec::new();
        l4.extend(from.1.to_be_bytes());
        l4.extend(to.1.to_be_bytes());
        if self.tcp {
            l4.extend([0, 0, 0, 1, 0, 0, 0, 2, 0x50, self.flags, 1, 0, 0, 0, 0, 0]);
        } else {
            l4.extend(((8 + self.payload) as u16).to_be_bytes());
            l4.extend([0, 0]);
        }
        l4.extend((0..self.payload).map(|n| n as u8 ^ self.tos));
        let at = if self.tcp { 16 } else { 6 };
        let mut sum = pseudo(net.family, from.0, to.0, proto, l4.len());
        sum.add_bytes(&l4);
        let right = if self.tcp { sum.checksum() } else { sum.checksum().udp() };
        let right = match self.partial {
            true => pseudo(net.family, from.0, to.0, proto, l4.len()).fold(),
            false => right.0,
        };
        l4[at..at + 2].copy_from_slice(&self.checksum.unwrap_or(right).to_be_bytes());

        let mut f = Vec::from(if self.to_us { US } else { [2, 9, 9, 9, 9, 9] });
        f.extend([2, 8, 8, 8, 8, 8]);
        match net.family {
            Family::V4 => {
                f.extend([8, 0, 0x45 + self.extra as u8, self.tos]);
                f.extend(((20 + 4 * self.extra + l4.len()) as u16).to_be_bytes());
                f.extend([0x12, 0x34]);
                f.extend(self.fragment.to_be_bytes());
                f.extend([self.ttl, proto, 0, 0]);
                f.extend(from.0.v4().to_be_bytes());
                f.extend(to.0.v4().to_be_bytes());
                f.extend(std::iter::repeat_n(1, 4 * self.extra));
                let mut sum = Sum::new();
                sum.add_bytes(&f[14..]);
                let checksum = sum.checksum().0.to_be_bytes();
                f[24..26].copy_from_slice(&checksum);
            }
            Family::V6 => {
                let options = if self.extra == 0 { 0 } else { 8 };
                f.extend([0x86, 0xdd, 0x60 | self.tos >> 4, self.tos << 4, 0, 0]);
                f.extend(((options + l4.len()) as u16).to_be_bytes());
                f.extend([if options == 0 { proto } else { 60 }, self.ttl]);
                f.extend(from.0.0.to_be_bytes());
                f.extend(to.0.0.to_be_bytes());
                if options != 0 {
                    f.extend([proto, 0, 1, 4, 0, 0, 0, 0]);
                }
            }
        }
        f.extend(l4);
        f.resize(f.len() + self.padding, 0);
        if let Some((at, byte)) = self.damage
            && let Some(place) = f.get_mut(at)
        {
            *place = byte;
        }
        (port, f)
    }
}

/// How many packets are compared; more by LVSD_TIER_PACKETS.
fn packets() -> u32 {
    std::env::var("LVSD_TIER_PACKETS").ok().and_then(|n| n.parse().ok()).unwrap_or(40_000)
}

/// Whatever packet comes, in whatever order: the tier forwards what the core would forward, with the same bytes; what it leaves to the
/// stack the core would pass; and of plain packets of known flows it forwards most.
#[test]
fn forwards_the_same_bytes_as_the_core_or_nothing() {
    compare(Face::Skb);
}

/// The same at XDP, where partial checksums are found out and completed.
#[test]
fn forwards_the_same_bytes_as_the_core_or_nothing_at_xdp() {
    compare(Face::Xdp);
}

/// Blanks what nobody but the sender knows: the identification of an outer packet that may be fragmented, and the sum over it.
pub(super) fn without_ident(frame: &[u8]) -> Vec<u8> {
    let mut f = frame.to_vec();
    if f[12..14] == [8, 0] && matches!(f[23], 4 | 41 | 47) && f[20] & 0x40 == 0 {
        let mut sum = Sum::new();
        sum.add_bytes(&f[14..34]);
        assert_eq!(sum.fold(), 0xffff, "the outer header's checksum");
        f[18..20].fill(0);
        f[24..26].fill(0);
    }
    f
}

/// Makes the ways to tunnel servers narrower for a while: as long as the comparison goes on, or until in the middle of it.
fn narrow_ways(director: &Director) {
    for id in 0..MAX_DESTS {
        let line = director.dests.line(id);
        if line.available() && line.method() == FwdMethod::Tunnel {
            let life = if id % 2 == 0 { ticks(1) } else { ticks(3600) };
            line.set_path_mtu(1400 - id as u16, now().tick(), life);
        }
    }
}

fn compare(face: Face) {
    if testnet::cannot() {
        return;
    }
    let mut both = Both::new();
    let (mut forwarded, mut up, mut passed, mut plain) = (0u32, 0u32, 0u32, 0u32);
    let (mut nat_in, mut nat_out, mut dr) = (0u32, 0u32, 0u32);
    // by families within and without, and by the tunnel
    let mut wrapped = [[[0u32; 3]; 2]; 2];
    let mut runner = TestRunner::new(Cases { failure_persistence: None, ..Cases::default() });
    let plans = plans();
    for n in 0..packets() {
        let plan = plans.new_tree(&mut runner).unwrap().current();
        let (port, f) = plan.frame();
        if f.len() < 14 {
            continue;
        }
        if n == packets() / 2 {
            narrow_ways(&both.director);
        }
        let (value, sent) = both.tier(face, &f);
        let (verdict, bytes) = both.core(face, port, &f);
        let said = format!(
            "packet {n}: {plan:?}\nin   {f:02x?}\ntier {value:?} {sent:02x?}\ncore {verdict:?} {bytes:02x?}"
        );
        match value {
            Done::Forward => {
                assert!(matches!(verdict, Verdict::Forward(_)), "the core does not forward it: {said}");
                assert_eq!(without_ident(&sent), without_ident(&bytes), "{said}");
                forwarded += 1;
                match (plan.reply, bytes[5]) {
                    (true, _) => nat_out += 1,
                    (false, 1) => nat_in += 1,
                    (false, 2) => dr += 1,
                    (false, server) => {
                        let outer = usize::from(bytes[12..14] == [0x86, 0xdd]);
                        wrapped[usize::from(plan.v6)][outer][usize::from(server - 3)] += 1;
                    }
                }
            }
            Done::Up => up += 1,
            Done::Stack => {
                let stays = matches!(verdict, Verdict::Pass | Verdict::Drop(_));
                assert!(stays, "the tier leaves to the stack what the core wants: {said}");
                if let Verdict::Drop(reason) = verdict {
                    // malformed packets that concern no service
                    assert!(!matches!(reason, Reason::NoRoute | Reason::NotOurPort), "{said}");
                }
                passed += 1;
            }
        }
        plain += u32::from(matches!(verdict, Verdict::Forward(_)));
    }
    eprintln!(
        "{forwarded} forwarded ({nat_in} NAT in, {nat_out} NAT out, {dr} DR, tunnels {wrapped:?}), {up} up, {passed} passed, \
         {plain} by the core"
    );
    assert!(
        forwarded > packets() / 10,
        "{forwarded} of {} forwarded by the tier, {plain} by the core",
        packets()
    );
    assert!(nat_in > 100 && nat_out > 100 && dr > 100, "{nat_in} {nat_out} {dr}");
    let wrapped: Vec<u32> = wrapped.into_iter().flatten().flatten().collect();
    assert!(wrapped.iter().all(|n| *n > 100), "{wrapped:?}");
    let counters = both.tables.tier().unwrap().counters();
    let counted = |name: &str| counters.iter().find(|c| c.name == name).map(|c| c.value).unwrap();
    assert_eq!(counted("tier_in_pkts"), u64::from(nat_in + dr + wrapped.iter().sum::<u32>()));
    assert_eq!(counted("tier_out_pkts"), u64::from(nat_out));
    assert_eq!(counted("tier_failed"), 0);
    // there is no socket: what would go up is dropped, and takes no connection away from the tier
    assert_eq!(counted("tier_back"), 0);
}
