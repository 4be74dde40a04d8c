//! The routing tables: longest prefix match as `fib_rules` with nothing but the three standard rules does it.
//!
//! `prefix-trie` keeps the prefixes: a plain trie (no fixed table of 2^24 entries, which a director with a dozen
//! routes would pay for too) whose `cover` names all prefixes over an address, as needed where the longest one leads
//! only over links that are down.

use std::net::IpAddr;

use modes::{Addr, Family};
use prefix_trie::PrefixMap;

use super::RouteError;
use super::event::{Place, Route, RouteKind, Via};

/// Most routes that are kept, over all tables. A full Internet table of both families has a third of it.
pub(super) const MAX_ROUTES: usize = 1 << 22;

const LOCAL: u32 = 255;
const MAIN: u32 = 254;
const DEFAULT: u32 = 253;

/// A route under its prefix.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) metric: u32,
    pub(super) kind: RouteKind,
    pub(super) prefsrc: Option<IpAddr>,
    pub(super) mtu: u32,
    pub(super) via: Box<[Via]>,
    seen: u32,
}

impl Entry {
    fn same_way(&self, other: &Entry) -> bool {
        self.metric == other.metric
            && self.kind == other.kind
            && self.via.len() == other.via.len()
            && self.via.iter().zip(&other.via).all(|(a, b)| same_via(a, b))
    }
    /// IPv6 routes of one prefix and metric whose ways all have gateways are one multipath route.
    fn joins(&self, family: Family, other: &Entry) -> bool {
        let gated = |e: &Entry| {
            e.kind == RouteKind::Unicast && !e.via.is_empty() && e.via.iter().all(|v| v.gateway.is_some())
        };
        family == Family::V6 && self.metric == other.metric && gated(self) && gated(other)
    }
}

fn same_via(a: &Via, b: &Via) -> bool {
    a.ifindex == b.ifindex && a.gateway == b.gateway
}

/// IPv4 addresses fill the upper 32 bits, so that one trie type serves both families.
type Trie = PrefixMap<(u128, u8), Vec<Entry>>;

/// How far a way can be used now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Usable {
    /// Its link is down or unknown: as if it were not there.
    No,
    /// Up, but without carrier, or not one of the director's.
    Poor,
    /// As it should be.
    Yes,
}

#[derive(Default)]
pub(super) struct Fib {
    /// Local, main, default.
    v4: [Trie; 3],
    v6: [Trie; 3],
    count: usize,
    refused: u64,
}

fn key(family: Family, addr: Addr) -> u128 {
    match family {
        Family::V4 => u128::from(addr.v4()) << 96,
        Family::V6 => addr.0,
    }
}

fn bits(family: Family) -> u8 {
    match family {
        Family::V4 => 32,
        Family::V6 => 128,
    }
}

fn order(table: u32) -> Option<usize> {
    match table {
        LOCAL => Some(0),
        MAIN => Some(1),
        DEFAULT => Some(2),
        _ => None,
    }
}

/// The trie and key of a route; none where it cannot concern a look-up.
fn place_of(route: &Route) -> Option<(usize, (u128, u8))> {
    let (addr, len) = route.dst;
    if route.tos != 0 || len > bits(route.family) || Family::from(addr) != route.family {
        return None;
    }
    Some((order(route.table)?, (key(route.family, addr.into()), len)))
}

impl Fib {
    fn trie_mut(&mut self, family: Family, table: usize) -> Option<&mut Trie> {
        match family {
            Family::V4 => self.v4.get_mut(table),
            Family::V6 => self.v6.get_mut(table),
        }
    }

    fn tries(&self, family: Family) -> &[Trie; 3] {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// How many routes were refused for lack of room.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Takes a route in; true if that changes anything.
    pub(super) fn insert(&mut self, route: &Route, place: Place, seen: u32) -> bool {
        let Some((table, prefix)) = place_of(route) else { return false };
        let family = route.family;
        let full = self.count >= MAX_ROUTES;
        let new = Entry {
            metric: route.metric,
            kind: route.kind,
            prefsrc: route.prefsrc,
            mtu: route.mtu,
            via: route.via.clone().into_boxed_slice(),
            seen,
        };
        let Some(trie) = self.trie_mut(family, table) else { return false };
        if trie.get(&prefix).is_none() {
            if full {
                self.refused += 1;
                return false;
            }
            trie.insert(prefix, vec![new]);
            self.count += 1;
            return true;
        }
        let Some(entries) = trie.get_mut(&prefix) else { return false };
        let found = match place {
            Place::Replace => entries.iter().position(|e| e.metric == new.metric),
            _ => entries.iter().position(|e| e.same_way(&new) || e.joins(family, &new)),
        };
        if let Some(old) = found.and_then(|i| entries.get_mut(i)) {
            let new = if place == Place::Replace { new } else { merged(old, new) };
            let changed = Entry { seen, ..old.clone() } != new;
            *old = new;
            return changed;
        }
        if full {
            self.refused += 1;
            return false;
        }
        let at = match place {
            Place::First => entries.partition_point(|e| e.metric < new.metric),
            _ => entries.partition_point(|e| e.metric <= new.metric),
        };
        entries.insert(at, new);
        self.count += 1;
        true
    }

    /// Takes a route, or some ways of a multipath route, out; true if that changes anything.
    pub(super) fn remove(&mut self, route: &Route) -> bool {
        let Some((table, prefix)) = place_of(route) else { return false };
        let gone = Entry {
            metric: route.metric,
            kind: route.kind,
            prefsrc: None,
            mtu: 0,
            via: route.via.clone().into_boxed_slice(),
            seen: 0,
        };
        let family = route.family;
        let Some(trie) = self.trie_mut(family, table) else { return false };
        let Some(entries) = trie.get_mut(&prefix) else { return false };
        let before = entries.len();
        let mut changed = true;
        if let Some(i) = entries.iter().position(|e| e.same_way(&gone)) {
            entries.remove(i);
        } else if let Some(i) = entries.iter().position(|e| e.joins(family, &gone)) {
            changed = drop_ways(entries, i, &gone.via);
        } else {
            changed = false;
        }
        let removed = before - entries.len();
        if entries.is_empty() {
            trie.remove(&prefix);
        }
        self.count -= removed;
        changed
    }

    /// Takes out all that was not seen in reading `seen`; true if there was any.
    pub(super) fn sweep(&mut self, seen: u32) -> bool {
        self.retain(|_, e| e.seen == seen)
    }

    /// A link went down: IPv4 routes all of whose ways lead over links that are `down` go away, of which the kernel
    /// sends no message. Addresses stay. True if there was any.
    pub(super) fn link_down(&mut self, down: impl Fn(u32) -> bool) -> bool {
        self.retain(|family, e| {
            family == Family::V6
                || matches!(e.kind, RouteKind::Local)
                || e.via.is_empty()
                || !e.via.iter().all(|v| v.ifindex != 0 && down(v.ifindex))
        })
    }

    fn retain(&mut self, keep: impl Fn(Family, &Entry) -> bool) -> bool {
        let mut removed = 0;
        let v4 = self.v4.iter_mut().map(|t| (Family::V4, t));
        for (family, trie) in v4.chain(self.v6.iter_mut().map(|t| (Family::V6, t))) {
            let mut emptied = Vec::new();
            for (prefix, entries) in trie.iter_mut() {
                let before = entries.len();
                entries.retain(|e| keep(family, e));
                removed += before - entries.len();
                if entries.is_empty() {
                    emptied.push(prefix);
                }
            }
            for prefix in emptied {
                trie.remove(&prefix);
            }
        }
        self.count -= removed;
        removed > 0
    }

    /// The route to `dst`: that of the longest prefix with a way that can be used, and of those the one of lowest
    /// metric.
    pub(super) fn find(
        &self,
        family: Family,
        dst: Addr,
        usable: impl Fn(&Via) -> Usable,
    ) -> Result<&Entry, RouteError> {
        let host = (key(family, dst), bits(family));
        for trie in self.tries(family) {
            let best = |entries: &'_ Vec<Entry>| -> Option<usize> {
                entries.iter().position(|e| {
                    e.kind != RouteKind::Unicast || e.via.iter().any(|v| usable(v) != Usable::No)
                })
            };
            let pick = |entries| best(entries).and_then(|i| entries.get(i));
            let found = match trie.get_lpm(&host) {
                None => None,
                Some((_, entries)) => match pick(entries) {
                    Some(e) => Some(e),
                    None => trie.cover_values(&host).filter_map(pick).last(),
                },
            };
            let Some(entry) = found else { continue };
            return match entry.kind {
                RouteKind::Unicast => Ok(entry),
                RouteKind::Local => Err(RouteError::Local),
                RouteKind::NotUnicast => Err(RouteError::NotUnicast),
                RouteKind::Blackhole => Err(RouteError::Blackhole),
                RouteKind::Unreachable => Err(RouteError::Unreachable),
                RouteKind::Prohibit => Err(RouteError::Prohibited),
                RouteKind::Throw => continue,
            };
        }
        Err(RouteError::NoRoute)
    }

    /// Whether the local table delivers `addr` to this machine.
    pub(super) fn is_local(&self, family: Family, addr: Addr) -> bool {
        let [local, ..] = self.tries(family);
        local
            .get_lpm(&(key(family, addr), bits(family)))
            .is_some_and(|(_, e)| e.first().is_some_and(|e| e.kind == RouteKind::Local))
    }
}

/// What becomes of `old` when the kernel names `new`, the same route: within one reading of the tables the ways add
/// up, the first mention in a reading counts alone.
fn merged(old: &Entry, mut new: Entry) -> Entry {
    if old.seen == new.seen && !old.same_way(&new) {
        let mut via = old.via.to_vec();
        for v in &new.via {
            match via.iter_mut().find(|o| same_via(o, v)) {
                Some(o) => *o = *v,
                None => via.push(*v),
            }
        }
        new.via = via.into_boxed_slice();
    }
    new
}

/// Takes `gone` ways out of `entries[i]`, and the entry itself with its last way; true if there was any.
fn drop_ways(entries: &mut Vec<Entry>, i: usize, gone: &[Via]) -> bool {
    let Some(entry) = entries.get_mut(i) else { return false };
    let left: Vec<Via> = entry.via.iter().filter(|v| !gone.iter().any(|g| same_via(g, v))).copied().collect();
    let changed = left.len() != entry.via.len();
    if left.is_empty() {
        entries.remove(i);
    } else {
        entry.via = left.into_boxed_slice();
    }
    changed
}

/// Chooses a way by the flow's hash, in proportion to the weights, among those that can be used best.
pub(super) fn choose(via: &[Via], flow: u32, usable: impl Fn(&Via) -> Usable) -> Option<Via> {
    let best = via.iter().map(&usable).max().filter(|u| *u != Usable::No)?;
    let fit = || via.iter().filter(|v| usable(v) == best);
    let total: u64 = fit().map(|v| u64::from(v.weight.max(1))).sum();
    // The hash as a fraction of 2^32, spread over the weights.
    let mut at = (u64::from(flow) * total) >> 32;
    for v in fit() {
        let weight = u64::from(v.weight.max(1));
        if at < weight {
            return Some(*v);
        }
        at -= weight;
    }
    None
}

#[cfg(test)]
mod tests;
