//! Handing connections to the tier: BPF programs that forward their plain packets (`docs/tier.md`).
//!
//! A direction of a connection is the tier's while its flag `MOVED` is set in the entry's word 0. No packet may overtake another on
//! that move: so a worker sets `MOVING` first, waits until whatever was on its way to its rings has come and gone (the port knows
//! when), and then turns `MOVING` into `MOVED`. The BPF programs take both flags away when they send a packet up, so the turn fails
//! if another packet has gone to a ring meanwhile, and is tried again with a later packet.
//!
//! A flow whose packets come so fast that there never is such a moment gets `HOLD` beside `MOVING` when it has had many packets: for
//! the short time until the turn its packets are dropped rather than sent up (counted as `tier_held`).

use ipvs_netlink::FwdMethod;
use modes::Family;
use modes::packet::{Packet, tcp_flags};

use super::tcp::State;
use super::tunnel::encapsulation;
use super::worker::{self, Worker};
use super::{Frame, PROTO_TCP, PROTO_UDP};
use crate::conn::{Conn, ConnRef};
use crate::route::PortId;

/// Flags of one direction; as in `modes/bpf/tier.h`.
#[derive(Clone, Copy, Debug)]
struct Flags {
    moving: u32,
    moved: u32,
    hold: u32,
}

const IN: Flags = Flags { moving: 1 << 23, moved: 1 << 24, hold: 1 << 25 };
const OUT: Flags = Flags { moving: 1 << 26, moved: 1 << 27, hold: 1 << 28 };

const fn flags(out: bool) -> Flags {
    if out { OUT } else { IN }
}

/// Nobody waits any more for the moves that another daemon began.
pub(super) fn forget_move(conn: &Conn<'_>) {
    let moving = IN.moving | IN.hold | OUT.moving | OUT.hold;
    for _ in 0..8 {
        let word = conn.word();
        if word.flags() & moving == 0 || conn.try_set(word, word.state(), word.flags() & !moving).is_ok() {
            return;
        }
    }
}

/// Most connections that a worker moves at a time.
const MARKS_MAX: usize = 4096;
/// Packets from the client after which a flow is held while it moves.
const HOLD_AFTER: u32 = 4096;

/// One direction of a connection on its way to the tier.
#[derive(Clone, Copy, Debug)]
struct Mark {
    conn: ConnRef,
    out: bool,
}

/// A worker's connections on their way to the tier.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Whether there is a tier.
    on: bool,
    /// `MOVING` since the last call of [`Worker::marks_waiting`].
    fresh: Vec<Mark>,
    /// `MOVING` since before the port began to wait.
    waiting: Vec<Mark>,
}

impl Marks {
    pub(super) fn new(on: bool) -> Marks {
        Marks { on, ..Marks::default() }
    }

    /// Whether a direction of a connection with these flags is to be marked, if its packet allows.
    #[inline(always)]
    pub(super) fn wants(&self, word_flags: u32, out: bool) -> bool {
        let f = flags(out);
        self.on && word_flags & (f.moving | f.moved) == 0
    }
}

/// Whether the tier may forward a packet like this one; what stands in its way for good, since the rest it sees for itself.
fn is_plain(p: &Packet) -> bool {
    let header = match p.family {
        Family::V4 => 20,
        Family::V6 => 40,
    };
    if p.l3 != 14 || p.l4 != p.l3 + header {
        return false;
    }
    let odd = tcp_flags::SYN | tcp_flags::FIN | tcp_flags::RST;
    p.proto != PROTO_TCP || (p.tcp_flags & tcp_flags::ACK != 0 && p.tcp_flags & odd == 0)
}

/// Whether a packet as it came is a datagram without a checksum: by NAT it gets one, which only the core does.
fn is_bare(p: &Packet, frame: &Frame<'_>) -> bool {
    p.proto == PROTO_UDP && frame.bytes().get(p.l4 + 6..p.l4 + 8).is_some_and(|sum| sum == [0, 0])
}

impl Worker {
    /// Whether the tier is to be offered the direction of a connection that a packet, as it came, belongs to.
    pub(super) fn wants_mark(&mut self, conn: &Conn<'_>, out: bool, p: &Packet, frame: &Frame<'_>) -> bool {
        self.cut_for = None;
        let nat = || conn.method() == FwdMethod::Masq as u8;
        self.marks.wants(conn.flags(), out) && !(is_bare(p, frame) && nat())
    }

    /// A packet of a connection has been judged to be forwarded at once out of a port: from a later one on the tier may do that.
    #[cold]
    #[inline(never)]
    pub(super) fn mark(&mut self, conn: &Conn<'_>, out: bool, p: &Packet, port: PortId) {
        let word = conn.word();
        let method = conn.method();
        let tunnel = || encapsulation(self.director.dests.line(conn.dest()).tunnel()).is_some();
        let known = match worker::method(method) {
            FwdMethod::Masq => true,
            FwdMethod::Droute => !out,
            FwdMethod::Tunnel => !out && tunnel(),
            _ => false,
        };
        let plain_state = match State::from_u8(word.state()) {
            State::Established => p.proto == PROTO_TCP,
            State::Udp => true,
            _ => false,
        };
        let full = self.marks.fresh.len() >= MARKS_MAX;
        if !known || !plain_state || full || !is_plain(p) || !self.director.tier_sends_by(port) {
            return;
        }
        let f = flags(out);
        // who is half-open still has to show the core another segment, or would be evicted while the tier serves it
        if word.flags() & (f.moving | f.moved) != 0 || word.is_half_open() {
            return;
        }
        let hold = if conn.packets() >= HOLD_AFTER { f.hold } else { 0 };
        // Lost to a change of state, a later packet tries again.
        if conn.try_set(word, word.state(), word.flags() | f.moving | hold).is_ok() {
            self.marks.fresh.push(Mark { conn: conn.id(), out });
        }
    }

    /// As [`super::FrameHandler::marks_waiting`].
    pub(super) fn begin_marks(&mut self) -> bool {
        if self.marks.waiting.is_empty() {
            std::mem::swap(&mut self.marks.fresh, &mut self.marks.waiting);
        }
        !self.marks.waiting.is_empty()
    }

    /// As [`super::FrameHandler::marks_ready`].
    pub(super) fn end_marks(&mut self) {
        let mut waiting = std::mem::take(&mut self.marks.waiting);
        for mark in waiting.drain(..) {
            let Some(conn) = self.director.table.get(mark.conn) else { continue };
            let f = flags(mark.out);
            let word = conn.word();
            if word.flags() & f.moving != 0 {
                let flags = word.flags() & !(f.moving | f.hold) | f.moved;
                // Lost to a packet that has gone up, or to a change of state: a later packet tries again.
                if conn.try_set(word, word.state(), flags).is_err() {
                    self.unmark(&conn, f);
                }
            }
        }
        self.marks.waiting = waiting;
    }

    /// Takes `MOVING` away where nobody waits for it any more.
    fn unmark(&self, conn: &Conn<'_>, f: Flags) {
        for _ in 0..8 {
            let word = conn.word();
            if word.flags() & f.moving == 0
                || conn.try_set(word, word.state(), word.flags() & !(f.moving | f.hold)).is_ok()
            {
                return;
            }
        }
    }
}
