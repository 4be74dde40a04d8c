//! ICMP errors that others send about the director's connections (RFC 5508 section 4; what IPVS does with them).
//!
//! An error is told apart by the packet that it quotes, and must be addressed to that packet's sender; who has sent the error does not
//! matter. The packet that answers the quoted one finds the connection:
//!
//! | the quoted packet | from | goes on |
//! | --- | --- | --- |
//! | virtual address to client | a router on the way to the client, or the client | to the server: by NAT both headers translated, else as it is, by DR or in the tunnel |
//! | client to server, by NAT | the server, or a router on the way to it | to the client: from the virtual address, both headers translated |
//! | a tunnel's outer packet | a router on the way to the server | to the client: told anew, about the client's packet ([`super::tunnel`]) |
//!
//! All else is the kernel's, as is what IPVS leaves alone: IPv4 parameter problems, redirects. An error changes neither a connection's state
//! nor its timer.

use ipvs_netlink::FwdMethod;
use modes::icmp::{self, Inner, Toward};
use modes::packet::{Fragment, Packet, proto};
use modes::{Family, wire};

use super::director::Director;
use super::forward::Way;
use super::reason::{Count, Reason};
use super::schedule::Target;
use super::worker::{Worker, method};
use super::{Frame, PROTO_TCP, PROTO_UDP, Verdict};
use crate::conn::{Conn, Direction, Tuple};
use crate::time::Now;

/// The tuple of the packet that would answer the quoted one.
fn answer_to(inner: &Inner) -> Tuple {
    Tuple {
        family: inner.family,
        proto: inner.proto,
        src: inner.dst,
        dst: inner.src,
        sport: inner.dport,
        dport: inner.sport,
    }
}

/// Whether it is an error that IPVS relays.
fn is_relayed(inner: &Inner) -> bool {
    inner.family == Family::V6 || inner.icmp_type != wire::icmp_type::PARAMETER_PROBLEM
}

impl Worker {
    /// Judges an ICMP message.
    #[cold]
    pub(super) fn icmp(
        &mut self,
        director: &Director,
        now: Now,
        frame: &mut Frame<'_>,
        p: &Packet,
    ) -> Verdict {
        let Some(inner) = icmp::embedded(frame.bytes(), p).filter(is_relayed) else { return Verdict::Pass };
        if matches!(inner.proto, proto::IPIP | proto::IPV6 | proto::GRE) {
            return self.about_tunnel(director, now, frame, p, &inner);
        }
        // An error goes to the sender of what it quotes (RFC 792); another destination is somebody's invention.
        if (inner.proto != PROTO_TCP && inner.proto != PROTO_UDP) || p.dst != inner.src {
            return Verdict::Pass;
        }
        let tuple = answer_to(&inner);
        let Some((conn, direction)) = director.table.lookup(director.table.hash(&tuple), &tuple) else {
            return Verdict::Pass;
        };
        if p.fragment != Fragment::Whole {
            return Verdict::Drop(Reason::Fragment);
        }
        self.counters().count(Count::IcmpRelated);
        match direction {
            Direction::In => self.error_to_server(director, now, frame, p, &inner, &conn),
            Direction::Out => self.error_to_client(director, now, frame, p, &inner, &conn),
        }
    }

    fn error_to_server(
        &mut self,
        director: &Director,
        now: Now,
        frame: &mut Frame<'_>,
        p: &Packet,
        inner: &Inner,
        conn: &Conn<'_>,
    ) -> Verdict {
        let line = director.dests.line(conn.dest());
        if line.available() {
            self.count_in(conn.dest(), frame, p);
        }
        let target = Target { dest: conn.dest(), method: method(conn.method()), real: conn.real() };
        if target.method != FwdMethod::Masq {
            return self.forward_to_server(director, now, frame, p, target);
        }
        // As in IPVS, DF does not hold for an error that NAT translates.
        let p = &Packet { dont_fragment: p.family == Family::V6, ..*p };
        let (addr, port) = target.real;
        let cached = line.route();
        let way = self.way(now, cached, p.family, addr, 0, |epoch, hop| line.set_route(epoch, hop));
        let (id, hop) = match way {
            Way::Hop(id, hop) => (id, hop),
            Way::None(reason) => return Verdict::Drop(reason),
            Way::Local if target.real == conn.virt() => {
                self.counters().count(Count::Local);
                return Verdict::Pass;
            }
            Way::Local => return Verdict::Drop(Reason::LocalNat),
        };
        if let Err(verdict) = self.ready(now, frame, p, hop.mtu, p.dst) {
            return verdict;
        }
        if icmp::translate(frame.bytes_mut(), p, inner, Toward::Server, (addr, port)).is_err() {
            return Verdict::Drop(Reason::IcmpTruncated);
        }
        self.counters().count(Count::NatIn);
        self.transmit(now, frame, p, id, &hop)
    }

    fn error_to_client(
        &mut self,
        director: &Director,
        now: Now,
        frame: &mut Frame<'_>,
        p: &Packet,
        inner: &Inner,
        conn: &Conn<'_>,
    ) -> Verdict {
        if director.dests.line(conn.dest()).available() {
            self.count_out(conn.dest(), frame, p);
        }
        let way = self.way(now, conn.route(), p.family, p.dst, 0, |epoch, hop| conn.set_route(epoch, hop));
        let (id, hop) = match way {
            Way::Hop(id, hop) => (id, hop),
            Way::None(reason) => return Verdict::Drop(reason),
            Way::Local => return Verdict::Drop(Reason::LocalNat),
        };
        let own = director.routes.source_for(p.family, p.dst).unwrap_or_default();
        if let Err(verdict) = self.ready(now, frame, p, hop.mtu, own) {
            return verdict;
        }
        if icmp::translate(frame.bytes_mut(), p, inner, Toward::Client, conn.virt()).is_err() {
            return Verdict::Drop(Reason::IcmpTruncated);
        }
        self.counters().count(Count::NatOut);
        self.transmit(now, frame, p, id, &hop)
    }
}
