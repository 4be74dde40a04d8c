//! Taking over what another daemon left in memory that the tier shares: connections keep their servers, timers and counts.
//!
//! The table finds its connections by itself ([`crate::conn`]). They refer to destinations by number, and a number means something
//! only with what is kept beside the line: service, address and port. So first all lines that are for something are put aside, as those of
//! removed servers are; the configuration is read then, and each server finds its line; what nobody has claimed is no longer served. Until
//! then the programs in the kernel go on by the lines as they were.

use std::sync::PoisonError;

use super::director::{Director, Removed};
use super::tcp::State;
use super::tier;
use crate::conn::{Conn, ConnRef};
use crate::service::{DestId, DestSlot, Rates, RawStats, Tally};

/// Slots of the table that are looked at in one go.
const AT_ONCE: usize = 4096;

/// What was taken over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Adopted {
    /// Connections and persistence templates.
    pub connections: usize,
    /// Destinations.
    pub destinations: usize,
    /// Connections that referred to no destination, and were removed.
    pub lost: usize,
}

impl Director {
    /// Takes over connections and destinations that are in the memory it was made with. Before services are made, workers run and
    /// anybody else uses it; [`Director::settle`] comes when services have been made.
    pub fn adopt(&self) -> Adopted {
        let mut tallies = vec![Tally::default(); self.dests.capacity() as usize];
        let mut lost: Vec<ConnRef> = Vec::new();
        self.each(|conn| {
            tier::forget_move(conn);
            if conn.is_template() {
                conn.forget_controlled();
            }
        });
        self.each(|conn| {
            let known = self.dests.key(conn.dest()).is_some();
            match tallies.get_mut(conn.dest() as usize).filter(|_| known) {
                Some(tally) => self.count_in(tally, conn),
                None => lost.push(conn.id()),
            }
        });
        for conn in &lost {
            self.table.remove(*conn);
        }
        let used = self.dests.take_over(|id| tallies.get(id as usize).copied().unwrap_or_default());
        let mut trash = self.trash.lock().unwrap_or_else(PoisonError::into_inner);
        for &id in &used {
            let Some(service) = self.dests.key(id) else { continue };
            let slot = self.slot_of(id);
            let key = (service, slot.addr, slot.port);
            if let Some(other) = trash.insert(key, Removed { slot, service: None, idle: false }) {
                // cannot be; but no line is served that nobody can take away
                self.dests.line(other.slot.id).set_available(false);
            }
        }
        let connections = tallies.iter().map(|t| (t.active + t.inactive + t.templates) as usize).sum();
        Adopted { connections, destinations: used.len(), lost: lost.len() }
    }

    /// All services and servers that there are have been made: what another daemon's servers were and nobody has claimed is not served
    /// from now on, as if it had been removed.
    pub fn settle(&self) {
        let trash = self.trash.lock().unwrap_or_else(PoisonError::into_inner);
        for removed in trash.values().filter(|r| r.service.is_none()) {
            self.dests.line(removed.slot.id).set_available(false);
        }
    }

    fn each(&self, mut f: impl FnMut(&Conn<'_>)) {
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            cursor = self.table.scan(from, AT_ONCE, &mut |conn| f(&conn));
        }
    }

    fn count_in(&self, tally: &mut Tally, conn: &Conn<'_>) {
        if conn.is_template() {
            tally.templates += 1;
            return;
        }
        match State::from_u8(conn.state()).is_active() {
            true => tally.active += 1,
            false => tally.inactive += 1,
        }
        if let Some(template) = conn.template().and_then(|t| self.table.get(t)) {
            template.add_controlled(true);
        }
    }

    fn slot_of(&self, id: DestId) -> DestSlot {
        let line = self.dests.line(id);
        DestSlot {
            id,
            addr: line.addr().ip(line.family()),
            port: line.port(),
            tunnel: line.tunnel(),
            last_weight: 0,
            joined: RawStats::default(),
            zero: self.dests.zero(id),
            rates: Rates::starting_at(self.dests.stats(id)),
        }
    }
}
