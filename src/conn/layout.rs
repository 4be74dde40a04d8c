//! The table's layout in memory: the one place that says which bit is where. `docs/table.md` says it in words; the
//! BPF programs are written against both.
//!
//! All memory is 64-bit words of the machine's byte order. Addresses and ports stand in them as numbers (host order).

/// Bits of a pair's low half that hold the slot; also the highest slot number and the limit of connections a family.
pub const SLOT_MAX: u32 = 0x7fff_ffff;
/// Bit of a pair that is set where the key is that of the reply (server to client, [`super::Direction::Out`]).
pub const PAIR_OUT: u64 = 1 << 31;
/// Pairs in a bucket.
pub const BUCKET_WORDS: usize = 8;

/// Words of an IPv4 entry (64 bytes).
pub const V4_WORDS: usize = 8;
/// Words of an IPv6 entry (128 bytes).
pub const V6_WORDS: usize = 16;

/// Word 0, both families: generation:24 | state:8 | flags:32.
pub const W_STATE: usize = 0;
/// Where the generation begins in word 0.
pub const GENERATION_SHIFT: u32 = 40;
/// Highest generation; the next is 1 again.
pub const GENERATION_MAX: u32 = 0xff_ffff;
/// Where the state begins in word 0.
pub const STATE_SHIFT: u32 = 32;
/// Flag of word 0: the entry is published. Readers take no notice of entries without it.
pub const LIVE: u32 = 1 << 31;
/// Flag of word 0: its timer is about to decide. Readers ignore it.
pub const EXPIRING: u32 = 1 << 30;
/// Flag of word 0: the connection was never established, and goes first where room is needed. Readers ignore it.
pub const HALF_OPEN: u32 = 1 << 29;
/// The flags of word 0 that are the engine's.
pub const FLAGS_MASK: u32 = HALF_OPEN - 1;
/// The bits of word 0 that must be the same before and after the other words are read.
pub const IDENTITY_MASK: u64 = (GENERATION_MAX as u64) << GENERATION_SHIFT | LIVE as u64;

/// IPv4: client address:32 | virtual address:32.
pub const V4_CLIENT_VIRT: usize = 1;
/// IPv4: the ports word.
pub const V4_PORTS: usize = 2;
/// IPv4: real server's address:32 | destination id:32.
pub const V4_REAL_DEST: usize = 3;
/// IPv4: first of the five words that both families share the form of (`SEEN` and following).
pub const V4_TAIL: usize = 4;

/// IPv6: client address, high word first.
pub const V6_CLIENT: usize = 1;
/// IPv6: virtual address, high word first.
pub const V6_VIRT: usize = 3;
/// IPv6: real server's address, high word first.
pub const V6_REAL: usize = 5;
/// IPv6: the ports word.
pub const V6_PORTS: usize = 7;
/// IPv6: 0:32 | destination id:32.
pub const V6_DEST: usize = 8;
/// IPv6: first of the five words that both families share the form of.
pub const V6_TAIL: usize = 9;

/// In the tail: tick of the last packet:32 | timeout in ticks:32.
pub const SEEN: usize = 0;
/// In the tail: epoch:32 | next hop:32 of the way back to the client.
pub const ROUTE: usize = 1;
/// In the tail: packets from the client:32 | template's slot + 1:32 (0: none). A packet adds 2^32; overflow falls off.
pub const COUNT: usize = 2;
/// In the tail: firewall mark:32 | template's generation:24 | spare:8.
pub const MARK: usize = 3;

/// Ports word: client port:16 | virtual port:16 | real port:16 | protocol:8 | kind:8.
pub const CPORT_SHIFT: u32 = 48;
/// See [`CPORT_SHIFT`].
pub const VPORT_SHIFT: u32 = 32;
/// See [`CPORT_SHIFT`].
pub const RPORT_SHIFT: u32 = 16;
/// See [`CPORT_SHIFT`].
pub const PROTO_SHIFT: u32 = 8;
/// Kind: the entry is a persistence template, not a flow.
pub const KIND_TEMPLATE: u8 = 0x80;
/// Kind: the reply's key is in the index too.
pub const KIND_OUT: u8 = 0x40;
/// Kind: forwarding method, 0..=63.
pub const METHOD_MASK: u8 = 0x3f;

/// Bit of a message's last word that tells a template's key from a flow's.
pub const KEY_TEMPLATE: u64 = 1 << 8;

/// Longest timeout in ticks (2.3 years); longer ones are cut to it.
pub const TIMEOUT_MAX: u32 = 1 << 30;

/// Slots for a limit of `max` connections: some more, because a slot rests a while before it is used again.
pub const fn slots(max: u32) -> u32 {
    if max == 0 {
        return 0;
    }
    let slots = max as u64 + max as u64 / 32 + 64;
    if slots > SLOT_MAX as u64 { SLOT_MAX } else { slots as u32 }
}

/// Buckets for a limit of `max` connections: two keys each fill them to 0.8.
pub const fn buckets(max: u32) -> u32 {
    if max == 0 {
        return 0;
    }
    // 2 keys / (0.8 * 8 pairs) = 5/16; at least two, so that there is a choice
    let n = (max as u64 * 5).div_ceil(16);
    if n < 2 { 2 } else { n as u32 }
}

/// A key's tag: the high half of its hash, never 0.
pub const fn tag(hash: u64) -> u32 {
    let tag = (hash >> 32) as u32;
    if tag == 0 { 1 } else { tag }
}

/// A key's first bucket of `n`.
pub const fn bucket(hash: u64, n: u32) -> u32 {
    (((hash as u32) as u64 * n as u64) >> 32) as u32
}

/// The other bucket of a key in bucket `b` of `n`. Applied twice it gives `b` again, so a pair can move unread.
pub const fn other_bucket(b: u32, tag: u32, n: u32) -> u32 {
    let f = ((tag as u64 * n as u64) >> 32) as u32;
    if f >= b { f - b } else { (f as u64 + n as u64 - b as u64) as u32 }
}

/// A pair: tag:32 | direction:1 | slot:31.
pub const fn pair(tag: u32, out: bool, slot: u32) -> u64 {
    (tag as u64) << 32 | if out { PAIR_OUT } else { 0 } | slot as u64
}

/// The slot of a pair.
pub const fn pair_slot(pair: u64) -> u32 {
    pair as u32 & SLOT_MAX
}

/// The tag of a pair.
pub const fn pair_tag(pair: u64) -> u32 {
    (pair >> 32) as u32
}
