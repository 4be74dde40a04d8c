use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::*;

#[test]
fn readers_never_see_a_mixed_line() {
    const WRITES: u64 = 200_000;
    let lines = Lines::new(1).unwrap();
    let id = NextHopId::new(0, 0);
    let hop = |n: u64| {
        let b = (n % 251) as u8;
        Hop {
            state: if n.is_multiple_of(2) { HopState::Ready } else { HopState::Unresolved },
            port: PortId(u16::from(b)),
            src_mac: [b; 6],
            dst_mac: [b; 6],
            mtu: u16::from(b),
        }
    };
    lines.publish(id, hop(0));
    let (done, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut n = 0;
    std::thread::scope(|s| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                s.spawn(|| {
                    let mut last = [0; 6];
                    while !done.load(Ordering::Relaxed) {
                        let h = lines.get(id);
                        if h == (Hop { state: HopState::Unresolved, ..Hop::GONE }) {
                            // The documented answer after too many tries.
                            continue;
                        }
                        let b = h.src_mac[0];
                        let whole = h.src_mac == [b; 6] && h.dst_mac == [b; 6] && h.mtu == u16::from(b);
                        assert!(whole && h.port.0 == u16::from(b), "mixed: {h:?}");
                        seen.fetch_add(u64::from(h.src_mac != last), Ordering::Relaxed);
                        last = h.src_mac;
                    }
                })
            })
            .collect();
        // On a busy machine the readers get their turns late: go on until they had some.
        let deadline = Instant::now() + Duration::from_secs(60);
        while n < WRITES || seen.load(Ordering::Relaxed) <= 10 && Instant::now() < deadline {
            n += 1;
            lines.publish(id, hop(n));
            lines.note_used(id, Tick(n as u32));
            if n.is_multiple_of(1000) {
                // On one processor the readers need a turn too.
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|r| r.join().unwrap());
    });
    let seen = seen.into_inner();
    assert!(seen > 10, "the readers have hardly run: {seen}");
    assert_eq!(lines.get(id), hop(n));
}
