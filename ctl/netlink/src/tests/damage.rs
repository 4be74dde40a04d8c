//! Damaged messages are answered or ignored, never a panic, and never a reply that is damaged itself.

use proptest::prelude::*;

use super::strategies;
use crate::memory::Memory;
use crate::wire::next_frame;
use crate::{DATAGRAM_MAX, Envelope, Exchange, FAMILY_IPVS, FAMILY_LVSD, Family, Request, serve};

#[derive(Clone, Debug)]
enum Damage {
    Flip(prop::sample::Index, u8),
    Set(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Insert(prop::sample::Index, Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        4 => (at(), 0_u8..8).prop_map(|(i, bit)| Damage::Flip(i, bit)),
        4 => (at(), any::<u8>()).prop_map(|(i, b)| Damage::Set(i, b)),
        1 => at().prop_map(Damage::Cut),
        1 => (at(), proptest::collection::vec(any::<u8>(), 1..9)).prop_map(|(i, b)| Damage::Insert(i, b)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &[Damage]) {
    for d in damage {
        if bytes.is_empty() {
            return;
        }
        let len = bytes.len();
        match d {
            Damage::Flip(i, bit) => bytes[i.index(len)] ^= 1 << bit,
            Damage::Set(i, b) => bytes[i.index(len)] = *b,
            Damage::Cut(i) => bytes.truncate(i.index(len)),
            Damage::Insert(i, new) => {
                let at = i.index(len);
                bytes.splice(at..at, new.iter().copied());
            }
        }
    }
}

fn family(request: &Request) -> u16 {
    match request.family() {
        Family::Ctrl => 16,
        Family::Ipvs => FAMILY_IPVS,
        Family::Lvsd => FAMILY_LVSD,
    }
}

fn datagram(requests: &[Request]) -> Vec<u8> {
    (1..)
        .zip(requests)
        .flat_map(|(seq, r)| r.encode(Envelope { family: family(r), seq, pid: 5 }).unwrap())
        .collect()
}

/// Every datagram is made of whole messages and short enough.
fn check_replies(backend: &Memory, bytes: &[u8]) {
    for reply in serve(backend, bytes) {
        assert!(reply.len() <= DATAGRAM_MAX);
        let mut rest = &reply[..];
        let mut frames = 0;
        while next_frame(&mut rest).is_some() {
            frames += 1;
        }
        assert!(rest.is_empty() && frames > 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn to_the_server(
        requests in proptest::collection::vec(strategies::request(), 1..4),
        damage in proptest::collection::vec(damage(), 1..6),
    ) {
        let backend = Memory::default();
        check_replies(&backend, &datagram(&requests));
        let mut bytes = datagram(&requests);
        apply(&mut bytes, &damage);
        check_replies(&backend, &bytes);
    }

    #[test]
    fn to_the_client(
        request in strategies::request(),
        replies in proptest::collection::vec(strategies::reply(), 1..4),
        damage in proptest::collection::vec(damage(), 0..6),
    ) {
        let (mut exchange, _) = Exchange::new(&request, Envelope { family: 32, seq: 1, pid: 0 }).unwrap();
        let mut bytes: Vec<u8> = replies
            .iter()
            .flat_map(|r| r.encode(Envelope { family: 32, seq: 1, pid: 0 }, true).unwrap())
            .collect();
        apply(&mut bytes, &damage);
        let _ = exchange.feed(&bytes, &mut |_| {});
    }

    #[test]
    fn noise(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        check_replies(&Memory::default(), &bytes);
    }
}
