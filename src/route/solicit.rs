//! Which neighbours the kernel should be asked about, and which lines nobody needs any more.

use super::routes::Routes;
use super::{HopState, LINE_IDLE_SECS, Solicit, UNRESOLVED_IDLE_SECS, WANTS_MAX};
use crate::time::{Tick, ticks};

/// Lines in want of attention that are looked at in one call.
const VISIT_MAX: usize = 4096;
/// Lines that are looked at for age in one call: all of them in 32 s at two calls a second.
const AGE_MAX: usize = 1024;
/// An unresolved next hop is asked for while it was used within this time.
const WANTED: u32 = ticks(3);
/// One that is known but not confirmed is asked for while it was used within this time.
const CONFIRM_WANTED: u32 = ticks(10);
/// Least time between two questions for one that is known but not confirmed: the kernel itself waits five seconds
/// (`delay_first_probe_time`) before it asks.
const CONFIRM_EVERY: u32 = ticks(5);

/// Least time between two questions for an unresolved one, after so many failures in a row.
fn pause(failures: u8) -> u32 {
    match failures {
        0 | 1 => ticks(1),
        2 => ticks(2),
        _ => ticks(4),
    }
}

pub(super) fn wants(routes: &Routes, now: Tick) -> Vec<Solicit> {
    let mut guard = routes.write();
    let t = &mut *guard;
    let mut out: Vec<Solicit> = Vec::new();
    let mut unused = Vec::new();
    // From where the last call stopped, once round.
    let from = t.attention_at;
    let visit: Vec<u16> =
        t.attention.range(from..).chain(t.attention.range(..from)).take(VISIT_MAX).copied().collect();
    for index in visit {
        if out.len() >= WANTS_MAX {
            t.attention_at = index;
            break;
        }
        t.attention_at = index.wrapping_add(1);
        let idle = now.since(routes.lines.used(index));
        let Some(id) = t.id(index) else { continue };
        let state = routes.get(id).state;
        let Some(info) = t.info.get_mut(usize::from(index)) else { continue };
        let Some(key) = info.key else { continue };
        let (wanted, every) = match state {
            HopState::Unresolved => (WANTED, pause(info.failures)),
            HopState::Ready => (CONFIRM_WANTED, CONFIRM_EVERY),
            HopState::Gone => (0, u32::MAX),
        };
        if idle <= wanted && info.asked.is_none_or(|t| now.since(t) >= every) {
            info.asked = Some(now);
            let ask = Solicit { ifindex: key.ifindex, addr: key.addr };
            // Lines that differ only in the MTU share their neighbour.
            if !out.contains(&ask) {
                out.push(ask);
            }
        } else if state != HopState::Ready && idle > ticks(UNRESOLVED_IDLE_SECS) {
            unused.push(index);
        }
    }
    let lines = t.info.len();
    for _ in 0..AGE_MAX.min(lines) {
        let index = t.age_at;
        t.age_at = if usize::from(index) + 1 < lines { index + 1 } else { 0 };
        let in_use = t.info.get(usize::from(index)).is_some_and(|i| i.key.is_some());
        if in_use && now.since(routes.lines.used(index)) > ticks(LINE_IDLE_SECS) {
            unused.push(index);
        }
    }
    let any = !unused.is_empty();
    for index in unused {
        t.release(&routes.lines, index);
    }
    routes.note_change(any);
    out
}
