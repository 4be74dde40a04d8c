use proptest::prelude::*;

use super::*;
use crate::packet::parse;
use crate::testing::Build;

fn slow(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn sum_of(bytes: &[u8]) -> Sum {
    let mut s = Sum::new();
    s.add_bytes(bytes);
    s
}

#[test]
fn example_of_rfc_1071() {
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(sum_of(&bytes).fold(), 0xddf2);
    assert_eq!(sum_of(&bytes).checksum(), Checksum(0x220d));
}

#[test]
fn example_of_rfc_1624() {
    // Section 4: the update that RFC 1141's equation gets wrong.
    let mut change = Sum::new();
    change.sub_u16(0x5555);
    change.add_u16(0x3285);
    assert_eq!(Checksum(0xdd2f).updated(change), Checksum(0x0000));
}

#[test]
fn zero_is_zero_only_without_words() {
    assert_eq!(Sum::new().fold(), 0);
    assert_eq!(sum_of(&[0xff; 64]).fold(), 0xffff);
    assert_eq!(Checksum(0).udp(), Checksum(0xffff));
    assert_eq!(Checksum(7).udp(), Checksum(7));
}

#[test]
fn largest_segment_does_not_overflow() {
    let bytes = vec![0xff; 65_535];
    assert_eq!(sum_of(&bytes).fold(), slow(&bytes));
}

#[test]
fn partial_is_seen_and_completed() {
    for mut b in [Build::v4(proto::TCP), Build::v4(proto::UDP), Build::v6(proto::TCP), Build::v6(proto::UDP)]
    {
        for len in [0, 1, 9, 1400, 60_000] {
            b.data = vec![0x5a; len];
            let right = b.frame();
            let p = parse(&right).expect("good");
            assert!(!is_partial(&right, &p), "{b:?}");
            let at = p.l4 + if p.proto == proto::TCP { 16 } else { 6 };
            let mut f = right.clone();
            let sum = pseudo(p.family, p.src, p.dst, p.proto, p.end - p.l4);
            f[at..at + 2].copy_from_slice(&sum.fold().to_be_bytes());
            assert!(is_partial(&f, &p));
            assert!(complete_partial(&mut f, &p));
            assert!(f == right, "{:?} {len}", b.proto);
            f[at..at + 2].copy_from_slice(&[0xab, 0xcd]);
            assert!(make_partial(&mut f, &p) && is_partial(&f, &p));
            assert!(complete_partial(&mut f, &p) && f == right);
        }
    }
    let mut other = Build::v4(47).frame();
    let p = parse(&other).expect("good");
    assert!(!complete_partial(&mut other, &p) && !make_partial(&mut other, &p) && !is_partial(&other, &p));
    let mut first = Build { fragment: 0x2000, ..Build::v4(proto::TCP) }.frame();
    let p = parse(&first).expect("good");
    assert!(!complete_partial(&mut first, &p) && !make_partial(&mut first, &p) && !is_partial(&first, &p));
}

proptest! {
    #[test]
    fn sum_is_that_of_the_definition(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert_eq!(sum_of(&bytes).fold(), slow(&bytes));
    }

    #[test]
    fn numbers_and_bytes_agree(a in any::<u16>(), b in any::<u32>(), c in any::<u128>()) {
        let mut numbers = Sum::new();
        numbers.add_u16(a);
        numbers.add_u32(b);
        numbers.add_u128(c);
        let mut bytes = a.to_be_bytes().to_vec();
        bytes.extend(b.to_be_bytes());
        bytes.extend(c.to_be_bytes());
        prop_assert_eq!(numbers.fold(), sum_of(&bytes).fold());
    }

    #[test]
    fn update_equals_recomputation(
        mut bytes in proptest::collection::vec(any::<u8>(), 24..200),
        word in any::<u16>(),
        double in any::<u32>(),
        address in any::<u128>(),
        zeros in any::<bool>(),
    ) {
        bytes.truncate(bytes.len() & !1);
        if zeros {
            bytes[2..].fill(0);
        }
        // RFC 1624's assumption: not all of it is zero, before and after.
        bytes[0] = 0x45;
        let stored = sum_of(&bytes).checksum();
        let mut change = Sum::new();
        change.sub_u16(u16::from_be_bytes([bytes[2], bytes[3]]));
        change.add_u16(word);
        bytes[2..4].copy_from_slice(&word.to_be_bytes());
        change.sub_u32(u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]));
        change.add_u32(double);
        bytes[4..8].copy_from_slice(&double.to_be_bytes());
        change.sub_u128(u128::from_be_bytes(*bytes[8..].first_chunk().expect("16 bytes")));
        change.add_u128(address);
        bytes[8..24].copy_from_slice(&address.to_be_bytes());
        prop_assert_eq!(stored.updated(change), sum_of(&bytes).checksum());
    }
}
