use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use modes::{Addr, Family};

use super::event::{Event, Link, LinkKind, Mac, Resync};
use super::lines::{Leave, Lines};
use super::ports::Ports;
use super::state::{LinkEntry, Tables};
use super::{Hop, HopState, NextHopId, PortError, PortId, PortInfo, RouteError, RouteStats, Solicit};
use crate::mem::Region;
use crate::time::{Now, Tick};

/// Next-hop lines that a director has unless told otherwise: as many as an id can name.
pub const MAX_LINES: usize = 1 << 16;

type Hook = Arc<dyn Fn() + Send + Sync>;

/// Routes, neighbours and the director's ports, shared by all workers. See the module for what each call costs.
pub struct Routes {
    pub(super) lines: Lines,
    pub(super) ports: Ports,
    tables: RwLock<Tables>,
    changes: AtomicU64,
    readings: AtomicU64,
    /// The tick of the last call that knew the time.
    clock: AtomicU32,
    hook: Mutex<Option<Hook>>,
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes").field("epoch", &self.epoch()).field("stats", &self.stats()).finish()
    }
}

impl Routes {
    /// Routes of a director with these ports (number, interface name). Nothing is known until events come.
    ///
    /// # Errors
    /// As [`Routes::add_port`].
    pub fn new(ports: &[(PortId, &str)]) -> Result<Routes, PortError> {
        Routes::with_lines(ports, MAX_LINES)
    }

    /// As [`Routes::new`] with a limit of `lines` next-hop lines (1 to [`MAX_LINES`]; 64 bytes each).
    ///
    /// # Errors
    /// As [`Routes::add_port`].
    pub fn with_lines(ports: &[(PortId, &str)], lines: usize) -> Result<Routes, PortError> {
        let lines = Lines::new(lines.clamp(1, MAX_LINES)).map_err(|_| PortError::NoMemory)?;
        Routes::over(ports, lines)
    }

    /// As [`Routes::new`] with the next-hop lines in memory that is shared with BPF programs, of zeros: one line for each 64 bytes,
    /// less one.
    ///
    /// # Errors
    /// As [`Routes::add_port`].
    pub fn within(ports: &[(PortId, &str)], memory: Region) -> Result<Routes, PortError> {
        Routes::over(ports, Lines::within(memory))
    }

    /// Has [`Routes::within`] the memory `to` begin with an epoch that the routes in `from` have not had, though all who cached something of
    /// theirs are still there. Both are [`Routes::MEMORY`].
    pub fn continue_epoch(from: &Region, to: &Region) {
        Lines::continue_epoch(from, to);
    }

    /// Bytes that [`MAX_LINES`] next-hop lines need.
    pub const MEMORY: usize = Lines::bytes(MAX_LINES);

    fn over(ports: &[(PortId, &str)], lines: Lines) -> Result<Routes, PortError> {
        let count = lines.len();
        let routes = Routes {
            lines,
            ports: Ports::new(),
            tables: RwLock::new(Tables::new(count)),
            changes: AtomicU64::new(0),
            readings: AtomicU64::new(0),
            clock: AtomicU32::new(0),
            hook: Mutex::new(None),
        };
        for (port, name) in ports {
            routes.add_port(*port, name)?;
        }
        Ok(routes)
    }

    fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Under the tables' write lock, so that who sees the new epoch looks up after the change.
    fn step_epoch(&self) {
        self.lines.step_epoch();
    }

    pub(super) fn note_change(&self, changed: bool) {
        if changed {
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    pub(super) fn set_clock(&self, now: Now) {
        self.clock.store(now.tick().0, Ordering::Relaxed);
    }

    /// Makes an interface a port. Doing so twice is harmless.
    ///
    /// # Errors
    /// The number is out of range or belongs to an interface of another name.
    pub fn add_port(&self, port: PortId, name: &str) -> Result<(), PortError> {
        let mut t = self.write();
        self.ports.add(port, name)?;
        t.set_macs(&self.ports);
        let changed = t.refresh_all(&self.lines, &self.ports);
        self.note_change(changed);
        self.step_epoch();
        Ok(())
    }

    /// Changes whenever links, addresses or routes change in a way that can change a look-up; not for MACs and MTUs.
    /// Take it before the look-up whose answer is to be kept.
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.lines.epoch()
    }

    /// Counts changes of next-hop lines, of whatever kind: for who keeps a copy of them ([`Routes::hops`]).
    #[inline]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Whether the kernel's tables have been read completely at least once.
    pub fn synced(&self) -> bool {
        self.readings.load(Ordering::Acquire) > 0
    }

    /// The next hop toward `dst`, by longest prefix match over the tables local, main and default; among several ways
    /// of a multipath route `flow`, a hash spread over all 32 bits, chooses in proportion to the weights. Looking up
    /// counts as a use of the next hop.
    ///
    /// # Errors
    /// Why there is none.
    pub fn lookup(&self, family: Family, dst: Addr, flow: u32) -> Result<NextHopId, RouteError> {
        let now = Tick(self.clock.load(Ordering::Relaxed));
        {
            let t = self.read();
            let way = t.way(&self.ports, family, dst, flow)?;
            if let Some(id) = t.line(&way.key)? {
                self.lines.note_used(id, now);
                return Ok(id);
            }
        }
        let id = {
            let mut t = self.write();
            let way = t.way(&self.ports, family, dst, flow)?;
            t.allocate(&self.lines, &self.ports, way.key, now)?
        };
        self.note_change(true);
        if self.get(id).state == HopState::Unresolved {
            self.call_hook();
        }
        Ok(id)
    }

    /// What a frame to this next hop needs, as of now. Takes no lock and never waits.
    #[inline(always)]
    pub fn get(&self, id: NextHopId) -> Hop {
        self.lines.get(id)
    }

    /// The same in short, for a next hop that is ready; none for any other.
    #[inline(always)]
    pub(crate) fn leave(&self, id: NextHopId) -> Option<Leave> {
        self.lines.leave(id)
    }

    /// Notes that a frame was, or should have been, sent to this next hop: it is kept, resolved and confirmed. Writes
    /// only every half second.
    #[inline]
    pub fn note_used(&self, id: NextHopId, tick: Tick) {
        if self.lines.note_used(id, tick) && self.get(id).state == HopState::Unresolved {
            self.call_hook();
        }
    }

    /// Sets what is called, from any thread, when a next hop needs resolution at once: something that makes
    /// [`Routes::wants`] be called soon. It must not block.
    pub fn set_hook(&self, hook: impl Fn() + Send + Sync + 'static) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(hook));
    }

    #[cold]
    fn call_hook(&self) {
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(hook) = hook {
            hook();
        }
    }

    /// All next-hop lines in use, for who keeps a copy of them.
    pub fn hops(&self) -> Vec<(NextHopId, Hop)> {
        let t = self.read();
        let used = (0..=u16::MAX).take(t.info.len()).filter_map(|i| t.id(i)).map(|id| (id, self.get(id)));
        used.filter(|(_, h)| h.state != HopState::Gone).collect()
    }

    /// VLAN devices that are up above a port and are no port themselves, each with that port's interface: what arrives for them
    /// there is not the director's.
    pub fn unserved_vlans(&self) -> Vec<(String, String)> {
        let t = self.read();
        let mut found = Vec::new();
        for LinkEntry { link, .. } in t.links.values() {
            let vlan = link.kind == LinkKind::Vlan && link.up && self.ports.by_name(&link.name).is_none();
            let parent = link.parent.filter(|_| vlan).and_then(|p| t.links.get(&p)).map(|e| &e.link.name);
            if let Some(parent) = parent.filter(|p| self.ports.by_name(p).is_some()) {
                found.push((link.name.clone(), parent.clone()));
            }
        }
        found.sort();
        found
    }

    /// Whether this is an address of the director itself.
    pub fn is_local(&self, family: Family, addr: Addr) -> bool {
        self.read().is_local(family, addr)
    }

    /// The address that the kernel would send from to `dst`: the route's preferred source, or else the best one on the
    /// outgoing interface.
    pub fn source_for(&self, family: Family, dst: Addr) -> Option<Addr> {
        self.read().source_for(&self.ports, family, dst)
    }

    /// Whether one of the ways toward `dst` (a multipath route has several) leaves by this port.
    pub fn leads_by(&self, family: Family, dst: Addr, port: PortId) -> bool {
        self.read().leads_by(&self.ports, family, dst, port)
    }

    /// The port by which frames of an interface come and go; for a macvlan on a port, that port.
    pub fn port_of_ifindex(&self, ifindex: u32) -> Option<PortId> {
        self.read().port_of(&self.ports, ifindex)
    }

    /// Whether frames to this MAC are for the director where they arrive by `port`: the port's own, or that of a
    /// macvlan on top of it that is up. Takes no lock.
    #[inline]
    pub fn is_our_mac(&self, port: PortId, mac: Mac) -> bool {
        self.ports.has_mac(port, mac)
    }

    /// The MACs of macvlans on top of ports, with the index of the port's interface: frames to them are the director's as those
    /// to the port's own MAC are.
    pub fn extra_macs(&self) -> Vec<(u32, Mac)> {
        self.read().extra_macs.clone()
    }

    /// As [`Routes::is_our_mac`] for the one that a frame begins with.
    #[inline(always)]
    pub(crate) fn is_to_us(&self, port: PortId, start: &[u8; 8]) -> bool {
        self.ports.is_to_us(port, start)
    }

    /// What is known of a port; none if there is no such port.
    pub fn port(&self, port: PortId) -> Option<PortInfo> {
        let name = self.ports.name(port)?.to_owned();
        let t = self.read();
        let link = t.links.values().map(|e| &e.link).find(|l| l.name == name);
        Some(PortInfo {
            ifindex: link.map(|l| l.ifindex),
            mac: link.and_then(|l| l.mac),
            mtu: link.map_or(0, |l| l.mtu),
            up: link.is_some_and(|l| l.up && l.running),
            name,
        })
    }

    /// The name of an interface.
    pub fn link_name(&self, ifindex: u32) -> Option<String> {
        Some(self.read().links.get(&ifindex)?.link.name.clone())
    }

    /// Interface and address of a next hop, as long as its line is its own.
    pub fn next_hop(&self, id: NextHopId) -> Option<(String, IpAddr)> {
        let t = self.read();
        let key = t.key_of(id)?;
        Some((t.links.get(&key.ifindex)?.link.name.clone(), key.addr))
    }

    /// Sizes and limits.
    pub fn stats(&self) -> RouteStats {
        let t = self.read();
        RouteStats {
            routes: t.fib.len(),
            routes_refused: t.fib.refused(),
            neighbours: t.neighs.len(),
            neighbours_refused: t.neighs_refused,
            macs_refused: t.macs_refused,
            readings: self.readings.load(Ordering::Acquire),
            lines: t.lines_used(),
            lines_limit: self.lines.len(),
        }
    }

    /// Neighbours that the kernel should be asked to resolve or confirm now; at most [`super::WANTS_MAX`] a call. To be
    /// called every half second, and soon after the hook was called: each neighbour is named at most once a second.
    /// Also gives up lines that nobody has used for long.
    pub fn wants(&self, now: Now) -> Vec<Solicit> {
        self.set_clock(now);
        super::solicit::wants(self, now.tick())
    }

    /// Takes a change of the kernel's tables in.
    pub fn apply(&self, event: Event, now: Now) {
        self.set_clock(now);
        let mut guard = self.write();
        let t = &mut *guard;
        let (lines, ports) = (&self.lines, &self.ports);
        // Whether a look-up can have changed, and whether a line has.
        let (epoch, line) = match event {
            Event::LinkNew(link) => link_new(t, lines, ports, link),
            Event::LinkGone { ifindex } => {
                let there = t.drop_link(ifindex);
                t.set_macs(ports);
                (there, t.refresh_all(lines, ports))
            }
            Event::AddrNew(addr) => (t.put_addr(addr), false),
            Event::AddrGone { ifindex, addr, prefix } => (t.drop_addr(ifindex, addr, prefix), false),
            Event::RouteNew { route, place } => (t.fib.insert(&route, place, t.seen), false),
            Event::RouteGone(route) => (t.fib.remove(&route), false),
            Event::NeighNew { ifindex, addr, mac, state } => {
                t.put_neigh((ifindex, addr), mac, state);
                (false, t.refresh_neigh(lines, ports, ifindex, addr))
            }
            Event::NeighGone { ifindex, addr } => (false, self.neigh_gone(t, ifindex, addr)),
            Event::Resync(step) => self.resync(t, step),
        };
        self.note_change(line);
        if epoch {
            self.step_epoch();
        }
    }

    fn neigh_gone(&self, t: &mut Tables, ifindex: u32, addr: IpAddr) -> bool {
        t.neighs.remove(&(ifindex, addr)).is_some()
            && t.refresh_neigh(&self.lines, &self.ports, ifindex, addr)
    }

    fn resync(&self, t: &mut Tables, step: Resync) -> (bool, bool) {
        match step {
            Resync::Begin => {
                t.seen = t.seen.wrapping_add(1);
                t.reading = true;
                (false, false)
            }
            Resync::Abort => {
                t.reading = false;
                (false, false)
            }
            Resync::End if t.reading => {
                t.reading = false;
                let changed = t.sweep();
                t.set_macs(&self.ports);
                let line = t.refresh_all(&self.lines, &self.ports);
                self.readings.fetch_add(1, Ordering::Release);
                (changed, line)
            }
            Resync::End => (false, false),
        }
    }
}

/// A link is there or has changed: whether a look-up can have changed, and whether a line has.
fn link_new(t: &mut Tables, lines: &Lines, ports: &Ports, link: Link) -> (bool, bool) {
    let ifindex = link.ifindex;
    let new = link.clone();
    let old = t.put_link(link);
    if old.as_ref() == Some(&new) {
        return (false, false);
    }
    t.set_macs(ports);
    let mut epoch = match &old {
        None => true,
        Some(o) => {
            (o.up, o.running, o.kind, o.parent) != (new.up, new.running, new.kind, new.parent)
                || o.name != new.name
        }
    };
    if old.is_some_and(|o| o.up) && !new.up {
        let Tables { fib, links, .. } = &mut *t;
        epoch |= fib.link_down(|i| links.get(&i).is_none_or(|e| !e.link.up));
    }
    // A look-up change can move a macvlan's lines too, so all are refreshed; else the link's own will do.
    let line = if epoch { t.refresh_all(lines, ports) } else { t.refresh_link(lines, ports, ifindex) };
    (epoch, line)
}
