//! The table against a plain list, in tables so small that keys move and overflow.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Step {
    Insert { client: u32, service: u32, out: bool, template: bool, half_open: bool, timeout: u32 },
    Remove(usize),
    Settle(usize),
    Evict(u32, bool),
    Touch(usize, u32),
    Expire(u32, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..60u32, 0..3u32, any::<bool>(), prop::bool::weighted(0.1), any::<bool>(), 0..200u32)
            .prop_map(|(client, service, out, template, half_open, timeout)|
                Step::Insert { client, service, out, template, half_open, timeout }),
        1 => any::<prop::sample::Index>().prop_map(|i| Step::Settle(i.index(1 << 20))),
        1 => (0..60u32, any::<bool>()).prop_map(|(client, template)| Step::Evict(client, template)),
        2 => any::<prop::sample::Index>().prop_map(|i| Step::Remove(i.index(1 << 20))),
        1 => (any::<prop::sample::Index>(), 0..200u32).prop_map(|(i, t)| Step::Touch(i.index(1 << 20), t)),
        1 => (0..50u32, 1..20usize).prop_map(|(t, n)| Step::Expire(t, n)),
    ]
}

fn conn(family: Family, client: u32, service: u32) -> NewConn {
    let base = nat(family, client);
    NewConn { virt: (addr(family, 0xc633_6450 + service), 80), ..base }
}

/// What there is, by name, each with its last packet; and the half-open ones, the oldest first.
#[derive(Default)]
struct Model(BTreeMap<u64, (NewConn, Tick)>, Vec<u64>);

impl Model {
    fn expected(&self, new: &NewConn, max: usize) -> Result<(), InsertError> {
        let owner = |tuple: Tuple, template: bool| {
            self.0.iter().find(|(_, (c, _))| {
                c.is_template == template
                    && (c.tuple_in() == tuple || c.index_out && !c.is_template && c.tuple_out() == tuple)
            })
        };
        if let Some((id, _)) = owner(new.tuple_in(), new.is_template) {
            return Err(InsertError::Existing(ConnRef::from_u64(*id)));
        }
        if new.index_out && !new.is_template && owner(new.tuple_out(), false).is_some() {
            return Err(InsertError::ReplyTaken);
        }
        if self.0.len() >= max { Err(InsertError::Full) } else { Ok(()) }
    }

    fn nth(&self, n: usize) -> Option<u64> {
        (!self.0.is_empty()).then(|| *self.0.keys().nth(n % self.0.len()).unwrap())
    }

    /// The half-open ones of a shard of a table with so many, the oldest first.
    fn waiting(&self, shard: u32, ways: u32) -> Vec<u64> {
        self.1.iter().copied().filter(|id| ConnRef::from_u64(*id).slot % ways == shard).collect()
    }

    fn forget(&mut self, id: u64) {
        self.0.remove(&id);
        self.1.retain(|waiting| *waiting != id);
    }

    fn check(&self, t: &ConnTable, family: Family) {
        assert_eq!(t.len(family), self.0.len());
        let mut there: Vec<u64> = all(t).iter().map(|id| id.to_u64()).collect();
        there.sort_unstable();
        assert_eq!(there, self.0.keys().copied().collect::<Vec<_>>());
        for client in 0..60 {
            for service in 0..3 {
                let new = conn(family, client, service);
                let flow = |c: &&NewConn| !c.is_template && c.tuple_in() == new.tuple_in();
                let reply = |c: &&NewConn| !c.is_template && c.index_out && c.tuple_out() == new.tuple_out();
                let template = |c: &&NewConn| c.is_template && c.tuple_in() == new.tuple_in();
                let named = |f: &dyn Fn(&&NewConn) -> bool| {
                    self.0.iter().find(|(_, (c, _))| f(&c)).map(|(id, _)| ConnRef::from_u64(*id))
                };
                assert_eq!(find(t, new.tuple_in()), named(&flow).map(|id| (id, Direction::In)));
                assert_eq!(find(t, new.tuple_out()), named(&reply).map(|id| (id, Direction::Out)));
                assert_eq!(t.lookup_template(&new.tuple_in()).map(|c| c.id()), named(&template));
            }
        }
    }
}

fn play(family: Family, max: u32, buckets: u32, steps: &[Step]) -> Stats {
    let t = crowded(max, buckets);
    let mut model = Model::default();
    let mut now = Tick(u32::MAX - 200);
    let mut most = Stats::default();
    for step in steps {
        match *step {
            Step::Insert { client, service, out, template, half_open, timeout } => {
                let new = conn(family, client, service);
                let new = NewConn { index_out: out, is_template: template, half_open, timeout, ..new };
                let got = t.insert(now, &new).map(|c| c.id());
                match model.expected(&new, max as usize) {
                    Ok(()) => {
                        model.0.insert(got.unwrap().to_u64(), (new, now));
                        model.1.extend(half_open.then(|| got.unwrap().to_u64()));
                    }
                    Err(e) => assert_eq!(got, Err(e)),
                }
            }
            Step::Remove(n) => {
                let Some(id) = model.nth(n) else { continue };
                model.forget(id);
                assert!(t.remove(ConnRef::from_u64(id)).is_some());
                assert!(t.remove(ConnRef::from_u64(id)).is_none());
            }
            Step::Settle(n) => {
                let Some(id) = model.nth(n) else { continue };
                let c = t.get(ConnRef::from_u64(id)).unwrap();
                let word = c.word();
                assert_eq!(word.is_half_open(), model.1.contains(&id));
                t.settle(&c, word, 7, word.flags()).unwrap();
                assert_eq!((c.word().is_half_open(), c.state(), c.flags()), (false, 7, word.flags()));
                model.1.retain(|waiting| *waiting != id);
            }
            Step::Evict(client, template) => {
                let new = NewConn { is_template: template, ..conn(family, client, 0) };
                let gone = t.evict(&new).map(|gone| {
                    assert!(t.get(gone.id).is_none());
                    let (was, _) = model.0[&gone.id.to_u64()];
                    let told = (gone.dest, gone.template, gone.is_template);
                    assert_eq!(told, (was.dest, was.template, was.is_template));
                    gone.id.to_u64()
                });
                let ways = t.half(family).ways();
                let all: Vec<_> = (0..ways).map(|shard| model.waiting(shard, ways)).collect();
                assert_eq!(gone.is_none(), model.1.is_empty());
                let Some(gone) = gone else { continue };
                let queue = all.iter().find(|queue| queue.contains(&gone)).unwrap();
                assert_eq!(queue[0], gone, "the oldest of its queue");
                assert!(queue.len() * ways as usize >= model.1.len(), "of a short queue");
                model.forget(gone);
            }
            Step::Touch(n, timeout) => {
                let Some(id) = model.nth(n) else { continue };
                let (new, seen) = model.0.get_mut(&id).unwrap();
                (new.timeout, *seen) = (timeout, now);
                let id = ConnRef::from_u64(id);
                t.get(id).unwrap().touch(now, timeout);
                t.rearm(id, now);
            }
            Step::Expire(ticks, budget) => {
                now = now.plus(ticks);
                let mut gone = Vec::new();
                let mut on_expire = |c: Conn<'_>| {
                    gone.push(c.id().to_u64());
                    Expiry::Remove
                };
                while t.expire(now, budget, &mut on_expire) == budget {}
                gone.sort_unstable();
                let due = |c: &NewConn, seen: Tick| now.since(seen) > c.timeout;
                let want: Vec<u64> =
                    model.0.iter().filter(|(_, (c, s))| due(c, *s)).map(|(id, _)| *id).collect();
                assert_eq!(gone, want);
                model.0.retain(|_, (c, s)| !due(c, *s));
                model.1.retain(|id| model.0.contains_key(id));
            }
        }
        let stats = t.stats(family);
        assert_eq!(stats.half_open as usize, model.1.len());
        assert_eq!(t.is_pressed(family, 3), model.1.len() >= 3 || model.0.len() >= max as usize);
        most.overflow = most.overflow.max(stats.overflow);
        most.moves = stats.moves;
    }
    model.check(&t, family);
    for id in all(&t) {
        assert!(t.remove(id).is_some());
    }
    // nothing is left behind in the index
    let half = t.half(family);
    assert_eq!((t.half_open(family), t.evict(&conn(family, 0, 0)).is_none()), (0, true));
    assert_eq!(half.index.fill()[0], buckets);
    assert_eq!(half.index.overflowing(), 0);
    most
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: proptest::test_runner::RngSeed::Fixed(2), ..ProptestConfig::default() })]
    #[test]
    fn agrees_with_a_list(
        v6 in any::<bool>(),
        max in 1..60u32,
        buckets in 1..12u32,
        steps in prop::collection::vec(step(), 1..400),
    ) {
        play(if v6 { Family::V6 } else { Family::V4 }, max, buckets, &steps);
    }
}

/// The cases above would prove little if no key moved or overflowed in them.
#[test]
fn small_tables_move_and_overflow() {
    let steps: Vec<_> = (0..60)
        .map(|client| Step::Insert {
            client,
            service: 0,
            out: true,
            template: false,
            half_open: false,
            timeout: 100,
        })
        .collect();
    let crowded = play(Family::V4, 60, 8, &steps);
    assert!(crowded.overflow >= 120 - 64 && crowded.overflow < 80, "{crowded:?}");
    let full = play(Family::V4, 60, 16, &steps);
    assert!(full.moves > 0 && full.overflow <= 2, "{full:?}");
}

/// Full to the last slot, at the size that the table would choose: all keys in the index, none in the overflow map.
#[test]
fn the_chosen_size_holds_its_limit_without_overflow() {
    let t = table(50_000);
    for n in 0..50_000 {
        t.insert(Tick(0), &nat(Family::V4, n)).unwrap();
    }
    assert_eq!(t.insert(Tick(0), &nat(Family::V4, 50_000)).unwrap_err(), InsertError::Full);
    let stats = t.stats(Family::V4);
    assert_eq!((stats.connections, stats.overflow, stats.full), (50_000, 0, 1));
    for n in 0..50_000 {
        let new = nat(Family::V4, n);
        let c = find(&t, new.tuple_in()).unwrap();
        assert_eq!(find(&t, new.tuple_out()), Some((c.0, Direction::Out)));
    }
}

/// How full the index can be before keys overflow (nominal load is 0.8).
#[test]
fn moves_fill_the_index_to_nine_tenths() {
    let buckets = 4096;
    let t = crowded(buckets * 4, buckets);
    let mut keys = 0;
    for n in 0.. {
        t.insert(Tick(0), &nat(Family::V4, n)).unwrap();
        if t.stats(Family::V4).overflow > 0 {
            break;
        }
        keys += 2;
    }
    let load = f64::from(keys) / f64::from(buckets * 8);
    assert!(load > 0.9, "{load}");
}
