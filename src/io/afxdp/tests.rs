//! The port in namespaces of its own.

use std::time::{Duration, Instant};

use aya::programs::XdpMode;

use super::socket::SocketPlan;
use super::*;
use crate::io::testlab::*;
use crate::io::testnet::{cannot, until};

fn config(workers: usize) -> AfXdpConfig {
    let interfaces = vec![(PortId(0), "vd".into()), (PortId(1), "vs".into())];
    AfXdpConfig { ring: 512, ..AfXdpConfig::new(interfaces, workers) }
}

fn start_lab(lab: &Lab, config: AfXdpConfig, pass: bool) -> AfXdp {
    start_port(lab, || start(config.clone(), &lab.tables, || Ok(|worker| lab.switch(worker, pass))))
}

/// Why it does not start.
fn refusal(lab: &Lab, config: AfXdpConfig) -> String {
    let make = |_| -> Box<dyn FrameHandler + Send> { unreachable!() };
    let e = lab.director.run(|| start(config, &lab.tables, || Ok(make))).unwrap_err().to_string();
    assert!(!e.contains('\n'), "{e}");
    e
}

/// Links with the queues that a test wants, in place of the lab's.
fn relink(lab: &Lab, queues: u32) {
    lab.director.sh("ip link del vd; ip link del vs");
    let q = format!("numrxqueues {queues} numtxqueues {queues}");
    for (here, there, net, ours, theirs) in [
        ("vd", "vc", &lab.client, "10.9.0.1/24", "10.9.0.2/24"),
        ("vs", "vr", &lab.server, "10.9.1.1/24", "10.9.1.2/24"),
    ] {
        lab.director
            .sh(&format!("ip link add {here} {q} type veth peer name {there} {q} netns {}", net.path()));
        lab.director.sh(&format!("ip addr add {ours} dev {here}; ip link set {here} up"));
        net.sh(&format!("ip addr add {theirs} dev {there}; ip link set {there} up"));
    }
    lab.client.sh("ip route add default via 10.9.0.1");
    lab.server.sh("ip route add default via 10.9.1.1");
    for (net, device) in [(&lab.director, "vd"), (&lab.director, "vs")] {
        until("the carrier", || net.sh(&format!("ip -o link show dev {device}")).contains("state UP"));
    }
}

#[test]
fn bulk_passes_both_ways_in_native_mode() {
    if cannot() {
        return;
    }
    let lab = Lab::new();
    let before = state(&lab.director);
    let running = bulk_both_ways(&lab, || start_lab(&lab, config(1), false));
    let rows = running.queues();
    assert_eq!(rows.len(), 2);
    for row in &rows {
        assert_eq!((row.queue, &*row.datapath, &*row.mode), (0, "afxdp", "native copy need-wakeup"));
        assert!(row.traffic.rx_packets > 1000 && row.traffic.tx_packets > 1000, "{row:?}");
        assert!(row.traffic.rx_bytes > 1_000_000 || row.traffic.tx_bytes > 1_000_000, "{row:?}");
        let names: Vec<&str> = row.rings.iter().map(|r| &*r.name).collect();
        assert_eq!(names, ["fill", "rx", "tx", "completion", "umem"]);
        assert_eq!(row.rings[0].size, 512);
        assert!(row.drops.iter().any(|d| d.name == "rx_no_buffer"), "{row:?}");
    }
    until("levels to be noted", || running.queues().iter().all(has_buffers));
    // without traffic, all chunks of the worker that are in use are in the fill rings of its two queues
    until("sent frames to be taken back", || {
        let rows = running.queues();
        let lent: u64 = rows.iter().map(|row| row.rings[0].used).sum();
        rows.iter().all(|row| row.rings[4].used == lent)
    });
    assert_eq!(running.summary(), "afxdp (vd native copy need-wakeup, vs native copy need-wakeup)");
    running.stop();
    as_before(&lab, &before);
}

/// That the rows of `lvsctl status` leave out nothing that was sent or dropped.
fn rows_hold_all(running: &AfXdp) {
    until("the rows to hold all that was counted", || {
        let rows = running.queues();
        running.stats().into_iter().all(|port| {
            let of_port = || rows.iter().filter(|r| r.interface == port.interface);
            let mut all = QueueStats::default();
            port.queues.iter().for_each(|q| all += *q);
            let sent = of_port().map(|r| (r.traffic.tx_packets, r.traffic.tx_bytes));
            let sent = sent.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
            let told = |name: &str| -> u64 {
                of_port().flat_map(|r| &r.drops).filter(|d| d.name == name).map(|d| d.value).sum()
            };
            sent == (all.tx_frames, all.tx_bytes) && all.drops().iter().all(|d| told(&d.name) == d.value)
        })
    });
}

#[test]
fn bulk_passes_both_ways_in_generic_mode_with_super_packets() {
    if cannot() {
        return;
    }
    let lab = Lab::new();
    let before = state(&lab.director);
    let running =
        bulk_both_ways(&lab, || start_lab(&lab, AfXdpConfig { attach: Attach::Generic, ..config(1) }, false));
    assert!(lab.seen.lock().unwrap().gso.is_some(), "no super-packet came by");
    assert!(running.summary().contains("vd generic copy"), "{}", running.summary());
    // packet sockets send all of it
    let sent = Lab::totals(&running).tx_frames as usize;
    assert!(sent >= 2 * BULK / 65_536, "{sent} frames sent");
    rows_hold_all(&running);
    running.stop();
    as_before(&lab, &before);
}

#[test]
fn long_frames_come_in_pieces_and_go_on_whole() {
    if cannot() {
        return;
    }
    let lab = Lab::new();
    for (net, device) in
        [(&lab.client, "vc"), (&lab.director, "vd"), (&lab.director, "vs"), (&lab.server, "vr")]
    {
        net.sh(&format!("ip link set {device} mtu 9000"));
    }
    let running = bulk_both_ways(&lab, || start_lab(&lab, config(1), false));
    let long = lab.seen.lock().unwrap().count;
    assert!((long as usize) < 2 * BULK / 1448, "{long} frames: they were not long");
    running.stop();
}

#[test]
fn busy_polling_works_as_well() {
    if cannot() {
        return;
    }
    let lab = Lab::new();
    bulk_both_ways(&lab, || start_lab(&lab, AfXdpConfig { busy_poll: 50, ..config(1) }, false)).stop();
}

fn passed_frames(attach: Attach) {
    let lab = Lab::new();
    passed_frames_reach_the_stack(&lab, || start_lab(&lab, AfXdpConfig { attach, ..config(2) }, true));
}

#[test]
fn passed_frames_reach_the_stack_in_native_mode() {
    if !cannot() {
        passed_frames(Attach::Native);
    }
}

#[test]
fn passed_frames_reach_the_stack_in_generic_mode() {
    if !cannot() {
        passed_frames(Attach::Generic);
    }
}

/// Queues of an interface, and the worker of each.
fn queues_of(running: &AfXdp, interface: &str) -> Vec<(u32, usize)> {
    let mut list = Vec::new();
    for port in running.threads.ports.iter() {
        let port = port.lock().unwrap();
        if port.holder.name() == interface {
            list.extend(port.holder.live().iter().map(|l| (l.queue, l.worker)));
        }
    }
    list
}

/// Whether the kernel has buffers to fill.
fn has_buffers(row: &QueueStatus) -> bool {
    row.rings.first().is_some_and(|fill| fill.used > 0)
}

#[test]
fn each_queue_has_its_worker() {
    if cannot() {
        return;
    }
    let lab = Lab::new();
    relink(&lab, 4);
    lab.service(17, VIP, 53);
    let running = start_lab(&lab, config(4), false);
    assert_eq!(queues_of(&running, "vd"), [(0, 0), (1, 1), (2, 2), (3, 3)]);
    datagrams_arrive_once(&lab, &running, 64);
    several_workers_saw(&lab, 64);
    running.stop();
    // more queues than workers, and a worker that has none
    let fewer = start_lab(&lab, config(3), false);
    assert_eq!(queues_of(&fewer, "vd"), [(0, 0), (1, 1), (2, 2), (3, 0)]);
    datagrams_arrive_once(&lab, &fewer, 64);
    fewer.stop();
}

#[test]
fn a_worker_without_a_queue_of_the_way_out_sends_all_the_same() {
    if cannot() {
        return;
    }
    let lab = Lab::new();
    let q = "numrxqueues 4 numtxqueues 4";
    lab.director.sh("ip link del vd");
    lab.director.sh(&format!("ip link add vd {q} type veth peer name vc {q} netns {}", lab.client.path()));
    lab.director.sh("ip addr add 10.9.0.1/24 dev vd; ip link set vd up");
    lab.client.sh("ip addr add 10.9.0.2/24 dev vc; ip link set vc up; ip route add default via 10.9.0.1");
    until("the carrier", || lab.director.sh("ip -o link show dev vd").contains("state UP"));
    lab.service(17, VIP, 53);
    let running = start_lab(&lab, config(4), false);
    datagrams_arrive_once(&lab, &running, 64);
    let stats = running.stats();
    let by_worker: Vec<u64> = stats[1].queues.iter().map(|q| q.tx_frames).collect();
    assert!(by_worker.iter().filter(|&&n| n > 0).count() > 1, "{by_worker:?}");
    rows_hold_all(&running);
    running.stop();
}

#[test]
fn an_interface_may_vanish_come_back_and_change() {
    if cannot() {
        return;
    }
    let lab = Lab::new();
    lab.service(17, VIP, 53);
    let running = start_lab(&lab, config(2), false);
    let attached = |port: usize| running.stats()[port].attached;
    let frame = || udp_frame(&lab, &[], lab.director.mac("vd"), b"a datagram");
    assert!(attached(0) && attached(1));
    lab.director.sh("ip link del vs");
    until("the loss to be noticed", || !attached(1));
    send_raw(&lab.client, "vc", &frame());
    until("the drop to be counted", || Lab::totals(&running).tx_down == 1);
    lab.director.link(("vs", "10.9.1.1/24"), &lab.server, ("vr", "10.9.1.2/24"));
    let since = Instant::now();
    until("the return to be noticed", || attached(1));
    assert!(since.elapsed() < Duration::from_secs(2));
    let goes_on = |what: &str| {
        let before = Lab::totals(&running).tx_frames;
        until(what, || {
            send_raw(&lab.client, "vc", &frame());
            std::thread::sleep(Duration::from_millis(5));
            Lab::totals(&running).tx_frames > before
        });
    };
    goes_on("traffic after the return");
    lab.director.sh("ip link set vs down");
    until("frames for an interface that is down to be counted", || {
        send_raw(&lab.client, "vc", &frame());
        std::thread::sleep(Duration::from_millis(5));
        Lab::totals(&running).tx_down > 1
    });
    lab.director.sh("ip link set vs up");
    goes_on("traffic after down and up");
    // another MAC address
    lab.director.sh("ip link set vd address 02:00:00:00:77:01");
    goes_on("traffic to the new address");
    running.stop();

    relink(&lab, 4);
    lab.director.sh("ethtool -L vd rx 1 tx 1; ethtool -L vs rx 1 tx 1");
    lab.client.sh("ethtool -L vc rx 1 tx 1");
    lab.server.sh("ethtool -L vr rx 1 tx 1");
    let running = start_lab(&lab, config(2), false);
    assert_eq!(running.queues().len(), 2);
    lab.director.sh("ethtool -L vd rx 4 tx 4");
    until("sockets with buffers on the new queues", || {
        running.queues().iter().filter(|r| r.interface == "vd" && has_buffers(r)).count() == 4
    });
    lab.client.sh("ethtool -L vc rx 4 tx 4");
    datagrams_arrive_once(&lab, &running, 64);
    assert!(running.healthy());
    running.stop();
}

#[test]
fn set_up_errors_name_the_interface_and_the_remedy() {
    if cannot() {
        return;
    }
    let lab = Lab::new();
    let only = |name: &str| AfXdpConfig { interfaces: vec![(PortId(0), name.into())], ..config(1) };
    let before = state(&lab.director);
    assert!(refusal(&lab, only("nothere")).contains("interface nothere: there is no such interface"));
    assert!(refusal(&lab, only("lo")).contains("interface lo: the loopback"));
    assert!(refusal(&lab, AfXdpConfig { ring: 100, ..only("vd") }).contains("power of two"));
    let running = start_lab(&lab, config(1), true);
    assert!(refusal(&lab, only("vs")).contains("interface vs: another lvsd"));
    running.stop();
    // a queue that is not there
    lab.director.run(|| {
        let area = Arc::new(Area::new(2048, 256).unwrap());
        let index = netdev::index("vd").unwrap();
        let plan = SocketPlan { name: "vd", index, queue: 9, ring: 64, zero_copy: true, busy_poll: 0 };
        let e = plan.make(&area).unwrap_err().to_string();
        assert!(e.contains("interface vd: queue 9") && e.contains("no such queue"), "{e}");
    });
    as_before(&lab, &before);
    // a peer with more queues than the interface has
    lab.director.sh("ip link del vd");
    lab.director.sh(&format!(
        "ip link add vd type veth peer name vc numrxqueues 4 numtxqueues 4 netns {}; ip link set vd up",
        lab.client.path()
    ));
    lab.client.sh("ethtool -L vc rx 4 tx 4; ip link set vc up");
    let e = refusal(&lab, only("vd"));
    assert!(e.contains("interface vd") && e.contains("fewer receive queues"), "{e}");
}

/// Runs something with a foreign XDP program on an interface.
fn with_other_program(lab: &Lab, name: &str, f: impl FnOnce()) {
    let index = lab.director.run(|| netdev::index(name).unwrap());
    let other = BpfTables::create(*lab.tables.shape(), 7).unwrap();
    other.load_xdp().unwrap();
    let link = lab.director.run(|| other.attach_xdp(index, XdpMode::Driver).unwrap());
    f();
    drop(link);
}

#[test]
fn another_xdp_program_or_socket_is_told_of_after_a_second() {
    if cannot() {
        return;
    }
    let lab = Lab::new();
    let before = state(&lab.director);
    with_other_program(&lab, "vs", || {
        let since = Instant::now();
        let e = refusal(&lab, config(1));
        assert!(e.contains("interface vs") && e.contains("another XDP program"), "{e}");
        assert!(since.elapsed() >= Duration::from_secs(1), "it was tried again");
    });
    // an AF_XDP socket on the queue
    let area = Arc::new(Area::new(2048, 256).unwrap());
    let index = lab.director.run(|| netdev::index("vs").unwrap());
    let plan = SocketPlan { name: "vs", index, queue: 0, ring: 64, zero_copy: false, busy_poll: 0 };
    let socket = lab.director.run(|| plan.make(&area)).unwrap();
    let e = refusal(&lab, config(1));
    assert!(e.contains("interface vs: queue 0") && e.contains("AF_XDP socket"), "{e}");
    // and what goes within the second is waited for
    let running = std::thread::scope(|s| {
        s.spawn(|| {
            until("the program", || lab.director.sh("ip link show dev vs").contains("prog/xdp"));
            drop(socket);
        });
        start_lab(&lab, config(1), false)
    });
    running.stop();
    as_before(&lab, &before);
}
