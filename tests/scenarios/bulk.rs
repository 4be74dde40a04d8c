//! Big transfers with the offloads that veth has by default: partial checksums and super-packets at the director
//! (field cases 15 and 17).
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::capture::{Capture, Packet, decode, mac, says_too_big};
use crate::client::{curl_sha256, upload};
use crate::director::{has_tier, has_xdp_tier, taps_see_what_is_ours};
use crate::lab::{Family, Lab, Mode};
use crate::netns::Netns;
use crate::servers::{Service, TcpServer, big_file};
use crate::wait::{secs, until};
use crate::{matrix, probe};

/// Port of the upload server.
pub(crate) const SINK: u16 = 9;
const MTU: usize = 1500;

/// A file that all servers offer, and what it should be.
pub(crate) struct Big {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

/// Puts a file of `bytes` bytes into every nginx as `/files/big`.
pub(crate) fn offer(lab: &Lab, bytes: usize) -> Big {
    let path = lab.dir.join("big");
    let sha256 = big_file(&path, bytes);
    for s in &lab.servers {
        let files = s.nginx.as_ref().expect("nginx was started").files();
        std::os::unix::fs::symlink(&path, files.join("big")).expect("a link");
    }
    Big { path, bytes: bytes as u64, sha256 }
}

/// Upload servers in every server.
pub(crate) fn sinks(lab: &Lab) -> Vec<TcpServer> {
    lab.servers.iter().map(|s| TcpServer::start(&s.ns, &s.name, SINK, Service::Sink)).collect()
}

/// Whether `big` comes down whole from `to` and arrives whole at `sink`.
pub(crate) fn both_ways(ns: &Netns, to: SocketAddr, sink: SocketAddr, big: &Big) -> Result<(), String> {
    let down = curl_sha256(ns, to, "/files/big");
    if down != big.sha256 {
        return Err(format!("download: SHA-256 {down}, not {}", big.sha256));
    }
    let (server, up) = upload(ns, sink, &big.path, big.bytes).map_err(|e| format!("upload: {e}"))?;
    if up != big.sha256 {
        return Err(format!("upload to {server}: SHA-256 {up}, not {}", big.sha256));
    }
    Ok(())
}

matrix!(two_hundred_megabytes_both_ways);
fn two_hundred_megabytes_both_ways(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(mode);
    let big = offer(&lab, 200_000_000);
    let _sinks = sinks(&lab);
    lab.start_lvsd();
    let (vip, sink) = (lab.vip_port(family, 80), lab.vip_port(family, SINK));
    lab.service("-t", vip, "rr", [1, 1, 1], 80);
    lab.service("-t", sink, "rr", [1, 1, 1], SINK);
    both_ways(&lab.client, vip, sink, &big).expect("the file, whole");
    tier_took(&lab, 2 * big.bytes, big.bytes);
}

/// Where there is a tier: that it has forwarded most of these bytes (by NAT `nat`; else what clients sent, for what servers send
/// does not pass the director).
pub(crate) fn tier_took(lab: &Lab, nat: u64, sent: u64) {
    if has_tier() {
        let by_tier = lab.d().counter("tier_in_bytes") + lab.d().counter("tier_out_bytes");
        let all = if lab.mode == Mode::Nat { nat } else { sent };
        assert!(by_tier >= all / 10 * 9, "the tier forwarded {by_tier} bytes of {all}");
        assert_eq!(lab.d().counter("tier_failed"), 0);
    }
}

matrix!(what_leaves_the_director_is_sound_on_the_wire);
/// The last hop before server and client has its offloads off, so that the kernel makes wire frames of what the director
/// sends: every one fits the MTU and has complete, right checksums. Elsewhere the offloads are veth's own, so that
/// the director itself meets partial checksums and super-packets.
fn what_leaves_the_director_is_sound_on_the_wire(mode: Mode, family: Family) {
    sound_on_the_wire(mode, family, |_| {});
}

/// The same where the director's devices gather segments into lists (`rx-gro-list`; TCP since kernel 6.10): such a super-packet
/// carries the checksum of its first segment.
#[test]
fn lists_of_segments_are_sound_on_the_wire() {
    sound_on_the_wire(Mode::Nat, Family::V4, |lab| {
        for server in &lab.servers {
            server.ns.sh("ethtool -K s0 tso off gso off");
        }
        lab.client.sh("ethtool -K c0 tso off gso off");
        for dev in lab.director_devs() {
            lab.director.sh(&format!("ethtool -K {dev} gro on rx-gro-list on"));
        }
    });
}

fn sound_on_the_wire(mode: Mode, family: Family, prepare: impl Fn(&Lab)) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::with_nginx(mode);
    let big = offer(&lab, 20_000_000);
    let _sinks = sinks(&lab);
    for port in ["s1", "s2", "s3"] {
        no_offloads(&lab.lan, port);
    }
    match mode {
        Mode::Nat => no_offloads(&lab.director, "o0"),
        Mode::Dr | Mode::Ipip | Mode::Gre => no_offloads(&lab.lan, "cli"),
    }
    if has_xdp_tier() && mode == Mode::Nat {
        take_singly(&lab);
    }
    prepare(&lab);
    lab.start_lvsd();
    let (vip, sink) = (lab.vip_port(family, 80), lab.vip_port(family, SINK));
    lab.service("-t", vip, "rr", [1, 1, 1], 80);
    lab.service("-t", sink, "rr", [1, 1, 1], SINK);

    let at_servers: Vec<Capture<Packet>> = lab.servers.iter().map(|s| wire(&s.ns, "s0")).collect();
    let at_client = wire(&lab.client, "c0");
    let too_big = Capture::start(&lab.client, |f| says_too_big(f).then_some(()));
    let director_mac = mac(&lab.director.mac(lab.outer_dev()));
    let supers = Capture::start(&lab.director, move |f| {
        decode(f).filter(|p| p.to_mac == director_mac && p.ip_len > MTU).map(|_| ())
    });

    both_ways(&lab.client, vip, sink, &big).expect("the file, whole");

    if taps_see_what_is_ours() {
        supers.look(|s| {
            assert!(!s.is_empty(), "the director met no super-packet: the test is not what it should be")
        });
    }
    let got = at_servers.iter().map(sound).max().unwrap_or(0);
    assert!(got >= big.bytes as usize / 20, "only {got} bytes were seen at the upload's server");
    let got = sound(&at_client);
    assert!(got >= big.bytes as usize / 20, "only {got} bytes were seen at the client");
    too_big.look(|t| assert!(t.is_empty(), "the client was told {} times that packets are too big", t.len()));
}

/// Has the client take frames that XDP redirects to it by an XDP program, not by GRO as elsewhere: GRO would gather them before a
/// packet socket sees them.
fn take_singly(lab: &Lab) {
    let object = crate::tunnel::other_program(&lab.dir);
    lab.client.ip(&format!("link set dev c0 xdpdrv obj {} sec xdp", object.display()));
    lab.client.sh("ethtool -K c0 gro off");
}

/// Switches a device's own segmentation and checksumming off: what it sends is what a wire would carry.
fn no_offloads(ns: &Netns, dev: &str) {
    ns.sh(&format!("ethtool -K {dev} tso off gso off tx off"));
}

fn wire(ns: &Netns, dev: &str) -> Capture<Packet> {
    let own = mac(&ns.mac(dev));
    Capture::start(ns, move |f| decode(f).filter(|p| p.to_mac == own))
}

/// Checks each packet of a capture, and returns how many bytes of payload they carried. A capture may miss some when the
/// machine is busy; it never makes any up.
fn sound(capture: &Capture<Packet>) -> usize {
    capture.look(|packets| {
        for p in packets {
            assert!(p.ip_len <= MTU, "larger than the MTU: {p:?}");
            assert!(p.checksums_right, "wrong checksum: {p:?}");
        }
        packets.iter().map(|p| p.payload_len).sum()
    })
}

matrix!(one_byte_with_a_partial_checksum);
/// Field case 15 in its smallest form: ping works and TCP does not, where partial checksums are taken for final.
fn one_byte_with_a_partial_checksum(mode: Mode, family: Family) {
    if !probe::ready() {
        return;
    }
    let mut lab = Lab::new(mode);
    let server = &lab.servers[0];
    let _echo = TcpServer::start(&server.ns, "s1", 7, Service::Echo);
    no_offloads(&lab.lan, "s1");
    lab.start_lvsd();
    let vip = lab.vip_port(family, 7);
    lab.d().ctl_ok(&format!("-A -t {vip} -s rr"));
    let rip = SocketAddr::new(lab.rip(family, 1), 7);
    lab.d().ctl_ok(&format!("-a -t {vip} -r {rip} {}", mode.flag()));
    let seen = wire(&lab.servers[0].ns, "s0");
    let mut c = crate::client::Echo::open(&lab.client, vip).expect("a connection");
    c.say(b"x").expect("one byte and back");
    let port = c.socket().local_addr().expect("an address").port();
    until("the byte on the server's wire", secs(5), || {
        seen.look(|all| all.iter().any(|p| p.from_port == port && p.payload_len == 1).then_some(()))
    });
    sound(&seen);
}
