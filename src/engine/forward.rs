//! A judged packet on its way out: to its server, or back to its client.

use ipvs_netlink::FwdMethod;
use modes::icmp::Problem;
use modes::options::OptionError;
use modes::packet::Packet;
use modes::{Addr, Family, forward, nat, options};

use super::director::Director;
use super::reason::{Count, Reason};
use super::schedule::Target;
use super::worker::Worker;
use super::{Frame, Gso, Out, RxChecksum, Verdict};
use crate::conn::Conn;
use crate::route::{Hop, HopState, NextHopId, RouteError};
use crate::time::Now;

/// Where a packet goes next.
pub(super) enum Way {
    /// Out of a port; the hop's state is `Ready` or `Unresolved`.
    Hop(NextHopId, Hop),
    /// To the director itself.
    Local,
    /// Nowhere.
    None(Reason),
}

/// Whether a packet has no IPv4 options.
fn is_plain(p: &Packet) -> bool {
    p.family == Family::V6 || p.l4 == p.l3 + 20
}

/// Makes the segments of a super-packet fit, if their size was a guess: the sender's own segments may be smaller than that, and then
/// no word of ours would make it send others.
fn fit_guess(frame: &mut Frame<'_>, p: &Packet, mtu: u16) {
    let Some(Gso { size, guessed: true }) = frame.gso else { return };
    let header = frame.bytes().get(p.l4 + 12).map_or(20, |b| usize::from(b >> 4) * 4);
    let room = usize::from(mtu).saturating_sub(p.l4 - p.l3 + header);
    if room > 0 && room < usize::from(size) {
        frame.gso = Some(Gso { size: room as u16, guessed: true });
    }
}

impl Worker {
    /// Reads a cached next hop, or looks it up anew and caches it.
    #[inline(always)]
    pub(super) fn way(
        &self,
        now: Now,
        cached: (u32, u32),
        family: Family,
        to: Addr,
        salt: u32,
        store: impl Fn(u32, u32),
    ) -> Way {
        let routes = &*self.director.routes;
        let epoch = routes.epoch();
        if cached.0 == epoch {
            let id = NextHopId(cached.1);
            let hop = routes.get(id);
            if hop.state != HopState::Gone {
                routes.note_used(id, now.tick());
                return Way::Hop(id, hop);
            }
        }
        match routes.lookup(family, to, salt) {
            Ok(id) => {
                store(epoch, id.0);
                routes.note_used(id, now.tick());
                match routes.get(id) {
                    Hop { state: HopState::Gone, .. } => Way::None(Reason::NoRoute),
                    hop => Way::Hop(id, hop),
                }
            }
            Err(RouteError::Local) => Way::Local,
            Err(RouteError::NotOurPort { ifindex }) => {
                self.counters().note_foreign(ifindex);
                Way::None(Reason::NotOurPort)
            }
            Err(RouteError::TooManyNextHops) => Way::None(Reason::TooManyNextHops),
            Err(_) => Way::None(Reason::NoRoute),
        }
    }

    /// Sends a client's packet to its server.
    pub(super) fn forward_to_server(
        &mut self,
        director: &Director,
        now: Now,
        frame: &mut Frame<'_>,
        p: &Packet,
        target: Target,
    ) -> Verdict {
        if target.method == FwdMethod::Tunnel {
            return self.forward_to_tunnel(now, frame, p, target.dest);
        }
        let line = director.dests.line(target.dest);
        let (family, addr) = (line.family(), target.real.0);
        if !matches!(target.method, FwdMethod::Masq | FwdMethod::Droute) {
            return Verdict::Drop(Reason::MethodMissing);
        }
        let way = self.way(now, line.route(), family, addr, 0, |epoch, hop| line.set_route(epoch, hop));
        let (id, hop) = match way {
            Way::Hop(id, hop) => (id, hop),
            Way::None(reason) => return Verdict::Drop(reason),
            Way::Local => {
                let same = target.real == (p.dst, p.dport);
                if target.method == FwdMethod::Masq && !same {
                    return Verdict::Drop(Reason::LocalNat);
                }
                self.counters().count(Count::Local);
                return Verdict::Pass;
            }
        };
        let nat = target.method == FwdMethod::Masq;
        if nat && addr == p.src {
            return Verdict::Drop(Reason::Hairpin);
        }
        let partial = frame.checksum == RxChecksum::Partial;
        if let Err(verdict) = self.ready(now, frame, p, hop.mtu, p.dst) {
            return verdict;
        }
        if nat && nat::dnat(frame.bytes_mut(), p, addr, target.real.1, partial).is_err() {
            return Verdict::Drop(Reason::FrameTooShort);
        }
        self.counters().count(if nat { Count::NatIn } else { Count::Dr });
        self.transmit(now, frame, p, id, &hop)
    }

    /// Sends a NAT server's packet back to its client.
    pub(super) fn return_to_client(
        &mut self,
        now: Now,
        frame: &mut Frame<'_>,
        p: &Packet,
        conn: &Conn<'_>,
    ) -> Verdict {
        let way = self.way(now, conn.route(), p.family, p.dst, 0, |epoch, hop| conn.set_route(epoch, hop));
        let (id, hop) = match way {
            Way::Hop(id, hop) => (id, hop),
            Way::None(reason) => return Verdict::Drop(reason),
            // The director itself is the client: its stack expects the virtual address, which only a hook in the
            // stack could restore.
            Way::Local => return Verdict::Drop(Reason::LocalNat),
        };
        let (virt, partial) = (conn.virt(), frame.checksum == RxChecksum::Partial);
        // Only a packet with IP options needs to know the director's own address on the way.
        let own = if is_plain(p) { None } else { self.director.routes.source_for(p.family, p.dst) };
        if let Err(verdict) = self.ready(now, frame, p, hop.mtu, own.unwrap_or_default()) {
            return verdict;
        }
        if nat::snat(frame.bytes_mut(), p, virt.0, virt.1, partial).is_err() {
            return Verdict::Drop(Reason::FrameTooShort);
        }
        self.counters().count(Count::NatOut);
        self.transmit(now, frame, p, id, &hop)
    }

    /// IP options, TTL and size, as a router has to treat them; `Err` is the verdict where the packet ends here. `own` is the
    /// director's address for IP options, `mtu` the size (of each segment) that fits.
    pub(super) fn ready(
        &mut self,
        now: Now,
        frame: &mut Frame<'_>,
        p: &Packet,
        mtu: u16,
        own: Addr,
    ) -> Result<(), Verdict> {
        fit_guess(frame, p, mtu);
        let gso = frame.gso.map(|g| g.size);
        if !is_plain(p) {
            self.options(now, frame, p, own)?;
        }
        if forward::decrement_ttl(frame.bytes_mut(), p).is_err() {
            self.counters().drop(Reason::TtlExceeded);
            return Err(self.answer(now, frame, p, Problem::TimeExceeded));
        }
        if p.dont_fragment && forward::needs_fragmentation(frame.bytes(), p, mtu.into(), gso) {
            self.counters().drop(Reason::TooBig);
            return Err(self.answer(now, frame, p, Problem::TooBig { mtu: mtu.into() }));
        }
        Ok(())
    }

    /// Does to IPv4 options what a router has to; `Err` is the verdict where the packet ends here.
    #[cold]
    fn options(&mut self, now: Now, frame: &mut Frame<'_>, p: &Packet, own: Addr) -> Result<(), Verdict> {
        match options::process(frame.bytes_mut(), p, own, self.director.ms_of_day(now)) {
            Ok(()) => Ok(()),
            Err(OptionError::SourceRoute) => Err(Verdict::Drop(Reason::SourceRoute)),
            Err(OptionError::Malformed { pointer }) => {
                self.counters().drop(Reason::BadOption);
                Err(self.answer(now, frame, p, Problem::Parameter { pointer }))
            }
        }
    }

    /// Gives a rewritten packet its MAC addresses and its way out; one that is too big and may be cut is cut.
    pub(super) fn transmit(
        &mut self,
        now: Now,
        frame: &mut Frame<'_>,
        p: &Packet,
        id: NextHopId,
        hop: &Hop,
    ) -> Verdict {
        forward::set_macs(frame.bytes_mut(), hop.dst_mac, hop.src_mac);
        let gso = frame.gso.map(|g| g.size);
        let ready = hop.state == HopState::Ready;
        if !p.dont_fragment && forward::needs_fragmentation(frame.bytes(), p, usize::from(hop.mtu), gso) {
            return self.fragment(now, frame, p, id, hop);
        }
        if ready {
            return Verdict::Forward(hop.port);
        }
        let out =
            Out { port: hop.port, data: frame.bytes().to_vec(), checksum: frame.checksum, gso: frame.gso };
        self.wait(now, id, out)
    }

    fn fragment(&mut self, now: Now, frame: &mut Frame<'_>, p: &Packet, id: NextHopId, hop: &Hop) -> Verdict {
        let mut pieces = Vec::new();
        if frame.checksum == RxChecksum::Partial {
            modes::checksum::complete_partial(frame.bytes_mut(), p);
        }
        let cut = forward::fragment_v4(frame.bytes(), p, usize::from(hop.mtu), &mut |f: &[u8]| {
            pieces.push(f.to_vec())
        });
        if cut.is_err() {
            return Verdict::Drop(Reason::TooBig);
        }
        self.counters().count(Count::Fragmented);
        self.emit_all(now, id, hop, pieces)
    }

    /// Sends the finished frames that one became; which of them are dropped is counted here.
    pub(super) fn emit_all(&mut self, now: Now, id: NextHopId, hop: &Hop, pieces: Vec<Vec<u8>>) -> Verdict {
        self.through_outbox = true;
        for data in pieces {
            if let Verdict::Drop(reason) = self.emit(now, id, hop, data) {
                self.counters().drop(reason);
            }
        }
        Verdict::Emitted
    }

    /// Sends a finished frame of the core's own making, or keeps it until its next hop is known.
    pub(super) fn emit(&mut self, now: Now, id: NextHopId, hop: &Hop, data: Vec<u8>) -> Verdict {
        let out = Out { port: hop.port, data, checksum: RxChecksum::Complete, gso: None };
        if hop.state != HopState::Ready {
            return self.wait(now, id, out);
        }
        self.outbox.push_back(out);
        Verdict::Emitted
    }

    /// Keeps a finished frame until its next hop is known.
    pub(super) fn wait(&mut self, now: Now, id: NextHopId, out: Out) -> Verdict {
        if self.pending.push(now, id, out) {
            self.counters().count(Count::Queued);
            Verdict::Queued
        } else {
            self.counters().note_silent(id);
            Verdict::Drop(Reason::NextHopQueueFull)
        }
    }

    /// Sends a frame that the core made to an IP address; `false` where there is no way.
    pub(super) fn emit_to(&mut self, now: Now, family: Family, to: Addr, mut data: Vec<u8>) -> bool {
        let Way::Hop(id, hop) = self.way(now, (0, 0), family, to, 0, |_, _| ()) else { return false };
        forward::set_macs(&mut data, hop.dst_mac, hop.src_mac);
        matches!(self.emit(now, id, &hop, data), Verdict::Emitted | Verdict::Queued)
    }

    /// Sends the frames whose next hop has become known, and drops those that waited in vain.
    pub(super) fn release_pending(&mut self, now: Now) {
        let director = self.director.clone();
        let (mut late, mut silent) = (0u64, None);
        self.pending.release(
            now,
            |id| director.routes.get(id),
            |mut out, hop| {
                forward::set_macs(&mut out.data, hop.dst_mac, hop.src_mac);
                out.port = hop.port;
                self.outbox.push_back(out);
                self.through_outbox = true;
            },
            |id| (late, silent) = (late + 1, Some(id)),
        );
        if let Some(id) = silent {
            self.counters().note_silent(id);
        }
        for _ in 0..late {
            self.counters().drop(Reason::NextHopUnresolved);
        }
    }
}
