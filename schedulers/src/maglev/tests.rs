use super::*;
use proptest::prelude::*;

/// The algorithm as the paper prints it, with its turns dealt out as `fill` says: every free slot by walking.
fn by_the_book(candidates: &[(u32, u32, u32)], size: u32) -> Vec<u16> {
    let heaviest = candidates.iter().map(|candidate| candidate.2).max().unwrap_or(0);
    let rounds = heaviest.min((4 * size).div_ceil(candidates.len() as u32)).max(1);
    let mut entries: Vec<Option<u16>> = vec![None; size as usize];
    let mut next = vec![0_u64; candidates.len()];
    let rounded_up =
        |quota: u32, round: u32| (u64::from(quota) * u64::from(round)).div_ceil(u64::from(rounds));
    for round in 0..rounds {
        for (i, &(offset, skip, quota)) in candidates.iter().enumerate() {
            for _ in rounded_up(quota, round)..rounded_up(quota, round + 1) {
                let slot = loop {
                    let slot = (u64::from(offset) + next[i] * u64::from(skip)) % u64::from(size);
                    next[i] += 1;
                    if entries[slot as usize].is_none() {
                        break slot as usize;
                    }
                };
                entries[slot] = Some(i as u16);
            }
        }
    }
    entries.into_iter().map(|entry| entry.expect("the quotas sum up to the size")).collect()
}

fn filled(candidates: &[(u32, u32, u32)], size: u32) -> Vec<u16> {
    let mut slots = Vec::new();
    let new = |&(offset, skip, quota): &(u32, u32, u32)| Candidate::new(offset, skip, quota);
    fill::fill(candidates.iter().map(new).collect(), size, &mut slots);
    slots
}

#[test]
fn the_example_of_the_paper() {
    // Table 1 of the paper: M = 7, three servers with (offset, skip) = (3, 4), (0, 2) and (3, 1).
    let quotas = fill::quotas(&[1, 1, 1], 7);
    assert_eq!(quotas, [3, 2, 2]);
    assert_eq!(filled(&[(3, 4, 3), (0, 2, 2), (3, 1, 2)], 7), [1, 0, 1, 0, 2, 2, 0]);
    // Without the second server.
    assert_eq!(filled(&[(3, 4, 4), (3, 1, 3)], 7), [0, 0, 0, 0, 2, 2, 2].map(|i: u16| i.min(1)));
}

#[test]
fn equal_weights_share_within_one_slot() {
    for (count, size) in [(1, 7), (3, 7), (6, 7), (10, 4093), (1000, 65_537)] {
        let quotas = fill::quotas(&vec![5; count], size);
        assert_eq!(quotas.iter().sum::<u32>(), size);
        assert!(quotas.iter().max().unwrap() - quotas.iter().min().unwrap() <= 1, "{count} of {size}");
    }
}

#[test]
fn shares_follow_the_weights_and_none_is_left_without() {
    assert_eq!(fill::quotas(&[1, 2, 4], 7), [1, 2, 4]);
    assert_eq!(fill::quotas(&[3, 1], 101), [76, 25]);
    assert_eq!(fill::quotas(&[i32::MAX as u32, 1, 1], 101), [99, 1, 1]);
    assert_eq!(fill::quotas(&[1 << 30, 1 << 30, 1, 1, 1], 11), [4, 4, 1, 1, 1]);
    let mut weights = vec![1; 65_535];
    weights.push(i32::MAX as u32);
    let quotas = fill::quotas(&weights, 65_537);
    assert_eq!(quotas.iter().map(|q| u64::from(*q)).sum::<u64>(), 65_537);
    assert_eq!(quotas.iter().min(), Some(&1));
    assert!(fill::quotas(&[], 7).is_empty());
}

const PRIMES: [u32; 8] = [2, 3, 7, 31, 251, 1021, 4093, 16_381];

fn candidates() -> impl Strategy<Value = (u32, Vec<(u32, u32, u32)>)> {
    let weights = || {
        prop_oneof![
            proptest::collection::vec(1..=1_u32, 1..60),
            proptest::collection::vec(1..=100_u32, 1..60),
            proptest::collection::vec(1..=i32::MAX as u32, 1..60),
        ]
    };
    (proptest::sample::select(PRIMES.as_slice()), weights(), any::<u64>()).prop_map(
        |(size, mut weights, seed)| {
            weights.truncate(size as usize);
            let hash = |i: usize, key: u64| siphash13([seed, key], &i.to_le_bytes());
            let modulus = u64::from(size);
            let quotas = fill::quotas(&weights, size);
            let place = |i| ((hash(i, 1) % modulus) as u32, (hash(i, 2) % (modulus - 1) + 1) as u32);
            let candidates =
                quotas.iter().enumerate().map(|(i, quota)| (place(i).0, place(i).1, *quota)).collect();
            (size, candidates)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_quick_fill_is_that_of_the_book((size, candidates) in candidates()) {
        prop_assert_eq!(filled(&candidates, size), by_the_book(&candidates, size));
    }

    #[test]
    fn quotas_sum_up_and_err_by_less_than_one(weights in proptest::collection::vec(1..=1000_u32, 1..60)) {
        let size = 65_537;
        let quotas = fill::quotas(&weights, size);
        prop_assert_eq!(quotas.iter().sum::<u32>(), size);
        let total: u32 = weights.iter().sum();
        for (quota, weight) in quotas.iter().zip(&weights) {
            let exact = f64::from(size) * f64::from(*weight) / f64::from(total);
            prop_assert!((f64::from(*quota) - exact).abs() < 1.0, "{} for {}", quota, exact);
        }
    }
}

#[test]
fn the_quick_fill_is_that_of_the_book_at_full_size() {
    let hash = |i: u32, key: u64| siphash13([7, key], &i.to_le_bytes());
    for (count, size) in [(1000, 65_537), (37, 655_373)] {
        let quotas = fill::quotas(&vec![1; count], size);
        let place = |i: u32, key, modulus: u32| (hash(i, key) % u64::from(modulus)) as u32;
        let candidates: Vec<_> = (0..)
            .zip(&quotas)
            .map(|(i, quota)| (place(i, 1, size), place(i, 2, size - 1) + 1, *quota))
            .collect();
        assert!(filled(&candidates, size) == by_the_book(&candidates, size), "{count} of {size}");
    }
}

/// Servers whose weights a test sets.
#[derive(Clone)]
struct Few(Vec<(u8, u32)>);

impl Servers for Few {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn load(&self, index: usize) -> crate::Load {
        crate::Load { weight: self.0[index].1, active: 0, inactive: 0, overloaded: false }
    }
    fn identity(&self, index: usize) -> (IpAddr, u16) {
        ([10, 0, 0, self.0[index].0].into(), 80)
    }
}

fn choices(scheduler: &mut dyn Scheduler, servers: &Few) -> Vec<Option<u8>> {
    let flow = |n: u16| Flow {
        client: [192, 0, 2, n as u8].into(),
        client_port: n,
        virt: [198, 51, 100, 1].into(),
        virt_port: 80,
    };
    (0..2000).map(|n| scheduler.pick(servers, &flow(n)).map(|index| servers.0[index].0)).collect()
}

proptest! {
    /// Whatever changes while a table is being built: until it is installed no pick is of a server that is gone or has no weight, and
    /// none is refused that a server could take; afterwards all are as of a scheduler that was made anew.
    #[test]
    fn a_planned_table_is_built_beside_the_old_one(
        start in prop::collection::vec(0..4_u32, 1..6),
        changes in prop::collection::vec((0..3_u8, any::<prop::sample::Index>(), 0..4_u32), 1..8),
    ) {
        let mut servers = Few((1..).zip(start).collect());
        let mut scheduler = create(&Options::default(), &servers).unwrap();
        let mut plans = Vec::new();
        for (n, (kind, at, weight)) in changes.into_iter().enumerate() {
            let len = servers.0.len();
            match kind {
                0 => {
                    let index = at.index(len + 1);
                    servers.0.insert(index, (100 + n as u8, weight));
                    scheduler.added(&servers, index);
                }
                1 if len > 0 => {
                    servers.0.remove(at.index(len));
                    scheduler.removed(&servers, at.index(len));
                }
                _ if len > 0 => {
                    servers.0[at.index(len)].1 = weight;
                    scheduler.changed(&servers, at.index(len));
                }
                _ => {}
            }
            plans.extend(scheduler.plan(&servers));
            prop_assert!(scheduler.plan(&servers).is_none(), "planned already");
            let known = |k: &u8| servers.0.iter().any(|(s, w)| s == k && *w > 0);
            for choice in choices(&mut *scheduler, &servers).into_iter().flatten() {
                prop_assert!(known(&choice), "{}", choice);
            }
        }
        let mut fresh = create(&Options::default(), &servers).unwrap();
        // the last is the one that counts, whatever the order
        for plan in plans.into_iter().rev() {
            scheduler.install(&mut plan.build());
        }
        prop_assert_eq!(choices(&mut *scheduler, &servers), choices(&mut *fresh, &servers));
    }
}

#[test]
fn while_a_table_is_built_others_take_a_gone_servers_clients() {
    let mut servers = Few(vec![(1, 1), (2, 1), (3, 1)]);
    let mut scheduler = create(&Options::default(), &servers).unwrap();
    let before = choices(&mut *scheduler, &servers);
    servers.0.remove(1);
    scheduler.removed(&servers, 1);
    let plan = scheduler.plan(&servers).unwrap();
    let meanwhile = choices(&mut *scheduler, &servers);
    for (before, now) in before.iter().zip(&meanwhile) {
        assert!(
            now.is_some() && *now != Some(2) && (*before == Some(2) || before == now),
            "{before:?} {now:?}"
        );
    }
    scheduler.install(&mut plan.build());
    assert!(scheduler.plan(&servers).is_none());
    assert!(choices(&mut *scheduler, &servers).iter().all(|choice| matches!(choice, Some(1 | 3))));
}
