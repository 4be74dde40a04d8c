//! Just enough of a director to know what each row is about.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use modes::packet::{Fragment, Packet, parse, proto, tcp_flags};
use modes::wire::{Mac, Udp};
use modes::{Addr, Family, checksum, forward, icmp, nat, options, reset};

use crate::rows::Side;

type End = (Addr, u16);
type Frames = Vec<(Side, Vec<u8>)>;

pub(crate) enum Outcome {
    Out(Frames),
    NotOurs,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Server {
    end: End,
    nat: bool,
    usable: bool,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    virtual_end: End,
    server: Server,
}

#[derive(Default)]
pub(crate) struct Director {
    services: HashMap<(u8, End), Option<Server>>,
    /// By protocol, client, virtual end.
    connections: HashMap<(u8, End, End), Connection>,
    /// Fragments that wait for the rest of their datagram.
    waiting: Vec<(Packet, Vec<u8>)>,
    server_mtu: Option<usize>,
    nat_icmp_send: bool,
    expire_nodest: bool,
}

fn end(text: &str) -> End {
    let end: SocketAddr = text.parse().expect("address and port");
    (end.ip().into(), end.port())
}

fn addr(text: &str) -> Addr {
    text.parse::<IpAddr>().expect("an address").into()
}

impl Director {
    pub(crate) fn command(&mut self, line: &str) {
        for part in line.split("; ") {
            let words: Vec<&str> = part.split(' ').collect();
            match words[..] {
                ["ipvsadm", "-Lnc", ..] | ["ip", "route", "flush", "cache"] => {}
                ["ipvsadm", "-A", kind, vip, ..] => {
                    self.services.insert((protocol(kind), end(vip)), None);
                }
                ["ipvsadm", "-a", kind, vip, "-r", real, mode] => {
                    let server = Server { end: end(real), nat: mode == "-m", usable: true };
                    self.services.insert((protocol(kind), end(vip)), Some(server));
                }
                ["ipvsadm", "-e", kind, vip, "-r", _, _, "-w", "0"] => {
                    let server = self.services.get_mut(&(protocol(kind), end(vip)));
                    server.expect("a service").as_mut().expect("a server").usable = false;
                }
                ["ipvsadm", "-d", kind, vip, ..] => {
                    self.services.insert((protocol(kind), end(vip)), None);
                }
                ["ip", "link", "set", "s0", "mtu", mtu] => self.server_mtu = mtu.parse().ok(),
                ["ip", "link", "set", "s1", ..] => {}
                ["sysctl", "-w", setting] => match setting.rsplit_once('=').expect("a setting") {
                    ("net.ipv4.vs.nat_icmp_send", v) => self.nat_icmp_send = v == "1",
                    ("net.ipv4.vs.expire_nodest_conn", v) => self.expire_nodest = v == "1",
                    ("net.ipv4.vs.schedule_icmp", _) => {}
                    other => panic!("{other:?}"),
                },
                _ => panic!("command {part:?}"),
            }
        }
    }

    /// `model`: the frame that the kernel gave out, whose random IPv4 identification an error of ours takes over.
    pub(crate) fn frame(&mut self, side: Side, frame: &[u8], model: Option<&[u8]>) -> Outcome {
        let Ok(p) = parse(frame) else { return Outcome::Out(Vec::new()) };
        let id = model.map_or(0, |m| u16::from_be_bytes([m[18], m[19]]));
        if p.proto == proto::ICMP || p.proto == proto::ICMPV6 {
            return Outcome::NotOurs;
        }
        if p.fragment != Fragment::Whole {
            return Outcome::Out(self.fragment(side, p, frame, id));
        }
        Outcome::Out(match side {
            Side::Client => self.client_packet(&p, frame, id),
            Side::Server => self.server_packet(&p, frame, id),
        })
    }

    /// Fragments leave when all (two, here) are there, the first one first.
    fn fragment(&mut self, side: Side, p: Packet, frame: &[u8], id: u16) -> Frames {
        assert_eq!(side, Side::Client);
        self.waiting.push((p, frame.to_vec()));
        if self.waiting.len() < 2 {
            return Vec::new();
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.sort_by_key(|(p, _)| p.fragment == Fragment::Later);
        let (first, _) = waiting[0];
        assert_eq!(first.fragment, Fragment::First);
        let server = self.services[&(first.proto, (first.dst, first.dport))].expect("a server");
        waiting.into_iter().flat_map(|(p, frame)| self.to_server(&p, &frame, server, id)).collect()
    }

    fn client_packet(&mut self, p: &Packet, frame: &[u8], id: u16) -> Frames {
        let virtual_end = (p.dst, p.dport);
        let key = (p.proto, (p.src, p.sport), virtual_end);
        let Some(server) = self.services.get(&(p.proto, virtual_end)).copied() else {
            return answer(reset_frame(p, frame), Side::Client);
        };
        if let Some(c) = self.connections.get(&key).copied() {
            if server == Some(c.server) {
                return self.to_server(p, frame, c.server, id);
            }
            let reset = self.expire_nodest.then(|| reset_frame(p, frame)).flatten();
            return answer(reset, Side::Client);
        }
        if p.proto == proto::TCP && p.tcp_flags & tcp_flags::SYN == 0 {
            return answer(reset_frame(p, frame), Side::Client);
        }
        let Some(server) = server.filter(|s| s.usable) else {
            return answer(error(p, frame, icmp::Problem::PortUnreachable, p.dst, id), Side::Client);
        };
        self.connections.insert(key, Connection { virtual_end, server });
        self.to_server(p, frame, server, id)
    }

    fn to_server(&self, p: &Packet, frame: &[u8], server: Server, id: u16) -> Frames {
        let mut frame = frame.to_vec();
        options::process(&mut frame, p, p.dst, 0).expect("good options");
        if forward::decrement_ttl(&mut frame, p).is_err() {
            return answer(error(p, &frame, icmp::Problem::TimeExceeded, p.dst, id), Side::Client);
        }
        let mtu = self.server_mtu.unwrap_or(1500);
        let too_big = forward::needs_fragmentation(&frame, p, mtu, None);
        if too_big && p.dont_fragment {
            let problem = icmp::Problem::TooBig { mtu: mtu as u32 };
            return answer(error(p, &frame, problem, p.dst, id), Side::Client);
        }
        if server.nat {
            rewrite(&mut frame, p, |f, partial| nat::dnat(f, p, server.end.0, server.end.1, partial));
        }
        let dst = [2, 0, 0, 0, 1, server.end.0.0 as u8];
        assert!(forward::set_macs(&mut frame, dst, SERVER_SIDE));
        if !too_big {
            return vec![(Side::Server, frame)];
        }
        let mut out = Vec::new();
        forward::fragment_v4(&frame, p, mtu, &mut |f| out.push((Side::Server, f.to_vec())))
            .expect("can be cut");
        out
    }

    fn server_packet(&self, p: &Packet, frame: &[u8], id: u16) -> Frames {
        let own = match p.family {
            Family::V4 => addr("10.1.0.254"),
            Family::V6 => addr("2001:db8:1::254"),
        };
        let mut frame = frame.to_vec();
        if forward::decrement_ttl(&mut frame, p).is_err() {
            return answer(error(p, &frame, icmp::Problem::TimeExceeded, own, id), Side::Server);
        }
        let (server, client) = ((p.src, p.sport), (p.dst, p.dport));
        let connection = self
            .connections
            .iter()
            .find(|(key, c)| key.0 == p.proto && key.1 == client && c.server.end == server)
            .map(|(_, c)| *c);
        let is_server = self.services.values().flatten().any(|s| s.end == server);
        if let Some(c) = connection {
            let (addr, port) = c.virtual_end;
            rewrite(&mut frame, p, |f, partial| nat::snat(f, p, addr, port, partial));
        } else if is_server && self.nat_icmp_send {
            return answer(error(p, &frame, icmp::Problem::PortUnreachable, own, id), Side::Server);
        }
        assert!(forward::set_macs(&mut frame, GATEWAY, CLIENT_SIDE));
        vec![(Side::Client, frame)]
    }
}

const CLIENT_SIDE: Mac = [2, 0, 0, 0, 0, 0xd0];
const SERVER_SIDE: Mac = [2, 0, 0, 0, 0, 0xd1];
const GATEWAY: Mac = [2, 0, 0, 0, 0, 0xc1];

fn protocol(option: &str) -> u8 {
    match option {
        "-t" => proto::TCP,
        "-u" => proto::UDP,
        "--sctp-service" => proto::SCTP,
        other => panic!("service option {other}"),
    }
}

fn answer(frame: Option<Vec<u8>>, side: Side) -> Frames {
    frame.map(|f| (side, f)).into_iter().collect()
}

fn reset_frame(p: &Packet, frame: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    reset::reset(frame, p, &mut out).then_some(out)
}

fn error(p: &Packet, frame: &[u8], problem: icmp::Problem, from: Addr, id: u16) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    icmp::error(frame, p, problem, from, id, &mut out).then_some(out)
}

/// Translates a frame, and also the same frame with a partial checksum in it, completed afterwards: both must agree, if the
/// checksum was right at all.
fn rewrite(frame: &mut Vec<u8>, p: &Packet, nat: impl Fn(&mut [u8], bool) -> Result<(), nat::NatError>) {
    let mut partial = frame.clone();
    nat(frame, false).expect("can be translated");
    let at = match p.proto {
        proto::TCP => 16,
        proto::UDP => 6,
        _ => return,
    };
    let no_checksum = p.proto == proto::UDP && Udp::new(&partial[p.l4..]).is_none_or(|u| u.checksum().0 == 0);
    if p.fragment != Fragment::Whole || no_checksum {
        return;
    }
    let sum = checksum::pseudo(p.family, p.src, p.dst, p.proto, p.end - p.l4).fold();
    let field = p.l4 + at..p.l4 + at + 2;
    let original = partial[field.clone()].to_vec();
    partial[field.clone()].copy_from_slice(&sum.to_be_bytes());
    assert!(checksum::is_partial(&partial, p));
    let mut right = partial.clone();
    assert!(checksum::complete_partial(&mut right, p));
    if right[field] != original {
        return;
    }
    nat(&mut partial, true).expect("can be translated");
    let now = parse(&partial).expect("still a packet");
    assert!(checksum::is_partial(&partial, &now));
    assert!(checksum::complete_partial(&mut partial, &now));
    assert_eq!(&partial, frame);
}
