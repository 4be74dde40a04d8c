//! One worker: judges frames in batches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

use ipvs_netlink::FwdMethod;
use modes::checksum;
use modes::packet::{Fragment, Packet, proto, tcp_flags};

use super::answer::Bucket;
use super::director::{Director, MAX_WORKERS};
use super::pending::Pending;
use super::reason::{Count, Counters, Reason};
use super::schedule::{Scheduled, Target, may_begin};
use super::stages::{self, Parsed, STAGES, STEP, part, tuple};
use super::tcp::{self, State, View};
use super::tier::Marks;
use super::{FLAG_ASSURED, Frame, FrameHandler, Out, PROTO_TCP, RxChecksum, Verdict};
use crate::conn::{Conn, Direction, Expiry, Hint};
use crate::route::PortId;
use crate::time::{Now, ticks};

/// Frames judged together.
const BATCH: usize = 64;
/// Entries whose timers are looked at in one tick: few, so that packets wait for little; the next tick follows at once while more are due.
const EXPIRE_BUDGET: usize = 8;
/// And for each connection that the worker has made since: its timer moves down the wheel's levels and ends as often as it is made.
const EXPIRE_FOR_EACH: u64 = 4;
/// The most in one tick.
const EXPIRE_BUDGET_MAX: u64 = 256;
/// Time between two ticks while nothing presses.
const IDLE_TICK_NS: u64 = 50_000_000;
/// Time between two looks at next hops that frames wait for.
const PENDING_TICK_NS: u64 = 5_000_000;
/// Seconds that a template lives on while connections depend on it (IPVS).
const TEMPLATE_EXTENSION_SECS: u64 = 60;

/// A worker of the director. Every thread that receives frames owns one.
pub struct Worker {
    pub(super) director: Arc<Director>,
    pub(super) index: usize,
    pub(super) outbox: VecDeque<Out>,
    pub(super) pending: Pending,
    /// Frames of flows are in the outbox, which is sent after a batch's own frames: what is forwarded until it is drained goes
    /// there, too, behind them.
    pub(super) through_outbox: bool,
    pub(super) icmp: Bucket,
    pub(super) ip_id: u16,
    /// Identification of the last IPv6 packet that was cut into fragments. Workers count in ranges of their own.
    pub(super) fragment_id: u32,
    parsed: Vec<Parsed>,
    pub(super) timeouts: [u32; TIMEOUTS],
    pub(super) marks: Marks,
    /// The port by which the segments of this super-packet, cut for a tunnel, leave at once.
    pub(super) cut_for: Option<PortId>,
    /// When the timers were last looked after.
    ticked: Now,
    /// Entries that the worker had made by then.
    made: u64,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("index", &self.index).finish_non_exhaustive()
    }
}

/// Timeouts that a worker keeps for a batch: TCP's eight states, then UDP's only one.
pub(super) const TIMEOUTS: usize = 9;

fn timeout_index(state: State) -> usize {
    (state as usize).min(TIMEOUTS - 1)
}

/// Finds out whether the checksum of a frame is partial, if its port could not tell.
#[inline(always)]
pub(super) fn find_partial(frame: &mut Frame<'_>, p: &Packet) {
    if frame.checksum == RxChecksum::Unknown {
        let partial = checksum::is_partial(frame.bytes(), p);
        frame.checksum = if partial { RxChecksum::Partial } else { RxChecksum::Complete };
    }
}

/// A super-packet that GRO made as a list of its segments (`rx-gro-list`) has the first one's checksum, complete or partial. Whoever
/// cuts it again starts from a partial one over the whole length; what is not ours stays as it is.
fn make_partial(frame: &mut Frame<'_>, p: &Packet) {
    if frame.gso.is_some() && checksum::make_partial(frame.bytes_mut(), p) {
        frame.checksum = RxChecksum::Partial;
    }
}

impl Worker {
    /// Worker number `index` (below [`Director::workers`]; larger numbers wrap) of a director.
    pub fn new(director: Arc<Director>, index: usize) -> Worker {
        let index = index % director.workers();
        let marks = Marks::new(director.has_tier());
        let ip_id = (director.seed >> (index % 4 * 16)) as u16;
        let fragment_id =
            (director.seed as u32).wrapping_add((index as u32).wrapping_mul(u32::MAX / MAX_WORKERS as u32));
        Worker {
            director,
            index,
            outbox: VecDeque::new(),
            pending: Pending::default(),
            through_outbox: false,
            icmp: Bucket::default(),
            ip_id,
            fragment_id,
            parsed: Vec::with_capacity(BATCH),
            timeouts: [0; TIMEOUTS],
            marks,
            cut_for: None,
            ticked: Now::default(),
            made: 0,
        }
    }

    pub(super) fn counters(&self) -> &Counters {
        self.director.counters(self.index)
    }

    // `director` is the worker's own, held for a batch: so what it lends does not borrow the worker, and its reference count,
    // which all workers share, stays as it is.
    #[inline(never)]
    pub(super) fn judge(
        &mut self,
        director: &Director,
        now: Now,
        frame: &mut Frame<'_>,
        p: &Packet,
        (hash, hint): (u64, Hint),
    ) -> Verdict {
        find_partial(frame, p);
        if p.fragment != Fragment::Whole {
            let ours = director.services.find(p.family, p.proto, p.dst, p.dport).is_some();
            return if ours { Verdict::Drop(Reason::Fragment) } else { Verdict::Pass };
        }
        match director.table.lookup_by(hint, hash, &tuple(p)) {
            Some((conn, direction)) => {
                make_partial(frame, p);
                match direction {
                    Direction::In => self.inbound(director, now, frame, p, conn),
                    Direction::Out => self.outbound(director, now, frame, p, &conn),
                }
            }
            None => self.first(director, now, frame, p),
        }
    }

    /// A packet from the client of a known connection.
    fn inbound(
        &mut self,
        director: &Director,
        now: Now,
        frame: &mut Frame<'_>,
        p: &Packet,
        conn: Conn<'_>,
    ) -> Verdict {
        let line = director.dests.line(conn.dest());
        let expire_nodest = director.sysctls.expire_nodest_conn.load(Relaxed) != 0;
        if p.proto == PROTO_TCP && p.tcp_flags & tcp_flags::SYN != 0 {
            let drained = expire_nodest && line.weight() == 0;
            if drained || self.reusable(&conn) {
                director.end(self.index, conn.id(), Count::ConnReused);
                return self.first(director, now, frame, p);
            }
        }
        if !line.available() {
            if !expire_nodest {
                return Verdict::Drop(Reason::DestinationGone);
            }
            director.end(self.index, conn.id(), Count::ConnNoDest);
            return self.first(director, now, frame, p);
        }
        self.count_in(conn.dest(), frame, p);
        conn.count_packet();
        let nat = conn.method() == FwdMethod::Masq as u8;
        self.progress(now, p, &conn, if nat { View::Input } else { View::InputOnly });
        let target = Target { dest: conn.dest(), method: method(conn.method()), real: conn.real() };
        let offer = self.wants_mark(&conn, false, p, frame);
        let verdict = self.forward_to_server(director, now, frame, p, target);
        if offer {
            self.offer(&conn, false, p, verdict);
        }
        verdict
    }

    /// Offers a connection's direction to the tier, if its packet is forwarded at once: what waits behind others would be overtaken.
    /// A super-packet that was cut for a tunnel has gone to the outbox, which is empty before anything is handed over.
    fn offer(&mut self, conn: &Conn<'_>, out: bool, p: &Packet, verdict: Verdict) {
        match (verdict, self.cut_for.take()) {
            (Verdict::Forward(port), _) if !self.through_outbox => self.mark(conn, out, p, port),
            (Verdict::Emitted, Some(port)) if self.pending.is_empty() => self.mark(conn, out, p, port),
            _ => {}
        }
    }

    /// Whether a SYN on this connection begins another one with the same ports.
    fn reusable(&self, conn: &Conn<'_>) -> bool {
        let mode = self.director.sysctls.conn_reuse_mode.load(Relaxed);
        if mode == 0 || conn.template().is_some() {
            return false;
        }
        match State::from_u8(conn.state()) {
            State::TimeWait | State::Close => true,
            State::FinWait => mode & 2 != 0 && conn.method() != FwdMethod::Masq as u8,
            _ => false,
        }
    }

    /// A packet from the server of a known connection, by NAT.
    fn outbound(
        &mut self,
        director: &Director,
        now: Now,
        frame: &mut Frame<'_>,
        p: &Packet,
        conn: &Conn<'_>,
    ) -> Verdict {
        if director.dests.line(conn.dest()).available() {
            self.count_out(conn.dest(), frame, p);
        }
        self.progress(now, p, conn, View::Output);
        let offer = self.wants_mark(conn, true, p, frame);
        let verdict = self.return_to_client(now, frame, p, conn);
        if offer {
            self.offer(conn, true, p, verdict);
        }
        verdict
    }

    /// A packet without a connection.
    fn first(&mut self, director: &Director, now: Now, frame: &mut Frame<'_>, p: &Packet) -> Verdict {
        let Some(service) = director.services.find(p.family, p.proto, p.dst, p.dport) else {
            return Verdict::Pass;
        };
        // Active FTP's data connections come from port 20 of a server: never a new connection to a service.
        if p.proto == PROTO_TCP && p.sport == 20 {
            return Verdict::Pass;
        }
        let scheduled = if may_begin(p) {
            director.schedule(self.index, now, &service, p)
        } else {
            // What follows on a SYN that got no entry, if that may be.
            match director.schedule_later(self.index, now, &service, p) {
                Some(scheduled) => scheduled,
                None => return Verdict::Pass,
            }
        };
        make_partial(frame, p);
        match scheduled {
            Scheduled::Conn(conn) => {
                self.count_in(conn.dest(), frame, p);
                conn.count_packet();
                let target = Target { dest: conn.dest(), method: method(conn.method()), real: conn.real() };
                let offer = self.wants_mark(&conn, false, p, frame);
                let verdict = self.forward_to_server(director, now, frame, p, target);
                if offer {
                    self.offer(&conn, false, p, verdict);
                }
                verdict
            }
            Scheduled::Once(target) => {
                self.count_in(target.dest, frame, p);
                self.forward_to_server(director, now, frame, p, target)
            }
            Scheduled::Refused(Reason::NoDestination) => self.unreachable(now, frame, p),
            Scheduled::Refused(reason) => Verdict::Drop(reason),
        }
    }

    pub(super) fn count_in(&self, dest: u32, frame: &Frame<'_>, p: &Packet) {
        let (pkts, bytes) = size(frame, p);
        self.director.dests.count_in(self.index, dest, pkts, bytes);
    }

    pub(super) fn count_out(&self, dest: u32, frame: &Frame<'_>, p: &Packet) {
        let (pkts, bytes) = size(frame, p);
        self.director.dests.count_out(self.index, dest, pkts, bytes);
    }

    /// Moves the state machine, and the connection's timer with it.
    fn progress(&self, now: Now, p: &Packet, conn: &Conn<'_>, view: View) {
        let director = &*self.director;
        let state = if p.proto == PROTO_TCP {
            loop {
                let word = conn.word();
                let old = State::from_u8(word.state());
                let new = tcp::next(view, old, p.tcp_flags);
                let settles = new == State::Established && word.is_half_open();
                if new == old && !settles {
                    break new;
                }
                let done = if settles {
                    director.table.settle(conn, word, new as u8, word.flags())
                } else {
                    conn.try_set(word, new as u8, word.flags())
                };
                if done.is_ok() {
                    if new.is_active() != old.is_active() {
                        director.dests.line(conn.dest()).set_active(new.is_active());
                    }
                    if new == State::Established {
                        self.assure(conn);
                    }
                    break new;
                }
                let word = conn.word();
                if word.is_expiring() || !conn.is_live() {
                    return;
                }
            }
        } else {
            State::Udp
        };
        let timeout = self.timeouts[timeout_index(state)];
        let shorter = timeout < conn.timeout();
        conn.touch(now.tick(), timeout);
        if shorter {
            director.table.rearm(conn.id(), now.tick());
        }
    }

    /// Keeps a frame that may be sent at once behind those of its flow that the outbox has, or that still waited for their next
    /// hop when this batch began.
    #[cold]
    fn behind_others(&mut self, now: Now, frame: &Frame<'_>, verdict: Verdict) -> Verdict {
        let Verdict::Forward(port) = verdict else { return verdict };
        if !self.through_outbox {
            self.release_pending(now);
        }
        if !self.through_outbox {
            return verdict;
        }
        let data = frame.bytes().to_vec();
        self.outbox.push_back(Out { port, data, checksum: frame.checksum, gso: frame.gso });
        Verdict::Emitted
    }

    /// Counts a verdict and hands it over.
    #[inline]
    fn pronounce(&self, verdict: Verdict, verdicts: &mut Vec<Verdict>) {
        match verdict {
            // made anew, not copied: a copy would be read wider than it was just written, which stalls
            Verdict::Forward(port) => return verdicts.push(Verdict::Forward(port)),
            Verdict::Drop(reason) => self.counters().drop(reason),
            Verdict::Pass => self.counters().count(Count::Passed),
            _ => {}
        }
        verdicts.push(verdict);
    }

    /// Takes over the timeouts that are set now.
    fn read_timeouts(&mut self) {
        use State::*;
        for state in [None, Established, SynSent, SynRecv, FinWait, TimeWait, Close, CloseWait, Udp] {
            self.timeouts[timeout_index(state)] = self.director.state_timeout(state);
        }
    }

    /// Notes at a connection's template that the connection was established.
    fn assure(&self, conn: &Conn<'_>) {
        let Some(template) = conn.template().and_then(|t| self.director.table.get(t)) else { return };
        let word = template.word();
        if word.flags() & FLAG_ASSURED == 0 {
            // Lost to a concurrent change, the next established connection says it again.
            let _ = self.director.table.settle(&template, word, word.state(), word.flags() | FLAG_ASSURED);
        }
    }

    /// Looks after timers that are due; whether there may be more.
    fn expire(&mut self, now: Now) -> bool {
        let made = self.counters().counted(Count::ConnNew) + self.counters().counted(Count::TemplateNew);
        let new = made.wrapping_sub(std::mem::replace(&mut self.made, made));
        let more = new.saturating_mul(EXPIRE_FOR_EACH).min(EXPIRE_BUDGET_MAX) as usize;
        let budget = EXPIRE_BUDGET.max(more);
        let director = &*self.director;
        let mut ended = 0;
        let handled = director.table.expire(now.tick(), budget, &mut |conn| {
            if conn.is_template() && conn.controlled() > 0 {
                return Expiry::Keep(ticks(TEMPLATE_EXTENSION_SECS));
            }
            let state = State::from_u8(conn.state());
            director.unbind(conn.dest(), conn.template(), conn.is_template(), state);
            ended += 1;
            Expiry::Remove
        });
        self.counters().add(Count::ConnExpired, ended);
        handled >= budget
    }
}

/// Packets and IP bytes that a frame stands for; a super-packet counts as its segments do on the wire.
fn size(frame: &Frame<'_>, p: &Packet) -> (u64, u64) {
    let bytes = (p.end - p.l3) as u64;
    let Some(gso) = frame.gso.filter(|g| g.size > 0) else { return (1, bytes) };
    let header = match p.proto {
        proto::TCP => frame.bytes().get(p.l4 + 12).map_or(20, |b| usize::from(b >> 4) * 4),
        _ => 8,
    };
    let headers = (p.l4 - p.l3 + header) as u64;
    let segments = bytes.saturating_sub(headers).div_ceil(gso.size.into()).max(1);
    (segments, bytes + (segments - 1) * headers)
}

pub(super) fn method(n: u8) -> FwdMethod {
    match n {
        0 => FwdMethod::Masq,
        1 => FwdMethod::Local,
        2 => FwdMethod::Tunnel,
        3 => FwdMethod::Droute,
        _ => FwdMethod::Bypass,
    }
}

impl FrameHandler for Worker {
    fn batch(&mut self, now: Now, frames: &mut [Frame<'_>], verdicts: &mut Vec<Verdict>) {
        let director = &*Arc::clone(&self.director);
        director.note_time(now);
        self.counters().add(Count::Received, frames.len() as u64);
        self.read_timeouts();
        if !self.pending.is_empty() {
            // Whose next hop has become known since goes first.
            self.release_pending(now);
        }
        let mut queued = false;
        let mut parsed = std::mem::take(&mut self.parsed);
        for chunk in frames.chunks_mut(BATCH) {
            parsed.clear();
            let n = chunk.len();
            stages::fetch(&chunk[part(Some(0), n)]);
            for step in 0..n.div_ceil(STEP) + STAGES - 1 {
                let at = |stage| part(step.checked_sub(stage), n);
                stages::fetch(&chunk[part(Some(step + 1), n)]);
                stages::parse(director, &chunk[at(0)], &mut parsed);
                let judged = at(STAGES - 1);
                for (frame, flow) in chunk[judged.clone()].iter_mut().zip(&parsed[judged]) {
                    let verdict = match flow {
                        Parsed::Judged(v) => *v,
                        Parsed::Flow(p, hash, hint) => match self.usual(director, now, frame, p, *hint) {
                            Some(verdict) => verdict,
                            None => self.judge(director, now, frame, p, (*hash, *hint)),
                        },
                        Parsed::Icmp(p) => self.icmp(director, now, frame, p),
                        Parsed::Tagged => self.tagged(director, now, frame),
                    };
                    if self.through_outbox || queued {
                        let verdict = self.behind_others(now, frame, verdict);
                        self.pronounce(verdict, verdicts);
                        continue;
                    }
                    queued = matches!(verdict, Verdict::Queued);
                    self.pronounce(verdict, verdicts);
                }
                stages::hint(director, &mut parsed[at(1)]);
                stages::hint_again(director, &mut parsed[at(2)]);
            }
        }
        self.parsed = parsed;
    }

    fn drain_outbox(&mut self, send: &mut dyn FnMut(Out)) {
        self.through_outbox = false;
        while let Some(out) = self.outbox.pop_front() {
            send(out);
        }
    }

    fn tick(&mut self, now: Now) {
        self.director.note_time(now);
        let more = self.expire(now);
        self.ticked = if more { Now(now.0.saturating_sub(IDLE_TICK_NS)) } else { now };
        self.release_pending(now);
    }

    fn next_deadline(&self, _: Now) -> Now {
        let wait = if self.pending.is_empty() { IDLE_TICK_NS } else { PENDING_TICK_NS };
        Now(self.ticked.0.saturating_add(wait))
    }

    fn marks_waiting(&mut self) -> bool {
        self.begin_marks()
    }

    fn marks_ready(&mut self) {
        self.end_marks();
    }
}
