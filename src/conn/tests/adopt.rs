//! Taking over what another daemon left.

use super::*;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;

/// Memory that outlives a table, as pinned maps do.
struct Pinned([OwnedFd; 4], [usize; 4]);

impl Pinned {
    fn new(max: u32) -> Pinned {
        let (e4, i4) = Memory::sizes(Family::V4, max);
        let (e6, i6) = Memory::sizes(Family::V6, max);
        let sizes = [e4, i4, e6, i6];
        let fds = sizes.map(|bytes| {
            let fd = rustix::fs::memfd_create("lvsd-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&fd, bytes.next_multiple_of(4096) as u64).unwrap();
            fd
        });
        Pinned(fds, sizes)
    }

    fn region(&self, n: usize) -> Region {
        Region::map_fd(&self.0[n], self.1[n]).unwrap()
    }

    fn open(&self, max: u32, now: Tick) -> ConnTable {
        let memory = Memory {
            v4_entries: self.region(0),
            v4_index: self.region(1),
            v6_entries: self.region(2),
            v6_index: self.region(3),
        };
        ConnTable::with_memory(config(max), memory, now).unwrap()
    }
}

#[test]
fn nothing_is_lost_and_nothing_dead_comes_back() {
    let pinned = Pinned::new(200);
    let mut kept = Vec::new();
    let mut removed = Vec::new();
    {
        let t = pinned.open(200, Tick(1000));
        for family in [Family::V4, Family::V6] {
            for n in 0..200 {
                let new = NewConn { timeout: 300, ..nat(family, n) };
                let c = t.insert(Tick(1000 + n), &new).unwrap();
                c.count_packet();
                if n % 3 == 0 {
                    removed.push((c.id(), nat(family, n)))
                } else {
                    kept.push((c.id(), nat(family, n), n))
                }
            }
        }
        for (id, _) in &removed {
            assert!(t.remove(*id).is_some());
        }
    }
    let t = pinned.open(200, Tick(1300));
    assert_eq!(t.len(Family::V4) + t.len(Family::V6), kept.len());
    for (id, new, _) in &kept {
        assert_eq!(find(&t, new.tuple_in()), Some((*id, Direction::In)));
        assert_eq!(find(&t, new.tuple_out()), Some((*id, Direction::Out)));
        assert_eq!(t.get(*id).unwrap().packets(), 1);
    }
    for (id, new) in &removed {
        assert_eq!((t.get(*id).is_none(), find(&t, new.tuple_in())), (true, None));
    }
    // their slots are used again, under new names
    for tick in [1300, 1301, 1302, 1303, 1304] {
        expire_all(&t, Tick(1000));
        t.v4.shards.iter().for_each(|s| table::lock(s).tick(Tick(tick)));
    }
    let again = t.insert(Tick(1304), &nat(Family::V4, 0)).unwrap().id();
    assert!(removed.iter().all(|(id, _)| *id != again));
    assert!(t.remove(again).is_some());
    // and timers go by the last packet
    let gone = expire_all(&t, Tick(1351));
    let mut due: Vec<_> = kept.iter().filter(|k| k.2 <= 50).map(|k| k.0).collect();
    let mut gone: Vec<_> = gone.into_iter().collect();
    gone.sort_by_key(|id| id.to_u64());
    due.sort_by_key(|id| id.to_u64());
    assert_eq!(gone, due);
}

/// A daemon killed anywhere in an insertion, removal or move leaves what this makes by hand.
#[test]
fn a_half_done_change_is_mended() {
    let pinned = Pinned::new(50);
    let new: Vec<_> = (0..20).map(|n| nat(Family::V4, n)).collect();
    let ids: Vec<_> = {
        let t = pinned.open(50, Tick(0));
        new.iter().map(|n| t.insert(Tick(0), n).unwrap().id()).collect()
    };
    let (entries, index) = (pinned.region(0), pinned.region(1));
    let word = |id: ConnRef| &entries.words()[id.slot as usize * 8];
    let pairs_of = |id: ConnRef| {
        index.words().iter().filter(move |w| {
            let w = w.load(Relaxed);
            w != 0 && layout::pair_slot(w) == id.slot
        })
    };
    // removed, pairs still there
    word(ids[0]).fetch_and(!u64::from(layout::LIVE), Relaxed);
    // published, only one pair or none there
    pairs_of(ids[1]).next().unwrap().store(0, Relaxed);
    pairs_of(ids[2]).for_each(|w| w.store(0, Relaxed));
    // being decided upon
    word(ids[3]).fetch_or(layout::EXPIRING.into(), Relaxed);
    // copied and not yet cleared: a second copy of a pair in the other bucket
    let n = layout::buckets(50);
    let (at, pair) = index
        .words()
        .iter()
        .enumerate()
        .map(|(at, w)| (at, w.load(Relaxed)))
        .find(|&(at, w)| {
            let other = layout::other_bucket((at / 8) as u32, layout::pair_tag(w), n) as usize;
            w != 0 && layout::pair_slot(w) == ids[4].slot && other != at / 8
        })
        .unwrap();
    let other = layout::other_bucket((at / 8) as u32, layout::pair_tag(pair), n) as usize;
    let free = index.words()[other * 8..][..8].iter().find(|w| w.load(Relaxed) == 0).unwrap();
    free.store(pair, Relaxed);
    // rubbish
    let free = index.words().iter().find(|w| w.load(Relaxed) == 0).unwrap();
    free.store(u64::MAX, Relaxed);

    let t = pinned.open(50, Tick(10));
    assert_eq!(t.len(Family::V4), 19);
    assert_eq!(find(&t, new[0].tuple_in()), None);
    for (id, new) in ids.iter().zip(&new).skip(1) {
        assert_eq!(find(&t, new.tuple_in()), Some((*id, Direction::In)));
        assert_eq!(find(&t, new.tuple_out()), Some((*id, Direction::Out)));
    }
    assert_eq!(index.words().iter().filter(|w| w.load(Relaxed) != 0).count(), 38);
    assert_eq!(expire_all(&t, Tick(1000)).len(), 19);
    assert!(index.words().iter().all(|w| w.load(Relaxed) == 0));
}

#[test]
fn half_open_ones_stay_half_open() {
    let pinned = Pinned::new(50);
    let new = |n| NewConn { half_open: n % 2 == 0, ..nat(Family::V6, n) };
    {
        let t = pinned.open(50, Tick(0));
        for n in 0..20 {
            t.insert(Tick(0), &new(n)).unwrap();
        }
    }
    let t = pinned.open(50, Tick(0));
    assert_eq!((t.len(Family::V6), t.half_open(Family::V6)), (20, 10));
    assert_eq!(std::iter::from_fn(|| t.evict(&new(0))).count(), 10);
    assert!((0..20).all(|n| find(&t, new(n).tuple_in()).is_some() == (n % 2 == 1)));
}

#[test]
fn of_two_with_one_key_one_is_taken_over() {
    let pinned = Pinned::new(50);
    let new = nat(Family::V4, 0);
    {
        let t = pinned.open(50, Tick(0));
        for n in 0..5 {
            t.insert(Tick(0), &nat(Family::V4, n)).unwrap();
        }
    }
    let entries = pinned.region(0);
    // slot of connection 0 copied to a fresh one, as no daemon would do
    let from = (0..50).find(|s| {
        let w = &entries.words()[s * 8..][..3];
        w[0].load(Relaxed) != 0 && w[2].load(Relaxed) >> 48 == u64::from(new.client.1)
    });
    let from = from.unwrap();
    let to = (0..80).find(|s| entries.words()[s * 8].load(Relaxed) == 0).unwrap();
    for i in 0..8 {
        entries.words()[to * 8 + i].store(entries.words()[from * 8 + i].load(Relaxed), Relaxed);
    }
    let t = pinned.open(50, Tick(0));
    assert_eq!(t.len(Family::V4), 5);
    assert!(find(&t, new.tuple_in()).is_some() && find(&t, new.tuple_out()).is_some());
    assert_eq!(all(&t).len(), 5);
}

#[test]
fn too_short_an_area_is_named() {
    let pinned = Pinned::new(50);
    let memory = Memory {
        v4_entries: pinned.region(0),
        v4_index: Region::anonymous(64, false).unwrap(),
        v6_entries: pinned.region(2),
        v6_index: pinned.region(3),
    };
    let e = ConnTable::with_memory(config(50), memory, Tick(0)).unwrap_err();
    assert_eq!(e.to_string(), "the connection table's IPv4 index area has 64 bytes and needs 1024");
}
