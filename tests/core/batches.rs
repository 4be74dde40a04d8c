//! Frames in batches meet the same as frames one by one, whatever they do to each other; and on the path of the usual packet the
//! same as on the general one.

use std::net::IpAddr;

use lvsd::engine::{Count, Frame, FrameHandler, Gso, Reason, RxChecksum, Verdict};
use lvsd::route::PortId;

use super::frames::*;
use super::rig::{C0, C0_MAC, GW_MAC, Rig, S0, S0_MAC, neighbour, server_mac};

/// Verdict and bytes of a frame, and what the core sent besides.
type Fate = (Verdict, Vec<u8>);

fn rig() -> Rig {
    // so few connections fit that some find the table full
    let mut rig = Rig::with_limit(40);
    for service in ["-t 10.0.0.1:80", "-u 10.0.0.1:53", "-t [2001:db8::1]:80"] {
        rig.cli(&format!("-A {service} -s rr"));
        for k in 1..=2 {
            let real =
                if service.contains('[') { format!("[2001:db8:1::{k}]") } else { format!("10.1.0.{k}") };
            let port = if service.starts_with("-u") { 53 } else { 80 };
            rig.cli(&format!("-a {service} -r {real}:{port} -m -w 1"));
        }
    }
    rig
}

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

/// A frame by number: of few flows in all their stages, and of things that are no flow.
fn frame(n: u32) -> (PortId, Vec<u8>) {
    let mut r = n.wrapping_mul(0x9e37_79b9);
    r ^= r >> 15;
    r = r.wrapping_mul(0x85eb_ca6b);
    let pick = |bits: u32, below: u32| (r >> bits & 0xff) % below;
    let sport = 30_000 + pick(0, 40) as u16;
    let flags = [SYN, ACK, ACK, ACK, ACK | FIN, RST][pick(8, 6) as usize];
    let six = pick(16, 4) == 0;
    let (client, vip) = if six { ("2001:db8:2::1", "2001:db8::1") } else { ("10.2.0.1", "10.0.0.1") };
    let k = 1 + pick(24, 2) as u8;
    let server = if six { format!("2001:db8:1::{k}") } else { format!("10.1.0.{k}") };
    let from_client = |p: &[u8]| (C0, ethernet(C0_MAC, GW_MAC, p));
    let from_server = |p: &[u8]| (S0, ethernet(S0_MAC, server_mac(k), p));
    let ttl = if pick(20, 9) == 0 { 1 } else { 64 };
    let to_vip = Ip { ttl, ..Ip::new(ip(client), ip(vip)) };
    let back = Ip::new(ip(&server), ip(client));
    match pick(4, 10) {
        0..=3 => from_client(&tcp(&to_vip, sport, 80, flags, b"some data")),
        4 | 5 => from_server(&tcp(&back, 80, sport, flags | ACK, b"an answer")),
        6 if !six => from_client(&udp(&to_vip, sport, 53, b"query")),
        7 if !six => from_server(&udp(&back, 53, sport, b"answer")),
        // neither ours nor an IP packet; cut short; for somebody else
        8 => from_client(&tcp(&to_vip, sport, 81, SYN, b"")),
        9 => from_client(&tcp(&to_vip, sport, 80, ACK, b"")[..30]),
        _ => (C0, ethernet(GW_MAC, C0_MAC, &tcp(&to_vip, sport, 80, ACK, b""))),
    }
}

/// What becomes of frames in batches of these sizes, in turn.
fn fates(
    rig: &mut Rig,
    frames: &[(PortId, Vec<u8>)],
    sizes: &[usize],
    mut before: impl FnMut(&mut Rig),
) -> (Vec<Fate>, Vec<(PortId, Vec<u8>)>) {
    let mut fates = Vec::new();
    let mut out = Vec::new();
    let mut rest = frames;
    let mut sizes = sizes.iter().cycle();
    while !rest.is_empty() {
        let n = (*sizes.next().unwrap()).min(rest.len());
        let (now, later) = rest.split_at(n);
        let mut buffers: Vec<Vec<u8>> = now.iter().map(|(_, f)| [&[0; 64], &f[..]].concat()).collect();
        let mut batch: Vec<Frame<'_>> = buffers
            .iter_mut()
            .zip(now)
            .map(|(buf, (port, _))| Frame {
                start: 64,
                end: buf.len(),
                buf,
                port: *port,
                checksum: RxChecksum::Complete,
                gso: None,
            })
            .collect();
        let mut verdicts = Vec::new();
        before(rig);
        rig.worker.batch(rig.now, &mut batch, &mut verdicts);
        assert_eq!(verdicts.len(), n);
        fates.extend(verdicts.into_iter().zip(&buffers).map(|(v, b)| (v, b[64..].to_vec())));
        out.extend(rig.outbox());
        rest = later;
    }
    (fates, out)
}

#[test]
fn a_batch_is_its_frames_one_by_one() {
    let frames: Vec<_> = (0..4000).map(frame).collect();
    let (alone, alone_out) = fates(&mut rig(), &frames, &[1], |_| ());
    for sizes in [&[64][..], &[2, 15, 16, 17], &[33, 63, 1], &[200]] {
        let (fates, out) = fates(&mut rig(), &frames, sizes, |_| ());
        for (n, (a, b)) in alone.iter().zip(&fates).enumerate() {
            assert_eq!(a, b, "frame {n} in batches of {sizes:?}");
        }
        assert_eq!(out, alone_out, "what the core sent, in batches of {sizes:?}");
    }
    // or it would say nothing
    let count = |f: &dyn Fn(&Verdict) -> bool| alone.iter().filter(|(v, _)| f(v)).count();
    let forwarded = count(&|v| matches!(v, Verdict::Forward(_)));
    let dropped = count(&|v| matches!(v, Verdict::Drop(_)));
    let passed = count(&|v| matches!(v, Verdict::Pass));
    assert!(forwarded > 500 && dropped > 100 && passed > 500 && !alone_out.is_empty());
}

/// What leaves, in the order in which a port sends it: a batch's own frames, then the outbox.
fn sent(rig: &mut Rig, frames: &[(Vec<u8>, RxChecksum, Option<Gso>)]) -> Vec<Vec<u8>> {
    let mut buffers: Vec<Vec<u8>> = frames.iter().map(|(f, ..)| [&[0; 64], &f[..]].concat()).collect();
    let mut batch: Vec<Frame<'_>> = buffers
        .iter_mut()
        .zip(frames)
        .map(|(buf, (_, checksum, gso))| Frame {
            start: 64,
            end: buf.len(),
            buf,
            port: C0,
            checksum: *checksum,
            gso: *gso,
        })
        .collect();
    let mut verdicts = Vec::new();
    rig.worker.batch(rig.now, &mut batch, &mut verdicts);
    let own = batch.iter().zip(&verdicts).filter(|(_, v)| matches!(v, Verdict::Forward(_)));
    let mut out: Vec<Vec<u8>> = own.map(|(f, _)| f.bytes().to_vec()).collect();
    out.extend(rig.outbox().into_iter().map(|(_, f)| f));
    out
}

fn flow(data: &[u8]) -> Vec<u8> {
    ethernet(C0_MAC, GW_MAC, &tcp(&Ip::new(ip("10.2.0.1"), ip("10.0.0.1")), 30_000, 80, ACK, data))
}

/// The last byte of each frame: what it was marked with.
fn marks(frames: &[Vec<u8>]) -> Vec<u8> {
    frames.iter().map(|f| *f.last().unwrap()).collect()
}

/// Nothing of a flow overtakes a super-packet of it that was cut, nor fragments.
#[test]
fn what_is_cut_is_not_overtaken() {
    let mut rig = Rig::golden();
    rig.cli("-A -t 10.0.0.1:80 -s rr");
    rig.cli("-a -t 10.0.0.1:80 -r 10.1.0.1:80 -i");
    let plain = |mark: u8| (flow(&[mark; 10]), RxChecksum::Complete, None);
    let syn = ethernet(C0_MAC, GW_MAC, &tcp(&Ip::new(ip("10.2.0.1"), ip("10.0.0.1")), 30_000, 80, SYN, &[1]));
    let large = (flow(&[3; 3000]), RxChecksum::Partial, Some(Gso { size: 1000, guessed: false }));
    let mut may_be_cut = Ip::new(ip("10.2.0.1"), ip("10.0.0.1"));
    may_be_cut.df = false;
    let fragments = ethernet(C0_MAC, GW_MAC, &tcp(&may_be_cut, 30_000, 80, ACK, &[5; 1460]));
    let fragments = (fragments, RxChecksum::Complete, None);
    let batch = [(syn, RxChecksum::Complete, None), plain(2), large, plain(4), fragments, plain(6)];
    assert_eq!(marks(&sent(&mut rig, &batch)), [1, 2, 3, 3, 3, 4, 5, 5, 6]);
    // The next batch goes its own way again.
    let mut verdicts = Vec::new();
    let mut buf = [&[0; 64], &flow(&[7])[..]].concat();
    let end = buf.len();
    let frame = Frame { buf: &mut buf, start: 64, end, port: C0, checksum: RxChecksum::Complete, gso: None };
    rig.worker.batch(rig.now, &mut [frame], &mut verdicts);
    assert_eq!(verdicts, [Verdict::Forward(S0)]);
}

/// Nothing of a flow overtakes what waits for its next hop.
#[test]
fn what_waits_is_not_overtaken() {
    let mut rig = Rig::golden();
    rig.cli("-A -t 10.0.0.1:80 -s rr");
    rig.cli("-a -t 10.0.0.1:80 -r 10.1.0.1:80 -g");
    let syn = ethernet(C0_MAC, GW_MAC, &tcp(&Ip::new(ip("10.2.0.1"), ip("10.0.0.1")), 30_000, 80, SYN, &[1]));
    let plain = |mark: u8| (flow(&[mark; 10]), RxChecksum::Complete, None);
    rig.apply(neighbour(3, "10.1.0.1", None));
    assert_eq!(sent(&mut rig, &[(syn, RxChecksum::Complete, None), plain(2)]), [] as [Vec<u8>; 0]);
    rig.apply(neighbour(3, "10.1.0.1", Some(server_mac(1))));
    // No timer in between.
    let out = sent(&mut rig, &[plain(3), plain(4)]);
    assert_eq!(marks(&out), [1, 2, 3, 4]);
    assert!(out.iter().all(|f| f[..6] == server_mac(1)));
}

/// All that is left of some frames: counters, servers' statistics, connections.
fn traces(rig: &Rig) -> (Vec<u64>, Vec<[u64; 5]>, Vec<String>) {
    let c = rig.director.counters(0);
    let counts = Count::ALL.iter().map(|x| c.counted(*x)).chain(Reason::ALL.iter().map(|r| c.dropped(*r)));
    let stats = |id| {
        let s = rig.director.dests.stats(id);
        [s.conns, s.in_pkts, s.out_pkts, s.in_bytes, s.out_bytes]
    };
    let mut conns = Vec::new();
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        cursor = rig.director.table.scan(at, 64, &mut |c| {
            let ends = (c.proto(), c.client(), c.virt(), c.real());
            conns.push(format!("{ends:?} {} {:?} {} {}", c.state(), c.last_seen(), c.timeout(), c.packets()));
        });
    }
    conns.sort();
    (counts.collect(), (0..6).map(stats).collect(), conns)
}

/// The usual path needs a next hop that is known; where the routes have just changed every packet takes the general one.
#[test]
fn the_usual_path_is_the_general_one() {
    let frames: Vec<_> = (0..4000).map(frame).collect();
    // a little time between frames: half of them fall into a new tick
    let pass = |rig: &mut Rig| rig.now.0 += 40_000_000;
    let (mut usual, mut general) = (rig(), rig());
    let (fast, fast_out) = fates(&mut usual, &frames, &[1], pass);
    let (slow, slow_out) = fates(&mut general, &frames, &[1], |rig| {
        pass(rig);
        let name = rig.director.routes.port(C0).unwrap().name;
        rig.director.routes.add_port(C0, &name).unwrap();
    });
    for (n, (a, b)) in fast.iter().zip(&slow).enumerate() {
        assert_eq!(a, b, "frame {n}");
    }
    assert_eq!(fast_out, slow_out);
    assert_eq!(traces(&usual), traces(&general));
    let translated = fast.iter().filter(|(v, _)| matches!(v, Verdict::Forward(_))).count();
    assert!(translated > 500);
}
