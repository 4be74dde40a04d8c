//! CRC32c (Castagnoli), the checksum of SCTP (RFC 9260 appendix A), and its change when a few bytes change.
//!
//! A CRC is linear: two messages of the same length that differ in some bytes have CRCs that differ by the (uninitialised, not
//! inverted) CRC of the difference. So the data need not be read to move the CRC along with a port, and damage stays visible.
//! Zeros behind the difference multiply it by a power of x modulo the polynomial; that takes one multiplication for each
//! set bit of their number.

/// The polynomial, bit-reversed: bit 31 is x^0.
const POLY: u32 = 0x82f6_3b78;

/// `a * b` modulo the polynomial, in reversed bits.
const fn multiply(a: u32, b: u32) -> u32 {
    let (mut product, mut b, mut i) = (0, b, 0);
    while i < 32 {
        if a & (0x8000_0000 >> i) != 0 {
            product ^= b;
        }
        b = if b & 1 != 0 { (b >> 1) ^ POLY } else { b >> 1 };
        i += 1;
    }
    product
}

/// `POWERS[k]` is x^(8 * 2^k): the factor for 2^k zero bytes.
const POWERS: [u32; 17] = {
    let mut powers = [0x8000_0000 >> 8; 17];
    let mut k = 1;
    while k < powers.len() {
        powers[k] = multiply(powers[k - 1], powers[k - 1]);
        k += 1;
    }
    powers
};

/// The CRC of four bytes without initial value and inversion.
fn raw(bytes: [u8; 4]) -> u32 {
    // x^32 times the bytes as polynomial (first byte's low bit highest).
    let mut crc = u32::from_le_bytes(bytes);
    for _ in 0..32 {
        crc = if crc & 1 != 0 { (crc >> 1) ^ POLY } else { crc >> 1 };
    }
    crc
}

/// What to XOR onto a CRC32c when four bytes of its message change from `old` to `new` and `behind` bytes (below 131,072) follow.
pub(crate) fn change(old: [u8; 4], new: [u8; 4], behind: usize) -> u32 {
    let mut crc = raw(std::array::from_fn(|i| old[i] ^ new[i]));
    for (k, power) in POWERS.iter().enumerate() {
        if behind >> k & 1 != 0 {
            crc = multiply(*power, crc);
        }
    }
    crc
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(bytes: &[u8]) -> u32 {
        let mut crc = !0u32;
        for b in bytes {
            crc ^= u32::from(*b);
            for _ in 0..8 {
                crc = if crc & 1 != 0 { (crc >> 1) ^ POLY } else { crc >> 1 };
            }
        }
        !crc
    }

    #[test]
    fn reference_is_right() {
        // RFC 3720 appendix B.4.
        assert_eq!(whole(&[0; 32]), 0x8a91_36aa);
        assert_eq!(whole(b"123456789"), 0xe306_9283);
    }

    proptest! {
        #[test]
        fn change_equals_recomputation(
            mut bytes in proptest::collection::vec(any::<u8>(), 4..3000),
            new in any::<[u8; 4]>(),
            at in any::<proptest::sample::Index>(),
        ) {
            let at = at.index(bytes.len() - 3);
            let before = whole(&bytes);
            let old = *bytes[at..].first_chunk().expect("four bytes");
            bytes[at..at + 4].copy_from_slice(&new);
            prop_assert_eq!(before ^ change(old, new, bytes.len() - at - 4), whole(&bytes));
        }
    }
}
