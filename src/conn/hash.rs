//! The keyed hash: SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF") over whole 64-bit words.
//!
//! It is the standard function: the same result comes from any SipHash-1-3 over the words as little-endian bytes.

#[inline(always)]
fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

/// SipHash-1-3 of a message of `N` words (`N` < 32) with a 128-bit key.
#[inline]
pub fn siphash13<const N: usize>(key: [u64; 2], message: [u64; N]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    for m in message {
        v[3] ^= m;
        round(&mut v);
        v[0] ^= m;
    }
    // the last block holds the length in bytes and no rest
    let last = (N as u64 * 8) << 56;
    v[3] ^= last;
    round(&mut v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for _ in 0..3 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::Hasher;

    /// The standard library's default hasher is SipHash-1-3 with a key of zeros.
    fn std_siphash13(words: &[u64]) -> u64 {
        let mut h = std::hash::DefaultHasher::new();
        h.write(&words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>());
        h.finish()
    }

    #[test]
    fn agrees_with_the_standard_library() {
        let mut x = 1u64;
        for _ in 0..1000 {
            let m: [u64; 5] = std::array::from_fn(|_| {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                x
            });
            assert_eq!(siphash13([0, 0], [m[0], m[1]]), std_siphash13(&m[..2]));
            assert_eq!(siphash13([0, 0], m), std_siphash13(&m));
        }
    }

    /// The vectors of `docs/table.md`; the first is also the eighth of the reference implementation's.
    #[test]
    fn documented_vectors() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(siphash13(key, [0x0706_0504_0302_0100]), 0x3690_9511_8d29_9a8e);
        assert_eq!(siphash13(key, [0xc000_0201_c633_6450, 0x9c40_0050_0000_0006]), 0x8bab_c0dd_72e4_86f6);
        assert_eq!(siphash13(key, [0xc000_0201_c633_6450, 0x0000_0050_0000_0106]), 0x5677_e24e_a92c_1eb0);
        assert_eq!(siphash13(key, [0x0a00_0007_c000_0201, 0x1f90_9c40_0000_0006]), 0x8b90_29d4_4b16_a1a7);
        let v6 = [0x2001_0db8_0000_0000, 1, 0x2001_0db8_0001_0000, 0x80, 0x9c40_01bb_0000_0011];
        assert_eq!(siphash13(key, v6), 0x1521_963e_b335_a608);
    }
}
