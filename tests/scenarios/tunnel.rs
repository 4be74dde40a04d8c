//! Tunnels to servers with our decapsulator: sizes, families, and the decapsulator's own life.
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use crate::bulk::{Big, SINK, both_ways, offer, sinks, tier_took};
use crate::capture::{Capture, mac, says_too_big};
use crate::client::curl;
use crate::director::cuts_anew;
use crate::lab::{Family, Lab, Mode, Server};
use crate::netns::{TempDir, run};
use crate::wait::{secs, until};
use crate::{matrix, probe, spread};

const BYTES: usize = 200_000_000;

/// Which family the servers have in the tunnel's outer header: the service's, or the other one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outer {
    Same,
    Other,
}

impl Outer {
    fn of(self, family: Family) -> Family {
        match (self, family) {
            (Outer::Same, family) => family,
            (Outer::Other, Family::V4) => Family::V6,
            (Outer::Other, Family::V6) => Family::V4,
        }
    }
}

/// Web servers and upload servers of a family, each reached by tunnels of `outer`'s.
fn offered(lab: &mut Lab, family: Family, outer: Outer, bytes: usize) -> (SocketAddr, SocketAddr, Big) {
    let big = offer(lab, bytes);
    lab.start_lvsd();
    let (vip, sink) = (lab.vip_port(family, 80), lab.vip_port(family, SINK));
    for service in [vip, sink] {
        lab.d().ctl_ok(&format!("-A -t {service} -s rr"));
        for s in &lab.servers {
            let rip = SocketAddr::new(lab.rip(outer.of(family), s.number), service.port());
            lab.d().ctl_ok(&format!("-a -t {service} -r {rip} {}", lab.mode.flag()));
        }
    }
    (vip, sink, big)
}

/// Room for the outer header on all links between director and servers.
fn room_for_headers(lab: &Lab) {
    for port in ["dir", "s1", "s2", "s3"] {
        lab.lan.ip(&format!("link set {port} mtu 1600"));
    }
    lab.director.ip("link set d0 mtu 1600");
    for s in &lab.servers {
        s.ns.ip("link set s0 mtu 1600");
    }
}

/// How full packets of clients come to fit a tunnel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// 1,500 bytes everywhere: the client learns by "fragmentation needed" or "packet too big".
    Icmp,
    /// 1,500 bytes everywhere, and the servers announce what fits.
    Mss,
    /// 1,600 bytes between director and servers.
    Room,
}

/// A large file down and up; only [`By::Icmp`] has the client told that packets are too big.
fn bulk(mode: Mode, family: Family, outer: Outer, by: By, bytes: usize) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(mode);
    match by {
        By::Icmp => {}
        By::Mss => lab.servers.iter().for_each(|s| lab.set_up(s, &[])),
        By::Room => room_for_headers(&lab),
    }
    let _sinks = sinks(&lab);
    let (vip, sink, big) = offered(&mut lab, family, outer, bytes);
    let told = Capture::start(&lab.client, |f| says_too_big(f).then_some(()));
    both_ways(&lab.client, vip, sink, &big).expect("the file, whole");
    tier_took(&lab, 2 * big.bytes, big.bytes);
    if by == By::Icmp && !cuts_anew() {
        until("the client is told a smaller MTU", secs(5), || told.look(|t| (!t.is_empty()).then_some(())));
    } else if by != By::Icmp {
        told.look(|t| {
            assert!(t.is_empty(), "the client was told {} times that packets are too big", t.len())
        });
    }
}

matrix!(bulk_with_1500_everywhere, tunnels);
/// The client's full segments do not fit the tunnel: only the director's "fragmentation needed" makes an upload work.
fn bulk_with_1500_everywhere(mode: Mode, family: Family) {
    bulk(mode, family, Outer::Same, By::Icmp, BYTES);
}

matrix!(bulk_with_1500_everywhere_mixed, tunnels);
/// The same with servers of the other family.
fn bulk_with_1500_everywhere_mixed(mode: Mode, family: Family) {
    bulk(mode, family, Outer::Other, By::Icmp, BYTES);
}

matrix!(bulk_with_1600_to_the_servers, tunnels);
/// With room for the outer header, nobody is told anything.
fn bulk_with_1600_to_the_servers(mode: Mode, family: Family) {
    bulk(mode, family, Outer::Same, By::Room, BYTES);
}

matrix!(bulk_with_1600_to_the_servers_mixed, tunnels);
/// The same with servers of the other family.
fn bulk_with_1600_to_the_servers_mixed(mode: Mode, family: Family) {
    bulk(mode, family, Outer::Other, By::Room, BYTES);
}

matrix!(bulk_with_an_announced_mss, tunnels);
/// With 1,500 bytes everywhere and servers that were set up to announce what fits, nobody needs to be told.
fn bulk_with_an_announced_mss(mode: Mode, family: Family) {
    bulk(mode, family, Outer::Same, By::Mss, BYTES / 10);
    bulk(mode, family, Outer::Other, By::Mss, BYTES / 10);
}

matrix!(servers_of_the_other_family, tunnels);
/// A service of one family with servers of the other: IPv4 in IPv6, and IPv6 in IPv4.
fn servers_of_the_other_family(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(mode);
    lab.start_lvsd();
    let other = Outer::Other.of(family);
    let vip = lab.vip_port(family, 80);
    lab.d().ctl_ok(&format!("-A -t {vip} -s rr"));
    for s in &lab.servers {
        let rip = SocketAddr::new(lab.rip(other, s.number), 80);
        lab.d().ctl_ok(&format!("-a -t {vip} -r {rip} {}", mode.flag()));
    }
    spread::sequence(&curl(&lab.client, vip, 300), &spread::RR).expect("rr's sequence");
}

matrix!(outer_source, tunnels);
/// Field case 32: for every flow of many the outer source is the director's own address on the way to the server.
fn outer_source(mode: Mode, family: Family) {
    const FLOWS: usize = 1000;
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::new(mode);
    lab.start_lvsd();
    let vip = lab.vip_port(family, 7);
    lab.service("-u", vip, "rr", [1, 1, 1], 7);
    lab.acquaint(family);
    // On the bridge, where nothing has taken the header off yet.
    let director = mac(&lab.director.mac("d0"));
    let outer = Capture::start(&lab.lan, move |f| outer_addresses(f).filter(|_| f[6..12] == director));
    let sockets: Vec<_> = (0..FLOWS).map(|_| crate::client::udp(&lab.client, vip)).collect();
    for socket in &sockets {
        // Nobody listens on the servers, and they say so: what they say is not asked.
        let _ = socket.send(b"x");
    }
    until("all flows' packets on the bridge", secs(10), || {
        outer.look(|all| (all.len() >= FLOWS).then_some(()))
    });
    let (own, servers) = (lab.dip(family), [1, 2, 3].map(|k| lab.rip(family, k)));
    outer.look(|all| {
        for (from, to) in all {
            assert!(*from == own && servers.contains(to), "from {from} to {to}, the director is {own}");
        }
        assert!(servers.iter().all(|s| all.iter().any(|(_, to)| to == s)), "not all servers got some");
    });
}

/// Source and destination of a tunnel's outer header.
fn outer_addresses(frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let ip = frame.get(14..)?;
    let tunnel = |protocol: u8| matches!(protocol, 4 | 41 | 47);
    match frame.get(12..14)? {
        [8, 0] if tunnel(*ip.get(9)?) => {
            let at = |n| Some(IpAddr::from(*ip.get(n..)?.first_chunk::<4>()?));
            Some((at(12)?, at(16)?))
        }
        [0x86, 0xdd] if tunnel(*ip.get(6)?) => {
            let at = |n| Some(IpAddr::from(*ip.get(n..)?.first_chunk::<16>()?));
            Some((at(8)?, at(24)?))
        }
        _ => None,
    }
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

/// Compiles it into a folder; its section is `xdp`.
pub(crate) fn other_program(dir: &TempDir) -> PathBuf {
    let (source, object) = (dir.join("other.bpf.c"), dir.join("other.bpf.o"));
    std::fs::write(&source, OTHER_PROGRAM).expect("a source file");
    let mut clang = std::process::Command::new("clang");
    run(clang.args(["-O2", "-target", "bpf", "-c"]).arg(&source).arg("-o").arg(&object));
    object
}

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
    let object = other_program(&lab.dir);
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
