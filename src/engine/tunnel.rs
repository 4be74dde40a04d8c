//! A judged packet on its way to a tunnel server: inside another one.
//!
//! May assume what [`super::forward`] may. The order is that of the kernel's IPVS: IP options and TTL of the client's packet, its size
//! against what the tunnel leaves of the next hop's MTU, then the outer headers. Two things differ by necessity: a super-packet is cut
//! into segments and a partial checksum completed before, since no note for the port can describe them once they are inside.

use std::sync::atomic::Ordering::Relaxed;

use ipvs_netlink::Tunnel;
use modes::packet::Packet;
use modes::tunnel::{self, Encapsulation, Outer, TunnelError};
use modes::{Addr, Family, checksum, forward, segment};

use super::forward::Way;
use super::reason::{Count, Reason};
use super::worker::Worker;
use super::{Frame, Out, RxChecksum, Verdict};
use crate::route::{Hop, HopState, NextHopId, Routes};
use crate::service::{DestId, DestLine};
use crate::time::Now;

/// Least MTU of a link that carries IPv6 (RFC 8200 section 5).
const IPV6_MIN_MTU: u16 = 1280;
/// Least MTU of a link that carries IPv4 (RFC 791 section 3.2).
const IPV4_MIN_MTU: u16 = 68;

/// The encapsulation numbers of IPVS's `IPVS_DEST_ATTR_TUN_TYPE`, and its checksum flag.
const KIND_IPIP: u8 = 0;
const KIND_GRE: u8 = 2;
const FLAG_CHECKSUM: u16 = 1;

/// How a packet gets to its server.
struct Path {
    how: Encapsulation,
    family: Family,
    src: Addr,
    dst: Addr,
    id: NextHopId,
    hop: Hop,
}

impl Worker {
    /// Sends a client's packet to a tunnel server.
    pub(super) fn forward_to_tunnel(
        &mut self,
        now: Now,
        frame: &mut Frame<'_>,
        p: &Packet,
        dest: DestId,
    ) -> Verdict {
        let director = self.director.clone();
        let line = director.dests.line(dest);
        let Some(how) = encapsulation(line.tunnel()) else { return Verdict::Drop(Reason::MethodMissing) };
        // The line's address, not the entry's, which is no use where the families differ.
        let (family, dst) = (line.family(), line.addr());
        let way = self.way(now, line.route(), family, dst, 0, |epoch, hop| line.set_route(epoch, hop));
        let (id, mut hop) = match way {
            Way::Hop(id, hop) => (id, hop),
            Way::None(reason) => return Verdict::Drop(reason),
            Way::Local => {
                self.counters().count(Count::Local);
                return Verdict::Pass;
            }
        };
        hop.mtu = hop.mtu.min(line.path_mtu(now.tick()));
        let promise = director.sysctls.tunnel_ipv6_min_mtu.load(Relaxed) != 0;
        let overhead = how.overhead(family) as u16;
        let Some(mtu) = inner_mtu(p.family, family, hop.mtu, overhead, promise) else {
            return Verdict::Drop(Reason::TunnelMtu);
        };
        let Some(src) = source(&director.routes, line) else {
            return Verdict::Drop(Reason::NoTunnelSource);
        };
        if let Err(verdict) = self.ready(now, frame, p, mtu, p.dst) {
            return verdict;
        }
        let path = Path { how, family, src, dst, id, hop };
        match frame.gso.filter(|g| g.size > 0) {
            Some(gso) => self.tunnel_segments(now, frame, p, gso.size, &path),
            None => self.tunnel_packet(now, frame, p, &path),
        }
    }

    /// Wraps one packet where it lies, or in a copy where there is no room before it.
    fn tunnel_packet(&mut self, now: Now, frame: &mut Frame<'_>, p: &Packet, path: &Path) -> Verdict {
        if frame.checksum == RxChecksum::Partial {
            checksum::complete_partial(frame.bytes_mut(), p);
        }
        (frame.checksum, frame.gso) = (RxChecksum::Complete, None);
        let outer = self.outer(path);
        match tunnel::encapsulate(frame.buf, frame.start, p, path.how, &outer) {
            Ok(start) => {
                (frame.start, frame.end) = (start, frame.start + p.end);
                self.counters().count(Count::Tunnel);
                self.transmit_outer(now, frame, p, path)
            }
            Err(TunnelError::NoHeadRoom) => {
                let room = path.how.overhead(path.family);
                let mut data = vec![0; room];
                data.extend_from_slice(frame.bytes());
                data.truncate(room + p.end);
                match tunnel::encapsulate(&mut data, room, p, path.how, &outer) {
                    Ok(_) => {
                        self.counters().count(Count::Tunnel);
                        self.post(now, data, p, path)
                    }
                    Err(e) => Verdict::Drop(refused(e)),
                }
            }
            Err(e) => Verdict::Drop(refused(e)),
        }
    }

    /// Cuts a super-packet and wraps its segments.
    fn tunnel_segments(
        &mut self,
        now: Now,
        frame: &Frame<'_>,
        p: &Packet,
        size: u16,
        path: &Path,
    ) -> Verdict {
        let room = path.how.overhead(path.family);
        let cut = segment::segment(frame.bytes(), p, size, room, &mut |mut data, q| {
            let outer = self.outer(path);
            let sent = match tunnel::encapsulate(&mut data, room, &q, path.how, &outer) {
                Ok(_) => self.post(now, data, &q, path),
                Err(e) => Verdict::Drop(refused(e)),
            };
            if let Verdict::Drop(reason) = sent {
                self.counters().drop(reason);
            }
        });
        if cut.is_err() {
            return Verdict::Drop(Reason::SuperPacket);
        }
        self.counters().count(Count::Tunnel);
        self.counters().count(Count::Segmented);
        self.cut_for = (path.hop.state == HopState::Ready).then_some(path.hop.port);
        Verdict::Emitted
    }

    /// The outer header's addresses, and an identification of its own.
    fn outer(&mut self, path: &Path) -> Outer {
        self.ip_id = self.ip_id.wrapping_add(1);
        Outer { family: path.family, src: path.src, dst: path.dst, id: self.ip_id }
    }

    /// Sends a wrapped frame from where it lies.
    fn transmit_outer(&mut self, now: Now, frame: &mut Frame<'_>, p: &Packet, path: &Path) -> Verdict {
        let hop = &path.hop;
        forward::set_macs(frame.bytes_mut(), hop.dst_mac, hop.src_mac);
        if frame.end - frame.start - p.l3 > usize::from(hop.mtu) {
            return self.fragment_outer(now, frame.bytes(), path);
        }
        if hop.state == HopState::Ready {
            return Verdict::Forward(hop.port);
        }
        let data = frame.bytes().to_vec();
        let out = Out { port: hop.port, data, checksum: RxChecksum::Complete, gso: None };
        self.wait(now, path.id, out)
    }

    /// Sends a wrapped frame that the core owns.
    fn post(&mut self, now: Now, mut data: Vec<u8>, p: &Packet, path: &Path) -> Verdict {
        let hop = &path.hop;
        self.through_outbox = true;
        forward::set_macs(&mut data, hop.dst_mac, hop.src_mac);
        if data.len() - p.l3 > usize::from(hop.mtu) {
            return self.fragment_outer(now, &data, path);
        }
        self.emit(now, path.id, hop, data)
    }

    /// Cuts an outer packet that is too big for its next hop: around IPv4 without DF, and around IPv6 of at most 1,280 bytes.
    fn fragment_outer(&mut self, now: Now, frame: &[u8], path: &Path) -> Verdict {
        self.fragment_id = self.fragment_id.wrapping_add(1);
        let mut pieces = Vec::new();
        let mtu = usize::from(path.hop.mtu);
        let cut = tunnel::fragment(frame, mtu, self.fragment_id, &mut |f| pieces.push(f.to_vec()));
        if cut.is_err() {
            return Verdict::Drop(Reason::TooBig);
        }
        self.counters().count(Count::Fragmented);
        self.emit_all(now, path.id, &path.hop, pieces)
    }
}

/// What a server's tunnel parameters mean; `None` for GUE and numbers unknown.
pub(super) fn encapsulation(t: Tunnel) -> Option<Encapsulation> {
    match t.kind {
        KIND_IPIP => Some(Encapsulation::Ipip),
        KIND_GRE => Some(Encapsulation::Gre { checksum: t.flags & FLAG_CHECKSUM != 0 }),
        _ => None,
    }
}

fn refused(e: TunnelError) -> Reason {
    match e {
        TunnelError::TooLong => Reason::TooBig,
        TunnelError::NoHeadRoom | TunnelError::Mismatch => Reason::FrameTooShort,
    }
}

/// The largest packet that is sent through a tunnel, and that a sender is told of; `None` where the link is too small for any.
/// `promise`: IPv6 gets its 1,280 bytes in any case, by fragments of the outer packet if need be (RFC 4213 section 3.2, RFC 2473
/// section 7.1); else all is as in IPVS.
pub(super) fn inner_mtu(
    inner: Family,
    outer: Family,
    link: u16,
    overhead: u16,
    promise: bool,
) -> Option<u16> {
    let left = link.saturating_sub(overhead);
    let enough = match outer {
        Family::V4 => left >= IPV4_MIN_MTU,
        Family::V6 if promise => link >= IPV6_MIN_MTU,
        Family::V6 => left >= IPV6_MIN_MTU,
    };
    let mtu = if promise && inner == Family::V6 { left.max(IPV6_MIN_MTU) } else { left };
    enough.then_some(mtu)
}

/// The director's own address on the way to a server, from its line while the routes stand still.
pub(super) fn source(routes: &Routes, line: DestLine<'_>) -> Option<Addr> {
    let epoch = routes.epoch();
    if let Some(src) = line.source(epoch) {
        return Some(src);
    }
    let src = routes.source_for(line.family(), line.addr())?;
    line.set_source(epoch, src);
    Some(src)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Family::{V4, V6};

    #[test]
    fn what_a_tunnel_leaves() {
        for (inner, outer, link, overhead, promise, want) in [
            (V4, V4, 1500, 20, true, Some(1480)),
            (V4, V4, 1500, 28, true, Some(1472)),
            (V4, V4, 88, 20, true, Some(68)),
            (V4, V4, 87, 20, true, None),
            (V4, V6, 1500, 40, true, Some(1460)),
            (V4, V6, 1300, 40, true, Some(1260)),
            (V4, V6, 1300, 40, false, None),
            (V4, V6, 1279, 40, true, None),
            (V6, V4, 1500, 20, true, Some(1480)),
            (V6, V4, 1300, 24, true, Some(1280)),
            (V6, V4, 1300, 24, false, Some(1276)),
            (V6, V6, 1300, 40, true, Some(1280)),
            (V6, V6, 1320, 40, false, Some(1280)),
            (V6, V6, 1319, 40, false, None),
            (V4, V4, 10, 20, true, None),
            (V6, V6, 65_535, 48, true, Some(65_487)),
        ] {
            let got = inner_mtu(inner, outer, link, overhead, promise);
            assert_eq!(got, want, "{inner:?} in {outer:?}, {link} - {overhead}, {promise}");
        }
    }

    #[test]
    fn kinds() {
        let t = |kind, flags| encapsulation(Tunnel { kind, port: 0, flags });
        assert_eq!(t(0, 1), Some(Encapsulation::Ipip));
        assert_eq!(t(1, 0), None);
        assert_eq!(t(2, 0), Some(Encapsulation::Gre { checksum: false }));
        assert_eq!(t(2, 1), Some(Encapsulation::Gre { checksum: true }));
        assert_eq!(t(3, 0), None);
    }
}
