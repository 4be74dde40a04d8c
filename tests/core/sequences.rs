//! Recorded series of connections (`b-seq-*.tsv`): the same server for each, and the same counts before it.

use std::net::IpAddr;

use super::frames::*;
use super::rig::{C0, Event, Rig};

const BUILT: [&str; 11] = ["rr", "wrr", "lc", "wlc", "sed", "nq", "fo", "ovf", "sh", "dh", "mh"];

struct Script {
    rig: Rig,
    udp: bool,
    service: String,
}

impl Script {
    fn counts(&self) -> String {
        let list = self.rig.dests(&self.service);
        let one = |d: &ipvs_netlink::DestEntry| {
            let IpAddr::V4(a) = d.dest.addr else { panic!("IPv6") };
            format!("{}:{}/{}", a.octets()[3], d.active, d.inactive)
        };
        list.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    fn client(&mut self, a: (IpAddr, u16), v: (IpAddr, u16), flags: u8) -> Event {
        let ip = Ip::new(a.0, v.0);
        let packet = if self.udp { udp(&ip, a.1, v.1, b"x") } else { tcp(&ip, a.1, v.1, flags, b"") };
        self.rig.client(&packet)
    }

    /// One connection; the server's number or what came back instead.
    fn connection(&mut self, a: (IpAddr, u16), v: (IpAddr, u16), action: &str) -> String {
        let first = match self.client(a, v, SYN) {
            Event::Out(f) if f.len() == 1 => f.into_iter().next().unwrap(),
            e => return format!("{e:?}"),
        };
        if first.0 == C0 {
            return format!("icmp{}/{}", first.1[34], first.1[35]);
        }
        let real = dst_of(&first.1);
        let IpAddr::V4(r) = real else { panic!("IPv6") };
        let k = r.octets()[3];
        if matches!(action, "open" | "close" | "rst") {
            self.server(k, real, a, v.1, SYN | ACK);
            self.client(a, v, ACK);
        }
        match action {
            "close" => {
                self.client(a, v, FIN | ACK);
                self.server(k, real, a, v.1, FIN | ACK);
                self.client(a, v, ACK);
            }
            "rst" => {
                self.client(a, v, RST);
            }
            _ => {}
        }
        k.to_string()
    }

    fn server(&mut self, k: u8, real: IpAddr, a: (IpAddr, u16), port: u16, flags: u8) {
        let packet = tcp(&Ip::new(real, a.0), port, a.1, flags, b"");
        let got = self.rig.server(k, &packet);
        assert!(matches!(&got, Event::Out(f) if f.len() == 1 && f[0].0 == C0), "{got:?}");
    }
}

fn play(title: &str, block: &[&str]) -> Option<Vec<String>> {
    let field = |name: &str| title.split_once(&format!("{name}=")).map(|(_, r)| r.split(' ').next().unwrap());
    let scheduler = field("scheduler")?;
    if !BUILT.contains(&scheduler) {
        return None;
    }
    let mut s = Script { rig: Rig::golden(), udp: title.contains("proto=udp"), service: String::new() };
    if title.contains("expire_quiescent_template=1") {
        s.rig.director.sysctls.set("expire_quiescent_template", "1").unwrap();
    }
    let mut wrong = Vec::new();
    for line in block {
        if let Some(command) = line.strip_prefix("# $ ipvsadm ") {
            s.rig.cli(command);
            if command.starts_with("-A") {
                s.service = command.split(' ').skip(1).take(2).collect::<Vec<_>>().join(" ");
            }
        } else if let Some(end) = line.strip_prefix("# at the end: ") {
            if s.counts() != end {
                wrong.push(format!("{title}: at the end {}, not {end}", s.counts()));
            }
        } else if !line.starts_with('#') {
            let w: Vec<&str> = line.split('\t').collect();
            let (a, v) = (
                (w[1].parse().unwrap(), w[2].parse().unwrap()),
                (w[3].parse().unwrap(), w[4].parse().unwrap()),
            );
            let before = s.counts();
            s.rig.advance_ms(5);
            let got = s.connection(a, v, w[5]);
            if got != w[6] || before != w[7] {
                wrong.push(format!("{title} #{}: {got} after {before}, not {} after {}", w[0], w[6], w[7]));
            }
        }
    }
    Some(wrong)
}

fn check(golden: &str, at_least: usize) {
    let mut played = 0;
    let mut wrong = Vec::new();
    for part in golden.split("\n## ").skip(1) {
        let lines: Vec<&str> = part.lines().filter(|l| !l.is_empty()).collect();
        if let Some(w) = play(lines[0], &lines[1..]) {
            played += 1;
            wrong.extend(w);
        }
    }
    assert!(played >= at_least, "{played} series");
    assert!(wrong.is_empty(), "{} differences\n{}", wrong.len(), wrong[..wrong.len().min(30)].join("\n"));
}

#[test]
fn tcp_series() {
    check(include_str!("../golden/b-seq-tcp.tsv"), 80);
}

#[test]
fn hashes() {
    check(include_str!("../golden/b-seq-hash.tsv"), 18);
}

#[test]
fn events() {
    check(include_str!("../golden/b-seq-events.tsv"), 12);
}

#[test]
fn thresholds() {
    check(include_str!("../golden/b-seq-threshold.tsv"), 12);
}

#[test]
fn datagrams() {
    check(include_str!("../golden/b-seq-udp.tsv"), 8);
}

#[test]
fn persistence() {
    check(include_str!("../golden/b-seq-persistent.tsv"), 8);
}
