//! Frames, time and configuration changes in any order: no panic, and in the end nothing is left over.
//!
//! The input is a sequence of records: an operation, a length, and as many bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../tests/core/frames.rs"]
mod frames;
#[allow(dead_code)]
#[path = "../../tests/core/rig.rs"]
mod rig;

use rig::{C0, C0_MAC, GW_MAC, Rig, S0, S0_MAC, server_mac};

const SERVICES: [&str; 6] = [
    "-t 10.0.0.1:80",
    "-u 10.0.0.1:53",
    "-t [2001:db8::1]:80",
    "-t 10.0.0.1:0",
    "-u [2001:db8::1]:53",
    "-t 10.0.0.1:443",
];
const METHODS: [&str; 6] =
    ["-m", "-g", "-m", "-i", "-i --tun-type gre", "-i --tun-type gre --tun-csum"];
const SCHEDULERS: [&str; 8] = ["rr", "wrr", "lc", "wlc", "sh", "dh", "mh", "maglev"];

fn configure(rig: &mut Rig, data: &[u8]) {
    let at = |i: usize| usize::from(data.get(i).copied().unwrap_or(0));
    let service = SERVICES[at(1) % SERVICES.len()];
    // Of the other family now and then: by a tunnel that is possible.
    let v6 = service.contains('[') != (at(2) & 0x80 != 0);
    let server = if v6 { "[2001:db8:1::" } else { "10.1.0." };
    let close = if v6 { "]" } else { "" };
    let real = format!("{server}{}{close}", at(2) % 4 + 1);
    let method = METHODS[at(3) % METHODS.len()];
    let scheduler = SCHEDULERS[at(3) % SCHEDULERS.len()];
    let persistent = if service.ends_with(":0") || at(4) % 4 == 0 { " -p 30" } else { "" };
    let command = match at(0) % 6 {
        0 => format!("-A {service} -s {scheduler}{persistent}"),
        1 => format!("-E {service} -s {scheduler}{persistent}"),
        2 => format!("-D {service}"),
        3 => format!("-a {service} -r {real} {method} -w {} -x {}", at(4) % 3, at(5) % 4),
        4 => format!("-e {service} -r {real} {method} -w {} -x {}", at(4) % 3, at(5) % 4),
        _ => format!("-d {service} -r {real}"),
    };
    // Whether it is possible depends on what is there; either is fine.
    let _ = rig.try_cli(&command);
}

fn ethernet(dst: [u8; 6], src: [u8; 6], kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut f = Vec::with_capacity(14 + payload.len());
    f.extend(dst);
    f.extend(src);
    f.extend(if kind & 1 == 0 { [8, 0] } else { [0x86, 0xdd] });
    f.extend(payload);
    f
}

fuzz_target!(|data: &[u8]| {
    let mut rig = Rig::with_limit(64);
    for service in SERVICES {
        configure_default(&mut rig, service);
    }
    let mut rest = data;
    for _ in 0..64 {
        let [op, len, tail @ ..] = rest else { break };
        let (now, next) = tail.split_at(usize::from(*len).min(tail.len()));
        rest = next;
        match op % 8 {
            0 => drop(rig.frame(C0, now)),
            1 => drop(rig.frame(S0, now)),
            2 | 3 => drop(rig.frame(C0, &ethernet(C0_MAC, GW_MAC, *op, now))),
            4 | 5 => drop(rig.frame(S0, &ethernet(S0_MAC, server_mac(1 + op / 64), *op, now))),
            6 => rig.leap(u64::from(*len)),
            _ => configure(&mut rig, now),
        }
    }
    // All timers run out: no entry is left, and no server counts one.
    rig.leap(1000);
    rig.leap(1000);
    assert_eq!(rig.director.table.len(modes::Family::V4), 0);
    assert_eq!(rig.director.table.len(modes::Family::V6), 0);
    for service in ipvs_netlink::Backend::services(&*rig.director) {
        for d in ipvs_netlink::Backend::dests(&*rig.director, &service.service.key).unwrap() {
            assert_eq!((d.active, d.inactive, d.persistent), (0, 0, 0));
        }
    }
});

fn configure_default(rig: &mut Rig, service: &str) {
    let persistent = if service.ends_with(":0") { " -p 30" } else { "" };
    rig.cli(&format!("-A {service} -s rr{persistent}"));
    let real = if service.contains('[') { "[2001:db8:1::1]" } else { "10.1.0.1" };
    rig.cli(&format!("-a {service} -r {real} -m"));
}
