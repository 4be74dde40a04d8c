//! Views of headers in a buffer.
//!
//! A view holds a reference to an array of exactly the header's fixed length, so its accessors cannot panic; what is variable
//! (options, extension headers, payload) lies behind it in the caller's slice. `new` and `new_mut` answer `None` where the slice
//! is shorter than the header, and check nothing else: [`crate::packet::parse`] is where frames are judged. Numbers are in
//! host order, addresses are numbers, MAC addresses are bytes as on the wire.

mod arp;
mod ethernet;
mod icmp;
mod icmpv6;
mod ipv4;
mod ipv6;
mod tcp;
mod udp;

pub use arp::{Arp, ArpOperation, arp_frame};
pub use ethernet::{Ethernet, Mac, ethertype};
pub use icmp::{Icmp, icmp_type};
pub use icmpv6::{Icmpv6, icmpv6_type};
pub use ipv4::Ipv4;
pub use ipv6::Ipv6;
pub use tcp::Tcp;
pub use udp::Udp;

/// The big-endian number in bytes `at..at + 2`.
#[inline(always)]
fn be16<const N: usize>(b: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

/// The big-endian number in bytes `at..at + 4`.
#[inline(always)]
fn be32<const N: usize>(b: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// The big-endian number in bytes `at..at + 16`.
#[inline(always)]
fn be128<const N: usize>(b: &[u8; N], at: usize) -> u128 {
    let word = |i: usize| u128::from(be32(b, at + 4 * i)) << (96 - 32 * i);
    word(0) | word(1) | word(2) | word(3)
}

/// Defines a view over a header of a fixed length.
macro_rules! view {
    ($(#[$doc:meta])* $name:ident, $len:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<B>(B);

        impl<'a> $name<&'a [u8; $len]> {
            /// The header at the beginning of `bytes`; `None` if they are too few.
            #[inline(always)]
            pub fn new(bytes: &'a [u8]) -> Option<Self> {
                bytes.first_chunk().map($name)
            }
        }

        impl<'a> $name<&'a mut [u8; $len]> {
            /// The header at the beginning of `bytes`, to be changed; `None` if they are too few.
            #[inline(always)]
            pub fn new_mut(bytes: &'a mut [u8]) -> Option<Self> {
                bytes.first_chunk_mut().map($name)
            }
        }
    };
}
use view;
