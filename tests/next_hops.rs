//! The next-hop follower against a kernel, in network namespaces of its own.
//!
//! ```text
//!   director namespace                         server namespace
//!   d0  10.0.0.1/24, fd00::1/64  ----------->  s0  10.0.0.11/24, fd00::11/64
//! ```

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lvsd::control::rtnl::Follower;
use lvsd::route::{Hop, HopState, Mac, NextHopId, PortId, RouteError, Routes};
use lvsd::time::Now;
use modes::{Addr, Family};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

const PORT: PortId = PortId(3);
const RS: &str = "10.0.0.11";
const RS6: &str = "fd00::11";

/// A namespace that goes away with its owner.
struct NetNs(String);

impl NetNs {
    fn new(role: &str) -> NetNs {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("lvsd-nh-{}-{n}-{role}", std::process::id());
        run("ip", &["netns", "add", &name]);
        NetNs(name)
    }
    /// Runs `ip` in the namespace.
    fn ip(&self, args: &str) -> String {
        let mut all = vec!["-n", &self.0];
        all.extend(args.split_whitespace());
        run("ip", &all)
    }
    fn exec(&self, args: &str) {
        let mut all = vec!["netns", "exec", &self.0];
        all.extend(args.split_whitespace());
        run("ip", &all);
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        // The test's own outcome matters more than a namespace that is already gone.
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program} {}: {error}", args.join(" "));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// Whether to run: root is needed. In CI not being root is a failure, not a reason to skip.
fn may_run() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "CI must run this test as root");
        eprintln!("skipped: needs root for network namespaces");
    }
    root
}

struct World {
    director: NetNs,
    server: NetNs,
    routes: Arc<Routes>,
    start: Instant,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    /// Stops the follower's thread until the receiver that it is given has heard something.
    pause: Option<tokio::sync::mpsc::UnboundedSender<std::sync::mpsc::Receiver<()>>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl World {
    /// The picture above, with a follower at work in the director's namespace.
    fn new() -> World {
        let director = NetNs::new("dir");
        let server = NetNs::new("srv");
        director.ip(&format!("link add d0 type veth peer name s0 netns {}", server.0));
        for (ns, dev, n) in [(&director, "d0", 1), (&server, "s0", 11)] {
            ns.ip("link set lo up");
            ns.ip(&format!("link set {dev} address 02:00:00:00:00:{n:02}"));
            ns.ip(&format!("addr add 10.0.0.{n}/24 dev {dev}"));
            ns.ip(&format!("addr add fd00::{n}/64 dev {dev} nodad"));
            ns.ip(&format!("link set {dev} up"));
        }
        let routes = Arc::new(Routes::new(&[(PORT, "d0")]).unwrap());
        let mut world =
            World { director, server, routes, start: Instant::now(), stop: None, pause: None, thread: None };
        world.follow();
        world.until("the tables are read", || world.routes.synced().then_some(()));
        // Both ends are up; IPv6 takes a moment longer.
        world.until("both links are routed", || world.lookup(RS).and(world.lookup(RS6)).ok());
        world
    }

    fn follow(&mut self) {
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (name, routes, start) = (self.director.0.clone(), Arc::clone(&self.routes), self.start);
        self.stop = Some(stop);
        let (pause, mut pauses) = tokio::sync::mpsc::unbounded_channel::<std::sync::mpsc::Receiver<()>>();
        self.pause = Some(pause);
        self.thread = Some(std::thread::spawn(move || {
            let ns = File::open(format!("/run/netns/{name}")).unwrap();
            move_into_link_name_space(ns.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let follower = Follower::open(routes, move || now(start)).unwrap();
                let sleeper = async {
                    while let Some(until) = pauses.recv().await {
                        until.recv().unwrap();
                    }
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    () = sleeper => {}
                    never = follower.run() => match never {},
                    _ = stopped => {}
                }
            });
        }));
    }

    /// Waits until something is there; the deadline is for a machine under load.
    fn until<T>(&self, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(t) = probe() {
                return t;
            }
            assert!(Instant::now() < deadline, "in vain: {what}; {:?}", self.routes);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn lookup(&self, dst: &str) -> Result<NextHopId, RouteError> {
        let (family, dst) = addr(dst);
        self.routes.lookup(family, dst, 0)
    }

    /// Uses a next hop, as a worker with traffic does, until it is as wanted.
    fn until_hop(&self, what: &str, dst: &str, mut wanted: impl FnMut(Hop) -> bool) -> Hop {
        self.until(what, || {
            let id = self.lookup(dst).ok()?;
            self.routes.note_used(id, now(self.start).tick());
            Some(self.routes.get(id)).filter(|h| wanted(*h))
        })
    }

    fn until_error(&self, what: &str, dst: &str, wanted: RouteError) {
        self.until(what, || (self.lookup(dst) == Err(wanted)).then_some(()));
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(t) = self.thread.take()
            && t.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the follower's thread has panicked");
        }
    }
}

fn now(start: Instant) -> Now {
    // Not from 0: a daemon starts on a clock that has been running.
    Now(1_000_000_000_000 + u64::try_from(start.elapsed().as_nanos()).unwrap())
}

fn mac(n: u8) -> Mac {
    [2, 0, 0, 0, 0, n]
}

fn addr(s: &str) -> (Family, Addr) {
    let a: IpAddr = s.parse().unwrap();
    (a.into(), a.into())
}

#[test]
fn unresolved_next_hop_is_resolved_by_the_kernel() {
    if !may_run() {
        return;
    }
    let w = World::new();
    for dst in [RS, RS6] {
        let hop = w.until_hop("ARP or ND gives the MAC", dst, |h| h.state == HopState::Ready);
        let want = Hop { state: HopState::Ready, port: PORT, src_mac: mac(1), dst_mac: mac(0x11), mtu: 1500 };
        assert_eq!(hop, want);
    }
    let info = w.routes.port(PORT).unwrap();
    assert_eq!((info.mac, info.mtu, info.up), (Some(mac(1)), 1500, true));
    assert!(w.routes.is_our_mac(PORT, mac(1)) && !w.routes.is_our_mac(PORT, mac(0x11)));
    // What is the director's own.
    for own in ["10.0.0.1", "127.0.0.1", "fd00::1", "::1"] {
        let (family, a) = addr(own);
        assert!(w.routes.is_local(family, a), "{own}");
        assert_eq!(w.lookup(own), Err(RouteError::Local), "{own}");
    }
    assert_eq!(w.lookup("10.0.0.255"), Err(RouteError::NotUnicast));
    assert_eq!(w.lookup("192.0.2.1"), Err(RouteError::NoRoute));
}

#[test]
fn resolution_asks_with_the_address_of_the_link_never_with_the_virtual_one() {
    if !may_run() {
        return;
    }
    let w = World::new();
    // VIPs as people configure them: a host address on the interface, and one on `lo`.
    w.director.ip("addr add 192.0.2.10/32 dev d0");
    w.director.ip("addr add 192.0.2.11/32 dev lo");
    // The server learns the asker from the question itself. Forget what was asked while the world was made; the server first,
    // so that whatever the director asks after its own flush is remembered.
    w.server.ip("neigh flush dev s0");
    w.director.ip("neigh flush dev d0");
    w.until_hop("ARP gives the MAC", RS, |h| h.state == HopState::Ready);
    let known = w.until("the server has heard of somebody", || {
        Some(w.server.ip("-4 neigh show")).filter(|k| k.contains("lladdr"))
    });
    assert!(known.contains("10.0.0.1 dev s0 lladdr 02:00:00:00:00:01"), "{known}");
    assert!(!known.contains("192.0.2."), "{known}");
    let (family, rs) = addr(RS);
    assert_eq!(w.routes.source_for(family, rs), Some(addr("10.0.0.1").1));
}

#[test]
fn routes_come_and_go() {
    if !may_run() {
        return;
    }
    let w = World::new();
    let far = "198.51.100.7";
    let e0 = w.routes.epoch();
    w.director.ip("route add 198.51.100.0/24 via 10.0.0.11 mtu 1400");
    let hop = w.until_hop("the new route is used", far, |h| h.state == HopState::Ready);
    assert_eq!((hop.dst_mac, hop.mtu), (mac(0x11), 1400));
    assert_ne!(w.routes.epoch(), e0);
    w.director.ip("route add blackhole 198.51.100.7/32");
    w.until_error("the longer prefix wins", far, RouteError::Blackhole);
    w.director.ip("route del blackhole 198.51.100.7/32");
    w.until("it is gone again", || w.lookup(far).ok());
    w.director.ip("route replace unreachable 198.51.100.0/24");
    w.until_error("replaced", far, RouteError::Unreachable);
    w.director.ip("route replace prohibit 198.51.100.0/24");
    w.until_error("replaced again", far, RouteError::Prohibited);
    w.director.ip("route del 198.51.100.0/24");
    w.until_error("gone", far, RouteError::NoRoute);
    // An address that becomes the director's.
    w.director.ip("addr add 192.0.2.10/32 dev d0");
    w.until_error("local", "192.0.2.10", RouteError::Local);
    w.director.ip("addr del 192.0.2.10/32 dev d0");
    w.until_error("no longer local", "192.0.2.10", RouteError::NoRoute);
}

#[test]
fn multipath_routes_are_kept_as_the_kernel_keeps_them() {
    if !may_run() {
        return;
    }
    let w = World::new();
    let ends = |dst: &str| {
        let (f, a) = addr(dst);
        Some((w.routes.lookup(f, a, 0).ok()?, w.routes.lookup(f, a, u32::MAX).ok()?))
    };
    let sets = [
        ("198.51.100.0/24", "198.51.100.7", "10.0.0.11", "10.0.0.12", ""),
        ("2001:db8::/32", "2001:db8::1", "fd00::11", "fd00::12", "-6 "),
    ];
    for (prefix, dst, one, two, family) in sets {
        w.director.ip(&format!("{family}route add {prefix} nexthop via {one} nexthop via {two} weight 3"));
        w.until("two ways", || ends(dst).filter(|(a, b)| a != b));
        w.director.ip(&format!("{family}route replace {prefix} via {two}"));
        w.until("one way", || ends(dst).filter(|(a, b)| a == b));
        // `append` makes a multipath route of it on IPv6 only; on IPv4 the first one goes on.
        w.director.ip(&format!("{family}route append {prefix} via {one}"));
        if family.is_empty() {
            w.director.ip(&format!("route del {prefix} via {two}"));
            let (f, a) = addr(one);
            let hop_one = w.routes.lookup(f, a, 0).unwrap();
            w.until("the appended one is left", || ends(dst).filter(|(a, _)| *a == hop_one));
        } else {
            w.until("two ways again", || ends(dst).filter(|(a, b)| a != b));
            w.director.ip(&format!("-6 route del {prefix} via {two}"));
            w.until("one of them is left", || ends(dst).filter(|(a, b)| a == b));
        }
        w.director.ip(&format!("{family}route del {prefix}"));
        w.until_error("gone", dst, RouteError::NoRoute);
    }
}

#[test]
fn routes_that_the_kernel_drops_in_silence_are_noticed() {
    if !may_run() {
        return;
    }
    let w = World::new();
    w.director.ip("addr add 10.0.0.2/24 dev d0");
    w.director.ip("route add 198.51.100.0/24 via 10.0.0.11 src 10.0.0.2");
    let (family, far) = addr("198.51.100.7");
    let second = addr("10.0.0.2").1;
    w.until("preferred source", || (w.routes.source_for(family, far) == Some(second)).then_some(()));
    w.director.ip("addr del 10.0.0.2/24 dev d0");
    w.until_error("died with its source", "198.51.100.7", RouteError::NoRoute);
    // And those that die with the link.
    w.director.ip("route add 198.51.100.0/24 via 10.0.0.11");
    w.until("there again", || w.lookup("198.51.100.7").ok());
    w.director.ip("link set d0 down");
    w.until_error("down", RS, RouteError::NoRoute);
    assert_eq!(w.lookup("198.51.100.7"), Err(RouteError::NoRoute));
    w.director.ip("link set d0 up");
    w.until_hop("the link's own route is back", RS, |h| h.state == HopState::Ready);
    w.until_error("the static route is not", "198.51.100.7", RouteError::NoRoute);
}

#[test]
fn interface_that_goes_and_comes_back_is_the_same_port() {
    if !may_run() {
        return;
    }
    let w = World::new();
    w.until_hop("first", RS, |h| h.state == HopState::Ready);
    let before = w.routes.port(PORT).unwrap().ifindex;
    let id = w.lookup(RS).unwrap();
    w.director.ip("link del d0");
    w.until("the port has no interface", || w.routes.port(PORT).unwrap().ifindex.is_none().then_some(()));
    assert_eq!(w.routes.get(id).state, HopState::Gone);
    assert!(!w.routes.is_our_mac(PORT, mac(1)));
    w.director.ip(&format!("link add d0 mtu 1400 type veth peer name s0 netns {}", w.server.0));
    w.director.ip("addr add 10.0.0.1/24 dev d0");
    w.director.ip("link set d0 up");
    w.server.ip("link set s0 address 02:00:00:00:00:77");
    w.server.ip("addr add 10.0.0.11/24 dev s0");
    w.server.ip("link set s0 up");
    let hop = w.until_hop("second", RS, |h| h.state == HopState::Ready);
    assert_eq!((hop.port, hop.dst_mac, hop.mtu), (PORT, mac(0x77), 1400));
    let after = w.routes.port(PORT).unwrap().ifindex;
    assert_ne!(after, before);
    assert_eq!(w.routes.port_of_ifindex(after.unwrap()), Some(PORT));
    w.director.ip("link set d0 mtu 1300");
    w.until_hop("new MTU", RS, |h| h.mtu == 1300);
}

#[test]
fn macvlan_on_a_port_brings_its_mac_and_its_routes() {
    if !may_run() {
        return;
    }
    let w = World::new();
    let vrrp = [0, 0, 0x5e, 0, 1, 0x33];
    w.director.ip("link add link d0 name vrrp.51 address 00:00:5e:00:01:33 type macvlan mode private");
    assert!(!w.routes.is_our_mac(PORT, vrrp), "a link that is down takes no frames");
    w.director.ip("link set vrrp.51 up");
    w.until("its MAC is ours", || w.routes.is_our_mac(PORT, vrrp).then_some(()));
    w.director.ip("addr add 10.0.0.3/32 dev vrrp.51");
    w.director.ip("route add 10.0.0.11/32 dev vrrp.51");
    let hop = w.until_hop("over the macvlan", RS, |h| h.state == HopState::Ready && h.src_mac == vrrp);
    assert_eq!((hop.port, hop.dst_mac), (PORT, mac(0x11)));
    w.director.ip("link del vrrp.51");
    w.until("its MAC is no longer ours", || (!w.routes.is_our_mac(PORT, vrrp)).then_some(()));
    w.until_hop("over the port itself", RS, |h| h.state == HopState::Ready && h.src_mac == mac(1));
}

#[test]
fn route_over_another_interface_is_named() {
    if !may_run() {
        return;
    }
    let w = World::new();
    w.director.ip("link add x0 type veth peer name x1");
    w.director.ip("addr add 10.9.0.1/24 dev x0");
    w.director.ip("link set x0 up");
    w.director.ip("link set x1 up");
    let ifindex = w.until("not ours", || match w.lookup("10.9.0.2") {
        Err(RouteError::NotOurPort { ifindex }) => Some(ifindex),
        _ => None,
    });
    assert!(w.director.ip("-o link show x0").starts_with(&format!("{ifindex}:")));
    w.routes.add_port(PortId(4), "x0").unwrap();
    let id = w.lookup("10.9.0.2").unwrap();
    assert_eq!(w.routes.get(id).port, PortId(4));
}

#[test]
fn server_that_announces_a_new_mac_is_followed_at_once() {
    if !may_run() {
        return;
    }
    let w = World::new();
    w.server.exec("sysctl -qw net.ipv4.conf.s0.arp_notify=1");
    let id = w.lookup(RS).unwrap();
    w.until_hop("first MAC", RS, |h| h.dst_mac == mac(0x11));
    let epoch = w.routes.epoch();
    w.server.ip("link set s0 address 02:00:00:00:01:11");
    let started = Instant::now();
    w.until("the same line carries the new MAC", || {
        (w.routes.get(id).dst_mac == [2, 0, 0, 0, 1, 0x11]).then_some(())
    });
    // Nobody has used the line meanwhile, so no question of ours has found it.
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert_eq!(w.routes.epoch(), epoch, "a MAC is no reason to look up again");
}

#[test]
fn server_that_changes_its_mac_in_silence_is_found_again() {
    if !may_run() {
        return;
    }
    let w = World::new();
    // The kernel's timers, 30 s, 5 s and 1 s, cut short: reachable for 0.5 to 1.5 s, then asked after 0.3 s.
    for cache in ["arp_cache", "ndisc_cache"] {
        let short = "base_reachable 1000 delay_probe 300 retrans 200";
        w.director.ip(&format!("ntable change name {cache} dev d0 {short}"));
    }
    w.server.exec("sysctl -qw net.ipv4.conf.s0.arp_notify=0 net.ipv6.conf.s0.ndisc_notify=0");
    let (id, id6) = (w.lookup(RS).unwrap(), w.lookup(RS6).unwrap());
    w.until_hop("first MAC", RS, |h| h.dst_mac == mac(0x11));
    w.until_hop("first MAC", RS6, |h| h.dst_mac == mac(0x11));
    w.server.ip("link set s0 address 02:00:00:00:01:11");
    // Traffic goes on; only lines that are in use are looked after.
    w.until("the same lines carry the new MAC", || {
        let tick = now(w.start).tick();
        w.routes.note_used(id, tick);
        w.routes.note_used(id6, tick);
        let new = |id| w.routes.get(id).dst_mac == [2, 0, 0, 0, 1, 0x11];
        (new(id) && new(id6)).then_some(())
    });
}

#[test]
fn server_that_dies_is_unresolved_and_comes_back() {
    if !may_run() {
        return;
    }
    let w = World::new();
    w.director.ip("ntable change name arp_cache dev d0 base_reachable 1000 delay_probe 300 retrans 200");
    w.until_hop("there", RS, |h| h.state == HopState::Ready);
    w.server.ip("addr del 10.0.0.11/24 dev s0");
    let hop = w.until_hop("nobody answers", RS, |h| h.state == HopState::Unresolved);
    assert_eq!(hop.dst_mac, [0; 6]);
    w.server.ip("addr add 10.0.0.11/24 dev s0");
    w.until_hop("back", RS, |h| h.state == HopState::Ready && h.dst_mac == mac(0x11));
    w.director.ip("neigh flush dev d0");
    w.until_hop("after a flush", RS, |h| h.state == HopState::Ready);
    // A MAC set by hand.
    w.director.ip("neigh replace 10.0.0.11 dev d0 lladdr 02:00:00:00:00:99 nud permanent");
    w.until_hop("by hand", RS, |h| h.dst_mac == mac(0x99));
}

#[test]
fn lost_messages_lead_to_another_reading() {
    if !may_run() {
        return;
    }
    let w = World::new();
    w.director.ip("route add 198.51.100.0/24 via 10.0.0.11");
    w.until("there", || w.lookup("198.51.100.7").ok());
    // Let readings that the making of the world has caused come to their end.
    let mut last = (0, Instant::now());
    w.until("no more readings", || {
        let readings = w.routes.stats().readings;
        if readings != last.0 {
            last = (readings, Instant::now());
        }
        (last.1.elapsed() > Duration::from_secs(3)).then_some(())
    });
    // The follower sleeps while more happens than its socket can hold.
    let (go_on, until) = std::sync::mpsc::channel();
    w.pause.as_ref().unwrap().send(until).unwrap();
    let mut batch = String::new();
    for verb in ["add", "del", "add"] {
        for i in 0..20_000 {
            batch.push_str(&format!("route {verb} 198.18.{}.{}/32 via 10.0.0.11\n", i / 250, i % 250));
        }
    }
    batch.push_str("route del 198.51.100.0/24\nroute add 203.0.113.0/24 via 10.0.0.11\n");
    let file = std::env::temp_dir().join(format!("{}-batch", w.director.0));
    std::fs::write(&file, batch).unwrap();
    w.director.ip(&format!("-batch {}", file.display()));
    std::fs::remove_file(&file).unwrap();
    assert!(w.lookup("198.51.100.7").is_ok(), "the follower sleeps");
    go_on.send(()).unwrap();
    w.until_error("the removed route is gone", "198.51.100.7", RouteError::NoRoute);
    w.until("the added one is there", || w.lookup("203.0.113.7").ok());
    w.until("all the others are", || (w.routes.stats().routes > 20_000).then_some(()));
    // Nothing but the loss was a reason to read again.
    w.until("the tables were read again", || (w.routes.stats().readings > last.0).then_some(()));
}

#[test]
fn another_reading_finds_what_was_missed() {
    if !may_run() {
        return;
    }
    let mut w = World::new();
    w.director.ip("route add 198.51.100.0/24 via 10.0.0.11");
    w.until("there", || w.lookup("198.51.100.7").ok());
    w.until_hop("resolved", RS, |h| h.state == HopState::Ready);
    // With the follower stopped, changes go unheard; the next one must find additions and removals alike.
    drop(w.stop.take());
    w.thread.take().unwrap().join().unwrap();
    w.director.ip("route del 198.51.100.0/24");
    w.director.ip("route add 203.0.113.0/24 via 10.0.0.11");
    w.director.ip("neigh flush dev d0");
    w.director.ip("link set d0 mtu 1350");
    assert!(w.lookup("198.51.100.7").is_ok(), "nobody has told us");
    w.follow();
    w.until_error("the removed route is gone", "198.51.100.7", RouteError::NoRoute);
    w.until("the added one is there", || w.lookup("203.0.113.7").ok());
    w.until_hop("the neighbour is asked for again", RS, |h| h.state == HopState::Ready && h.mtu == 1350);
}
