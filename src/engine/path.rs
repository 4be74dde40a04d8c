//! ICMP errors about a tunnel's outer packets: what a router between director and server says is told to the client, and a smaller MTU on
//! the way there is remembered.
//!
//! The director is the outer packet's source, so such errors are addressed to itself; who quotes a packet that it did not send (other
//! addresses, another encapsulation, an unknown connection inside) is not believed and left to the kernel. Nor is an MTU that the quoted
//! packet would have fitted, or that comes from where no packet to the server goes.

use std::sync::atomic::Ordering::Relaxed;

use ipvs_netlink::FwdMethod;
use modes::Family;
use modes::icmp::{self, Inner, Told};
use modes::packet::{Packet, proto};
use modes::tunnel::Encapsulation;

use super::director::Director;
use super::forward::Way;
use super::reason::Count;
use super::tunnel::{encapsulation, inner_mtu, source};
use super::worker::Worker;
use super::{Frame, Verdict};
use crate::conn::{Direction, Tuple};
use crate::service::DestLine;
use crate::time::{Now, ticks};

/// How long a path's MTU is believed (RFC 1191 section 6.3, Linux's `mtu_expires`).
const LIFE_SECS: u64 = 600;
/// Least MTUs that are believed: Linux's `min_pmtu` for IPv4, RFC 8201 section 4 for IPv6. Less is taken for these, such as the 0 of routers
/// older than RFC 1191.
const LEAST_V4: u32 = 552;
const LEAST_V6: u32 = 1280;

/// Whether the quoted outer packet is of this encapsulation.
fn is_of(outer: &Inner, inner: Family, how: Encapsulation) -> bool {
    match (how, inner) {
        (Encapsulation::Ipip, Family::V4) => outer.proto == proto::IPIP,
        (Encapsulation::Ipip, Family::V6) => outer.proto == proto::IPV6,
        (Encapsulation::Gre { .. }, _) => outer.proto == proto::GRE,
    }
}

impl Worker {
    /// An error that quotes an outer packet.
    pub(super) fn about_tunnel(
        &mut self,
        director: &Director,
        now: Now,
        frame: &Frame<'_>,
        p: &Packet,
        outer: &Inner,
    ) -> Verdict {
        // What is told anew gets a right checksum, and what is believed must have one; the kernel counts the others.
        if !icmp::is_sound(frame.bytes(), p) {
            return Verdict::Pass;
        }
        let Some(inner) = icmp::inside(frame.bytes(), p, outer) else { return Verdict::Pass };
        let tuple = Tuple {
            family: inner.family,
            proto: inner.proto,
            src: inner.src,
            dst: inner.dst,
            sport: inner.sport,
            dport: inner.dport,
        };
        let found = director.table.lookup(director.table.hash(&tuple), &tuple);
        let Some((conn, Direction::In)) = found else { return Verdict::Pass };
        let line = director.dests.line(conn.dest());
        let (Some(how), true) = (encapsulation(line.tunnel()), conn.method() == FwdMethod::Tunnel as u8)
        else {
            return Verdict::Pass;
        };
        let ours = (line.family(), line.addr()) == (outer.family, outer.dst)
            && source(&director.routes, line) == Some(outer.src)
            && is_of(outer, inner.family, how);
        if !ours {
            return Verdict::Pass;
        }
        let told = match icmp::too_big(frame.bytes(), p, outer) {
            Some(mtu) => {
                let Some(told) = self.learn(now, line, how, frame, (outer, &inner), mtu) else {
                    return Verdict::Pass;
                };
                told
            }
            // As the kernel's IPVS: what else routers say reaches IPv4's clients of IPv4's tunnels.
            None if outer.family == Family::V4 && inner.family == Family::V4 => {
                let rest =
                    frame.bytes().get(p.l4 + 4..).and_then(<[u8]>::first_chunk).copied().unwrap_or_default();
                Told { kind: outer.icmp_type, code: outer.icmp_code, rest: u32::from_be_bytes(rest) }
            }
            None => return Verdict::Pass,
        };
        self.counters().count(Count::IcmpRelated);
        if !self.icmp.take(now) {
            self.counters().count(Count::IcmpLimited);
            return Verdict::Emitted;
        }
        self.ip_id = self.ip_id.wrapping_add(1);
        let mut data = Vec::with_capacity(1294);
        let told = icmp::tell(frame.bytes(), p, &inner, told, conn.virt().0, self.ip_id, &mut data);
        if told && self.emit_to(now, inner.family, inner.src, data) {
            self.counters().count(Count::IcmpSent);
        }
        Verdict::Emitted
    }

    /// Remembers the MTU of a path, and says what the inner packet's sender is to be told; `None` where nothing is believed.
    fn learn(
        &self,
        now: Now,
        line: DestLine<'_>,
        how: Encapsulation,
        frame: &Frame<'_>,
        (outer, inner): (&Inner, &Inner),
        mtu: u32,
    ) -> Option<Told> {
        let better = self.director.sysctls.tunnel_ipv6_min_mtu.load(Relaxed) != 0;
        let family = line.family();
        if family == Family::V6 && !better {
            return None;
        }
        let least = if family == Family::V4 { LEAST_V4 } else { LEAST_V6 };
        let mtu = u16::try_from(mtu.max(least)).unwrap_or(u16::MAX);
        // A router complains of a packet that it could not send on, and such packets left by a port to the server.
        let was_too_big = icmp::stated_len(frame.bytes(), outer).is_some_and(|len| len > usize::from(mtu));
        if !was_too_big || !self.director.routes.leads_by(family, line.addr(), frame.port) {
            return None;
        }
        let way =
            self.way(now, line.route(), family, line.addr(), 0, |epoch, hop| line.set_route(epoch, hop));
        let Way::Hop(_, hop) = way else { return None };
        if mtu >= hop.mtu {
            return None;
        }
        let tick = now.tick();
        line.set_path_mtu(mtu, tick, ticks(LIFE_SECS));
        let path = hop.mtu.min(line.path_mtu(tick));
        let left = inner_mtu(inner.family, family, path, how.overhead(family) as u16, better)?;
        Some(Told::too_big(inner.family, left.into()))
    }
}
