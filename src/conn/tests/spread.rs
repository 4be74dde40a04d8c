//! The structure of the keys must not show in the index: what a look-up costs is how many pairs it meets.

use super::*;

/// Of an index with these keys: buckets by number of pairs, pairs moved, and keys found in their first bucket.
struct Spread {
    fill: [u32; 9],
    moves: u64,
    first: u32,
    foreign: u32,
}

fn spread(keys: impl Iterator<Item = Tuple>, n: u32) -> Spread {
    let buckets = layout::buckets(n);
    let t = crowded(n, buckets);
    let index = &t.v4.index;
    let places: Vec<_> = keys.map(|k| index.place(t.hash(&k))).collect();
    assert_eq!(places.len(), n as usize);
    for (slot, p) in (0..).zip(&places) {
        let mut word = index.free_words(p, None)[0];
        if word.is_none() {
            index.make_room(p);
            word = index.free_words(p, None)[0];
        }
        index.put(p, word, layout::pair(p.tag, false, slot));
    }
    let (mut first, mut foreign) = (0, 0);
    for (slot, p) in (0..).zip(&places) {
        // pairs with the same tag cost a look at their entry
        let found = index.scan(p, |pair| {
            let own = layout::pair_slot(pair) == slot;
            foreign += u32::from(!own);
            own.then_some(())
        });
        assert_eq!(found, Some(()), "slot {slot}");
        let one = index::Place { second: p.first, ..*p };
        first +=
            u32::from(index.scan(&one, |pair| (layout::pair_slot(pair) == slot).then_some(())).is_some());
    }
    assert_eq!(index.overflowing(), 0);
    Spread { fill: index.fill(), moves: index.moves(), first, foreign }
}

fn close(a: u32, b: u32, slack: u32) -> bool {
    a.abs_diff(b) <= slack + a.max(b) / 50
}

#[test]
fn structured_keys_spread_like_random_ones() {
    const N: u32 = 200_000;
    let key = |src: u32, sport: u16, dst: u32, dport: u16| Tuple {
        family: Family::V4,
        proto: 6,
        src: Addr(src.into()),
        dst: Addr(dst.into()),
        sport,
        dport,
    };
    let mut x = 1u64;
    let mut random = move || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 32) as u32
    };
    let random = spread((0..N).map(|_| key(random(), random() as u16, random(), random() as u16)), N);
    // one proxy address to 50 services
    let proxy = spread((0..N).map(|n| key(0x0a00_0001, (n / 50) as u16, 0xc0a8_0000 + n % 50, 80)), N);
    // one source port of a few addresses to all ports of one address
    let scan = spread((0..N).map(|n| key(0x0a00_0001 + n / 65_535, 53, 0xc0a8_0001, (n % 65_535) as u16)), N);
    for s in [proxy, scan] {
        for (n, (a, b)) in s.fill.into_iter().zip(random.fill).enumerate() {
            assert!(close(a, b, 250), "buckets with {n} pairs: {a}, random {b}");
        }
        assert!(
            close(s.first, random.first, 500),
            "{} in their first bucket, random {}",
            s.first,
            random.first
        );
        assert!(s.moves.abs_diff(random.moves) <= 100, "{} moves, random {}", s.moves, random.moves);
        assert!(s.foreign <= 5 && random.foreign <= 5);
    }
}
