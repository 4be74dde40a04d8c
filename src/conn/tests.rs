//! Tests of the table as a whole.

use super::table::Half;
use super::*;
use crate::mem::Region;
use crate::time::Tick;
use modes::{Addr, Family};

mod adopt;
mod model;
mod spread;
mod threads;

const KEY: [u64; 2] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];

fn config(max: u32) -> Config {
    Config { max_v4: max, max_v6: max, hash_key: KEY, shards: 4 }
}

fn table(max: u32) -> ConnTable {
    ConnTable::new(config(max)).unwrap()
}

/// A table whose index has fewer buckets than it should, so that keys overflow.
fn crowded(max: u32, buckets: u32) -> ConnTable {
    let half = |family| {
        let (entries, _) = Memory::sizes(family, max);
        let region = |bytes| Region::anonymous(bytes, false).unwrap();
        let memory = (region(entries), region(buckets as usize * 64));
        Half::new(&config(max), family, max, memory, buckets, Tick(0))
    };
    ConnTable { v4: half(Family::V4), v6: half(Family::V6), hash_key: KEY }
}

fn addr(family: Family, n: u32) -> Addr {
    match family {
        Family::V4 => Addr(n.into()),
        Family::V6 => Addr(0x2001_0db8_0000_0000_0000_0001_0000_0000 | u128::from(n)),
    }
}

/// A NAT connection; each client number gives another.
fn nat(family: Family, client: u32) -> NewConn {
    NewConn {
        family,
        proto: 6,
        client: (addr(family, 0x0a00_0000 + client / 7), 1024 + (client % 7) as u16),
        virt: (addr(family, 0xc633_6450), 80),
        real: (addr(family, 0xc0a8_0001 + client % 3), 8080),
        dest: client % 3,
        method: 0,
        state: 1,
        flags: 0x15,
        timeout: 100,
        template: None,
        fwmark: 0,
        index_out: true,
        half_open: false,
        is_template: false,
    }
}

fn find(t: &ConnTable, tuple: Tuple) -> Option<(ConnRef, Direction)> {
    t.lookup(t.hash(&tuple), &tuple).map(|(c, d)| (c.id(), d))
}

/// Expires all that is due, removing it, and gives it in order.
fn expire_all(t: &ConnTable, now: Tick) -> Vec<ConnRef> {
    let mut gone = Vec::new();
    while t.expire(now, 7, &mut |c| {
        gone.push(c.id());
        Expiry::Remove
    }) == 7
    {}
    gone
}

fn all(t: &ConnTable) -> Vec<ConnRef> {
    let mut all = Vec::new();
    let mut cursor = Some(0);
    while let Some(c) = cursor {
        cursor = t.scan(c, 5, &mut |conn| all.push(conn.id()));
    }
    all
}

#[test]
fn what_is_put_in_comes_out() {
    for family in [Family::V4, Family::V6] {
        let t = table(100);
        let template = ConnRef { family, slot: 77, generation: 0xab_cdef };
        let new = NewConn {
            proto: 132,
            client: (addr(family, 0xfffe_fdfc), 0xfbfa),
            virt: (addr(family, 0x8182_8384), 0x8586),
            real: (addr(family, 0xf1f2_f3f4), 0xf5f6),
            dest: 0xdead_beef,
            method: 63,
            state: 255,
            flags: layout::FLAGS_MASK,
            timeout: 12345,
            template: Some(template),
            fwmark: 0x8000_0001,
            ..nat(family, 0)
        };
        let c = t.insert(Tick(u32::MAX), &new).unwrap();
        assert_eq!(
            (c.family(), c.proto(), c.client(), c.virt(), c.real()),
            (family, 132, new.client, new.virt, new.real)
        );
        assert_eq!((c.dest(), c.method(), c.state(), c.flags()), (new.dest, 63, 255, new.flags));
        assert_eq!((c.last_seen(), c.timeout(), c.template()), (Tick(u32::MAX), 12345, Some(template)));
        assert_eq!((c.fwmark(), c.packets(), c.route()), (new.fwmark, 0, (0, 0)));
        assert!(c.has_out_key() && !c.is_template() && c.is_live());
        for n in 0..3 {
            assert_eq!(c.count_packet(), n);
        }
        c.set_route(7, 9);
        c.touch(Tick(3), 8);
        assert_eq!((c.packets(), c.route(), c.last_seen(), c.timeout()), (3, (7, 9), Tick(3), 8));
        assert_eq!((c.template(), c.fwmark()), (Some(template), new.fwmark));
        assert_eq!(find(&t, new.tuple_in()), Some((c.id(), Direction::In)));
        assert_eq!(find(&t, new.tuple_out()), Some((c.id(), Direction::Out)));
        assert_eq!(ConnRef::from_u64(c.id().to_u64()), c.id());
    }
}

/// Each field of a tuple counts: a packet that differs in one belongs to no connection.
#[test]
fn nearly_the_same_is_not_found() {
    for family in [Family::V4, Family::V6] {
        let t = table(100);
        let new = nat(family, 5);
        let c = t.insert(Tick(0), &new).unwrap();
        for tuple in [new.tuple_in(), new.tuple_out()] {
            let flip = |a: Addr, bit: u32| Addr(a.0 ^ 1 << bit);
            let bits = if family == Family::V4 { 32 } else { 128 };
            let mut wrong = vec![
                Tuple { proto: 17, ..tuple },
                Tuple { sport: tuple.sport ^ 0x8000, ..tuple },
                Tuple { sport: tuple.sport ^ 1, ..tuple },
                Tuple { dport: tuple.dport ^ 0x8000, ..tuple },
                Tuple { dport: tuple.dport ^ 1, ..tuple },
                Tuple { src: tuple.dst, dst: tuple.src, sport: tuple.dport, dport: tuple.sport, ..tuple },
            ];
            for bit in 0..bits {
                wrong.push(Tuple { src: flip(tuple.src, bit), ..tuple });
                wrong.push(Tuple { dst: flip(tuple.dst, bit), ..tuple });
            }
            for w in wrong {
                assert_eq!(find(&t, w), None, "{w:?}");
                // and were it to meet the right tag, the entry's words would tell
                let key = entry::Key::of(&w, false);
                assert!(!c.entry.has_key(&key, false) && !c.entry.has_key(&key, true), "{w:?}");
            }
            assert_eq!(t.lookup_template(&tuple).map(|c| c.id()), None);
        }
    }
}

#[test]
fn templates_and_flows_do_not_meet() {
    let t = table(100);
    // a flow from port 0, of the protocol whose number a template bit inside the protocol byte would give
    let flow = NewConn { client: (Addr(1), 0), proto: 132, index_out: false, ..nat(Family::V4, 0) };
    let template = NewConn { proto: 4, is_template: true, index_out: true, ..flow };
    let same = NewConn { proto: 132, ..template };
    let f = t.insert(Tick(0), &flow).unwrap().id();
    let p = t.insert(Tick(0), &template).unwrap().id();
    let q = t.insert(Tick(0), &same).unwrap().id();
    assert_eq!(find(&t, flow.tuple_in()), Some((f, Direction::In)));
    assert_eq!(find(&t, template.tuple_in()), None);
    assert_eq!(t.lookup_template(&template.tuple_in()).map(|c| c.id()), Some(p));
    assert_eq!(t.lookup_template(&flow.tuple_in()).map(|c| c.id()), Some(q));
    assert_eq!(find(&t, same.tuple_out()), None);
    assert!(t.get(q).unwrap().is_template() && !t.get(q).unwrap().has_out_key());
}

#[test]
fn a_second_insertion_names_the_first() {
    let t = table(100);
    let new = nat(Family::V4, 1);
    let c = t.insert(Tick(0), &new).unwrap().id();
    assert_eq!(t.insert(Tick(0), &new).unwrap_err(), InsertError::Existing(c));
    // same client port, same server, by another service
    let other = NewConn { virt: (Addr(9), 81), ..new };
    assert_eq!(t.insert(Tick(0), &other).unwrap_err(), InsertError::ReplyTaken);
    assert_eq!(find(&t, other.tuple_in()), None);
    assert_eq!(t.len(Family::V4), 1);
    // without replies of its own there is no conflict
    assert!(t.insert(Tick(0), &NewConn { index_out: false, ..other }).is_ok());
    // a connection whose two keys are one
    let own = NewConn { client: (Addr(5), 5), virt: (Addr(5), 5), real: (Addr(5), 5), ..new };
    assert_eq!(t.insert(Tick(0), &own).unwrap_err(), InsertError::ReplyTaken);
    assert!(t.remove(c).is_some() && t.remove(c).is_none());
    assert!(t.insert(Tick(0), &other).is_err(), "its client's key is still taken");
    assert!(t.insert(Tick(0), &new).is_ok());
}

#[test]
fn removal_ends_everything_and_the_name_stays_void() {
    for family in [Family::V4, Family::V6] {
        let t = table(1);
        let new = nat(family, 1);
        let first = t.insert(Tick(0), &new).unwrap().id();
        assert_eq!(t.insert(Tick(0), &nat(family, 2)).unwrap_err(), InsertError::Full);
        assert_eq!(t.stats(family).full, 1);
        let mut names = vec![first];
        for tick in 0..300 {
            let last = *names.last().unwrap();
            let old = t.get(last).unwrap();
            let word = old.word();
            assert!(t.remove(last).is_some());
            assert!(!old.is_live());
            assert_eq!(old.try_set(word, 3, 0), Err(old.word()));
            assert_eq!((find(&t, new.tuple_in()), find(&t, new.tuple_out())), (None, None));
            assert!(!old.word().is_live(), "try_set raises no dead");
            names.push(t.insert(Tick(tick), &new).unwrap().id());
        }
        assert_eq!(t.len(family), 1);
        assert_eq!(names.iter().filter(|n| t.get(**n).is_some()).count(), 1);
        names.sort_by_key(|n| n.to_u64());
        names.dedup();
        assert_eq!(names.len(), 301, "each tenant has a name of its own");
    }
}

#[test]
fn a_slot_rests_for_a_full_tick() {
    let t = ConnTable::new(Config { max_v4: 1, max_v6: 0, hash_key: KEY, shards: 1 }).unwrap();
    let slots = layout::slots(1);
    let mut tick = 5;
    let mut freed = std::collections::HashMap::new();
    for n in 0..1000u32 {
        let c = match t.insert(Tick(tick), &nat(Family::V4, n)) {
            Ok(c) => c.id(),
            Err(e) => {
                // every slot rests: only possible after as many removals within the resting time
                assert_eq!(e, InsertError::Full);
                tick += 1;
                continue;
            }
        };
        if let Some(at) = freed.insert(c.slot, tick) {
            assert!(tick >= at + 2, "slot {} freed in tick {at} and used in {tick}", c.slot);
        }
        assert!(t.remove(c).is_some());
        tick += u32::from(n % 37 == 0);
    }
    assert!(freed.len() <= slots as usize && freed.len() > 1);
}

#[test]
fn generations_wrap_around_past_zero() {
    let t = ConnTable::new(Config { max_v4: 1, max_v6: 0, hash_key: KEY, shards: 1 }).unwrap();
    let entry = t.v4.slots.get(0).unwrap();
    let word = entry.word();
    let last = u64::from(layout::GENERATION_MAX) << layout::GENERATION_SHIFT;
    // a State of the last generation, made by way of a ConnRef's bits
    let c = t.insert(Tick(0), &nat(Family::V4, 0)).unwrap().id();
    assert_eq!((c.slot, c.generation, word.generation()), (0, 1, 0));
    assert_eq!(ConnRef::from_u64(last).generation, layout::GENERATION_MAX);
    assert_eq!(entry.publish_after(layout::GENERATION_MAX), 1);
    assert_eq!(entry.publish_after(layout::GENERATION_MAX - 1), layout::GENERATION_MAX);
}

#[test]
fn state_changes_by_compare_and_swap() {
    let t = table(10);
    let c = t.insert(Tick(0), &nat(Family::V4, 0)).unwrap();
    let old = c.word();
    assert_eq!(c.try_set(old, 4, u32::MAX), Ok(()));
    assert_eq!((c.state(), c.flags()), (4, layout::FLAGS_MASK));
    assert!(c.is_live() && !c.word().is_expiring());
    assert_eq!(c.try_set(old, 5, 0), Err(c.word()));
    assert_eq!(c.try_set(c.word(), 5, 0), Ok(()));
    assert_eq!((c.state(), c.flags(), c.id()), (5, 0, t.get(c.id()).unwrap().id()));
}

#[test]
fn expires_a_full_timeout_after_the_last_packet() {
    let t = table(10);
    let now = Tick(u32::MAX - 50);
    let c = t.insert(now, &nat(Family::V4, 0)).unwrap();
    assert_eq!(expire_all(&t, now.plus(100)), []);
    c.touch(now.plus(60), 100);
    assert_eq!(expire_all(&t, now.plus(160)), []);
    assert!(t.next_deadline().unwrap().reached(now.plus(160)));
    assert_eq!(expire_all(&t, now.plus(161)), [c.id()]);
    assert!(t.is_empty() && t.next_deadline().is_none());
    assert_eq!(find(&t, nat(Family::V4, 0).tuple_in()), None);
}

#[test]
fn a_shorter_timeout_needs_rearm_and_gets_it() {
    let t = table(10);
    let c = t.insert(Tick(0), &nat(Family::V6, 0)).unwrap();
    c.touch(Tick(1), 2);
    t.rearm(c.id(), Tick(1));
    assert_eq!(expire_all(&t, Tick(3)), []);
    assert_eq!(expire_all(&t, Tick(4)), [c.id()]);
    // of what is gone nothing is armed
    t.rearm(c.id(), Tick(4));
    assert_eq!(t.next_deadline(), None);
}

#[test]
fn the_callback_may_keep_and_may_use_the_table() {
    let t = table(10);
    let template = NewConn { is_template: true, timeout: 5, ..nat(Family::V4, 0) };
    let p = t.insert(Tick(0), &template).unwrap().id();
    let child = NewConn { template: Some(p), timeout: 5, ..nat(Family::V4, 0) };
    let c = t.insert(Tick(0), &child).unwrap().id();
    let mut asked = Vec::new();
    let mut on_expire = |conn: Conn<'_>| {
        asked.push(conn.id());
        assert!(t.remove(conn.id()).is_none(), "its removal is being decided");
        if conn.is_template() {
            return Expiry::Keep(10);
        }
        assert_eq!(find(&t, child.tuple_in()), Some((c, Direction::In)), "still found while it is asked");
        let template = t.get(conn.template().unwrap()).unwrap();
        template.touch(Tick(6), 20);
        t.rearm(template.id(), Tick(6));
        assert_eq!(conn.try_set(conn.word(), 9, 1), Err(conn.word()), "its state stands still");
        Expiry::Remove
    };
    assert_eq!(t.expire(Tick(6), 100, &mut on_expire), 2);
    assert_eq!((t.get(c).is_none(), t.get(p).is_some(), t.len(Family::V4)), (true, true, 1));
    assert!(!t.get(p).unwrap().word().is_expiring());
    asked.sort_by_key(|id| id.slot);
    let mut both = [p, c];
    both.sort_by_key(|id| id.slot);
    assert_eq!(asked, both);
    assert_eq!(expire_all(&t, Tick(100)), [p]);
}

#[test]
fn expiry_works_within_its_budget() {
    let t = table(1000);
    for n in 0..500 {
        for family in [Family::V4, Family::V6] {
            t.insert(Tick(0), &NewConn { timeout: n % 10, ..nat(family, n) }).unwrap();
        }
    }
    let mut calls = 0;
    let mut gone = 0;
    loop {
        let mut now_gone = 0;
        let done = t.expire(Tick(50), 13, &mut |_| {
            now_gone += 1;
            Expiry::Remove
        });
        assert!(done <= 13 && now_gone <= done);
        gone += now_gone;
        calls += 1;
        assert!(calls < 1000);
        if done < 13 {
            break;
        }
    }
    assert_eq!(gone, 1000);
    assert!(t.is_empty());
}

#[test]
fn listings_show_each_once_while_others_come_and_go() {
    let t = table(300);
    let stay: Vec<_> = (0..100).map(|n| t.insert(Tick(0), &nat(Family::V4, n)).unwrap().id()).collect();
    let stay6: Vec<_> = (0..50).map(|n| t.insert(Tick(0), &nat(Family::V6, n)).unwrap().id()).collect();
    let mut shown = Vec::new();
    let mut cursor = Some(0);
    let mut n = 100;
    while let Some(c) = cursor {
        cursor = t.scan(c, 3, &mut |conn| shown.push(conn.id()));
        let other = t.insert(Tick(n), &nat(Family::V4, n)).unwrap().id();
        if n % 2 == 0 {
            assert!(t.remove(other).is_some());
        }
        n += 1;
        assert!(n < 400);
    }
    let all = shown.len();
    for id in stay.iter().chain(&stay6) {
        assert_eq!(shown.iter().filter(|s| *s == id).count(), 1);
    }
    shown.sort_by_key(|id| id.to_u64());
    shown.dedup();
    assert_eq!(shown.len(), all);
    // any number is a cursor
    for cursor in [u64::MAX, 1 << 32, (1 << 32) - 1, 1 << 40] {
        t.scan(cursor, usize::MAX, &mut |_| {});
    }
}

#[test]
fn limits_are_typed() {
    let big = Config { max_v4: 1 << 31, ..config(1) };
    let e = ConnTable::new(big).unwrap_err();
    assert_eq!(e.to_string(), "2147483648 V4 connections are more than the limit of 2147483647");
    for shards in [0, Config::MAX_SHARDS + 1] {
        assert!(matches!(ConnTable::new(Config { shards, ..config(1) }), Err(TableError::Shards(_))));
    }
    // nothing allowed: nothing found, nothing put in, nothing done
    let none = table(0);
    assert_eq!(none.insert(Tick(0), &nat(Family::V6, 0)).unwrap_err(), InsertError::Full);
    assert_eq!(find(&none, nat(Family::V4, 0).tuple_in()), None);
    assert_eq!((expire_all(&none, Tick(9)), all(&none)), (vec![], vec![]));
    none.prefetch(Family::V4, 1);
    none.prefetch_entry(Family::V4, 1);
    assert!(
        none.get(ConnRef::from_u64(u64::MAX)).is_none() && none.remove(ConnRef::from_u64(u64::MAX)).is_none()
    );
}

#[test]
fn documented_places() {
    // the table of `docs/table.md`
    for (hash, n, b1, b2) in [
        (0x8bab_c0dd_72e4_86f6u64, 327_680, 147_062, 31_716),
        (0x8b90_29d4_4b16_a1a7, 327_680, 96_113, 82_527),
        (0x1521_963e_b335_a608, 327_680, 229_388, 125_339),
        (0x8bab_c0dd_72e4_86f6, 1000, 448, 97),
        (0x8b90_29d4_4b16_a1a7, 1000, 293, 252),
        (0x1521_963e_b335_a608, 1000, 700, 382),
    ] {
        let tag = layout::tag(hash);
        assert_eq!(layout::bucket(hash, n), b1);
        assert_eq!(layout::other_bucket(b1, tag, n), b2);
        assert_eq!(layout::other_bucket(b2, tag, n), b1);
    }
    assert_eq!(layout::buckets(1 << 20), 327_680);
    assert_eq!((layout::buckets(1), layout::buckets(0), layout::slots(0)), (2, 0, 0));
    assert_eq!(layout::slots(layout::SLOT_MAX), layout::SLOT_MAX);
    let t = table(10);
    let v4 = Tuple { src: Addr(0xc000_0201), sport: 40000, ..nat(Family::V4, 0).tuple_in() };
    assert_eq!(t.hash(&v4), 0x8bab_c0dd_72e4_86f6);
    let v6 = Tuple {
        family: Family::V6,
        proto: 17,
        src: Addr(0x2001_0db8_0000_0000_0000_0000_0000_0001),
        dst: Addr(0x2001_0db8_0001_0000_0000_0000_0000_0080),
        sport: 40000,
        dport: 443,
    };
    assert_eq!(t.hash(&v6), 0x1521_963e_b335_a608);
    assert_eq!(entry::Key::of(&Tuple { sport: 0, ..v4 }, true).hash(KEY), 0x5677_e24e_a92c_1eb0);
}

#[test]
fn a_hint_never_changes_the_answer() {
    for family in [Family::V4, Family::V6] {
        // a roomy table, one with many keys in their second buckets and in the overflow map, and one with slots used again
        for (t, churn) in [(table(600), false), (crowded(600, 100), false), (crowded(600, 150), true)] {
            let mut hints = vec![Hint::NONE, Hint(u64::MAX), Hint(1)];
            let mut again = 0;
            for round in 0..4u32 {
                for n in 0..600 {
                    let Ok(c) = t.insert(Tick(round * 9), &nat(family, n + round * 50)).map(|c| c.id())
                    else {
                        continue;
                    };
                    if churn && n % 3 == 0 {
                        assert!(t.remove(c).is_some());
                    }
                }
                for n in 0..900 {
                    for tuple in [nat(family, n).tuple_in(), nat(family, n).tuple_out()] {
                        let hash = t.hash(&tuple);
                        t.prefetch(family, hash);
                        let first = t.prefetch_entry(family, hash);
                        let second = t.prefetch_entry_again(family, hash);
                        again += u32::from(first.is_none() && !second.is_none());
                        let right = t.lookup(hash, &tuple).map(|(c, d)| (c.id(), d));
                        let other = hints[n as usize % hints.len()];
                        for hint in [first, second, other] {
                            let by = t.lookup_by(hint, hash, &tuple).map(|(c, d)| (c.id(), d));
                            assert_eq!(by, right, "{hint:?}");
                        }
                        hints.extend([first, second].iter().filter(|h| !h.is_none()));
                    }
                }
                // all that is left goes now and then, and the hints are stale
                if churn && round == 1 {
                    all(&t).into_iter().for_each(|c| assert!(t.remove(c).is_some()));
                }
            }
            assert!(again > 0, "no key was in its second bucket");
        }
    }
}
