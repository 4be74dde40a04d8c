//! Tunnels to servers with our decapsulator: sizes, families, and the decapsulator's own life.
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::bulk::{Big, SINK, both_ways, offer, sinks};
use crate::capture::{Capture, says_too_big};
use crate::client::curl;
use crate::lab::{Family, Lab, Mode, Server};
use crate::netns::run;
use crate::wait::{secs, until};
use crate::{matrix, probe, spread};

const BYTES: usize = 30_000_000;

fn offered(lab: &mut Lab, family: Family) -> (SocketAddr, SocketAddr, Big) {
    let big = offer(lab, BYTES);
    lab.start_lvsd();
    let (vip, sink) = (lab.vip_port(family, 80), lab.vip_port(family, SINK));
    lab.service("-t", vip, "rr", [1, 1, 1], 80);
    lab.service("-t", sink, "rr", [1, 1, 1], SINK);
    (vip, sink, big)
}

matrix!(bulk_with_1500_everywhere, tunnels);
/// The client's full segments do not fit the tunnel: only the director's "fragmentation needed" makes an upload work.
fn bulk_with_1500_everywhere(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(mode);
    let _sinks = sinks(&lab);
    let (vip, sink, big) = offered(&mut lab, family);
    let told = Capture::start(&lab.client, |f| says_too_big(f).then_some(()));
    both_ways(&lab.client, vip, sink, &big).expect("the file, whole");
    until("the client is told a smaller MTU", secs(5), || told.look(|t| (!t.is_empty()).then_some(())));
}

matrix!(bulk_with_1600_to_the_servers, tunnels);
/// With room for the outer header, nobody is told anything.
fn bulk_with_1600_to_the_servers(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(mode);
    for port in ["dir", "s1", "s2", "s3"] {
        lab.lan.ip(&format!("link set {port} mtu 1600"));
    }
    lab.director.ip("link set d0 mtu 1600");
    for s in &lab.servers {
        s.ns.ip("link set s0 mtu 1600");
    }
    let _sinks = sinks(&lab);
    let (vip, sink, big) = offered(&mut lab, family);
    let told = Capture::start(&lab.client, |f| says_too_big(f).then_some(()));
    both_ways(&lab.client, vip, sink, &big).expect("the file, whole");
    told.look(|t| assert!(t.is_empty(), "the client was told {} times that packets are too big", t.len()));
}

matrix!(servers_of_the_other_family, tunnels);
/// A service of one family with servers of the other: IPv4 in IPv6, and IPv6 in IPv4.
fn servers_of_the_other_family(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(mode);
    lab.start_lvsd();
    let other = if family == Family::V4 { Family::V6 } else { Family::V4 };
    let vip = lab.vip_port(family, 80);
    lab.d().ctl_ok(&format!("-A -t {vip} -s rr"));
    for s in &lab.servers {
        let rip = SocketAddr::new(lab.rip(other, s.number), 80);
        lab.d().ctl_ok(&format!("-a -t {vip} -r {rip} {}", mode.flag()));
    }
    spread::sequence(&curl(&lab.client, vip, 300), &spread::RR).expect("rr's sequence");
}

/// GRE with a checksum has a longer header.
#[test]
fn gre_with_checksum() {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(Mode::Gre);
    lab.start_lvsd();
    for family in Family::BOTH {
        let vip = lab.vip_port(family, 80);
        lab.d().ctl_ok(&format!("-A -t {vip} -s rr"));
        for s in &lab.servers {
            let rip = SocketAddr::new(lab.rip(family, s.number), 80);
            lab.d().ctl_ok(&format!("-a -t {vip} -r {rip} -i --tun-type gre --tun-csum"));
        }
        spread::sequence(&curl(&lab.client, vip, 300), &spread::RR).expect("rr's sequence");
    }
}

/// `lvsctl realserver decap --dev s0` with more words, in a server.
fn decap(s: &Server, pins: &std::path::Path, more: &[&str]) -> std::process::Output {
    let mut command = s.ns.command(&probe::lvsctl().to_string_lossy());
    command.args(["realserver", "decap", "--dev", "s0", "--pin-dir"]).arg(pins).args(more);
    command.output().expect("lvsctl starts")
}

fn has_program(s: &Server) -> bool {
    s.ns.sh("ip -o link show dev s0").contains("lvsd_decap")
}

/// Removes what a failed test has left pinned.
struct Pins(PathBuf);

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Held by the interface or by a pin, the program stays without a process, is replaced in place, and goes when told to.
#[test]
fn the_decapsulator_stays_and_goes() {
    if !probe::ready() {
        return;
    }
    let lab = Lab::new(Mode::Dr);
    let s = &lab.servers[0];
    let mut places = vec![(lab.dir.join("pins"), "held by the interface")];
    if std::fs::read_to_string("/proc/mounts").is_ok_and(|m| m.contains(" /sys/fs/bpf bpf ")) {
        places.push((format!("/sys/fs/bpf/{}", lab.director.name()).into(), "pinned at"));
    }
    for (dir, held) in places {
        let pins = Pins(dir);
        for word in ["loaded", "replaced"] {
            let out = decap(s, &pins.0, &[]);
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(out.status.success() && text.contains(word) && text.contains(held), "{out:?}");
            assert!(has_program(s));
        }
        let out = decap(s, &pins.0, &["--off"]);
        assert!(out.status.success() && String::from_utf8_lossy(&out.stdout).contains("removed"), "{out:?}");
        assert!(!has_program(s) && !pins.0.exists());
        let again = decap(s, &pins.0, &["--off"]);
        assert!(again.status.success(), "{again:?}");
    }
}

/// An XDP program that passes everything, without any header file.
const OTHER_PROGRAM: &str = "__attribute__((section(\"xdp\"), used)) int other(void *c) { return 2; }\n\
                             char _license[] __attribute__((section(\"license\"), used)) = \"GPL\";\n";

/// One clear line, and nothing changed, where the decapsulator cannot be loaded.
#[test]
fn what_the_decapsulator_refuses() {
    if !probe::ready() {
        return;
    }
    let lab = Lab::new(Mode::Dr);
    let s = &lab.servers[0];
    let pins = lab.dir.join("pins");
    let refused = |out: std::process::Output, wanted: &str| {
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(
            !out.status.success() && text.lines().count() == 1 && text.contains(wanted),
            "{wanted}: {text}"
        );
    };
    let (source, object) = (lab.dir.join("other.bpf.c"), lab.dir.join("other.bpf.o"));
    std::fs::write(&source, OTHER_PROGRAM).expect("a source file");
    let mut clang = std::process::Command::new("clang");
    run(clang.args(["-O2", "-target", "bpf", "-c"]).arg(&source).arg("-o").arg(&object));
    s.ns.ip(&format!("link set dev s0 xdpgeneric obj {} sec xdp", object.display()));
    refused(decap(s, &pins, &[]), "interface s0: another XDP program is there");
    assert!(decap(s, &pins, &["--off"]).status.success());
    assert!(s.ns.sh("ip link show dev s0").contains("prog/xdp"), "it is not ours to remove");
    s.ns.ip("link set dev s0 xdpgeneric off");
    s.ns.ip("addr flush dev s0");
    refused(decap(s, &pins, &[]), "interface s0: it has no address");
    assert!(!has_program(s));
}

matrix!(without_decapsulator_nothing_arrives, tunnels);
/// The decapsulator does it, and nothing else in the server: without it a request gets no answer, with it again it does.
fn without_decapsulator_nothing_arrives(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(mode);
    lab.start_lvsd();
    let vip = lab.vip_port(family, 80);
    lab.d().ctl_ok(&format!("-A -t {vip} -s rr"));
    let rip = SocketAddr::new(lab.rip(family, 1), 80);
    lab.d().ctl_ok(&format!("-a -t {vip} -r {rip} {}", mode.flag()));
    let s = &lab.servers[0];
    assert!(decap(s, &lab.dir.join("pins"), &["--off"]).status.success());
    let silent = crate::client::connect(&lab.client, vip, std::time::Duration::from_millis(500));
    assert!(silent.is_err(), "a server without decapsulator answered");
    lab.decapsulate(s);
    assert_eq!(curl(&lab.client, vip, 2), ["s1", "s1"]);
}
