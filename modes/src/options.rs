//! IPv4 options on the way through a director (RFC 791 section 3.1, RFC 1812 section 4.2.2 and 5.2.4).
//!
//! Record route and timestamp are filled in as Linux does for a packet to one of its own addresses: with that address, which for
//! a client's packet is the virtual one. Source routes are refused, as Linux does unless told otherwise
//! (`accept_source_route`; RFC 7126 section 4.3): a packet must not choose its way past a service. Everything behind an end of
//! options is cleared; all other options travel unchanged.

use crate::packet::Packet;
use crate::wire::Ipv4;
use crate::{Addr, Family, checksum::Sum};

const END: u8 = 0;
const NOP: u8 = 1;
const RECORD_ROUTE: u8 = 7;
const TIMESTAMP: u8 = 68;
const LOOSE_SOURCE_ROUTE: u8 = 131;
const STRICT_SOURCE_ROUTE: u8 = 137;
/// The bit of an option's type that puts it into every fragment.
const COPIED: u8 = 0x80;

/// Why a packet's options forbid to forward it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OptionError {
    /// Broken; `pointer` counts bytes from the IP header, as an ICMP parameter problem wants it.
    Malformed {
        /// Offset of the first wrong byte in the IP header.
        pointer: u8,
    },
    /// A loose or strict source route.
    SourceRoute,
}

impl std::fmt::Display for OptionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OptionError::Malformed { pointer } => write!(f, "bad IPv4 option at byte {pointer}"),
            OptionError::SourceRoute => f.write_str("IPv4 source route"),
        }
    }
}

impl std::error::Error for OptionError {}

/// Does to a packet's IPv4 options what a hop does; nothing for IPv6 and for packets without options. `own` is the address to
/// record; `now_ms` are milliseconds since midnight UT. After an error the packet is unchanged.
#[inline]
pub fn process(frame: &mut [u8], p: &Packet, own: Addr, now_ms: u32) -> Result<(), OptionError> {
    if p.family == Family::V6 || p.l4 == p.l3 + 20 {
        return Ok(());
    }
    process_v4(frame, p, own.v4(), now_ms)
}

fn process_v4(frame: &mut [u8], p: &Packet, own: u32, now_ms: u32) -> Result<(), OptionError> {
    let Some(header) = frame.get_mut(p.l3..p.l4) else { return Ok(()) };
    let mut new = [0; 40];
    let Some((fixed, old)) = header.split_at_mut_checked(20) else { return Ok(()) };
    let Some(new) = new.get_mut(..old.len()) else { return Ok(()) };
    new.copy_from_slice(old);
    walk(new, own, now_ms)?;
    if *new == *old {
        return Ok(());
    }
    let (mut before, mut after) = (Sum::new(), Sum::new());
    before.add_bytes(old);
    after.add_bytes(new);
    old.copy_from_slice(new);
    if let Some(mut ip) = Ipv4::new_mut(fixed) {
        after.sub_u16(before.fold());
        ip.set_checksum(ip.checksum().updated(after));
    }
    Ok(())
}

/// Walks the options and fills in what wants to be filled in.
fn walk(options: &mut [u8], own: u32, now_ms: u32) -> Result<(), OptionError> {
    let bad = |at: usize| OptionError::Malformed { pointer: (20 + at) as u8 };
    let mut at = 0;
    let (mut routes, mut stamps) = (0, 0);
    while let Some(kind) = options.get(at).copied() {
        match kind {
            END => {
                options[at..].fill(END);
                return Ok(());
            }
            NOP => {
                at += 1;
                continue;
            }
            _ => {}
        }
        let len = usize::from(*options.get(at + 1).ok_or(bad(at))?);
        let option = options.get_mut(at..at + len).filter(|o| o.len() >= 2).ok_or(bad(at + 1))?;
        match kind {
            LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE => return Err(OptionError::SourceRoute),
            RECORD_ROUTE => {
                routes += 1;
                record_route(option, own).map_err(|i| bad(at + i))?;
            }
            TIMESTAMP => {
                stamps += 1;
                timestamp(option, own, now_ms).map_err(|i| bad(at + i))?;
            }
            _ => {}
        }
        if routes > 1 || stamps > 1 {
            return Err(bad(at));
        }
        at += len;
    }
    Ok(())
}

/// Writes a word at an option's pointer (1-based, in byte 2) and moves the pointer behind it; `Err` is the byte that is wrong.
fn put(option: &mut [u8], word: u32) -> Result<(), usize> {
    let at = usize::from(option[2]) - 1;
    option.get_mut(at..at + 4).ok_or(2usize)?.copy_from_slice(&word.to_be_bytes());
    option[2] += 4;
    Ok(())
}

/// Record route: type, length, pointer, addresses. A full one travels on as it is.
fn record_route(option: &mut [u8], own: u32) -> Result<(), usize> {
    if option.len() < 3 {
        return Err(1);
    }
    match usize::from(option[2]) {
        pointer if pointer < 4 => Err(2),
        pointer if pointer > option.len() => Ok(()),
        _ => put(option, own),
    }
}

/// Timestamp: type, length, pointer, overflow count and flag, then times, with or without addresses.
fn timestamp(option: &mut [u8], own: u32, now_ms: u32) -> Result<(), usize> {
    if option.len() < 4 {
        return Err(1);
    }
    let pointer = usize::from(option[2]);
    if pointer < 5 {
        return Err(2);
    }
    if pointer > option.len() {
        // Full: count the hops that found no place; the count may not overflow (RFC 791).
        option[3] = option[3].checked_add(0x10).ok_or(3usize)?;
        return Ok(());
    }
    match option[3] & 15 {
        0 => put(option, now_ms),
        1 | 3 if pointer + 7 > option.len() => Err(2),
        1 => {
            put(option, own)?;
            put(option, now_ms)
        }
        3 => {
            // Addresses are given: only the one named next stamps.
            if option[pointer - 1..pointer + 3] == own.to_be_bytes() {
                option[2] += 4;
                put(option, now_ms)?;
            }
            Ok(())
        }
        _ => Err(3),
    }
}

/// Turns the options that belong only into the first fragment into no-operations.
pub(crate) fn keep_copied(options: &mut [u8]) {
    let mut at = 0;
    while let Some(kind) = options.get(at).copied() {
        let len = match kind {
            END => return,
            NOP => 1,
            _ => usize::from(options.get(at + 1).copied().unwrap_or(0)),
        };
        let Some(option) = options.get_mut(at..at + len).filter(|_| len > 0) else { return };
        if kind & COPIED == 0 {
            option.fill(NOP);
        }
        at += len;
    }
}

#[cfg(test)]
mod tests;
