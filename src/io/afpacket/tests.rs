//! The port in namespaces of its own.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::ring::RxRing;
use super::*;
use crate::io::attach::Ingress;
use crate::io::netdev;
use crate::io::rings::socket;
use crate::io::testlab::*;
use crate::io::testnet::{Net, cannot, until};

fn config(workers: usize) -> AfPacketConfig {
    let ring = RingShape { frames: 2048 };
    let interfaces = vec![(PortId(0), "vd".into()), (PortId(1), "vs".into())];
    AfPacketConfig { ring, ..AfPacketConfig::new(interfaces, workers) }
}

fn start_lab(lab: &Lab, config: AfPacketConfig, pass: bool) -> AfPacket {
    start_port(lab, || start(config.clone(), &lab.tables, || Ok(|worker| lab.switch(worker, pass))))
}

#[test]
fn super_packets_are_forwarded_both_ways() {
    if cannot() {
        return;
    }
    let lab = Lab::new();
    let before = state(&lab.director);
    let running = bulk_both_ways(&lab, || start_lab(&lab, config(1), false));
    {
        let seen = lab.seen.lock().unwrap();
        assert!(seen.gso.is_some(), "no super-packet came by");
        assert!((seen.count as usize) < 2 * BULK / 1448, "{} frames: super-packets were cut", seen.count);
        for port in [0, 1] {
            assert!(seen.frames.iter().any(|(p, _)| *p == PortId(port)), "port {port} saw nothing");
        }
    }
    running.stop();
    as_before(&lab, &before);
}

fn passed_frames(hook: Hook) {
    let lab = Lab::new();
    passed_frames_reach_the_stack(&lab, || start_lab(&lab, AfPacketConfig { hook, ..config(2) }, true));
    assert!(lab.seen.lock().unwrap().gso.is_some(), "no super-packet came by");
}

#[test]
fn passed_frames_reach_the_stack_with_tcx() {
    if !cannot() {
        passed_frames(Hook::Auto);
    }
}

#[test]
fn passed_frames_reach_the_stack_with_clsact() {
    if !cannot() {
        passed_frames(Hook::Clsact);
    }
}

#[test]
fn each_frame_has_one_worker() {
    if cannot() {
        return;
    }
    let lab = Lab::new();
    lab.service(17, VIP, 53);
    let running = start_lab(&lab, config(4), false);
    datagrams_arrive_once(&lab, &running, 64);
    several_workers_saw(&lab, 64);
    running.stop();
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

#[test]
fn frames_arrive_byte_for_byte_with_their_tags() {
    if cannot() {
        return;
    }
    let lab = Lab::new();
    lab.service(17, VIP, 53);
    let running = start_lab(&lab, config(1), false);
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
        let running = start_lab(&lab, config(1), false);
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
    let running = start_lab(&lab, config(1), true);
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
    let running = start_lab(&lab, config(2), false);
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
        lab.director.run(|| start(config, &lab.tables, || Ok(make))).unwrap_err().to_string()
    };
    let before = state(&lab.director);
    assert!(attempt(&[], 1).contains("--interface"));
    assert!(attempt(&["vd"], 0).contains("1 to 64"));
    assert!(attempt(&["vd"], 65).contains("1 to 64"));
    assert!(attempt(&["vd", "nothere"], 1).contains("interface nothere: there is no such interface"));
    assert!(attempt(&["lo"], 1).contains("interface lo: the loopback"));
    assert!(attempt(&["vd", "vd"], 1).contains("interface vd is named twice"));
    let running = start_lab(&lab, config(1), true);
    assert!(attempt(&["vs"], 1).contains("interface vs: another lvsd"));
    running.stop();
    as_before(&lab, &before);
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
        std::mem::forget(
            crate::io::attach::Attachment::new(&lab.tables, "vd", index, Hook::Clsact, Ingress::Take)
                .unwrap(),
        );
    });
    assert_eq!(filters(), 2);
    let running = start_lab(&lab, AfPacketConfig { hook: Hook::Clsact, ..config(1) }, true);
    assert_eq!(filters(), 2);
    assert_eq!(running.queues()[0].mode, "clsact", "where the qdisc was there before, too");
    running.stop();
    assert_eq!(filters(), 0);
}
