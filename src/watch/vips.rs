//! Which virtual addresses the log is told of: those that no interface of this host has, once, and again when one that had
//! come goes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Least time between two lines about one address.
const EVERY: Duration = Duration::from_secs(60);
/// Most addresses that a line names.
const NAMED: usize = 8;

/// What was told of.
#[derive(Debug, Default)]
pub(super) struct VipWatch {
    /// Absent at the last look: told of only if they still are at the next one, since a service and its address are often
    /// added one after the other.
    suspects: BTreeSet<IpAddr>,
    told: BTreeMap<IpAddr, Told>,
}

#[derive(Debug)]
struct Told {
    at: Instant,
    /// Has been here since.
    came: bool,
}

/// Lines to be.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Lines {
    /// Of those that are not here.
    pub(super) absent: Option<String>,
    /// Of those that were told of and have come.
    pub(super) there: Option<String>,
}

impl VipWatch {
    /// Whether a look may tell something even where nothing has changed since the last.
    pub(super) fn waiting(&self) -> bool {
        self.suspects.iter().any(|a| self.told.get(a).is_none_or(|t| t.came))
            || self.told.values().any(|t| t.came)
    }

    /// A look at `now`, when these addresses are absent.
    pub(super) fn look(&mut self, now: Instant, absent: BTreeSet<IpAddr>) -> Lines {
        let old = |t: &Told| now.saturating_duration_since(t.at) >= EVERY;
        let (mut news, mut came) = (Vec::new(), Vec::new());
        for addr in absent.intersection(&self.suspects) {
            if self.told.get(addr).is_none_or(|t| t.came && old(t)) {
                news.push(*addr);
                self.told.insert(*addr, Told { at: now, came: false });
            }
        }
        for (addr, told) in self.told.iter_mut().filter(|(a, t)| !t.came && !absent.contains(a)) {
            told.came = true;
            came.push(*addr);
        }
        self.told.retain(|addr, t| absent.contains(addr) || !old(t));
        self.suspects = absent;
        Lines {
            absent: line(&news, |some, list| {
                format!(
                    "virtual address{some} {list}: no interface of this host has {}, so nothing arrives unless routers \
                     send it here; 'ip address add' on an interface, if that is not meant",
                    if some.is_empty() { "it" } else { "them" }
                )
            }),
            there: line(&came, |some, list| {
                format!("virtual address{some} {list}: on this host now, or without a service")
            }),
        }
    }
}

/// A line about addresses, if there are any.
fn line(addrs: &[IpAddr], say: impl Fn(&str, &str) -> String) -> Option<String> {
    if addrs.is_empty() {
        return None;
    }
    let mut list = addrs.iter().take(NAMED).map(IpAddr::to_string).collect::<Vec<_>>().join(" ");
    if addrs.len() > NAMED {
        list.push_str(&format!(" and {} more", addrs.len() - NAMED));
    }
    Some(say(if addrs.len() == 1 { "" } else { "es" }, &list))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(list: &[u8]) -> BTreeSet<IpAddr> {
        list.iter().map(|n| IpAddr::from([192, 0, 2, *n])).collect()
    }

    #[test]
    fn each_absent_address_is_told_of_once() {
        let (mut w, start) = (VipWatch::default(), Instant::now());
        let at = |s: u64| start + Duration::from_secs(s);
        assert!(!w.waiting());
        assert_eq!(w.look(at(0), set(&[1, 2])), Lines::default(), "they may be just being added");
        assert!(w.waiting());
        let lines = w.look(at(1), set(&[1]));
        let text = lines.absent.unwrap();
        assert!(text.starts_with("virtual address 192.0.2.1: no interface of this host has it,"), "{text}");
        assert_eq!(lines.there, None, "192.0.2.2 was never told of");
        assert!(!w.waiting());
        for s in 2..300 {
            assert_eq!(w.look(at(s), set(&[1])), Lines::default());
        }
        let lines = w.look(at(300), set(&[]));
        let text = lines.there.unwrap();
        assert!(text.starts_with("virtual address 192.0.2.1: on this host now"), "{text}");
        w.look(at(301), set(&[]));
        assert!(!w.waiting());
        // It goes again: that is news.
        w.look(at(400), set(&[1]));
        assert!(w.look(at(401), set(&[1])).absent.is_some());
    }

    #[test]
    fn one_that_comes_and_goes_is_told_of_once_a_minute() {
        let (mut w, start) = (VipWatch::default(), Instant::now());
        let mut lines = 0;
        for s in 0..600 {
            let absent = if s % 4 < 3 { set(&[1]) } else { set(&[]) };
            let told = w.look(start + Duration::from_secs(s), absent);
            lines += usize::from(told.absent.is_some());
        }
        assert!((9..=10).contains(&lines), "{lines}");
        // And one that has gone for good within the minute is told of when that is over.
        let (mut w, mut told) = (VipWatch::default(), Vec::new());
        for s in 0..200 {
            let absent = if s == 10 { set(&[]) } else { set(&[1]) };
            if w.look(start + Duration::from_secs(s), absent).absent.is_some() {
                told.push(s);
            }
            assert!(!(11..=60).contains(&s) || w.waiting());
        }
        assert_eq!(told, [1, 61]);
    }

    #[test]
    fn many_are_one_line() {
        let (mut w, now) = (VipWatch::default(), Instant::now());
        let all: Vec<u8> = (0..=255).collect();
        w.look(now, set(&all));
        let text = w.look(now, set(&all)).absent.unwrap();
        assert!(text.contains("192.0.2.7 and 248 more: no interface of this host has them"), "{text}");
        assert!(text.len() < 400);
    }
}
