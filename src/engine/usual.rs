//! The usual packet: of a known IPv4 connection by NAT, and nothing about it is remarkable.
//!
//! Most packets are. What is done with them here is what [`Worker::judge`](super::worker) and `forward.rs` do with them, but each
//! word is read once, and hardly a branch depends on a packet's direction or protocol, which change from packet to packet. For
//! whatever is remarkable (a change of state, a next hop to be found, options, fragments, a server that is gone) nothing
//! is done, and they are asked.

use std::hint::select_unpredictable;

use ipvs_netlink::FwdMethod;
use modes::packet::{Packet, tcp_flags};
use modes::{Addr, Family, fast};

use super::director::Director;
use super::reason::Count;
use super::stages::tuple;
use super::tcp::{self, View};
use super::worker::{TIMEOUTS, Worker, find_partial};
use super::{Frame, RxChecksum, Verdict};
use crate::conn::Hint;
use crate::route::NextHopId;
use crate::time::Now;

impl Worker {
    /// Forwards a packet if it is a usual one; if not, nothing has happened to it.
    #[inline(always)]
    pub(super) fn usual(
        &mut self,
        director: &Director,
        now: Now,
        frame: &mut Frame<'_>,
        p: &Packet,
        hint: Hint,
    ) -> Option<Verdict> {
        // a SYN may begin another connection with the same ports
        if p.family != Family::V4 || frame.gso.is_some() || p.tcp_flags & tcp_flags::SYN != 0 {
            return None;
        }
        let conn = director.table.usual(hint, &tuple(p))?;
        let line = director.dests.line(conn.dest());
        let view = select_unpredictable(conn.out, View::Output, View::Input);
        let state = conn.state().state();
        if conn.method() != FwdMethod::Masq as u8
            || !line.available()
            || !tcp::stays(view, state, p.tcp_flags)
        {
            return None;
        }
        let route = select_unpredictable(conn.out, conn.route(), line.route_word());
        let (epoch, next_hop) = ((route >> 32) as u32, NextHopId(route as u32));
        let leave = director.routes.leave(next_hop)?;
        let bytes = p.end - p.l3;
        let (addr, port) = conn.new_end();
        let hairpin = !conn.out & (p.src == Addr(addr.into()));
        if epoch != director.routes.epoch() || bytes > usize::from(leave.mtu()) || hairpin {
            return None;
        }
        let end = select_unpredictable(conn.out, fast::End::Source, fast::End::Destination);
        find_partial(frame, p);
        let partial = frame.checksum == RxChecksum::Partial;
        let timeout = self.timeouts[usize::from(state).min(TIMEOUTS - 1)];
        let seen = conn.later(now.tick(), timeout)?;
        if !fast::nat_v4(frame.bytes_mut(), p, end, (Addr(addr.into()), port), partial, leave.macs()) {
            return None;
        }
        conn.note(seen);
        director.routes.note_used(next_hop, now.tick());
        director.dests.count(self.index, conn.dest(), conn.out, 1, bytes as u64);
        self.counters().count(select_unpredictable(conn.out, Count::NatOut, Count::NatIn));
        if self.marks.wants(conn.state().flags(), conn.out) && !self.through_outbox {
            self.mark(&conn.conn(), conn.out, p, leave.port());
        }
        Some(Verdict::Forward(leave.port()))
    }
}
