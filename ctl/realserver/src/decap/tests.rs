//! The program on frames, byte for byte, run by the kernel without any interface (root).

use aya::programs::{TestRun, TestRunOptions};

use super::*;

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const OWN4: &str = "10.0.0.11";
const OWN6: &str = "2001:db8:a::11";
const MACS: [u8; 12] = [2, 0, 0, 0, 0, 0x11, 2, 0, 0, 0, 0, 1];

#[test]
fn keys_are_those_of_the_program() {
    let k = key("10.0.0.11".parse().unwrap());
    assert_eq!((&k[..4], &k[4..9]), (&4u32.to_ne_bytes()[..], &[10, 0, 0, 11, 0][..]));
    let k = key("2001:db8::1".parse().unwrap());
    assert_eq!((&k[..4], &k[4..8], k[19]), (&6u32.to_ne_bytes()[..], &[0x20, 1, 0x0d, 0xb8][..], 1));
    for ip in [OWN4, OWN6] {
        let ip: IpAddr = ip.parse().unwrap();
        assert_eq!(address(key(ip)), Some(ip));
    }
    assert_eq!(address([0; 20]), None);
}

#[test]
fn an_interface_that_is_not_there_is_named() {
    for name in ["no-such-if", "", "a-name-that-is-much-too-long-for-one"] {
        let e = load(name, Path::new("/nonexistent")).unwrap_err();
        assert!(matches!(&e, Error::NoSuchInterface(n) if n == name), "{name}: {e}");
    }
}

fn sum(bytes: &[u8]) -> u16 {
    let mut total: u32 = bytes.chunks(2).map(|p| u32::from(u16::from_be_bytes([p[0], p[1]]))).sum();
    while total >> 16 != 0 {
        total = (total & 0xffff) + (total >> 16);
    }
    !(total as u16)
}

/// An IP packet; `tos` is the traffic class for IPv6.
fn ip(to: &str, proto: u8, tos: u8, payload: &[u8]) -> Vec<u8> {
    match to.parse().unwrap() {
        IpAddr::V4(to) => {
            let mut p = vec![0x45, tos, 0, 0, 0, 7, 0x40, 0, 64, proto, 0, 0, 10, 0, 0, 1];
            p.extend(to.octets());
            p[2..4].copy_from_slice(&u16::try_from(20 + payload.len()).unwrap().to_be_bytes());
            let check = sum(&p);
            p[10..12].copy_from_slice(&check.to_be_bytes());
            p.extend(payload);
            p
        }
        IpAddr::V6(to) => {
            let mut p = vec![0x60 | tos >> 4, tos << 4, 0, 0];
            p.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
            p.extend([proto, 64]);
            p.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            p.extend(to.octets());
            p.extend(payload);
            p
        }
    }
}

fn frame(packet: &[u8]) -> Vec<u8> {
    let kind = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
    [&MACS[..], &kind, packet].concat()
}

fn gre(flags: u16, inner: &[u8]) -> Vec<u8> {
    let kind: u16 = if inner[0] >> 4 == 4 { 0x0800 } else { 0x86dd };
    let check: &[u8] = if flags & 0x8000 == 0 { &[] } else { &[0x12, 0x34, 0, 0] };
    [&flags.to_be_bytes()[..], &kind.to_be_bytes(), check, inner].concat()
}

/// The program's answer and the frame after it. None where the kernel's BPF is not to be had.
fn run() -> Option<impl FnMut(&[u8]) -> (u32, Vec<u8>)> {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("CI").is_none(), "BPF needs root");
        println!("SKIP: BPF needs root");
        return None;
    }
    let mut ebpf = prepare(&[OWN4.parse().unwrap(), OWN6.parse().unwrap()]).unwrap();
    Some(move |frame: &[u8]| {
        let mut out = vec![0; 2048];
        let options =
            TestRunOptions { data_in: Some(frame), data_out: Some(&mut out), ..TestRunOptions::default() };
        let result = program(&mut ebpf).unwrap().test_run(options).unwrap();
        let len = result.data_size_out as usize;
        (result.return_value, out[..len].to_vec())
    })
}

fn inners(tos: u8) -> [Vec<u8>; 2] {
    let data = [0xab; 64];
    [ip("192.0.2.10", 17, tos, &data), ip("2001:db8:0:1::10", 17, tos, &data)]
}

#[test]
fn every_tunnel_of_every_mix_is_taken_off() {
    let Some(mut run) = run() else { return };
    for own in [OWN4, OWN6] {
        for inner in inners(0) {
            let plain = if inner[0] >> 4 == 4 { 4 } else { 41 };
            let outers = [
                ip(own, plain, 0, &inner),
                ip(own, 47, 0, &gre(0, &inner)),
                ip(own, 47, 0, &gre(0x8000, &inner)),
            ];
            for outer in outers {
                assert_eq!(run(&frame(&outer)), (XDP_PASS, frame(&inner)), "{outer:02x?}");
            }
        }
    }
}

#[test]
fn everything_else_passes_untouched() {
    let Some(mut run) = run() else { return };
    let [v4, v6] = inners(0);
    let mut fragment = ip(OWN4, 4, 0, &v4);
    fragment[6] = 0x20;
    let mut later = ip(OWN4, 4, 0, &v4);
    later[7] = 9;
    let mut options = ip(OWN4, 4, 0, &v4);
    options[0] = 0x46;
    let mut longer = ip(OWN4, 4, 0, &v4);
    longer[3] -= 1;
    let mut bridged = gre(0, &v4);
    bridged[2..4].copy_from_slice(&[0x65, 0x58]);
    let packets = [
        v4.clone(),
        v6.clone(),
        fragment,
        later,
        options,
        longer,
        ip("10.0.0.12", 4, 0, &v4),
        ip("2001:db8:a::12", 41, 0, &v6),
        ip(OWN4, 17, 0, &v4),
        // the protocol speaks of the other family
        ip(OWN4, 4, 0, &v6),
        ip(OWN6, 41, 0, &v4),
        // a key, a version, an Ethernet frame
        ip(OWN4, 47, 0, &gre(0x2000, &v4)),
        ip(OWN4, 47, 0, &gre(1, &v4)),
        ip(OWN4, 47, 0, &bridged),
        // a fragment header
        ip(OWN6, 44, 0, &v6),
        ip(OWN4, 4, 0, &v4[..19]),
        ip(OWN6, 41, 0, &v6[..39]),
        ip(OWN4, 47, 0, &[0, 0]),
    ];
    for p in packets {
        assert_eq!(run(&frame(&p)), (XDP_PASS, frame(&p)), "{p:02x?}");
    }
    let mut arp = frame(&v4);
    arp[13] = 6;
    assert_eq!(run(&arp), (XDP_PASS, arp.clone()));
}

#[test]
fn congestion_is_carried_inwards() {
    let Some(mut run) = run() else { return };
    const CE: u8 = 3;
    for own in [OWN4, OWN6] {
        // RFC 6040 figure 4: outer CE on ECT(0), ECT(1), CE; the DSCP stays
        for ecn in [1, 2, 3] {
            for (inner, marked) in inners(0xb8 | ecn).into_iter().zip(inners(0xb8 | CE)) {
                let plain = if inner[0] >> 4 == 4 { 4 } else { 41 };
                assert_eq!(run(&frame(&ip(own, plain, CE, &inner))), (XDP_PASS, frame(&marked)), "{ecn}");
                // no congestion: as it was
                assert_eq!(run(&frame(&ip(own, plain, 2, &inner))), (XDP_PASS, frame(&inner)), "{ecn}");
            }
        }
        for inner in inners(0) {
            let plain = if inner[0] >> 4 == 4 { 4 } else { 41 };
            assert_eq!(run(&frame(&ip(own, plain, CE, &inner))).0, XDP_DROP);
        }
    }
}
