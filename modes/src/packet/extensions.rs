use super::{Fragment, ParseError, proto};

/// Extension headers that are followed in a packet: one of each kind that RFC 8200 section 4.1 lists, and some to spare.
pub const MAX_EXTENSIONS: usize = 8;

/// What lies behind a chain of extension headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    /// The upper-layer protocol, or in a later fragment what its fragment header names.
    pub(crate) proto: u8,
    pub(crate) fragment: Fragment,
    /// Bytes of the chain.
    pub(crate) len: usize,
}

/// Whether a next-header value is an extension header that [`walk`] follows.
#[inline]
pub(crate) fn is_extension(next: u8) -> bool {
    use proto::*;
    matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | AH | DESTINATION_OPTIONS)
}

/// Follows a chain of extension headers at the beginning of an IPv6 payload (RFC 8200 section 4). ESP, "no next header" and all that
/// is not an extension end it.
pub(crate) fn walk(first: u8, bytes: &[u8]) -> Result<Chain, ParseError> {
    let mut chain = Chain { proto: first, fragment: Fragment::Whole, len: 0 };
    let mut count = 0;
    while is_extension(chain.proto) {
        if count == MAX_EXTENSIONS {
            return Err(ParseError::Ipv6TooManyExtensions);
        }
        let h =
            bytes.get(chain.len..).and_then(<[u8]>::first_chunk::<8>).ok_or(ParseError::Ipv6BadExtension)?;
        let len = match chain.proto {
            proto::HOP_BY_HOP if count > 0 => return Err(ParseError::Ipv6BadExtension),
            // RFC 4302 section 2.2: in 4-byte units, minus 2.
            proto::AH => 4 * (usize::from(h[1]) + 2),
            proto::FRAGMENT => 8,
            proto::ROUTING if h[3] != 0 => return Err(ParseError::Ipv6SourceRouted),
            _ => 8 * (usize::from(h[1]) + 1),
        };
        if chain.len + len > bytes.len() {
            return Err(ParseError::Ipv6BadExtension);
        }
        let was_fragment = chain.proto == proto::FRAGMENT;
        chain.proto = h[0];
        chain.len += len;
        count += 1;
        if was_fragment {
            match u16::from_be_bytes([h[2], h[3]]) {
                // RFC 6946: an atomic fragment is a whole packet.
                word if word & 0xfff9 == 0 => {}
                word if word & 0xfff8 == 0 => chain.fragment = Fragment::First,
                _ => {
                    chain.fragment = Fragment::Later;
                    break;
                }
            }
        }
    }
    Ok(chain)
}

/// Whether a hop-by-hop header begins with, or holds, the jumbo payload option (RFC 2675 section 2).
pub(super) fn is_jumbogram(bytes: &[u8]) -> bool {
    const PAD1: u8 = 0;
    const JUMBO: u8 = 0xc2;
    let Some(len) = bytes.get(1).map(|l| 8 * (usize::from(*l) + 1)) else { return false };
    let mut options = bytes.get(2..len).unwrap_or_default();
    loop {
        options = match options {
            [JUMBO, 4, ..] => return true,
            [PAD1, rest @ ..] => rest,
            [_, len, rest @ ..] => rest.get(usize::from(*len)..).unwrap_or_default(),
            _ => return false,
        };
    }
}
