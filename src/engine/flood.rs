//! What is done under a SYN flood (`docs/syn-flood.md`): half-open connections are bounded, the oldest goes first; and where the scheduler
//! chooses alike for all segments of a connection, a SYN needs no entry at all.

use std::sync::atomic::Ordering::Relaxed;

use ipvs_netlink::FwdMethod;
use modes::packet::{Packet, tcp_flags};
use modes::{Family, packet::proto};

use super::admin::persistent;
use super::director::Director;
use super::reason::Count;
use super::schedule::{Scheduled, Target};
use super::tcp::State;
use crate::conn::NewConn;
use crate::service::{Inner, Service};
use crate::time::{Now, ticks};

/// Seconds for which segments may follow on a SYN that got no entry: as long as its entry would have lived in SYN_RECV.
const MEMORY_SECS: u64 = 60;
/// Half-open connections that make way for a new one: more than one, so that their number comes down where the bound was lowered.
const EVICTIONS: usize = 2;

impl Director {
    /// Most half-open connections of a family.
    fn half_open_bound(&self, family: Family) -> u32 {
        match self.sysctls.half_open_percent.load(Relaxed) {
            0 => u32::MAX,
            percent => (self.table.capacity(family) as u64 * u64::from(percent) / 100).max(1) as u32,
        }
    }

    /// Evicts half-open connections where a new connection needs the place of one.
    pub(super) fn make_way(&self, worker: usize, new: &NewConn) {
        let bound = if new.half_open { self.half_open_bound(new.family) } else { u32::MAX };
        for _ in 0..EVICTIONS {
            if !self.table.is_pressed(new.family, bound) {
                return;
            }
            let Some(gone) = self.table.evict(new) else { return };
            self.counters[worker].count(Count::HalfOpenEvicted);
            self.unbind(gone.dest, gone.template, gone.is_template, State::from_u8(gone.state));
        }
    }

    /// Whether a SYN to a service may be sent on without an entry, should its server allow that.
    pub(super) fn may_be_stateless(&self, inner: &Inner, p: &Packet) -> bool {
        p.proto == proto::TCP
            && self.table.is_pressed(p.family, self.half_open_bound(p.family))
            // a full table of established connections has no place for the segment that comes next
            && self.table.half_open(p.family) > 0
            && self.sysctls.stateless_syn.load(Relaxed) != 0
            && inner.scheduler.is_consistent()
    }

    /// Whether packets to a server can do without an entry: those of NAT can't, their replies would not be known; nor those to a
    /// server whose connections are limited, as they would not be counted.
    pub(super) fn needs_no_entry(&self, target: Target) -> bool {
        matches!(target.method, FwdMethod::Droute | FwdMethod::Tunnel)
            && self.dests.line(target.dest).thresholds().0 == 0
    }

    /// Schedules a segment without a connection that is no SYN: it may follow on a SYN that got no entry. None where that cannot
    /// be.
    pub(super) fn schedule_later(
        &self,
        worker: usize,
        now: Now,
        service: &Service,
        p: &Packet,
    ) -> Option<Scheduled<'_>> {
        let is_segment = p.proto == proto::TCP && p.tcp_flags & tcp_flags::SYN == 0;
        if !is_segment || !service.was_stateless(now.tick(), ticks(MEMORY_SECS)) {
            return None;
        }
        let mut inner = service.lock();
        if !inner.scheduler.is_consistent() || persistent(&inner.config) {
            return None;
        }
        let index = self.pick(&mut inner, p)?;
        let target = self.target(&inner.dests[index], p);
        if !self.needs_no_entry(target) {
            return None;
        }
        if p.tcp_flags & tcp_flags::RST != 0 {
            return Some(Scheduled::Once(target));
        }
        if p.tcp_flags & tcp_flags::ACK == 0 {
            return None;
        }
        Some(match self.connect(worker, now, p, target, None) {
            Ok((conn, new)) => {
                if new {
                    self.counters[worker].count(Count::ConnAfterSyn);
                }
                Scheduled::Conn(conn)
            }
            Err(reason) => Scheduled::Refused(reason),
        })
    }
}
