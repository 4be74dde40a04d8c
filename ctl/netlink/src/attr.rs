//! Attributes: writing, and reading as leniently as the kernel does for this family.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{Emitable, NLA_F_NESTED, NLA_HEADER_SIZE, Nla, NlaBuffer, NlasIterator};

use crate::{Af, Errno};

/// A message or attribute that does not fit its length field, or a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("too long for a netlink message")]
pub struct TooLong;

struct Raw<'a> {
    kind: u16,
    value: &'a [u8],
}

impl Nla for Raw<'_> {
    fn value_len(&self) -> usize {
        self.value.len()
    }
    fn kind(&self) -> u16 {
        self.kind
    }
    fn emit_value(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(self.value);
    }
}

/// Appends attributes to a buffer; what does not fit is remembered for [`Writer::finish`].
pub(crate) struct Writer {
    buf: Vec<u8>,
    too_long: bool,
}

impl Writer {
    pub(crate) fn new(buf: Vec<u8>) -> Self {
        Self { buf, too_long: false }
    }

    pub(crate) fn finish(self) -> Result<Vec<u8>, TooLong> {
        if self.too_long { Err(TooLong) } else { Ok(self.buf) }
    }

    pub(crate) fn bytes(&mut self, kind: u16, value: &[u8]) {
        if value.len() > usize::from(u16::MAX) - NLA_HEADER_SIZE {
            self.too_long = true;
            return;
        }
        let nla = Raw { kind, value };
        let start = self.buf.len();
        self.buf.resize(start + nla.buffer_len(), 0);
        nla.emit(&mut self.buf[start..]);
    }

    pub(crate) fn u8(&mut self, kind: u16, v: u8) {
        self.bytes(kind, &[v]);
    }
    pub(crate) fn u16(&mut self, kind: u16, v: u16) {
        self.bytes(kind, &v.to_ne_bytes());
    }
    pub(crate) fn be16(&mut self, kind: u16, v: u16) {
        self.bytes(kind, &v.to_be_bytes());
    }
    pub(crate) fn u32(&mut self, kind: u16, v: u32) {
        self.bytes(kind, &v.to_ne_bytes());
    }
    pub(crate) fn u64(&mut self, kind: u16, v: u64) {
        self.bytes(kind, &v.to_ne_bytes());
    }

    /// A string with its NUL. One that holds a NUL ends there for every reader.
    pub(crate) fn string(&mut self, kind: u16, v: &str) {
        let mut bytes = Vec::with_capacity(v.len() + 1);
        bytes.extend_from_slice(v.as_bytes());
        bytes.push(0);
        self.bytes(kind, &bytes);
    }

    /// An address as `union nf_inet_addr`: 16 bytes, IPv4 in the first four.
    pub(crate) fn addr(&mut self, kind: u16, v: IpAddr) {
        let mut bytes = [0; 16];
        match v {
            IpAddr::V4(a) => bytes[..4].copy_from_slice(&a.octets()),
            IpAddr::V6(a) => bytes = a.octets(),
        }
        self.bytes(kind, &bytes);
    }

    /// An attribute that holds attributes; `flag` says so in its type, as user space does and the IPVS family does not.
    pub(crate) fn nested(&mut self, kind: u16, flag: bool, fill: impl FnOnce(&mut Self)) {
        let start = self.buf.len();
        self.bytes(if flag { kind | NLA_F_NESTED } else { kind }, &[]);
        fill(self);
        match u16::try_from(self.buf.len() - start) {
            Ok(len) => NlaBuffer::new(&mut self.buf[start..]).set_length(len),
            Err(_) => self.too_long = true,
        }
    }
}

/// What a known attribute's value must be like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Policy {
    /// Not looked at.
    Any,
    /// At least this many bytes (numbers, `in6_addr`).
    AtLeast(usize),
    /// At most this many bytes.
    AtMost(usize),
    /// A string of at most this many bytes with a NUL at its end.
    Nul(usize),
    /// Attributes.
    Nested,
}

pub(crate) const U8: Policy = Policy::AtLeast(1);
pub(crate) const U16: Policy = Policy::AtLeast(2);
pub(crate) const U32: Policy = Policy::AtLeast(4);
pub(crate) const U64: Policy = Policy::AtLeast(8);

impl Policy {
    fn check(self, value: &[u8]) -> Result<(), Errno> {
        let ok = match self {
            Policy::Any => true,
            Policy::AtLeast(n) => value.len() >= n,
            Policy::AtMost(n) => value.len() <= n,
            Policy::Nul(max) => {
                let within = &value[..value.len().min(max + 1)];
                if !within.contains(&0) {
                    return Err(Errno::EINVAL);
                }
                let len = if value.last() == Some(&0) { value.len() - 1 } else { value.len() };
                len <= max
            }
            Policy::Nested => value.is_empty() || value.len() >= NLA_HEADER_SIZE,
        };
        if ok { Ok(()) } else { Err(Errno::ERANGE) }
    }
}

const MAX: usize = 16;

/// The attributes of one level, by type; of several of one type the last counts, unknown types are skipped, and so
/// is whatever follows a damaged header.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Attrs<'a> {
    slots: [Option<&'a [u8]>; MAX],
}

impl<'a> Attrs<'a> {
    /// Reads a level. `policy[i]` is that of type `i`.
    ///
    /// # Errors
    /// As the kernel's: `ERANGE` for a wrong length, `EINVAL` for a string without NUL.
    pub(crate) fn parse(bytes: &'a [u8], policy: &[Policy]) -> Result<Self, Errno> {
        let mut attrs = Self::default();
        let mut rest = bytes;
        // `NlasIterator` finds the bounds; the value is cut out here to live as long as `bytes`.
        for nla in NlasIterator::new(bytes) {
            let Ok(nla) = nla else { break };
            let kind = usize::from(nla.kind());
            let len = usize::from(nla.length());
            let value = rest.get(NLA_HEADER_SIZE..len).unwrap_or_default();
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            let Some(policy) = policy.get(kind) else { continue };
            let Some(slot) = attrs.slots.get_mut(kind) else { continue };
            if kind == 0 {
                continue;
            }
            policy.check(value)?;
            *slot = Some(value);
        }
        Ok(attrs)
    }

    /// The values of all attributes of one level, whatever their type, up to a damaged header: a list.
    pub(crate) fn values(bytes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = bytes;
        NlasIterator::new(bytes).map_while(Result::ok).map(move |nla| {
            let len = usize::from(nla.length());
            let value = rest.get(NLA_HEADER_SIZE..len).unwrap_or_default();
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            value
        })
    }

    pub(crate) fn get(&self, kind: u16) -> Option<&'a [u8]> {
        self.slots.get(usize::from(kind)).copied().flatten()
    }

    /// Attributes within one; `None` if there is none or it is damaged.
    pub(crate) fn nested(&self, kind: u16, policy: &[Policy]) -> Option<Attrs<'a>> {
        Attrs::parse(self.get(kind)?, policy).ok()
    }

    fn array<const N: usize>(&self, kind: u16) -> Option<[u8; N]> {
        self.get(kind)?.first_chunk::<N>().copied()
    }

    pub(crate) fn u8(&self, kind: u16) -> Option<u8> {
        self.array::<1>(kind).map(|[b]| b)
    }
    pub(crate) fn u16(&self, kind: u16) -> Option<u16> {
        self.array(kind).map(u16::from_ne_bytes)
    }
    pub(crate) fn be16(&self, kind: u16) -> Option<u16> {
        self.array(kind).map(u16::from_be_bytes)
    }
    pub(crate) fn u32(&self, kind: u16) -> Option<u32> {
        self.array(kind).map(u32::from_ne_bytes)
    }
    pub(crate) fn u64(&self, kind: u16) -> Option<u64> {
        self.array(kind).map(u64::from_ne_bytes)
    }

    /// Text up to its NUL; bytes that are not UTF-8 become U+FFFD, so that such a name matches none.
    pub(crate) fn string(&self, kind: u16) -> Option<String> {
        let value = self.get(kind)?;
        let text = value.split(|b| *b == 0).next().unwrap_or_default();
        Some(String::from_utf8_lossy(text).into_owned())
    }

    /// The value in an array of `N` bytes: a shorter value is filled up with zeros.
    pub(crate) fn padded<const N: usize>(&self, kind: u16) -> Option<[u8; N]> {
        let value = self.get(kind)?;
        let mut out = [0; N];
        let n = value.len().min(N);
        out[..n].copy_from_slice(&value[..n]);
        Some(out)
    }

    pub(crate) fn addr(&self, kind: u16, af: Af) -> Option<IpAddr> {
        let b = self.padded::<16>(kind)?;
        Some(match af {
            Af::V4 => Ipv4Addr::new(b[0], b[1], b[2], b[3]).into(),
            Af::V6 => Ipv6Addr::from(b).into(),
        })
    }
}
