//! The kernel's tables as far as next hops need them, and the book-keeping of the lines. All of it is behind one lock;
//! every change of a line's content is published from here.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use modes::{Addr, Family};

use super::event::{IfAddr, Link, LinkKind, Mac, NeighState, Via};
use super::fib::{Fib, Usable, choose};
use super::lines::Lines;
use super::ports::Ports;
use super::{Hop, HopState, NextHopId, PortId, RouteError};
use crate::time::Tick;

/// Most neighbours that are kept; the kernel's own default limit is 1,024 a family.
pub(super) const MAX_NEIGHBOURS: usize = 1 << 18;

/// Smallest MTU that an IPv4 link can have (RFC 791, 3.2).
const MIN_MTU: u32 = 68;

pub(super) struct LinkEntry {
    pub(super) link: Link,
    seen: u32,
}

#[derive(Clone, Copy)]
pub(super) struct Neigh {
    pub(super) mac: Option<Mac>,
    pub(super) state: NeighState,
    seen: u32,
}

/// What a line is for. Two routes over one gateway with different MTUs have a line each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct LineKey {
    pub(super) ifindex: u32,
    pub(super) addr: IpAddr,
    mtu: u32,
}

#[derive(Clone, Copy, Default)]
pub(super) struct LineInfo {
    pub(super) key: Option<LineKey>,
    generation: u16,
    /// When the kernel was last asked to resolve it.
    pub(super) asked: Option<Tick>,
    /// How often in a row nobody answered.
    pub(super) failures: u8,
}

#[derive(Default)]
pub(super) struct Tables {
    pub(super) links: HashMap<u32, LinkEntry>,
    addrs: BTreeMap<u32, Vec<(IfAddr, u32)>>,
    own: HashMap<IpAddr, u32>,
    pub(super) fib: Fib,
    pub(super) neighs: HashMap<(u32, IpAddr), Neigh>,
    pub(super) neighs_refused: u64,
    pub(super) macs_refused: u64,
    /// MACs of macvlans by the interface of the port that they are on.
    pub(super) extra_macs: Vec<(u32, Mac)>,
    keys: BTreeMap<LineKey, u16>,
    pub(super) info: Vec<LineInfo>,
    free: Vec<u16>,
    /// Lines whose neighbour is not known to be reachable.
    pub(super) attention: BTreeSet<u16>,
    /// Where the walks over `attention` and over all lines go on.
    pub(super) attention_at: u16,
    pub(super) age_at: u16,
    /// Number of the reading of the kernel's tables that is under way, or was the last.
    pub(super) seen: u32,
    pub(super) reading: bool,
}

/// What a route says of a destination.
pub(super) struct Way {
    pub(super) key: LineKey,
}

impl Tables {
    pub(super) fn new(lines: usize) -> Tables {
        Tables {
            info: vec![LineInfo::default(); lines],
            free: (0..lines).rev().filter_map(|i| u16::try_from(i).ok()).collect(),
            ..Tables::default()
        }
    }

    /// The port by which frames of an interface come and go: the interface's own, or that under a macvlan.
    pub(super) fn port_of(&self, ports: &Ports, ifindex: u32) -> Option<PortId> {
        let link = &self.links.get(&ifindex)?.link;
        ports.by_name(&link.name).or_else(|| {
            let parent = link.parent.filter(|_| link.kind == LinkKind::Macvlan)?;
            ports.by_name(&self.links.get(&parent)?.link.name)
        })
    }

    fn usable(&self, via: &Via, ports: &Ports) -> Usable {
        if via.ifindex == 0 {
            return Usable::Poor;
        }
        match self.links.get(&via.ifindex) {
            Some(e) if e.link.up && e.link.running && self.port_of(ports, via.ifindex).is_some() => {
                Usable::Yes
            }
            Some(e) if e.link.up => Usable::Poor,
            _ => Usable::No,
        }
    }

    /// Which line a destination needs.
    pub(super) fn way(&self, ports: &Ports, family: Family, dst: Addr, flow: u32) -> Result<Way, RouteError> {
        let usable = |v: &Via| self.usable(v, ports);
        let entry = self.fib.find(family, dst, usable)?;
        let via = choose(&entry.via, flow, usable).ok_or(RouteError::NoRoute)?;
        if self.port_of(ports, via.ifindex).is_none() {
            return Err(RouteError::NotOurPort { ifindex: via.ifindex });
        }
        let addr = via.gateway.unwrap_or_else(|| dst.ip(family));
        Ok(Way { key: LineKey { ifindex: via.ifindex, addr, mtu: entry.mtu } })
    }

    /// Whether one of the ways that a destination's route offers leaves by this port.
    pub(super) fn leads_by(&self, ports: &Ports, family: Family, dst: Addr, port: PortId) -> bool {
        let usable = |v: &Via| self.usable(v, ports);
        let Ok(entry) = self.fib.find(family, dst, usable) else { return false };
        let fit = |v: &Via| usable(v) == Usable::Yes && self.port_of(ports, v.ifindex) == Some(port);
        entry.via.iter().any(fit)
    }

    /// The line for a key, if it has one. An error if there is none and no room for one.
    pub(super) fn line(&self, key: &LineKey) -> Result<Option<NextHopId>, RouteError> {
        match self.keys.get(key) {
            Some(index) => Ok(self.id(*index)),
            None if self.free.is_empty() => Err(RouteError::TooManyNextHops),
            None => Ok(None),
        }
    }

    /// What a line is for, if the id is still that of its line.
    pub(super) fn key_of(&self, id: NextHopId) -> Option<LineKey> {
        let info = self.info.get(id.index())?;
        info.key.filter(|_| info.generation == id.generation())
    }

    pub(super) fn id(&self, index: u16) -> Option<NextHopId> {
        Some(NextHopId::new(index, self.info.get(usize::from(index))?.generation))
    }

    /// Gives a key a line, used now.
    pub(super) fn allocate(
        &mut self,
        lines: &Lines,
        ports: &Ports,
        key: LineKey,
        now: Tick,
    ) -> Result<NextHopId, RouteError> {
        if let Some(id) = self.line(&key)? {
            return Ok(id);
        }
        let index = self.free.pop().ok_or(RouteError::TooManyNextHops)?;
        let info = self.info.get_mut(usize::from(index)).ok_or(RouteError::TooManyNextHops)?;
        *info = LineInfo { key: Some(key), generation: info.generation, ..LineInfo::default() };
        let id = NextHopId::new(index, info.generation);
        self.keys.insert(key, index);
        lines.note_used(id, now);
        self.refresh(lines, ports, index);
        Ok(id)
    }

    /// Takes a line away from its key; ids of it read as gone from now on.
    pub(super) fn release(&mut self, lines: &Lines, index: u16) {
        let Some(info) = self.info.get_mut(usize::from(index)) else { return };
        let Some(key) = info.key.take() else { return };
        info.generation = info.generation.wrapping_add(1);
        lines.publish(NextHopId::new(index, info.generation), Hop::GONE);
        self.keys.remove(&key);
        self.attention.remove(&index);
        self.free.push(index);
    }

    /// How many lines are in use.
    pub(super) fn lines_used(&self) -> usize {
        self.keys.len()
    }

    /// Works a line's content out anew and publishes it if it has changed. True if so.
    pub(super) fn refresh(&mut self, lines: &Lines, ports: &Ports, index: u16) -> bool {
        let Some(info) = self.info.get(usize::from(index)).copied() else { return false };
        let Some(key) = info.key else { return false };
        let neigh = self.neighs.get(&(key.ifindex, key.addr));
        let hop = self.hop(ports, &key, neigh);
        let confirmed = hop.state == HopState::Ready
            && neigh.is_some_and(|n| matches!(n.state, NeighState::Reachable | NeighState::Permanent));
        if confirmed {
            self.attention.remove(&index);
            if let Some(info) = self.info.get_mut(usize::from(index)) {
                info.failures = 0;
            }
        } else {
            self.attention.insert(index);
        }
        let id = NextHopId::new(index, info.generation);
        if lines.get(id) == hop {
            return false;
        }
        lines.publish(id, hop);
        true
    }

    fn hop(&self, ports: &Ports, key: &LineKey, neigh: Option<&Neigh>) -> Hop {
        let Some(LinkEntry { link, .. }) = self.links.get(&key.ifindex) else { return Hop::GONE };
        let (Some(port), Some(src_mac), true) = (self.port_of(ports, key.ifindex), link.mac, link.up) else {
            return Hop::GONE;
        };
        let dst_mac = neigh.filter(|n| n.state.usable()).and_then(|n| n.mac);
        let mtu = if key.mtu == 0 { link.mtu } else { link.mtu.min(key.mtu) };
        Hop {
            state: if dst_mac.is_some() { HopState::Ready } else { HopState::Unresolved },
            port,
            src_mac,
            dst_mac: dst_mac.unwrap_or_default(),
            mtu: u16::try_from(mtu.max(MIN_MTU)).unwrap_or(u16::MAX),
        }
    }

    /// Refreshes the lines of a neighbour.
    pub(super) fn refresh_neigh(&mut self, lines: &Lines, ports: &Ports, ifindex: u32, addr: IpAddr) -> bool {
        let key = |mtu| LineKey { ifindex, addr, mtu };
        let found: Vec<u16> = self.keys.range(key(0)..=key(u32::MAX)).map(|(_, i)| *i).collect();
        found.into_iter().fold(false, |any, i| self.refresh(lines, ports, i) | any)
    }

    /// Refreshes the lines of a link.
    pub(super) fn refresh_link(&mut self, lines: &Lines, ports: &Ports, ifindex: u32) -> bool {
        let key = |ifindex| LineKey { ifindex, addr: IpAddr::V4(0.into()), mtu: 0 };
        let range = key(ifindex)..key(ifindex.saturating_add(1));
        let found: Vec<u16> = self.keys.range(range).map(|(_, i)| *i).collect();
        found.into_iter().fold(false, |any, i| self.refresh(lines, ports, i) | any)
    }

    /// Refreshes all lines.
    pub(super) fn refresh_all(&mut self, lines: &Lines, ports: &Ports) -> bool {
        let found: Vec<u16> = self.keys.values().copied().collect();
        found.into_iter().fold(false, |any, i| self.refresh(lines, ports, i) | any)
    }

    /// Tells the ports which MACs they have: their own, and those of the macvlans on top that are up.
    pub(super) fn set_macs(&mut self, ports: &Ports) {
        let mut refused = 0;
        self.extra_macs.clear();
        for (port, name) in ports.iter() {
            let own = self.links.values().find(|e| e.link.name == name);
            let mut extra: Vec<Mac> = Vec::new();
            if let Some(own) = own {
                let on_top = |l: &Link| {
                    l.kind == LinkKind::Macvlan
                        && l.up
                        && l.parent == Some(own.link.ifindex)
                        && l.name != name
                };
                extra.extend(self.links.values().filter(|e| on_top(&e.link)).filter_map(|e| e.link.mac));
                extra.sort_unstable();
                extra.dedup();
                self.extra_macs.extend(extra.iter().map(|mac| (own.link.ifindex, *mac)));
            }
            refused += ports.set(port, own.and_then(|o| o.link.mac), &extra) as u64;
        }
        self.macs_refused = refused;
    }

    /// Puts a link in; what it was before.
    pub(super) fn put_link(&mut self, link: Link) -> Option<Link> {
        // A name belongs to one index at a time: an older holder of it was renamed or is gone.
        let stale: Vec<u32> = (self.links.values().map(|e| &e.link))
            .filter(|l| l.name == link.name && l.ifindex != link.ifindex)
            .map(|l| l.ifindex)
            .collect();
        for ifindex in stale {
            self.links.remove(&ifindex);
        }
        let seen = self.seen;
        self.links.insert(link.ifindex, LinkEntry { link, seen }).map(|e| e.link)
    }

    /// Takes a link out with all that hangs on it; false if it was not there.
    pub(super) fn drop_link(&mut self, ifindex: u32) -> bool {
        self.drop_addrs(ifindex);
        self.neighs.retain(|(i, _), _| *i != ifindex);
        self.links.remove(&ifindex).is_some()
    }

    fn drop_addrs(&mut self, ifindex: u32) {
        for (a, _) in self.addrs.remove(&ifindex).unwrap_or_default() {
            self.forget_own(a.addr);
        }
    }

    fn forget_own(&mut self, addr: IpAddr) {
        if let Some(n) = self.own.get_mut(&addr) {
            *n = n.saturating_sub(1);
            if *n == 0 {
                self.own.remove(&addr);
            }
        }
    }

    /// Puts an address in; true if that changes anything.
    pub(super) fn put_addr(&mut self, new: IfAddr) -> bool {
        let seen = self.seen;
        let list = self.addrs.entry(new.ifindex).or_default();
        match list.iter_mut().find(|(a, _)| a.addr == new.addr && a.prefix == new.prefix) {
            Some(old) => {
                let changed = old.0 != new;
                *old = (new, seen);
                changed
            }
            None => {
                list.push((new, seen));
                *self.own.entry(new.addr).or_default() += 1;
                true
            }
        }
    }

    /// Takes an address out; true if it was there.
    pub(super) fn drop_addr(&mut self, ifindex: u32, addr: IpAddr, prefix: u8) -> bool {
        let Some(list) = self.addrs.get_mut(&ifindex) else { return false };
        let Some(i) = list.iter().position(|(a, _)| a.addr == addr && a.prefix == prefix) else {
            return false;
        };
        list.remove(i);
        self.forget_own(addr);
        true
    }

    /// Whether an interface has this address, or the local table delivers it here.
    pub(super) fn is_local(&self, family: Family, addr: Addr) -> bool {
        self.own.contains_key(&addr.ip(family)) || self.fib.is_local(family, addr)
    }

    /// Puts a neighbour in.
    pub(super) fn put_neigh(&mut self, at: (u32, IpAddr), mac: Option<Mac>, state: NeighState) {
        let old = self.neighs.get(&at).map(|n| n.state);
        if old.is_none() && self.neighs.len() >= MAX_NEIGHBOURS {
            self.neighs_refused += 1;
            return;
        }
        self.neighs.insert(at, Neigh { mac, state, seen: self.seen });
        if state == NeighState::Failed && old != Some(NeighState::Failed) {
            let key = |mtu| LineKey { ifindex: at.0, addr: at.1, mtu };
            for (_, i) in self.keys.range(key(0)..=key(u32::MAX)) {
                if let Some(info) = self.info.get_mut(usize::from(*i)) {
                    info.failures = info.failures.saturating_add(1);
                }
            }
        }
    }

    /// Takes out all that the last reading did not name. True if that can change a look-up.
    pub(super) fn sweep(&mut self) -> bool {
        let seen = self.seen;
        let gone: Vec<u32> = self.links.iter().filter(|(_, e)| e.seen != seen).map(|(i, _)| *i).collect();
        let mut changed = self.fib.sweep(seen);
        for ifindex in gone {
            changed |= self.drop_link(ifindex);
        }
        let stale: Vec<IfAddr> =
            self.addrs.values().flatten().filter(|(_, s)| *s != seen).map(|(a, _)| *a).collect();
        for a in stale {
            changed |= self.drop_addr(a.ifindex, a.addr, a.prefix);
        }
        self.neighs.retain(|_, n| n.seen == seen);
        changed
    }

    /// The source address for packets of this machine to `dst`.
    pub(super) fn source_for(&self, ports: &Ports, family: Family, dst: Addr) -> Option<Addr> {
        if self.is_local(family, dst) {
            return Some(dst);
        }
        let usable = |v: &Via| self.usable(v, ports);
        let entry = self.fib.find(family, dst, usable).ok()?;
        if let Some(src) = entry.prefsrc.filter(|s| Family::from(*s) == family) {
            return Some(src.into());
        }
        let via = choose(&entry.via, 0, usable)?;
        // IPv4 goes by the subnet of the gateway, IPv6 by the destination itself (RFC 6724).
        let gateway = via.gateway.filter(|g| family == Family::V4 && g.is_ipv4());
        let toward = gateway.map_or(dst, Addr::from);
        let on_link = self.addrs.get(&via.ifindex).into_iter().flatten();
        let others = self.addrs.iter().filter(|(i, _)| **i != via.ifindex).flat_map(|(_, l)| l);
        best_source(on_link.map(|(a, _)| a), family, toward)
            .or_else(|| best_source(others.map(|(a, _)| a).filter(|a| a.scope == 0), family, toward))
    }
}

/// Of these addresses the best one toward `dst`: usable and primary, of the destination's scope (RFC 6724 rule 2), in
/// the same subnet before any other, then the longest common prefix (rule 8), then the first.
fn best_source<'a>(list: impl Iterator<Item = &'a IfAddr>, family: Family, dst: Addr) -> Option<Addr> {
    const LINK: u8 = 253;
    let dst_is_link_local = family == Family::V6 && dst.0 >> 118 == 0xfe80 >> 6;
    let mut best: Option<((bool, bool, u32), Addr)> = None;
    let fit = |a: &&IfAddr| Family::from(a.addr) == family && !a.secondary && !a.unusable && a.scope <= LINK;
    for a in list.filter(fit) {
        let addr = Addr::from(a.addr);
        let width = if family == Family::V4 { 32 } else { 128 };
        let common = (addr.0 ^ dst.0).leading_zeros() - (128 - width);
        let in_subnet = common >= u32::from(a.prefix);
        let common = if family == Family::V6 { common } else { 0 };
        let rank = ((a.scope == LINK) == dst_is_link_local, in_subnet, common);
        if best.is_none_or(|(r, _)| rank > r) {
            best = Some((rank, addr));
        }
    }
    best.map(|(_, a)| a)
}
