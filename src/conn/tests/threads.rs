//! Several threads on the same keys.

use super::*;
use std::sync::Barrier;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

const THREADS: u32 = 4;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as u32) % n
    }
}

/// What a found connection says of itself must be what was looked for, if it was there all the time.
fn check(t: &ConnTable, new: &NewConn, tuple: Tuple) {
    if let Some((c, d)) = t.lookup(t.hash(&tuple), &tuple) {
        let seen = (c.client(), c.virt(), c.dest(), c.proto());
        if c.is_live() {
            assert_eq!(seen, (new.client, new.virt, new.dest, new.proto));
            let (src, dst) = if d == Direction::In { (c.client(), c.virt()) } else { (c.real(), c.client()) };
            assert!(!c.is_live() || (src, dst) == ((tuple.src, tuple.sport), (tuple.dst, tuple.dport)));
        }
    }
}

#[test]
fn overlapping_keys_in_a_crowded_table() {
    const CLIENTS: u32 = 90;
    for (family, buckets) in [(Family::V4, 24), (Family::V4, 4), (Family::V6, 24)] {
        let t = &crowded(64, buckets);
        // insertions less removals of each client, by who succeeded
        let alive: &Vec<AtomicU32> = &(0..CLIENTS).map(|_| AtomicU32::new(0)).collect();
        let (start, clock) = (&Barrier::new(THREADS as usize), &AtomicU32::new(0));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    let mut random = Random(thread.into());
                    start.wait();
                    for _ in 0..20_000 {
                        let client = random.below(CLIENTS);
                        let half_open = random.below(2) == 0;
                        let new = NewConn { timeout: 1, half_open, dest: client, ..nat(family, client) };
                        let now = Tick(clock.fetch_add(1, Relaxed) / 16);
                        let number = |c: &Conn<'_>| {
                            let high = (c.client().0.0 as u32 - 0x0a00_0000) & 0xffff;
                            (high * 7 + u32::from(c.client().1) - 1024) as usize
                        };
                        match random.below(10) {
                            0..3 => match t.insert(now, &new) {
                                Ok(_) => {
                                    alive[client as usize].fetch_add(1, SeqCst);
                                }
                                Err(InsertError::Existing(id)) => assert_ne!(id.generation, 0),
                                Err(InsertError::Full) => {}
                                // keys never meet here but for the same client, whose first key is asked for first
                                Err(InsertError::ReplyTaken) => panic!("reply taken"),
                            },
                            3 => {
                                let id = find(t, new.tuple_out()).map(|(id, _)| id);
                                if id.is_some_and(|id| t.remove(id).is_some()) {
                                    alive[client as usize].fetch_sub(1, SeqCst);
                                }
                            }
                            4 => {
                                t.expire(now, 4, &mut |c| {
                                    if c.client().1 % 2 == 0 {
                                        return Expiry::Keep(2);
                                    }
                                    alive[number(&c)].fetch_sub(1, SeqCst);
                                    Expiry::Remove
                                });
                            }
                            5 => {
                                if let Some((id, _)) = find(t, new.tuple_in()) {
                                    t.rearm(id, now);
                                }
                            }
                            6 => {
                                // its destination tells which client's it was
                                if let Some(gone) = t.evict(&new) {
                                    alive[gone.dest as usize].fetch_sub(1, SeqCst);
                                }
                            }
                            7 => {
                                let found = find(t, new.tuple_in()).and_then(|(id, _)| t.get(id));
                                if let Some(c) = found {
                                    let word = c.word();
                                    if t.settle(&c, word, 5, 0).is_ok() && c.is_live() {
                                        assert!(
                                            !c.word().is_half_open()
                                                || word.generation() != c.word().generation()
                                        );
                                    }
                                }
                            }
                            _ => {
                                check(t, &new, new.tuple_in());
                                check(t, &new, new.tuple_out());
                            }
                        }
                    }
                });
            }
        });
        let left = all(t);
        assert_eq!(left.len(), t.len(family));
        for client in 0..CLIENTS {
            let new = nat(family, client);
            let found = find(t, new.tuple_in()).map(|(id, _)| id);
            assert_eq!(found.is_some() as u32, alive[client as usize].load(Relaxed), "client {client}");
            assert_eq!(find(t, new.tuple_out()).map(|(id, _)| id), found);
        }
        let half_open = left.iter().filter(|id| t.get(**id).is_some_and(|c| c.word().is_half_open())).count();
        assert_eq!(
            (t.half_open(family) as usize, t.stats(family).half_open as usize),
            (half_open, half_open)
        );
        let evicted = std::iter::from_fn(|| t.evict(&nat(family, 0))).count();
        assert_eq!(evicted, half_open, "each is found");
        let left = all(t);
        assert_eq!(expire_all(t, Tick(1 << 20)).len(), left.len(), "each has a timer");
        assert_eq!(t.half(family).index.fill()[0], buckets);
        assert_eq!(t.stats(family).overflow, 0);
    }
}

/// Connections that are there all the time are found at every look, while others' coming and going moves them.
#[test]
fn moves_hide_nothing() {
    const STAY: u32 = 90;
    // 94 pairs stay of the 240 places, and others fill the rest
    let t = &crowded(1000, 30);
    let stay: Vec<_> = (0..STAY).map(|n| NewConn { index_out: false, ..nat(Family::V4, n) }).collect();
    for new in &stay {
        t.insert(Tick(0), new).unwrap();
    }
    let stay = &stay;
    let (start, running) = (&Barrier::new(3), &AtomicU32::new(2));
    std::thread::scope(|scope| {
        for thread in 0..2u32 {
            scope.spawn(move || {
                let mut random = Random(thread.into());
                let mut mine = std::collections::VecDeque::new();
                start.wait();
                for n in 0..40_000u32 {
                    let client = 1000 + random.below(1 << 20) * 2 + thread;
                    let new = NewConn { index_out: false, ..nat(Family::V4, client) };
                    if let Ok(c) = t.insert(Tick(n / 4), &new) {
                        mine.push_back(c.id());
                    }
                    if mine.len() > 66 {
                        assert!(t.remove(mine.pop_front().unwrap()).is_some());
                    }
                }
                running.fetch_sub(1, SeqCst);
            });
        }
        scope.spawn(move || {
            start.wait();
            let mut rounds = 0;
            while running.load(SeqCst) != 0 || rounds < 10 {
                for new in stay {
                    assert!(find(t, new.tuple_in()).is_some(), "{new:?}");
                }
                rounds += 1;
            }
        });
    });
    let stats = t.stats(Family::V4);
    assert!(stats.moves > 1000, "{stats:?}");
}

/// Of several that insert the same at the same moment one wins, and the others are told which.
#[test]
fn one_of_many_wins() {
    let t = &table(10_000);
    let start = &Barrier::new(THREADS as usize);
    let won: Vec<Vec<Option<ConnRef>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(move || {
                    start.wait();
                    let insert = |n| match t.insert(Tick(0), &nat(Family::V4, n)) {
                        Ok(c) => Some(c.id()),
                        Err(InsertError::Existing(id)) => {
                            assert_eq!(find(t, nat(Family::V4, n).tuple_in()), Some((id, Direction::In)));
                            None
                        }
                        Err(e) => panic!("{e}"),
                    };
                    (0..5000).map(insert).collect()
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for n in 0..5000 {
        assert_eq!(won.iter().filter(|w| w[n].is_some()).count(), 1, "connection {n}");
    }
    assert_eq!(t.len(Family::V4), 5000);
}
