//! The header that goes with each frame between a packet socket and the kernel (`struct virtio_net_hdr`).

use crate::engine::{Gso, RxChecksum};

/// Bytes of the header.
pub(in crate::io) const VNET_LEN: usize = 10;

const F_NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// `struct virtio_net_hdr` (virtio 1.2, 5.1.6), in the machine's byte order as packet sockets have it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(in crate::io) struct VnetHdr {
    flags: u8,
    gso_type: u8,
    hdr_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

impl VnetHdr {
    pub(in crate::io) fn checksum(&self) -> RxChecksum {
        if self.flags & F_NEEDS_CSUM != 0 { RxChecksum::Partial } else { RxChecksum::Complete }
    }

    pub(in crate::io) fn gso(&self) -> Option<Gso> {
        (self.gso_type & !GSO_ECN != GSO_NONE).then_some(Gso { size: self.gso_size, guessed: false })
    }

    /// Where the bytes begin that a partial checksum is the sum of, and where it goes from there.
    pub(in crate::io) fn checksum_place(&self) -> Option<(u16, u16)> {
        (self.flags & F_NEEDS_CSUM != 0).then_some((self.csum_start, self.csum_offset))
    }

    /// The same for a frame into which `n` bytes have been put before the IP header.
    pub(in crate::io) fn shifted(mut self, n: u16) -> VnetHdr {
        if self.flags & F_NEEDS_CSUM != 0 {
            self.csum_start = self.csum_start.saturating_add(n);
        }
        if self.gso_type & !GSO_ECN != GSO_NONE {
            self.hdr_len = self.hdr_len.saturating_add(n);
        }
        self
    }

    /// The header for a frame with these notes; `None` where they cannot belong to such a frame.
    pub(in crate::io) fn describe(frame: &[u8], checksum: RxChecksum, gso: Option<Gso>) -> Option<VnetHdr> {
        if checksum != RxChecksum::Partial && gso.is_none() {
            return Some(VnetHdr::default());
        }
        let t = transport(frame)?;
        let mut header = VnetHdr {
            // a super-packet's segments get their checksums from the kernel, so its own is partial in any case
            flags: F_NEEDS_CSUM,
            csum_start: u16::try_from(t.offset).ok()?,
            csum_offset: if t.proto == libc::IPPROTO_TCP as u8 { 16 } else { 6 },
            ..VnetHdr::default()
        };
        let Some(gso) = gso else { return Some(header) };
        if t.proto == libc::IPPROTO_TCP as u8 {
            let data_offset = usize::from(*frame.get(t.offset + 12)? >> 4) * 4;
            // CWR in a super-packet belongs to its first segment only
            let cwr = *frame.get(t.offset + 13)? & 0x80 != 0;
            header.gso_type = if t.v6 { GSO_TCPV6 } else { GSO_TCPV4 } | if cwr { GSO_ECN } else { 0 };
            header.hdr_len = u16::try_from(t.offset + data_offset).ok()?;
        } else {
            header.gso_type = GSO_UDP_L4;
            header.hdr_len = u16::try_from(t.offset + 8).ok()?;
        }
        header.gso_size = gso.size;
        Some(header)
    }
}

struct Transport {
    offset: usize,
    proto: u8,
    v6: bool,
}

/// Where a frame's TCP or UDP header is; the innermost one, where IP is in IP.
fn transport(frame: &[u8]) -> Option<Transport> {
    let half = |at: usize| frame.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]]));
    let mut at = 12;
    for _ in 0..2 {
        if !matches!(half(at)?, 0x8100 | 0x88a8) {
            break;
        }
        at += 4;
    }
    let mut v6 = match half(at)? {
        0x0800 => false,
        0x86dd => true,
        _ => return None,
    };
    at += 2;
    let mut proto = 0;
    for headers in 0..10 {
        if headers == 0 || matches!(proto, 4 | 41) {
            if headers > 0 {
                v6 = proto == 41;
            }
            if v6 {
                proto = *frame.get(at + 6)?;
                at += 40;
            } else {
                proto = *frame.get(at + 9)?;
                at += usize::from(*frame.get(at)? & 15) * 4;
            }
            continue;
        }
        match proto {
            6 | 17 => return (at + 8 <= frame.len()).then_some(Transport { offset: at, proto, v6 }),
            0 | 43 | 60 if v6 => {
                proto = *frame.get(at)?;
                at += (usize::from(*frame.get(at + 1)?) + 1) * 8;
            }
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(tags: usize, ethertype: [u8; 2], ip: &[u8], l4: &[u8]) -> Vec<u8> {
        let mut f = vec![0; 12];
        for _ in 0..tags {
            f.extend([0x81, 0, 0, 5]);
        }
        f.extend(ethertype);
        f.extend(ip);
        f.extend(l4);
        f
    }

    fn ipv4(proto: u8, words: u8) -> Vec<u8> {
        let mut h = vec![0; usize::from(words) * 4];
        h[0] = 0x40 | words;
        h[9] = proto;
        h
    }

    fn tcp(flags: u8) -> Vec<u8> {
        let mut h = vec![0; 20];
        h[12] = 5 << 4;
        h[13] = flags;
        h
    }

    #[test]
    fn complete_frames_need_nothing() {
        assert_eq!(VnetHdr::describe(&[], RxChecksum::Complete, None), Some(VnetHdr::default()));
    }

    #[test]
    fn finds_the_transport_header_behind_tags_and_options() {
        for tags in 0..3usize {
            for words in [5u8, 8, 15] {
                let f = frame(tags, [8, 0], &ipv4(6, words), &tcp(0x80));
                let l4 = 14 + tags as u16 * 4 + u16::from(words) * 4;
                let h = VnetHdr::describe(&f, RxChecksum::Partial, Some(Gso { size: 1448, guessed: false }))
                    .unwrap();
                let want = VnetHdr {
                    flags: 1,
                    gso_type: GSO_TCPV4 | GSO_ECN,
                    hdr_len: l4 + 20,
                    gso_size: 1448,
                    csum_start: l4,
                    csum_offset: 16,
                };
                assert_eq!(h, want);
            }
        }
    }

    #[test]
    fn ipv6_with_extensions_and_udp() {
        let mut ip = vec![0; 48];
        ip[0] = 0x60;
        ip[6] = 0;
        ip[40] = 17;
        let h = VnetHdr::describe(&frame(0, [0x86, 0xdd], &ip, &[0; 8]), RxChecksum::Partial, None).unwrap();
        assert_eq!((h.csum_start, h.csum_offset, h.gso_type), (62, 6, GSO_NONE));
    }

    #[test]
    fn notes_that_do_not_fit_are_refused() {
        for f in
            [vec![], vec![0; 14], frame(0, [8, 6], &[0; 28], &[]), frame(0, [8, 0], &ipv4(1, 5), &[0; 8])]
        {
            assert_eq!(VnetHdr::describe(&f, RxChecksum::Partial, None), None);
        }
        // cut within the TCP header
        let f = frame(0, [8, 0], &ipv4(6, 5), &[0; 8]);
        assert_eq!(VnetHdr::describe(&f, RxChecksum::Partial, Some(Gso { size: 1, guessed: false })), None);
    }

    #[test]
    fn a_tag_shifts_offsets() {
        let h = VnetHdr { flags: 1, gso_type: 1, hdr_len: 54, gso_size: 9, csum_start: 34, csum_offset: 16 };
        assert_eq!(h.shifted(4), VnetHdr { hdr_len: 58, csum_start: 38, ..h });
        assert_eq!(VnetHdr::default().shifted(4), VnetHdr::default());
    }
}
