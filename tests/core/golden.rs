//! The recorded frames (`d-packets.txt`), and what of them is noise. The comparison of the tier's programs with them (`src/io/bpf/tests`)
//! reads this file, too.

use super::frames::sum;
use super::rig::{C0, C0_MAC, Rig, S0, S0_MAC, link};
use lvsd::route::PortId;

pub const SECTIONS: [&str; 18] = [
    "IPv4 NAT",
    "IPv4 DR",
    "IPv4 TUN ipip",
    "IPv4 TUN gre",
    "IPv4 TUN gre csum",
    "IPv4 TUN ipip, server of the other family",
    "IPv4 TUN gre, server of the other family",
    "IPv6 NAT",
    "IPv6 DR",
    "IPv6 TUN ipip",
    "IPv6 TUN gre",
    "IPv6 TUN gre csum",
    "IPv6 TUN ipip, server of the other family",
    "IPv6 TUN gre, server of the other family",
    "IPv4 ICMP errors",
    "IPv6 ICMP errors",
    "IPv4 refusals",
    "IPv6 refusals",
];

/// Rows of features that are not built yet.
pub const LATER: [&str; 4] = [
    "a datagram in two fragments",
    "the same, second fragment first",
    "SCTP INIT",
    "SCTP INIT ACK (no cookie)",
];

/// Rows that the kernel's stack answered or dropped, or routed: the frame is passed to it.
pub const STACK: [&str; 10] = [
    "echo request to the VIP",
    "from a server port without a connection",
    "ACK without a connection",
    "RST without a connection",
    "FIN without a connection",
    "SYN to a port without a service",
    "ACK, no servers",
    "expire_nodest_conn=1: ACK",
    "again",
    "nat_icmp_send=0: the same",
];

/// Settings that are not built yet, with the value that they are treated as having; rows under another one are left out.
const LATER_SYSCTLS: [(&str, &str); 3] = [("nat_icmp_send", "0"), ("schedule_icmp", "0"), ("pmtu_disc", "1")];

/// What makes the director do as IPVS where it knows better; the better is in `cases_tunnel`.
const STRICT: [&str; 1] = ["sysctl -w net.ipv4.vs.tunnel_ipv6_min_mtu=0"];

#[derive(Debug)]
pub enum Line {
    Command(String),
    /// `stack`: the frame is for the kernel's stack, which answered or dropped or routed it.
    Row {
        label: String,
        port: PortId,
        frame: Vec<u8>,
        out: Vec<(PortId, Vec<u8>)>,
        stack: bool,
    },
}

/// Whether an ICMP error, recorded in a part of its section, is one that IPVS leaves to the stack.
fn is_left_alone(section: &str, part: &str, label: &str) -> bool {
    let v4 = section.starts_with("IPv4");
    let told = part.contains("the outer packet") && label != part && !label.contains("large packet");
    label.contains("redirect")
        || label == "about an unknown connection"
        || v4 && label.contains("parameter problem")
        || told && (label.ends_with("8 bytes of payload quoted") || !v4)
}

/// The one row where we know better: IPVS tells of an IPIP tunnel's MTU before it has learned the path's.
fn put_right(section: &str, part: &str, label: &str, frame: &mut [u8]) {
    let wrong = section == "IPv4 ICMP errors" && part.starts_with("TUN ipip: errors");
    if wrong && label == "fragmentation needed, MTU 1200" {
        assert_eq!(frame[40..42], 1480u16.to_be_bytes());
        frame[40..42].copy_from_slice(&1180u16.to_be_bytes());
        frame[36..38].fill(0);
        let checksum = !sum(&frame[34..]);
        frame[36..38].copy_from_slice(&checksum.to_be_bytes());
    }
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn port(name: &str) -> PortId {
    match name {
        "c1" => C0,
        "s1" => S0,
        n => panic!("port {n}"),
    }
}

/// The lines of a section, later features left out.
pub fn section(section: &str) -> Vec<Line> {
    let golden = include_str!("../golden/d-packets.txt");
    let at = golden.find(&format!("\n## {section}\n")).unwrap_or_else(|| panic!("no section {section}"));
    let mut lines: Vec<Line> = STRICT.iter().map(|c| Line::Command((*c).to_owned())).collect();
    let (mut label, mut part, mut later) = (String::new(), String::new(), false);
    for line in golden[at + 1..].lines().skip(1).take_while(|l| !l.starts_with("## ")) {
        if let Some(command) = line.strip_prefix("# $ ") {
            if let Some((name, value)) =
                command.strip_prefix("sysctl -w net.ipv4.vs.").and_then(|s| s.split_once('='))
                && let Some((_, built)) = LATER_SYSCTLS.iter().find(|(n, _)| *n == name)
            {
                later = value != *built;
                continue;
            }
            lines.push(Line::Command(command.to_owned()));
        } else if let Some(comment) = line.strip_prefix("# ") {
            label = comment.to_owned();
            if ["NAT, ", "DR, ", "TUN "].iter().any(|p| comment.starts_with(p)) {
                part = comment.to_owned();
                later = part.starts_with("TUN gue");
            }
        } else if later && (line.starts_with("in  ") || line.starts_with("out ")) {
            continue;
        } else if let Some(rest) = line.strip_prefix("in  ") {
            let (name, frame) = rest.split_once(' ').unwrap();
            let stack = is_left_alone(section, &part, &label);
            let (label, port, frame) = (label.clone(), port(name), unhex(frame));
            lines.push(Line::Row { label, port, frame, out: Vec::new(), stack });
        } else if let Some(rest) = line.strip_prefix("out ") {
            let Some(Line::Row { out, .. }) = lines.last_mut() else { panic!("out before in") };
            if rest != "nothing" {
                let (name, frame) = rest.split_once(' ').unwrap();
                let mut frame = unhex(frame);
                put_right(section, &part, &label, &mut frame);
                out.push((port(name), frame));
            }
        }
    }
    lines.retain(|l| !matches!(l, Line::Row { label, .. } if LATER.contains(&label.as_str())));
    for line in &mut lines {
        if let Line::Row { label, out, stack, .. } = line {
            // A malformed segment is a counted drop.
            *stack |= STACK.contains(&label.as_str()) || (label.is_empty() && out.is_empty());
        }
    }
    lines
}

/// Blanks what the director chose at random: the IP id and flow label of packets that it made itself. An outer packet with DF has
/// id 0, which is no noise.
pub fn without_noise(frame: &[u8]) -> Vec<u8> {
    let mut f = frame.to_vec();
    let icmp4 = f[12..14] == [8, 0] && f[23] == 1;
    let icmp6 = f[12..14] == [0x86, 0xdd] && f[20] == 58;
    let outer4 = f[12..14] == [8, 0] && matches!(f[23], 4 | 41 | 47) && f[20] & 0x40 == 0;
    let fragment6 = f[12..14] == [0x86, 0xdd] && f[20] == 44;
    if icmp4 || outer4 {
        assert_eq!(sum(&f[14..34]), 0xffff, "IPv4 header checksum");
        f[18..20].fill(0);
        f[24..26].fill(0);
    }
    if icmp6 {
        f[15] &= 0xf0;
        f[16..18].fill(0);
    }
    if fragment6 {
        f[58..62].fill(0);
    }
    f
}

/// Carries out a command of the recording.
pub fn command(rig: &mut Rig, command: &str) {
    if let Some(rest) = command.strip_prefix("ipvsadm ") {
        if !rest.starts_with("-L") {
            rig.cli(rest);
        }
    } else if let Some((name, value)) =
        command.strip_prefix("sysctl -w net.ipv4.vs.").and_then(|s| s.split_once('='))
    {
        rig.director.sysctls.set(name, value).unwrap();
    } else if let Some(rest) = command.strip_prefix("ip link set s0 mtu ") {
        let mtu = rest.split(';').next().unwrap().parse().unwrap();
        rig.apply(link(3, "s0", S0_MAC, mtu));
        rig.apply(link(2, "c0", C0_MAC, 1500));
    } else {
        assert!(command.starts_with("ip route flush cache"), "command {command}");
    }
}
