//! The server without IO.

use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::ask;
use crate::memory::Memory;
use crate::wire::next_frame;
use crate::*;

fn key(n: u32) -> ServiceKey {
    ServiceKey::Addr { protocol: 6, addr: IpAddr::from((0x0a00_0000 + n).to_be_bytes()), port: 80 }
}

fn service(key: ServiceKey) -> Service {
    Service {
        key,
        scheduler: "rr".into(),
        flags: 0,
        flags_mask: !0,
        timeout: 0,
        netmask: match key.af() {
            Af::V4 => Netmask::V4([255; 4].into()),
            Af::V6 => Netmask::V6(128),
        },
        pe_name: None,
    }
}

fn dest(addr: &str) -> Dest {
    Dest {
        addr: addr.parse().unwrap(),
        port: 80,
        method: FwdMethod::Masq,
        weight: 1,
        upper: 0,
        lower: 0,
        tunnel: Tunnel::default(),
    }
}

fn refused(backend: &Memory, request: Request) -> Errno {
    match ask(backend, &request) {
        Err(ExchangeError::Refused(e)) => e,
        other => panic!("{request:?}: {other:?}"),
    }
}

#[test]
fn errors_of_services_are_the_kernels() {
    let b = Memory::default();
    ask(&b, &Request::NewService(service(key(1)))).unwrap();
    assert_eq!(refused(&b, Request::NewService(service(key(1)))), Errno::EEXIST);
    assert_eq!(refused(&b, Request::SetService(service(key(2)))), Errno::ESRCH);
    assert_eq!(refused(&b, Request::DelService(key(2))), Errno::ESRCH);
    assert_eq!(refused(&b, Request::GetService(key(2))), Errno::ESRCH);
    assert_eq!(refused(&b, Request::Zero(Some(key(2)))), Errno::ESRCH);
    let other = Service { scheduler: "nosuch".into(), ..service(key(3)) };
    assert_eq!(refused(&b, Request::NewService(other)), Errno::ENOENT);
    let other = Service { pe_name: Some("nosuch".into()), ..service(key(3)) };
    assert_eq!(refused(&b, Request::NewService(other)), Errno::ENOENT);
    let six = ServiceKey::Addr { protocol: 6, addr: "::1".parse().unwrap(), port: 80 };
    for len in [0, 129] {
        let other = Service { netmask: Netmask::V6(len), ..service(six) };
        assert_eq!(refused(&b, Request::NewService(other)), Errno::EINVAL, "/{len}");
    }
    assert_eq!(refused(&b, Request::GetFamily("nosuch".into())), Errno::ENOENT);
    assert_eq!(
        refused(&b, Request::SetConfig(Timeouts { tcp: TIMEOUT_MAX + 1, tcp_fin: 0, udp: 0 })),
        Errno::EINVAL
    );
}

#[test]
fn errors_of_destinations_are_the_kernels() {
    let b = Memory::default();
    ask(&b, &Request::NewService(service(key(1)))).unwrap();
    let add = |d: Dest| refused(&b, Request::NewDest(key(1), d));
    assert_eq!(refused(&b, Request::NewDest(key(2), dest("10.1.0.1"))), Errno::ESRCH);
    assert_eq!(add(Dest { weight: -1, ..dest("10.1.0.1") }), Errno::ERANGE);
    assert_eq!(add(Dest { lower: 2, upper: 1, ..dest("10.1.0.1") }), Errno::ERANGE);
    assert_eq!(add(dest("224.0.0.1")), Errno::EINVAL);
    assert_eq!(add(dest("2001:db8::1")), Errno::EINVAL);
    let gue =
        Dest { method: FwdMethod::Tunnel, tunnel: Tunnel { kind: 1, port: 0, flags: 0 }, ..dest("10.1.0.1") };
    assert_eq!(add(gue), Errno::EINVAL);
    ask(&b, &Request::NewDest(key(1), Dest { method: FwdMethod::Tunnel, ..dest("2001:db8::1") })).unwrap();
    ask(&b, &Request::NewDest(key(1), dest("10.1.0.1"))).unwrap();
    assert_eq!(add(dest("10.1.0.1")), Errno::EEXIST);
    assert_eq!(refused(&b, Request::SetDest(key(1), dest("10.1.0.2"))), Errno::ENOENT);
    assert_eq!(refused(&b, Request::DelDest(key(1), "10.1.0.2".parse().unwrap(), 80)), Errno::ENOENT);
    assert_eq!(ask(&b, &Request::DumpDests(key(2))), Ok(vec![]), "no error, as with the kernel");
}

/// A message with one service attribute that holds `attrs`, and whatever follows.
fn raw(cmd: u8, flags: u16, attrs: &[(u16, &[u8])], more: &[u8]) -> Vec<u8> {
    let mut w = wire::begin(cmd, 1);
    w.nested(1, true, |w| {
        for (kind, value) in attrs {
            w.bytes(*kind, value);
        }
    });
    let mut bytes = w.finish().unwrap();
    bytes.extend_from_slice(more);
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    bytes[4..6].copy_from_slice(&FAMILY_IPVS.to_ne_bytes());
    bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    bytes
}

/// The error numbers in what comes back, 0 for an acknowledgement.
fn codes(b: &Memory, datagram: &[u8]) -> Vec<i32> {
    let replies: Vec<Vec<u8>> = serve(b, datagram).collect();
    let mut codes = Vec::new();
    for reply in &replies {
        let mut rest = &reply[..];
        while let Some(f) = next_frame(&mut rest) {
            if f.kind == 2 {
                codes.push(i32::from_ne_bytes(f.payload[..4].try_into().unwrap()));
            }
        }
    }
    codes
}

const AF: (u16, &[u8]) = (1, &[2, 0]);
const PROTOCOL: (u16, &[u8]) = (2, &[6, 0]);
const ADDR: (u16, &[u8]) = (3, &[10, 0, 0, 1]);
const PORT: (u16, &[u8]) = (4, &[0, 80]);

#[test]
fn incomplete_and_damaged_requests_get_the_kernels_errors() {
    let b = Memory::default();
    ask(&b, &Request::NewService(service(key(1)))).unwrap();
    const GET: u8 = 4;
    // A short address is filled up; the name need not be there.
    assert_eq!(codes(&b, &raw(GET, 5, &[AF, PROTOCOL, ADDR, PORT], &[])), [0]);
    assert_eq!(codes(&b, &raw(GET, 5, &[AF, PROTOCOL, ADDR], &[])), [-22], "no port");
    assert_eq!(codes(&b, &raw(GET, 5, &[PROTOCOL, ADDR, PORT], &[])), [-22], "no family");
    assert_eq!(codes(&b, &raw(GET, 5, &[(1, &[3, 0]), PROTOCOL, ADDR, PORT], &[])), [-97], "family 3");
    assert_eq!(codes(&b, &raw(GET, 5, &[AF, PROTOCOL, ADDR, (4, &[80])], &[])), [-22], "a port of one byte");
    assert_eq!(
        codes(&b, &raw(GET, 5, &[AF, (5, &[0; 4])], &[])),
        [-3],
        "mark 0 is a service that there is not"
    );
    assert_eq!(codes(&b, &raw(1, 5, &[AF, PROTOCOL, ADDR, PORT], &[])), [-22], "a new one needs all");
    assert_eq!(codes(&b, &raw(99, 5, &[], &[])), [-95], "unknown command");
    assert_eq!(
        codes(&b, &raw(8, 5, &[AF, PROTOCOL, ADDR, PORT], &[])),
        [-95],
        "destinations are dumped only"
    );
    assert_eq!(codes(&b, &raw(12, 5, &[], &[6, 0, 4, 0, 1, 2, 0, 0])), [-34], "a timeout of two bytes");
    assert_eq!(codes(&b, &raw(5, 5, &[AF, PROTOCOL, ADDR, PORT], &[])), [-22], "no destination");
    let unknown = [AF, PROTOCOL, (3, &[10, 9, 9, 9][..]), PORT];
    assert_eq!(codes(&b, &raw(5, 5, &unknown, &[])), [-3], "the service is looked up first");
    // What follows a damaged attribute is not looked at, nor are unknown attributes.
    assert_eq!(codes(&b, &raw(GET, 5, &[AF, PROTOCOL, ADDR, PORT, (40, &[1])], &[3, 0, 2, 0, 9])), [0]);
}

#[test]
fn envelopes_are_treated_as_by_the_kernel() {
    let b = Memory::default();
    let service = [AF, PROTOCOL, ADDR, PORT];
    assert_eq!(codes(&b, &raw(4, 4, &service, &[])), [0], "no request: acknowledged unread");
    assert_eq!(codes(&b, &raw(4, 1, &service, &[])), [-3], "errors need no ACK flag");
    assert!(codes(&b, &raw(17, 1, &[], &[])).is_empty(), "success without ACK flag is silent");
    let mut other = raw(17, 5, &[], &[]);
    other[4..6].copy_from_slice(&99_u16.to_ne_bytes());
    assert_eq!(codes(&b, &other), [-2], "unknown family");
    let mut short = raw(17, 5, &[], &[]);
    short.truncate(18);
    short[..4].copy_from_slice(&18_u32.to_ne_bytes());
    assert_eq!(codes(&b, &short), [-22], "no generic header");
    let mut long = raw(17, 5, &[], &[]);
    long[..4].copy_from_slice(&1000_u32.to_ne_bytes());
    assert!(codes(&b, &long).is_empty(), "longer than the datagram: ignored");
}

#[test]
fn several_requests_in_a_datagram_are_answered_in_turn() {
    let b = Memory::default();
    let mut datagram = Vec::new();
    let requests = [
        Request::NewService(service(key(1))),
        Request::GetInfo,
        Request::DumpServices,
        Request::DelService(key(1)),
    ];
    for (seq, r) in (10..).zip(&requests) {
        datagram.extend(r.encode(Envelope { family: FAMILY_IPVS, seq, pid: 77 }).unwrap());
    }
    let replies: Vec<Vec<u8>> = serve(&b, &datagram).collect();
    let seen: Vec<(u16, u32, u32)> =
        replies.iter().map(|r| next_frame(&mut &r[..]).map(|f| (f.kind, f.seq, f.pid)).unwrap()).collect();
    let all = [(2, 10, 77), (32, 11, 77), (2, 11, 77), (32, 12, 77), (3, 12, 77), (2, 13, 77)];
    assert_eq!(seen, all, "an acknowledgement or end is a datagram of its own");
}

/// Counts calls of [`Backend::conns`].
struct Counting<'a>(&'a Memory, AtomicUsize);

macro_rules! pass {
    ($($name:ident($($arg:ident: $t:ty),*) -> $ret:ty;)*) => {
        $(fn $name(&self, $($arg: $t),*) -> $ret { self.0.$name($($arg),*) })*
    };
}

impl Backend for Counting<'_> {
    pass! {
        add_service(s: &Service) -> Result<(), Errno>;
        edit_service(s: &Service) -> Result<(), Errno>;
        delete_service(k: &ServiceKey) -> Result<(), Errno>;
        service(k: &ServiceKey) -> Result<ServiceEntry, Errno>;
        services() -> Vec<ServiceEntry>;
        add_dest(k: &ServiceKey, d: &Dest) -> Result<(), Errno>;
        edit_dest(k: &ServiceKey, d: &Dest) -> Result<(), Errno>;
        delete_dest(k: &ServiceKey, a: IpAddr, p: u16) -> Result<(), Errno>;
        dests(k: &ServiceKey) -> Result<Vec<DestEntry>, Errno>;
        zero(k: Option<&ServiceKey>) -> Result<(), Errno>;
        flush() -> Result<(), Errno>;
        timeouts() -> Timeouts;
        set_timeouts(t: Timeouts) -> Result<(), Errno>;
        info() -> Info;
        counters() -> Vec<Counter>;
        overview() -> Overview;
        queues() -> Vec<QueueStatus>;
        notices() -> Vec<Notice>;
        schedulers() -> Vec<SchedulerInfo>;
        sysctls() -> Vec<Sysctl>;
        set_sysctl(n: &str, v: &str) -> Result<(), Errno>;
        daemons() -> Vec<Daemon>;
        start_daemon(d: &Daemon) -> Result<(), Errno>;
        stop_daemon(s: DaemonState) -> Result<(), Errno>;
    }
    fn conns(&self, cursor: u64, max: usize) -> (Vec<ConnEntry>, Option<u64>) {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.conns(cursor, max)
    }
}

#[test]
fn a_long_listing_comes_in_short_datagrams_and_only_as_fast_as_it_is_read() {
    let b = Memory::default();
    let conn = |n: u32| ConnEntry {
        protocol: 6,
        client: (IpAddr::from(n.to_be_bytes()), 1),
        virt: ("10.0.0.1".parse().unwrap(), 80),
        dest: ("2001:db8::1".parse().unwrap(), 81),
        state: "ESTABLISHED".into(),
        expires: n,
        flags: 0x100,
    };
    let conns: Vec<ConnEntry> = (0..10_000).map(conn).collect();
    b.set_conns(conns.clone());
    let b = Counting(&b, AtomicUsize::new(0));
    let (mut exchange, datagram) =
        Exchange::new(&Request::DumpConns, Envelope { family: FAMILY_LVSD, seq: 1, pid: 0 }).unwrap();
    let mut replies = serve(&b, &datagram);
    let first = replies.next().unwrap();
    assert!(b.1.load(Ordering::Relaxed) <= 2, "the rest is not asked for yet");
    let mut seen = Vec::new();
    let mut datagrams = 0;
    let mut end = false;
    for d in std::iter::once(first).chain(replies) {
        assert!(!end, "a datagram behind the end");
        assert!(d.len() <= DATAGRAM_MAX);
        datagrams += 1;
        end = exchange
            .feed(&d, &mut |r| match r {
                Reply::Conn(c) => seen.push(c),
                other => panic!("{other:?}"),
            })
            .unwrap();
    }
    assert!(end);
    assert_eq!(seen, conns);
    assert!(datagrams > 40, "{datagrams}");
}

#[test]
fn settings_and_counters_are_served() {
    let b = Memory::default();
    let set = |name: &str, value: &str| {
        ask(&b, &Request::SetSysctl(Sysctl { name: name.into(), value: value.into() })).map(|_| ())
    };
    set("conn_reuse_mode", "0").unwrap();
    let one = ask(&b, &Request::GetSysctl(Some("conn_reuse_mode".into()))).unwrap();
    assert_eq!(one, [Reply::Sysctl(Sysctl { name: "conn_reuse_mode".into(), value: "0".into() })]);
    assert!(ask(&b, &Request::GetSysctl(None)).unwrap().len() > 10);
    assert_eq!(set("nosuch", "1"), Err(ExchangeError::Refused(Errno::ENOENT)));
    assert_eq!(set("drop_entry", "4"), Err(ExchangeError::Refused(Errno::EINVAL)));
    let counter = Counter { name: "drop.no_service".into(), value: u64::MAX };
    b.set_counters(vec![counter.clone()]);
    assert_eq!(ask(&b, &Request::GetStatus), Ok(vec![Reply::Counter(counter)]));
}

#[test]
fn the_daemon_tells_of_itself() {
    let b = Memory::default();
    let overview =
        Overview { version: "1.2.3".into(), pid: 7, conns_v6: (1, u64::MAX), ..Overview::default() };
    let queue = QueueStatus {
        interface: "eth0".into(),
        drops: (0..40).map(|n| Counter { name: format!("drop_{n}"), value: n }).collect(),
        rings: ["fill", "rx", "tx", "completion"]
            .map(|name| RingLevel { name: name.into(), used: 1, size: 4096 })
            .into(),
        ..QueueStatus::default()
    };
    let notice = Notice { text: "a line".into() };
    b.set_status(overview.clone(), vec![queue.clone(); 200], vec![notice.clone()]);
    assert_eq!(ask(&b, &Request::GetOverview), Ok(vec![Reply::Overview(overview)]));
    assert_eq!(ask(&b, &Request::DumpQueues), Ok(vec![Reply::Queue(queue); 200]));
    assert_eq!(ask(&b, &Request::DumpNotices), Ok(vec![Reply::Notice(notice)]));
    let schedulers = ask(&b, &Request::DumpSchedulers).unwrap();
    assert!(schedulers.iter().any(|s| matches!(s, Reply::Scheduler(s) if s.name == "wlc")), "{schedulers:?}");
}

#[test]
fn without_privilege_only_names_are_resolved() {
    let b = Memory::default();
    let kinds = |request: Request, family| -> Vec<(u16, i32)> {
        let datagram = request.encode(Envelope { family, seq: 1, pid: 0 }).unwrap();
        let replies: Vec<Vec<u8>> = serve_unprivileged(&b, &datagram).collect();
        let frame = |r: &Vec<u8>| {
            let f = next_frame(&mut &r[..]).unwrap();
            (f.kind, i32::from_ne_bytes(f.payload[..4].try_into().unwrap()))
        };
        replies.iter().map(frame).filter(|(kind, _)| *kind == 2).collect()
    };
    assert_eq!(kinds(Request::GetFamily("IPVS".into()), 16), [(2, 0)]);
    assert_eq!(kinds(Request::GetInfo, FAMILY_IPVS), [(2, -1)]);
    assert_eq!(kinds(Request::DumpServices, FAMILY_IPVS), [(2, -1)]);
    assert_eq!(kinds(Request::DumpConns, FAMILY_LVSD), [(2, -1)]);
    assert_eq!(kinds(Request::GetOverview, FAMILY_LVSD), [(2, -1)]);
    assert_eq!(kinds(Request::NewService(service(key(1))), FAMILY_IPVS), [(2, -1)]);
    assert!(b.services().is_empty());
}
