//! New connections: which server takes one, and its entry in the table.

use ipvs_netlink::{FwdMethod, Netmask, SVC_F_ONEPACKET};
use modes::packet::{Packet, tcp_flags};
use modes::{Addr, Family};
use schedulers::Flow;

use super::admin::persistent;
use super::director::Director;
use super::reason::{Count, Reason};
use super::tcp::{self, State, View};
use super::{PROTO_TCP, PROTO_UDP};
use crate::conn::{Conn, ConnRef, InsertError, NewConn, Tuple};
use crate::service::{DestId, DestSlot, Inner, ServerList, Service};
use crate::time::{Now, ticks};

/// How many servers are tried when a NAT server's reply tuple turns out to be taken.
const REPLY_TRIES: usize = 3;

/// A server chosen for a packet, and how it is reached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub(super) dest: DestId,
    pub(super) method: FwdMethod,
    pub(super) real: (Addr, u16),
}

/// What came of a packet without a connection.
pub(super) enum Scheduled<'t> {
    /// It has one now.
    Conn(Conn<'t>),
    /// Only this packet goes there: one-packet scheduling, or a SYN under a flood.
    Once(Target),
    /// It can't have one.
    Refused(Reason),
}

impl Director {
    /// Schedules the first packet of a connection to `service`.
    pub(super) fn schedule(&self, worker: usize, now: Now, service: &Service, p: &Packet) -> Scheduled<'_> {
        // The lock is held from the choice until the connection is counted, so that no threshold is passed.
        let mut inner = service.lock();
        let one_packet = inner.config.flags & SVC_F_ONEPACKET != 0 && p.proto == PROTO_UDP;
        if persistent(&inner.config) {
            return self.schedule_persistent(worker, now, &mut inner, p, one_packet);
        }
        let stateless = self.may_be_stateless(&inner, p);
        for _ in 0..REPLY_TRIES {
            let Some(index) = self.pick(&mut inner, p) else {
                return Scheduled::Refused(Reason::NoDestination);
            };
            let target = self.target(&inner.dests[index], p);
            if stateless && self.needs_no_entry(target) {
                service.note_stateless(now.tick());
                self.counters[worker].count(Count::SynStateless);
                return Scheduled::Once(target);
            }
            if one_packet {
                self.dests.count_conn(worker, target.dest);
                return Scheduled::Once(target);
            }
            match self.connect(worker, now, p, target, None) {
                Err(Reason::ReplyTupleTaken) => continue,
                Err(reason) => return Scheduled::Refused(reason),
                Ok((conn, _)) => return Scheduled::Conn(conn),
            }
        }
        Scheduled::Refused(Reason::ReplyTupleTaken)
    }

    pub(super) fn pick(&self, inner: &mut Inner, p: &Packet) -> Option<usize> {
        let flow = Flow {
            client: p.src.ip(p.family),
            client_port: p.sport,
            virt: p.dst.ip(p.family),
            virt_port: p.dport,
        };
        let Inner { scheduler, dests, .. } = inner;
        let index = scheduler.pick(&ServerList { slots: dests, dests: &self.dests }, &flow)?;
        (index < dests.len()).then_some(index)
    }

    pub(super) fn target(&self, slot: &DestSlot, p: &Packet) -> Target {
        let line = self.dests.line(slot.id);
        let method = line.method();
        let port = if slot.port == 0 || method != FwdMethod::Masq { p.dport } else { slot.port };
        Target { dest: slot.id, method, real: (line.addr(), port) }
    }

    /// Makes the entry of a new connection and counts it at its server. `false` beside it: another worker has just made it.
    pub(super) fn connect(
        &self,
        worker: usize,
        now: Now,
        p: &Packet,
        target: Target,
        template: Option<ConnRef>,
    ) -> Result<(Conn<'_>, bool), Reason> {
        let nat = target.method == FwdMethod::Masq;
        let state = if p.proto == PROTO_TCP {
            tcp::next(if nat { View::Input } else { View::InputOnly }, State::None, p.tcp_flags)
        } else {
            State::Udp
        };
        let new = NewConn {
            family: p.family,
            proto: p.proto,
            client: (p.src, p.sport),
            virt: (p.dst, p.dport),
            real: target.real,
            dest: target.dest,
            method: target.method as u8,
            state: state as u8,
            flags: 0,
            timeout: self.state_timeout(state),
            template,
            fwmark: 0,
            index_out: nat,
            half_open: p.proto == PROTO_TCP,
            is_template: false,
        };
        self.make_way(worker, &new);
        match self.table.insert(now.tick(), &new) {
            Ok(conn) => {
                self.dests.line(target.dest).bind(state.is_active());
                self.dests.count_conn(worker, target.dest);
                self.counters[worker].count(Count::ConnNew);
                Ok((conn, true))
            }
            // Another worker was faster: its choice holds.
            Err(InsertError::Existing(other)) => {
                self.table.get(other).map(|conn| (conn, false)).ok_or(Reason::NoDestination)
            }
            Err(InsertError::ReplyTaken) => Err(Reason::ReplyTupleTaken),
            Err(InsertError::Full) => Err(Reason::TableFull),
        }
    }

    /// A client of a persistent service goes where its template says.
    fn schedule_persistent(
        &self,
        worker: usize,
        now: Now,
        inner: &mut Inner,
        p: &Packet,
        one_packet: bool,
    ) -> Scheduled<'_> {
        let netmask = inner.config.netmask;
        let whole_address = matches!(inner.config.key, ipvs_netlink::ServiceKey::Addr { port: 0, .. });
        let virt_port = if whole_address { 0 } else { p.dport };
        let client = masked(p.src, p.family, netmask);
        let key =
            Tuple { family: p.family, proto: p.proto, src: client, dst: p.dst, sport: 0, dport: virt_port };
        let old = self.table.lookup_template(&key).filter(|t| {
            let line = self.dests.line(t.dest());
            let quiescent = line.weight() == 0
                && self.sysctls.expire_quiescent_template.load(std::sync::atomic::Ordering::Relaxed) != 0;
            line.available() && !quiescent
        });
        let timeout = ticks(inner.config.timeout.into());
        let slot = match &old {
            Some(t) => inner.dests.iter().find(|d| d.id == t.dest()).cloned(),
            None => self.pick(inner, p).map(|i| inner.dests[i].clone()),
        };
        let Some(slot) = slot else { return Scheduled::Refused(Reason::NoDestination) };
        let target = self.target(&slot, p);
        let template = match old {
            Some(t) => t.id(),
            None => {
                if let Some(stale) = self.table.lookup_template(&key) {
                    self.end(worker, stale.id(), Count::ConnNoDest);
                }
                let real_port = if whole_address { 0 } else { target.real.1 };
                match self.make_template(worker, now, &key, &slot, target, real_port, timeout) {
                    Ok(t) => t,
                    Err(reason) => return Scheduled::Refused(reason),
                }
            }
        };
        let made = if one_packet { None } else { Some(self.connect(worker, now, p, target, Some(template))) };
        if let Some(t) = self.table.get(template) {
            // A template keeps the timeout that it was made with.
            t.touch(now.tick(), t.timeout());
            if matches!(made, Some(Ok((_, true)))) {
                t.add_controlled(true);
            }
        }
        match made {
            None => {
                self.dests.count_conn(worker, target.dest);
                Scheduled::Once(target)
            }
            Some(Ok((conn, _))) => Scheduled::Conn(conn),
            Some(Err(reason)) => Scheduled::Refused(reason),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn make_template(
        &self,
        worker: usize,
        now: Now,
        key: &Tuple,
        slot: &DestSlot,
        target: Target,
        real_port: u16,
        timeout: u32,
    ) -> Result<ConnRef, Reason> {
        let new = NewConn {
            family: key.family,
            proto: key.proto,
            client: (key.src, 0),
            virt: (key.dst, key.dport),
            real: (target.real.0, real_port),
            dest: slot.id,
            method: target.method as u8,
            state: State::None as u8,
            flags: 0,
            timeout,
            template: None,
            fwmark: 0,
            index_out: false,
            half_open: key.proto == PROTO_TCP,
            is_template: true,
        };
        self.make_way(worker, &new);
        match self.table.insert(now.tick(), &new) {
            Ok(t) => {
                self.dests.line(slot.id).bind_template();
                self.counters[worker].count(Count::TemplateNew);
                Ok(t.id())
            }
            Err(InsertError::Existing(other)) => Ok(other),
            Err(InsertError::ReplyTaken) => Err(Reason::ReplyTupleTaken),
            Err(InsertError::Full) => Err(Reason::TableFull),
        }
    }

    /// Ends a connection before its time. Only the caller that removed it counts.
    pub(super) fn end(&self, worker: usize, conn: ConnRef, why: Count) {
        let Some(c) = self.table.get(conn) else { return };
        let (dest, template, is_template) = (c.dest(), c.template(), c.is_template());
        if let Some(last) = self.table.remove(conn) {
            self.counters[worker].count(why);
            self.unbind(dest, template, is_template, State::from_u8(last.state()));
        }
    }

    /// Undoes what a connection's entry counted for.
    pub(super) fn unbind(&self, dest: DestId, template: Option<ConnRef>, is_template: bool, state: State) {
        let line = self.dests.line(dest);
        if is_template {
            line.unbind_template();
            return;
        }
        line.unbind(state.is_active());
        if let Some(t) = template.and_then(|t| self.table.get(t)) {
            t.add_controlled(false);
        }
    }
}

/// Whether a packet may begin a connection: for TCP a SYN without RST, other protocols any.
pub(super) fn may_begin(p: &Packet) -> bool {
    p.proto != PROTO_TCP || p.tcp_flags & (tcp_flags::SYN | tcp_flags::RST) == tcp_flags::SYN
}

fn masked(addr: Addr, family: Family, mask: Netmask) -> Addr {
    match (family, mask) {
        (Family::V4, Netmask::V4(m)) => Addr(addr.0 & u128::from(u32::from(m))),
        (Family::V6, Netmask::V6(prefix @ 1..=127)) => {
            Addr(addr.0 & (u128::MAX << (128 - u32::from(prefix))))
        }
        (Family::V6, Netmask::V6(0)) => Addr(0),
        _ => addr,
    }
}
