//! Which drops the log is told of: the first for each reason at once, later ones at most once a minute with their number.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

/// Least time between two lines about one reason.
const EVERY: Duration = Duration::from_secs(60);

/// What was told of each reason.
#[derive(Debug, Default)]
pub(super) struct DropWatch {
    /// By name; as many as there are counters.
    seen: HashMap<String, Seen>,
}

#[derive(Debug)]
struct Seen {
    /// The total that was told of.
    told: u64,
    at: Instant,
}

/// A line to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Told {
    /// The reason's name.
    pub(super) name: String,
    /// Drops since the last line.
    pub(super) count: u64,
    /// Time since the last line; none for the first.
    pub(super) since: Option<Duration>,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.count == 1 { "" } else { "s" };
        write!(f, "{}: {} frame{plural} dropped", self.name, self.count)?;
        match self.since {
            Some(since) => write!(f, " in {} s", since.as_secs()),
            None => Ok(()),
        }
    }
}

impl DropWatch {
    /// Which of these totals are to be told of at `now`.
    pub(super) fn look(&mut self, now: Instant, totals: impl Iterator<Item = (String, u64)>) -> Vec<Told> {
        let mut list = Vec::new();
        for (name, total) in totals.filter(|(_, total)| *total != 0) {
            let (told, since) = match self.seen.get(&name) {
                None => (0, None),
                Some(seen) => (seen.told, Some(now.saturating_duration_since(seen.at))),
            };
            if total <= told || since.is_some_and(|since| since < EVERY) {
                continue;
            }
            self.seen.insert(name.clone(), Seen { told: total, at: now });
            list.push(Told { name, count: total - told, since });
        }
        list
    }
}

/// What `docs/counters.md` says of a counter, without its marks.
pub(super) fn sentence(counter: &str) -> Option<String> {
    const DOC: &str = include_str!("../../docs/counters.md");
    let mark = format!("| `{counter}` | ");
    let text = DOC.lines().find_map(|line| line.strip_prefix(&mark)?.strip_suffix(" |"))?;
    Some(text.replace('`', "").trim_end_matches('.').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Reason;
    use crate::io::afpacket::QueueStats;

    fn look(watch: &mut DropWatch, at: Instant, totals: &[(&str, u64)]) -> Vec<String> {
        watch
            .look(at, totals.iter().map(|(n, t)| ((*n).to_owned(), *t)))
            .iter()
            .map(Told::to_string)
            .collect()
    }

    #[test]
    fn the_first_is_told_at_once_and_then_one_line_a_minute() {
        let (mut w, start) = (DropWatch::default(), Instant::now());
        let at = |s: u64| start + Duration::from_secs(s);
        assert_eq!(look(&mut w, at(0), &[("a", 0), ("b", 0)]), [""; 0]);
        assert_eq!(look(&mut w, at(1), &[("a", 1), ("b", 0)]), ["a: 1 frame dropped"]);
        // A flood for 150 seconds, at which another reason begins.
        let mut lines = Vec::new();
        for s in 2..152 {
            let b = if s == 100 { 1 } else { u64::from(s > 100) };
            lines.extend(look(&mut w, at(s), &[("a", s * 1000), ("b", b)]));
        }
        assert_eq!(
            lines,
            ["a: 60999 frames dropped in 60 s", "b: 1 frame dropped", "a: 60000 frames dropped in 60 s"]
        );
        // What came after the last line is told once, and nothing without a drop.
        let quiet: Vec<_> =
            (152..600).flat_map(|s| look(&mut w, at(s), &[("a", 151_000), ("b", 1)])).collect();
        assert_eq!(quiet, ["a: 30000 frames dropped in 60 s"]);
        // Long after, at once again.
        assert_eq!(look(&mut w, at(900), &[("a", 151_002)]), ["a: 2 frames dropped in 719 s"]);
    }

    #[test]
    fn every_reason_has_its_sentence() {
        for reason in Reason::ALL {
            let text = sentence(reason.name()).unwrap_or_else(|| panic!("{}", reason.name()));
            assert!(text.len() > 10 && !text.contains(['`', '\n']) && !text.ends_with('.'), "{text}");
        }
        let dropped = QueueStats::default().drops();
        assert!(dropped.len() > 5);
        for counter in dropped {
            assert!(sentence(&counter.name).is_some(), "{}", counter.name);
        }
        let port = sentence("drop_not_our_port").unwrap();
        assert!(port.ends_with("that is not a port: add --interface"), "{port}");
        assert_eq!(sentence("nosuch"), None);
    }
}
