use proptest::prelude::*;

use super::*;
use crate::packet::{Fragment, parse};
use crate::testing::Build;

#[test]
fn ttl_goes_down_to_one_and_no_further() {
    for b in [Build::v4(proto::TCP), Build { tags: vec![0x8100], ..Build::v6(proto::UDP) }] {
        let mut f = b.frame();
        let p = parse(&f).expect("good");
        for ttl in (1..64).rev() {
            assert_eq!(decrement_ttl(&mut f, &p), Ok(()));
            assert_eq!(parse(&f).map(|p| p.ttl), Ok(ttl));
        }
        let before = f.clone();
        assert_eq!(decrement_ttl(&mut f, &p), Err(TtlExpired));
        assert_eq!(f, before);
        assert_eq!(direct_route(&mut f, &p, [2; 6], [4; 6]), Err(TtlExpired));
        assert_eq!(f, before);
    }
}

#[test]
fn direct_routing_changes_macs_and_ttl_only() {
    let b = Build { tags: vec![0x88a8, 0x8100], ..Build::v4(proto::UDP) };
    let before = b.frame();
    let mut f = before.clone();
    let p = parse(&f).expect("good");
    assert_eq!(direct_route(&mut f, &p, [2; 6], [4; 6]), Ok(()));
    assert_eq!(f[..12], [2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 4]);
    let same = |range: std::ops::Range<usize>| assert_eq!(f[range.clone()], before[range], "{:?}", p);
    same(12..p.l3 + 8);
    same(p.l3 + 9..p.l3 + 10);
    same(p.l3 + 12..f.len());
    assert_eq!(parse(&f).map(|p| p.ttl), Ok(63));
    assert!(!set_macs(&mut f[..13], [2; 6], [4; 6]));
}

#[test]
fn segments_count_in_a_super_packet() {
    let big = |b: Build| {
        let f = Build { data: vec![1; 4000], ..b }.frame();
        let p = parse(&f).expect("good");
        move |mtu, gso| needs_fragmentation(&f, &p, mtu, gso)
    };
    let tcp = big(Build::v4(proto::TCP));
    assert!(tcp(1500, None) && !tcp(4040, None) && tcp(4039, None));
    assert!(!tcp(1500, Some(1460)) && tcp(1500, Some(1461)));
    // A frame of one segment is judged by its own length.
    assert!(!tcp(4040, Some(9000)) && tcp(1500, Some(0)));
    let v6 = big(Build::v6(proto::TCP));
    assert!(!v6(1500, Some(1440)) && v6(1500, Some(1441)));
    let udp = big(Build::v4(proto::UDP));
    assert!(!udp(1500, Some(1472)) && udp(1500, Some(1473)));
    assert!(big(Build::v4(47))(1500, Some(100)));
}

fn cut(frame: &[u8], mtu: usize) -> Result<Vec<Vec<u8>>, FragmentError> {
    let p = parse(frame).expect("good");
    let mut out = Vec::new();
    fragment_v4(frame, &p, mtu, &mut |f| out.push(f.to_vec()))?;
    Ok(out)
}

#[test]
fn what_cannot_be_cut() {
    assert_eq!(cut(&Build::v4(6).frame(), 30), Err(FragmentError::DontFragment));
    assert_eq!(cut(&Build::v6(6).frame(), 60), Err(FragmentError::DontFragment));
    let b = Build { fragment: 0, ..Build::v4(6) };
    assert_eq!(cut(&b.frame(), 27), Err(FragmentError::MtuTooSmall));
    assert_eq!(cut(&b.frame(), 28).map(|f| f.len()), Ok(4));
    let p = parse(&b.frame()).expect("good");
    assert_eq!(fragment_v4(&[0; 30], &p, 1500, &mut |_| ()), Err(FragmentError::Mismatch));
}

#[test]
fn later_fragments_keep_copied_options_only() {
    // Record route (not copied), router alert (copied), a no-operation.
    let extra = vec![7, 7, 4, 0, 0, 0, 0, 148, 4, 0, 0, 1];
    let b = Build { fragment: 0, extra: extra.clone(), data: vec![3; 100], ..Build::v4(proto::UDP) };
    let out = cut(&b.frame(), 80).expect("can be cut");
    assert_eq!(out.len(), 3);
    assert_eq!(out[0][34..46], extra);
    for later in &out[1..] {
        assert_eq!(later[34..46], [1, 1, 1, 1, 1, 1, 1, 148, 4, 0, 0, 1]);
    }
}

proptest! {
    #[test]
    fn fragments_make_the_packet(
        data in proptest::collection::vec(any::<u8>(), 0..3000),
        mtu in 28..1600usize,
        word in prop_oneof![Just(0u16), Just(0x2000), Just(0x2010), Just(0x0010)],
        tagged in any::<bool>(),
        padding in 0..5usize,
    ) {
        let tags = if tagged { vec![0x8100] } else { vec![] };
        let frame = Build { data, tags, padding, fragment: word, ..Build::v4(proto::UDP) }.frame();
        let whole = parse(&frame).expect("good");
        let out = cut(&frame, mtu).expect("can be cut");
        let mut payload = Vec::new();
        for (i, f) in out.iter().enumerate() {
            let last = i + 1 == out.len();
            prop_assert_eq!(&f[..whole.l3], &frame[..whole.l3]);
            prop_assert!(f.len() - whole.l3 <= mtu);
            let ip = Ipv4::new(&f[whole.l3..]).expect("20 bytes");
            prop_assert_eq!(ip.sum().fold(), 0xffff);
            prop_assert_eq!(ip.total_len(), f.len() - whole.l3);
            prop_assert_eq!(ip.fragment_offset(), usize::from(word & 0x1fff) * 8 + payload.len());
            prop_assert_eq!(ip.more_fragments(), !last || word & 0x2000 != 0);
            prop_assert_eq!(&f[whole.l3 + 4..whole.l3 + 6], &frame[whole.l3 + 4..whole.l3 + 6]);
            payload.extend_from_slice(&f[whole.l4..]);
            if i > 0 {
                prop_assert_eq!(parse(f).map(|p| p.fragment), Ok(Fragment::Later));
            }
        }
        prop_assert_eq!(&payload[..], &frame[whole.l4..whole.end]);
    }
}
