//! Frames as they arrive at a device, before the stack has touched them, and an independent reading of them.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with, sockopt};

use crate::netns::Netns;

/// `ETH_P_ALL` in network byte order.
const ETH_P_ALL: u32 = 0x0003_u16.to_be() as u32;

/// A packet socket on all devices of a namespace, read by a thread that keeps what `pick` makes of each frame.
pub(crate) struct Capture<T> {
    kept: Arc<Mutex<Vec<T>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Capture<T> {
    /// Starts it; when this returns the socket is there, so that nothing later is missed. It sees what the namespace
    /// sends too: `pick` looks at the addresses.
    pub(crate) fn start(ns: &Netns, mut pick: impl FnMut(&[u8]) -> Option<T> + Send + 'static) -> Capture<T> {
        let all = Protocol::from_raw(ETH_P_ALL.try_into().expect("not zero"));
        let fd = ns
            .run(|| socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, Some(all)))
            .expect("a packet socket");
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(Duration::from_millis(50)))
            .expect("a timeout");
        sockopt::set_socket_recv_buffer_size_force(&fd, 32 << 20).expect("a receive buffer");
        let kept = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let (k, s) = (kept.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 17];
            while !s.load(Ordering::Relaxed) {
                if let Ok((n, _)) = recv(&fd, &mut buffer[..], RecvFlags::empty())
                    && let Some(v) = pick(&buffer[..n])
                {
                    k.lock().expect("no panic under the lock").push(v);
                }
            }
        });
        Capture { kept, stop, thread: Some(thread) }
    }

    /// What was kept so far, for a look.
    pub(crate) fn look<R>(&self, f: impl FnOnce(&[T]) -> R) -> R {
        f(&self.kept.lock().expect("no panic under the lock"))
    }
}

impl<T> Drop for Capture<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

/// A MAC address as bytes, from text.
pub(crate) fn mac(text: &str) -> [u8; 6] {
    let mut bytes = [0; 6];
    for (b, t) in bytes.iter_mut().zip(text.split(':')) {
        *b = u8::from_str_radix(t, 16).expect("a MAC address");
    }
    bytes
}

/// What the tests ask of a TCP or UDP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Packet {
    pub(crate) to_mac: [u8; 6],
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) from_port: u16,
    pub(crate) to_port: u16,
    /// 0 for UDP.
    pub(crate) tcp_flags: u8,
    /// IP header and all behind it, bytes.
    pub(crate) ip_len: usize,
    pub(crate) payload_len: usize,
    /// The IPv4 header's checksum (always true for IPv6) and TCP's or UDP's are right.
    pub(crate) checksums_right: bool,
}

pub(crate) const TCP: u8 = 6;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;

/// Reads an Ethernet frame; `None` for what is not unfragmented TCP or UDP over IP without extension headers.
pub(crate) fn decode(frame: &[u8]) -> Option<Packet> {
    let to_mac: [u8; 6] = frame.get(..6)?.try_into().ok()?;
    let ip = frame.get(14..)?;
    let be16 = |b: &[u8], at: usize| Some(u16::from_be_bytes([*b.get(at)?, *b.get(at + 1)?]));
    let (from, to, protocol, header_len, ip_len, header_right): (IpAddr, IpAddr, u8, usize, usize, bool) =
        match be16(frame, 12)? {
            0x0800 => {
                let header_len = usize::from(ip.first()? & 0x0f) * 4;
                if be16(ip, 6)? & 0x3fff != 0 {
                    return None;
                }
                let from: [u8; 4] = ip.get(12..16)?.try_into().ok()?;
                let to: [u8; 4] = ip.get(16..20)?.try_into().ok()?;
                let right = sum(ip.get(..header_len)?, 0) == 0xffff;
                let len = usize::from(be16(ip, 2)?);
                (Ipv4Addr::from(from).into(), Ipv4Addr::from(to).into(), *ip.get(9)?, header_len, len, right)
            }
            0x86dd => {
                let from: [u8; 16] = ip.get(8..24)?.try_into().ok()?;
                let to: [u8; 16] = ip.get(24..40)?.try_into().ok()?;
                let len = usize::from(be16(ip, 4)?) + 40;
                (Ipv6Addr::from(from).into(), Ipv6Addr::from(to).into(), *ip.get(6)?, 40, len, true)
            }
            _ => return None,
        };
    let segment = ip.get(header_len..ip_len)?;
    let (tcp_flags, l4_header) = match protocol {
        TCP => (*segment.get(13)?, usize::from(*segment.get(12)? >> 4) * 4),
        17 => (0, 8),
        _ => return None,
    };
    let pseudo = u32::from(protocol) + u32::try_from(segment.len()).ok()?;
    let addresses = match from {
        IpAddr::V4(_) => ip.get(12..20)?,
        IpAddr::V6(_) => ip.get(8..40)?,
    };
    let no_udp_sum = protocol == 17 && from.is_ipv4() && be16(segment, 6)? == 0;
    let right = no_udp_sum || sum(segment, u32::from(sum(addresses, pseudo))) == 0xffff;
    Some(Packet {
        to_mac,
        from,
        to,
        protocol,
        from_port: be16(segment, 0)?,
        to_port: be16(segment, 2)?,
        tcp_flags,
        ip_len,
        payload_len: segment.len().checked_sub(l4_header)?,
        checksums_right: header_right && right,
    })
}

/// The ones' complement sum (RFC 1071) of bytes, folded, not complemented.
fn sum(bytes: &[u8], start: u32) -> u16 {
    let mut total = u64::from(start);
    for pair in bytes.chunks(2) {
        total += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while total >> 16 != 0 {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// An ARP message: operation (1 request, 2 reply), sender and target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arp {
    pub(crate) reply: bool,
    pub(crate) sender_mac: [u8; 6],
    pub(crate) sender: Ipv4Addr,
    pub(crate) target: Ipv4Addr,
}

/// Reads an ARP frame (RFC 826, Ethernet and IPv4).
pub(crate) fn decode_arp(frame: &[u8]) -> Option<Arp> {
    if frame.get(12..20)? != [0x08, 0x06, 0, 1, 0x08, 0, 6, 4] {
        return None;
    }
    let sender: [u8; 4] = frame.get(28..32)?.try_into().ok()?;
    let target: [u8; 4] = frame.get(38..42)?.try_into().ok()?;
    Some(Arp {
        reply: *frame.get(21)? == 2,
        sender_mac: frame.get(22..28)?.try_into().ok()?,
        sender: sender.into(),
        target: target.into(),
    })
}

/// A neighbour advertisement's target (RFC 4861 section 4.4), with the link-layer address that it gives.
pub(crate) fn decode_na(frame: &[u8]) -> Option<(Ipv6Addr, Option<[u8; 6]>)> {
    if frame.get(12..14)? != [0x86, 0xdd] || *frame.get(20)? != 58 || *frame.get(54)? != 136 {
        return None;
    }
    let target: [u8; 16] = frame.get(62..78)?.try_into().ok()?;
    let lladdr = match frame.get(78..86) {
        Some([2, 1, mac @ ..]) => mac.try_into().ok(),
        _ => None,
    };
    Some((target.into(), lladdr))
}

/// Whether a frame is an ICMP "fragmentation needed" or an ICMPv6 "packet too big".
pub(crate) fn says_too_big(frame: &[u8]) -> bool {
    let v4 = frame.get(12..14) == Some(&[0x08, 0x00])
        && frame.get(23) == Some(&1)
        && frame.get(34..36) == Some(&[3, 4]);
    let v6 =
        frame.get(12..14) == Some(&[0x86, 0xdd]) && frame.get(20) == Some(&58) && frame.get(54) == Some(&2);
    v4 || v6
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 TCP SYN whose checksums were worked out apart from this code.
    const SYN_FRAME: [u8; 54] = [
        2, 0, 0, 0, 0, 0x11, 2, 0, 0, 0, 0, 1, 8, 0, // Ethernet
        0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0x06, 0x87, 198, 51, 100, 10, 10, 0, 0, 11, // IPv4
        0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0xdf, 0x08, 0, 0, // TCP
    ];

    #[test]
    fn a_frame_is_read_and_a_changed_bit_shows_in_the_checksum() {
        let p = decode(&SYN_FRAME).expect("a TCP frame");
        assert_eq!((p.from_port, p.to_port, p.tcp_flags, p.ip_len, p.payload_len), (40000, 80, SYN, 40, 0));
        assert!(p.checksums_right);
        for at in 14..54 {
            let mut f = SYN_FRAME;
            f[at] ^= 0x10;
            assert!(decode(&f).is_none_or(|p| !p.checksums_right), "byte {at}");
        }
    }

    #[test]
    fn short_frames_are_not_packets() {
        for n in 0..54 {
            assert_eq!(decode(&SYN_FRAME[..n]), None);
            assert_eq!(decode_arp(&SYN_FRAME[..n]), None);
        }
    }
}
