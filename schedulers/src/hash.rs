//! The hash functions that the schedulers share. None is random: directors that share a virtual address must agree.

use std::net::IpAddr;

/// An address as 32 bits: the IPv4 address, or the exclusive or of the four words of an IPv6 address (big endian).
pub(crate) fn fold(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(v4) => v4.to_bits(),
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            let half = (bits >> 64) as u64 ^ bits as u64;
            (half >> 32) as u32 ^ half as u32
        }
    }
}

/// Multiplicative hashing (Knuth, The Art of Computer Programming, volume 3, 6.4): the top `bits` (1 to 32) bits of
/// `value` times 2^32 (1 - 1 / golden ratio), the factor that Linux uses.
pub(crate) fn golden_ratio_hash(value: u32, bits: u32) -> u32 {
    value.wrapping_mul(0x61C8_8647) >> (32 - bits)
}

/// SipHash-1-3 of `bytes` under `key` (Aumasson and Bernstein, "SipHash: a fast short-input PRF", with one compression
/// and three finalization rounds).
pub(crate) fn siphash13(key: [u64; 2], bytes: &[u8]) -> u64 {
    let mut state = Sip([
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ]);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        state.absorb(u64::from_le_bytes(*word));
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = bytes.len() as u8;
    state.absorb(u64::from_le_bytes(last));
    state.0[2] ^= 0xff;
    for _ in 0..3 {
        state.round();
    }
    state.0.into_iter().fold(0, |all, word| all ^ word)
}

struct Sip([u64; 4]);

impl Sip {
    fn absorb(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.0[0] ^= word;
    }

    fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.0;
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.0 = [a, b, c, d];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::Hasher;

    #[test]
    fn siphash_agrees_with_the_standard_library() {
        // The standard library's default hasher is SipHash-1-3 with key 0.
        let data: Vec<u8> = (0..64).map(|i: u8| i.wrapping_mul(37)).collect();
        for len in 0..data.len() {
            let mut hasher = std::collections::hash_map::DefaultHasher::new();
            hasher.write(&data[..len]);
            assert_eq!(siphash13([0, 0], &data[..len]), hasher.finish(), "{len} bytes");
        }
    }

    #[test]
    fn the_key_matters_to_siphash() {
        let hashes: std::collections::HashSet<u64> =
            [[0, 0], [1, 0], [0, 1], [1, 1]].iter().map(|key| siphash13(*key, b"192.0.2.1:80")).collect();
        assert_eq!(hashes.len(), 4);
    }

    #[test]
    fn ipv6_folds_to_the_exclusive_or_of_its_words() {
        assert_eq!(fold("10.1.2.3".parse().unwrap()), 0x0a01_0203);
        assert_eq!(
            fold("2001:db8:1:2:3:4:5:6".parse().unwrap()),
            0x2001_0db8 ^ 0x0001_0002 ^ 0x0003_0004 ^ 0x0005_0006
        );
    }
}
