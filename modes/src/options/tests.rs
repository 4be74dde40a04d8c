use proptest::prelude::*;

use super::*;
use crate::packet::{parse, proto};
use crate::testing::Build;

const OWN: Addr = Addr(0x0a00_0001);
const NOW: u32 = 0x0102_0304;

/// The options after a hop; the packet must be good before and after.
fn hop(options: &[u8]) -> Result<Vec<u8>, OptionError> {
    let mut f = Build { extra: options.to_vec(), ..Build::v4(proto::TCP) }.frame();
    let before = f.clone();
    let p = parse(&f).expect("good");
    let result = process(&mut f, &p, OWN, NOW);
    if result.is_err() {
        assert_eq!(f, before);
    }
    result.map(|()| {
        assert_eq!(parse(&f), Ok(p));
        f[34..p.l4].to_vec()
    })
}

fn malformed(pointer: u8) -> Result<Vec<u8>, OptionError> {
    Err(OptionError::Malformed { pointer })
}

#[test]
fn nothing_to_do() {
    for options in [&[][..], &[1, 1, 1, 0], &[148, 4, 0, 0], &[130, 3, 7, 1]] {
        assert_eq!(hop(options), Ok(options.to_vec()));
    }
    let mut v6 = Build::v6(proto::TCP).frame();
    let (before, p) = (v6.clone(), parse(&v6).expect("good"));
    assert_eq!(process(&mut v6, &p, OWN, NOW), Ok(()));
    assert_eq!(v6, before);
}

#[test]
fn bytes_behind_the_end_are_cleared() {
    assert_eq!(hop(&[1, 0, 7, 9]), Ok(vec![1, 0, 0, 0]));
}

#[test]
fn record_route() {
    assert_eq!(hop(&[1, 7, 7, 4, 0, 0, 0, 0]), Ok(vec![1, 7, 7, 8, 10, 0, 0, 1]));
    let two = [7, 11, 8, 1, 2, 3, 4, 0, 0, 0, 0, 0];
    assert_eq!(hop(&two), Ok(vec![7, 11, 12, 1, 2, 3, 4, 10, 0, 0, 1, 0]));
    let full = [7, 7, 8, 1, 2, 3, 4, 0];
    assert_eq!(hop(&full), Ok(full.to_vec()));
    assert_eq!(hop(&[7, 2, 1, 1]), malformed(21));
    assert_eq!(hop(&[7, 7, 3, 0, 0, 0, 0, 0]), malformed(22));
    assert_eq!(hop(&[1, 7, 7, 5, 0, 0, 0, 0]), malformed(23));
    assert_eq!(hop(&[7, 3, 4, 7, 3, 4, 0, 0]), malformed(23));
}

#[test]
fn timestamps() {
    let only = [68, 8, 5, 0, 0, 0, 0, 0];
    assert_eq!(hop(&only), Ok(vec![68, 8, 9, 0, 1, 2, 3, 4]));
    let with_address = [68, 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(hop(&with_address), Ok(vec![68, 12, 13, 1, 10, 0, 0, 1, 1, 2, 3, 4]));
    let for_us = [68, 12, 5, 3, 10, 0, 0, 1, 0, 0, 0, 0];
    assert_eq!(hop(&for_us), Ok(vec![68, 12, 13, 3, 10, 0, 0, 1, 1, 2, 3, 4]));
    let for_others = [68, 12, 5, 3, 10, 0, 0, 2, 0, 0, 0, 0];
    assert_eq!(hop(&for_others), Ok(for_others.to_vec()));
    assert_eq!(hop(&[68, 8, 9, 0x20, 1, 2, 3, 4]), Ok(vec![68, 8, 9, 0x30, 1, 2, 3, 4]));
    assert_eq!(hop(&[68, 8, 9, 0xf0, 1, 2, 3, 4]), malformed(23));
    assert_eq!(hop(&[68, 3, 5, 0]), malformed(21));
    assert_eq!(hop(&[68, 8, 4, 0, 0, 0, 0, 0]), malformed(22));
    assert_eq!(hop(&[68, 8, 5, 1, 0, 0, 0, 0]), malformed(22));
    assert_eq!(hop(&[68, 8, 6, 0, 0, 0, 0, 0]), malformed(22));
    assert_eq!(hop(&[68, 8, 5, 2, 0, 0, 0, 0]), malformed(23));
}

#[test]
fn broken_lengths() {
    assert_eq!(hop(&[1, 1, 1, 7]), malformed(23));
    assert_eq!(hop(&[1, 130, 1, 0]), malformed(22));
    assert_eq!(hop(&[130, 5, 0, 0]), malformed(21));
}

#[test]
fn source_routes_are_refused() {
    assert_eq!(hop(&[131, 7, 4, 10, 0, 0, 9, 0]), Err(OptionError::SourceRoute));
    assert_eq!(hop(&[1, 137, 7, 4, 10, 0, 0, 9]), Err(OptionError::SourceRoute));
}

proptest! {
    #[test]
    fn any_bytes(options in proptest::collection::vec(any::<[u8; 4]>(), 0..11), kind in 0..3usize) {
        let mut options = options.concat();
        if let Some(first) = options.first_mut() {
            *first = [7, 68, 1][kind];
        }
        // `hop` checks the packet; here that nothing panics, and that a second hop of a good one is good or full.
        if let Ok(after) = hop(&options) {
            prop_assert_eq!(after.len(), options.len());
        }
        let mut kept = options.clone();
        keep_copied(&mut kept);
        prop_assert_eq!(kept.len(), options.len());
    }
}
