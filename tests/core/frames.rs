//! Frames, built plainly and independently of the code under test.

use std::net::IpAddr;

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;

/// One's complement sum of 16-bit words, folded (RFC 1071).
pub fn sum(bytes: &[u8]) -> u16 {
    let mut s = 0u32;
    for pair in bytes.chunks(2) {
        s += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        s = (s & 0xffff) + (s >> 16);
    }
    s as u16
}

/// An IP packet to be, with the options that tests vary.
#[derive(Clone)]
pub struct Ip {
    pub src: IpAddr,
    pub dst: IpAddr,
    pub ttl: u8,
    pub df: bool,
}

impl Ip {
    pub fn new(src: IpAddr, dst: IpAddr) -> Ip {
        Ip { src, dst, ttl: 64, df: true }
    }

    pub fn pseudo(&self, proto: u8, len: usize) -> Vec<u8> {
        let mut v = Vec::new();
        match (self.src, self.dst) {
            (IpAddr::V4(s), IpAddr::V4(d)) => {
                v.extend(s.octets());
                v.extend(d.octets());
                v.extend([0, proto]);
                v.extend((len as u16).to_be_bytes());
            }
            (IpAddr::V6(s), IpAddr::V6(d)) => {
                v.extend(s.octets());
                v.extend(d.octets());
                v.extend((len as u32).to_be_bytes());
                v.extend([0, 0, 0, proto]);
            }
            _ => panic!("mixed families"),
        }
        v
    }

    pub fn packet(&self, proto: u8, payload: &[u8]) -> Vec<u8> {
        let mut v = Vec::new();
        match (self.src, self.dst) {
            (IpAddr::V4(s), IpAddr::V4(d)) => {
                v.extend([0x45, 0]);
                v.extend((20 + payload.len() as u16).to_be_bytes());
                v.extend([0x12, 0x34, if self.df { 0x40 } else { 0 }, 0, self.ttl, proto, 0, 0]);
                v.extend(s.octets());
                v.extend(d.octets());
                let c = !sum(&v);
                v[10..12].copy_from_slice(&c.to_be_bytes());
            }
            (IpAddr::V6(s), IpAddr::V6(d)) => {
                v.extend([0x60, 0, 0, 0]);
                v.extend((payload.len() as u16).to_be_bytes());
                v.extend([proto, self.ttl]);
                v.extend(s.octets());
                v.extend(d.octets());
            }
            _ => panic!("mixed families"),
        }
        v.extend(payload);
        v
    }
}

pub fn tcp(ip: &Ip, sport: u16, dport: u16, flags: u8, data: &[u8]) -> Vec<u8> {
    let mut seg = Vec::new();
    seg.extend(sport.to_be_bytes());
    seg.extend(dport.to_be_bytes());
    seg.extend([0, 0, 3, 0xe8, 0, 0, 0, 1, 0x50, flags, 0xfa, 0xf0, 0, 0, 0, 0]);
    seg.extend(data);
    let mut all = ip.pseudo(6, seg.len());
    all.extend(&seg);
    let c = !sum(&all);
    seg[16..18].copy_from_slice(&c.to_be_bytes());
    ip.packet(6, &seg)
}

pub fn udp(ip: &Ip, sport: u16, dport: u16, data: &[u8]) -> Vec<u8> {
    let mut seg = Vec::new();
    seg.extend(sport.to_be_bytes());
    seg.extend(dport.to_be_bytes());
    seg.extend((8 + data.len() as u16).to_be_bytes());
    seg.extend([0, 0]);
    seg.extend(data);
    let mut all = ip.pseudo(17, seg.len());
    all.extend(&seg);
    let c = match !sum(&all) {
        0 => 0xffff,
        c => c,
    };
    seg[6..8].copy_from_slice(&c.to_be_bytes());
    ip.packet(17, &seg)
}

/// An ICMP or ICMPv6 message: type, code, bytes 4..8, and what follows.
pub fn icmp(ip: &Ip, (kind, code): (u8, u8), rest: u32, quote: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0];
    message.extend(rest.to_be_bytes());
    message.extend(quote);
    let proto = if ip.src.is_ipv4() { 1 } else { 58 };
    let mut all = if proto == 1 { Vec::new() } else { ip.pseudo(58, message.len()) };
    all.extend(&message);
    let c = !sum(&all);
    message[2..4].copy_from_slice(&c.to_be_bytes());
    ip.packet(proto, &message)
}

pub fn ethernet(dst: [u8; 6], src: [u8; 6], packet: &[u8]) -> Vec<u8> {
    let mut v = Vec::new();
    v.extend(dst);
    v.extend(src);
    v.extend(if packet[0] >> 4 == 6 { [0x86, 0xdd] } else { [8, 0] });
    v.extend(packet);
    v
}

/// Whether the checksums of an untagged TCP, UDP or ICMP frame are right.
pub fn checksums_ok(frame: &[u8]) -> bool {
    let p = &frame[14..];
    let (proto, header, src, dst) = if p[0] >> 4 == 4 {
        let header = usize::from(p[0] & 15) * 4;
        if sum(&p[..header]) != 0xffff {
            return false;
        }
        (p[9], header, ip4(&p[12..16]), ip4(&p[16..20]))
    } else {
        (p[6], 40, ip6(&p[8..24]), ip6(&p[24..40]))
    };
    let mut all = if proto == 1 { Vec::new() } else { Ip::new(src, dst).pseudo(proto, p.len() - header) };
    all.extend(&p[header..]);
    sum(&all) == 0xffff
}

pub fn ip4(b: &[u8]) -> IpAddr {
    IpAddr::from(<[u8; 4]>::try_from(b).unwrap())
}

pub fn ip6(b: &[u8]) -> IpAddr {
    IpAddr::from(<[u8; 16]>::try_from(b).unwrap())
}

/// Destination of a frame's IP packet.
pub fn dst_of(frame: &[u8]) -> IpAddr {
    if frame[14] >> 4 == 6 { ip6(&frame[38..54]) } else { ip4(&frame[30..34]) }
}
