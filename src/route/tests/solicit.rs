//! What is asked of the kernel, and which lines are given up.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

#[test]
fn unresolved_is_asked_for_once_a_second_while_in_use() {
    let mut b = Box4::new();
    let id = b.look(RS).unwrap();
    let mut asked = Vec::new();
    for step in 0..40 {
        if step < 20 {
            b.routes.note_used(id, b.now.tick());
        }
        if !b.wait(250).is_empty() {
            asked.push(step);
        }
    }
    assert!(asked.windows(2).all(|w| w[1] - w[0] >= 4), "{asked:?}");
    let last = *asked.last().unwrap();
    assert!((20..=33).contains(&last), "not for long after the last use: {asked:?}");
    assert!(asked.len() >= 5, "{asked:?}");
}

#[test]
fn failures_lengthen_the_pause_up_to_four_seconds() {
    let mut b = Box4::new();
    let id = b.look(RS).unwrap();
    let mut asked = Vec::new();
    for step in 0..120u32 {
        b.routes.note_used(id, b.now.tick());
        if !b.wait(250).is_empty() {
            asked.push(step);
            b.neigh(RS, 0, NeighState::Incomplete);
            b.neigh(RS, 0, NeighState::Failed);
        }
    }
    let gaps: Vec<u32> = asked.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(gaps.iter().all(|g| (4..=18).contains(g)), "{gaps:?}");
    assert!(gaps.iter().rev().take(3).all(|g| *g >= 16), "{gaps:?}");
    b.neigh(RS, 1, NeighState::Reachable);
    b.neigh(RS, 0, NeighState::Failed);
    for _ in 0..2 {
        b.routes.note_used(id, b.now.tick());
        assert_eq!(b.wait(1100).len(), 1, "an answer makes up for the failures before it");
    }
}

#[test]
fn stale_is_confirmed_while_in_use_and_left_alone_otherwise() {
    let mut b = Box4::new();
    b.neigh(RS, 1, NeighState::Stale);
    b.neigh("10.0.0.12", 2, NeighState::Stale);
    b.neigh("10.0.0.13", 3, NeighState::Reachable);
    b.neigh("10.0.0.14", 4, NeighState::Permanent);
    b.look("10.0.0.12").unwrap();
    let mut all = b.wait(500);
    assert_eq!(all, [ip("10.0.0.12")]);
    b.wait(20_000);
    all.clear();
    for _ in 0..40 {
        for rs in [RS, "10.0.0.13", "10.0.0.14"] {
            b.routes.note_used(b.look(rs).unwrap(), b.now.tick());
        }
        all.extend(b.wait(250));
    }
    assert_eq!(all, [ip(RS), ip(RS)], "10 s, every 5 s");
}

#[test]
fn wants_are_bounded_and_all_have_their_turn() {
    let mut b = Box4::with_lines(MAX_LINES);
    b.route(unicast("10.8.0.0/16", &[via(2, "")]));
    let n = WANTS_MAX * 3 + 5;
    for i in 0..n {
        b.look(&format!("10.8.{}.{}", i / 256, i % 256)).unwrap();
    }
    let mut seen = HashSet::new();
    for _ in 0..4 {
        let got = b.wait(100);
        assert!(got.len() <= WANTS_MAX);
        seen.extend(got);
    }
    assert_eq!(seen.len(), n);
}

#[test]
fn new_unresolved_next_hop_calls_the_hook() {
    let b = Box4::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    b.routes.set_hook(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let id = b.look(RS).unwrap();
    b.look(RS).unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    b.routes.note_used(id, b.now.tick());
    assert_eq!(calls.load(Ordering::Relaxed), 1, "the same half second");
    b.routes.note_used(id, b.now.tick().plus(100));
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    b.neigh(RS, 1, NeighState::Reachable);
    b.routes.note_used(id, b.now.tick().plus(200));
    assert_eq!(calls.load(Ordering::Relaxed), 2, "it is resolved");
}

#[test]
fn unused_lines_are_given_up_and_old_ids_read_as_gone() {
    let mut b = Box4::with_lines(2);
    b.neigh(RS, 1, NeighState::Reachable);
    b.neigh("10.0.0.12", 2, NeighState::Reachable);
    let (one, two) = (b.look(RS).unwrap(), b.look("10.0.0.12").unwrap());
    assert_eq!(b.look("10.0.0.13"), Err(RouteError::TooManyNextHops));
    assert_eq!(b.look(RS), Ok(one), "those that have a line keep it");
    let epoch = b.routes.epoch();
    for _ in 0..LINE_IDLE_SECS {
        b.routes.note_used(two, b.now.tick());
        b.wait(1010);
    }
    assert_eq!(b.routes.get(one).state, HopState::Gone);
    assert_eq!(b.routes.get(two).state, HopState::Ready);
    assert_eq!(b.routes.epoch(), epoch);
    b.neigh("10.0.0.13", 3, NeighState::Reachable);
    let three = b.look("10.0.0.13").unwrap();
    assert_eq!(b.routes.get(three).dst_mac[5], 3);
    assert_eq!(b.routes.get(one), Hop::GONE, "the line serves another now");
    assert_eq!(b.routes.hops().len(), 2);
}

#[test]
fn addresses_that_nobody_has_do_not_hold_lines_for_long() {
    let mut b = Box4::with_lines(4);
    for i in 100..104 {
        b.look(&format!("10.0.0.{i}")).unwrap();
    }
    assert_eq!(b.look(RS), Err(RouteError::TooManyNextHops));
    b.wait(1000 * (UNRESOLVED_IDLE_SECS + 1));
    b.look(RS).unwrap();
    assert_eq!(b.routes.stats().lines, 1);
}
