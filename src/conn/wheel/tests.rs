use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Runs the wheel until nothing is due at `now`; gives what fired, and checks the budget.
fn run(w: &mut Wheel, now: Tick, budget: usize, room: usize, deadlines: &BTreeMap<u32, Tick>) -> Vec<u32> {
    let mut fired = Vec::new();
    loop {
        let mut due = Vec::with_capacity(room);
        let room = due.capacity();
        let moves = w.advance(now, budget, &mut due, |_| (), |i| deadlines.get(&i).copied());
        assert!(moves <= budget && due.len() <= room && due.len() <= moves);
        fired.extend(&due);
        if moves < budget && due.len() < room {
            return fired;
        }
    }
}

#[test]
fn fires_in_its_tick_on_every_level() {
    for start in [0, 63, 64, 4095, 1 << 20, u32::MAX - 5, u32::MAX] {
        for delay in [0, 1, 2, 63, 64, 65, 127, 128, 4095, 4096, 4097, 262_143, 262_144, 1 << 24, 1 << 30] {
            let start = Tick(start);
            let mut w = Wheel::new(1, start);
            let deadlines = BTreeMap::from([(0, start.plus(delay))]);
            w.arm(0, start, start.plus(delay));
            let mut calls = 0;
            loop {
                let next = w.next_deadline().expect("armed");
                assert!(
                    next.reached(start) && start.plus(delay).reached(next),
                    "{start:?} + {delay}: {next:?}"
                );
                // nothing in the tick before
                if next != start {
                    assert_eq!(run(&mut w, next.plus(u32::MAX), 100, 4, &deadlines), []);
                }
                calls += 1;
                if !run(&mut w, next, 100, 4, &deadlines).is_empty() {
                    assert_eq!(next, start.plus(delay));
                    break;
                }
            }
            assert!(calls <= LEVELS);
            assert_eq!((w.armed(), w.next_deadline()), (0, None));
        }
    }
}

#[test]
fn an_idle_wheel_follows_the_time() {
    for now in [1 << 31, 3 << 30, u32::MAX] {
        let now = Tick(now);
        let mut w = Wheel::new(1, Tick(0));
        let deadlines = BTreeMap::from([(0, now.plus(5))]);
        w.arm(0, now, now.plus(5));
        assert_eq!(w.next_deadline().map(|t| t.reached(now)), Some(true));
        assert_eq!(run(&mut w, now.plus(4), 9, 9, &deadlines), []);
        assert_eq!(run(&mut w, now.plus(5), 9, 9, &deadlines), [0]);
    }
}

#[test]
fn budget_of_one_still_fires_all_and_in_order() {
    let start = Tick(u32::MAX - 1000);
    let mut w = Wheel::new(500, start);
    let mut deadlines = BTreeMap::new();
    for i in 0..500u32 {
        let d = start.plus(i * i % 5000);
        deadlines.insert(i, d);
        w.arm(i, start, d);
    }
    let mut fired = Vec::new();
    let mut calls = 0;
    while fired.len() < 500 {
        let mut due = Vec::with_capacity(8);
        w.advance(start.plus(6000), 1, &mut due, |_| (), |i| deadlines.get(&i).copied());
        fired.extend(due);
        calls += 1;
        assert!(calls <= 500 * LEVELS);
    }
    assert!(fired.is_sorted_by_key(|i| deadlines[i].since(start)));
}

#[test]
fn lists_keep_all_items() {
    let mut w = Wheel::new(10, Tick(0));
    let (mut a, mut b) = (List::default(), List::default());
    assert_eq!(w.pop(&mut a), None);
    for i in 0..5 {
        w.push(&mut a, i);
    }
    w.append(&mut b, a);
    let mut a = List::default();
    for i in 5..10 {
        w.push(&mut a, i);
    }
    w.append(&mut b, a);
    w.append(&mut b, List::default());
    let mut all: Vec<u32> = std::iter::from_fn(|| w.pop(&mut b)).collect();
    all.sort_unstable();
    assert_eq!(all, (0..10).collect::<Vec<_>>());
    assert!(b.is_empty());
}

#[derive(Clone, Debug)]
enum Step {
    Arm(u32, u32),
    /// Moves the deadline without telling the wheel: to a later tick.
    Later(u32, u32),
    Forget(u32),
    Cancel(u32),
    Run(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let delay = prop_oneof![0..70u32, 0..5000u32, 0..1_000_000u32, Just(1 << 30)];
    let item = 0..24u32;
    prop_oneof![
        4 => (item.clone(), delay.clone()).prop_map(|(i, d)| Step::Arm(i, d)),
        1 => (item.clone(), delay.clone()).prop_map(|(i, d)| Step::Later(i, d)),
        1 => item.clone().prop_map(Step::Forget),
        1 => item.prop_map(Step::Cancel),
        3 => delay.prop_map(|d| Step::Run(d % 1_000_000)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(1), ..ProptestConfig::default() })]

    /// Against a map of deadlines: each fires exactly when the time reaches it, never before, never later.
    #[test]
    fn agrees_with_a_map(
        start in prop_oneof![any::<u32>(), u32::MAX - 3000..=u32::MAX, Just(0)],
        steps in prop::collection::vec(step(), 1..200),
        budget in 1..20usize,
        room in 1..5usize,
    ) {
        let mut now = Tick(start);
        let mut w = Wheel::new(24, now);
        // what the wheel's owner keeps, and which items are armed
        let mut deadlines = BTreeMap::new();
        let mut armed = std::collections::BTreeSet::new();
        for s in steps {
            match s {
                Step::Arm(i, d) => {
                    deadlines.insert(i, now.plus(d));
                    armed.insert(i);
                    w.arm(i, now, now.plus(d));
                }
                Step::Later(i, d) => {
                    if let Some(t) = deadlines.get_mut(&i) && now.plus(d).reached(*t) {
                        *t = now.plus(d);
                    }
                }
                Step::Forget(i) => {
                    deadlines.remove(&i);
                }
                Step::Cancel(i) => {
                    armed.remove(&i);
                    deadlines.remove(&i);
                    w.cancel(i);
                }
                Step::Run(d) => {
                    if let Some(next) = w.next_deadline() {
                        let is_due = |i: &&u32| deadlines.get(i).is_some_and(|t| !t.reached(next));
                        prop_assert_eq!(armed.iter().find(is_due), None, "due before next_deadline");
                    }
                    now = now.plus(d);
                    let mut fired = run(&mut w, now, budget, room, &deadlines);
                    fired.sort_unstable();
                    let due: Vec<u32> =
                        armed.iter().copied().filter(|i| deadlines.get(i).is_some_and(|t| now.reached(*t))).collect();
                    prop_assert_eq!(&fired, &due);
                    for i in due {
                        armed.remove(&i);
                        deadlines.remove(&i);
                    }
                }
            }
        }
        // those that were forgotten are dropped when their old time comes
        for _ in 0..3 {
            now = now.plus(1 << 30);
            run(&mut w, now, budget, room, &deadlines);
        }
        prop_assert_eq!(w.armed(), 0);
    }
}
