//! A TPACKET_V2 receive ring: slots that kernel and worker hand to each other, and, for what no slot can hold
//! (super-packets), the socket's queue. `docs/afpacket.md` says why V2.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::tpacket2_hdr;

use crate::io::rings::socket::{option, read_option};
use crate::io::rings::vnet::{VNET_LEN, VnetHdr};

/// Bytes of the kernel's before each frame: its header and the link-layer address.
const HEADER_LEN: usize = size_of::<tpacket2_hdr>().next_multiple_of(16) + size_of::<libc::sockaddr_ll>();
/// Free bytes asked for before each frame; with what alignment adds at least 64 remain when two tags have been put back.
const RESERVE: usize = 70;
/// Where an Ethernet frame begins in its slot (`tp_mac`): the network header is aligned to 16 behind header and MAC header,
/// then come the free bytes and the vnet header.
const FRAME_AT: usize = (HEADER_LEN + 16).next_multiple_of(16) + RESERVE + VNET_LEN - 14;
/// Bytes of the blocks that the kernel allocates slots in.
const BLOCK: u32 = 256 << 10;
/// Largest MTU that slots are made for; longer frames come by the socket's queue.
const MAX_SLOT_MTU: u32 = 9216;
/// Bytes of the two MAC addresses, behind which a tag goes.
const MACS: usize = 12;
const TAG: usize = 4;

/// Long frames held at a time by one ring, and the room for each (head room included).
const LONG_FRAMES: usize = 32;
const LONG_HEAD: usize = 128;
const LONG_ROOM: usize = LONG_HEAD + (64 << 10) + 64;
/// Bytes of long frames (with the kernel's overhead) that may wait in the socket's queue.
const LONG_QUEUE: libc::c_int = 16 << 20;
/// Frames taken before those taken are sent and their slots given back.
const MAX_BURST: usize = 512;

/// Size of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingShape {
    /// Frames that each socket's ring can hold, rounded up to whole blocks of 256 KiB; 64 at least. A frame takes 1728 bytes
    /// where the MTU is 1500.
    pub frames: u32,
}

impl Default for RingShape {
    fn default() -> RingShape {
        RingShape { frames: 8192 }
    }
}

/// A socket with its ring.
#[derive(Debug)]
pub(super) struct RxRing {
    fd: OwnedFd,
    base: NonNull<u8>,
    length: usize,
    slot: usize,
    per_block: usize,
    slots: usize,
    current: usize,
    long: LongFrames,
}

// SAFETY: the mapping belongs to this value alone; nothing in it is bound to a thread.
unsafe impl Send for RxRing {}

/// Bytes of a slot for frames of an MTU: an odd number of cache lines, so that slots spread over all sets of a cache.
fn slot_size(mtu: u32) -> u32 {
    let tags = 2 * TAG;
    let lines = (FRAME_AT + 14 + tags + mtu.min(MAX_SLOT_MTU) as usize).div_ceil(64);
    (lines | 1) as u32 * 64
}

impl RxRing {
    /// Sets the ring up on a packet socket that is not bound yet, for frames of an interface's MTU.
    pub(super) fn new(fd: OwnedFd, shape: RingShape, mtu: u32) -> io::Result<RxRing> {
        let packet = |name, value: libc::c_int| option(fd.as_fd(), libc::SOL_PACKET, name, &value);
        packet(libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as libc::c_int)?;
        packet(libc::PACKET_RESERVE, RESERVE as libc::c_int)?;
        // what does not fit a slot waits in the socket's queue
        packet(libc::PACKET_COPY_THRESH, 1)?;
        option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &LONG_QUEUE)?;
        let slot = slot_size(mtu);
        let per_block = BLOCK / slot;
        let blocks = shape.frames.clamp(64, 1 << 20).div_ceil(per_block);
        let request = libc::tpacket_req {
            tp_block_size: BLOCK,
            tp_block_nr: blocks,
            tp_frame_size: slot,
            tp_frame_nr: per_block * blocks,
        };
        option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let length = BLOCK as usize * blocks as usize;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever the kernel likes.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(at.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let (slot, per_block, slots) =
            (slot as usize, per_block as usize, per_block as usize * blocks as usize);
        Ok(RxRing { fd, base, length, slot, per_block, slots, current: 0, long: LongFrames::default() })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Frames that the kernel dropped for want of room since the last call.
    pub(super) fn take_drops(&self) -> u64 {
        let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let read = read_option(self.fd.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut stats);
        if read.is_ok() { stats.tp_drops.into() } else { 0 }
    }

    /// What the kernel has handed over, if anything. Dropping the [`Burst`] gives its slots back.
    pub(super) fn burst(&mut self) -> Option<Burst<'_>> {
        if !self.handed_over(self.current) {
            return None;
        }
        Some(Burst { first: self.current, taken: 0, ring: self })
    }

    /// How many slots there are.
    pub(super) fn size(&self) -> usize {
        self.slots
    }

    /// How many slots the kernel has handed over and the worker not yet taken: they follow each other, so their end is
    /// searched for by halves.
    pub(super) fn waiting(&self) -> usize {
        let (mut low, mut high) = (0, self.slots);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.handed_over((self.current + middle) % self.slots) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn slot(&self, number: usize) -> *mut u8 {
        let offset = number / self.per_block * BLOCK as usize + number % self.per_block * self.slot;
        debug_assert!(offset + self.slot <= self.length);
        self.base.as_ptr().wrapping_add(offset)
    }

    fn status(&self, number: usize) -> &AtomicU32 {
        // SAFETY: the first, aligned word of a slot of the mapping, which the kernel changes too.
        unsafe { AtomicU32::from_ptr(self.slot(number).cast()) }
    }

    fn handed_over(&self, number: usize) -> bool {
        self.status(number).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }
}

impl Drop for RxRing {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; bursts borrow the ring, so none is left.
        let r = unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
        debug_assert_eq!(r, 0);
    }
}

/// Room for frames that come by the socket's queue; allocated as needed, then kept.
#[derive(Debug, Default)]
struct LongFrames {
    buffers: Vec<Vec<u8>>,
    used: usize,
}

impl LongFrames {
    fn has_room(&self) -> bool {
        self.used < LONG_FRAMES
    }

    /// Reads the next frame of the queue, which must have `length` bytes.
    fn receive(&mut self, fd: BorrowedFd<'_>, length: usize) -> Option<RxFrame> {
        if self.used == self.buffers.len() {
            self.buffers.push(vec![0; LONG_ROOM]);
        }
        let buffer = self.buffers.get_mut(self.used)?;
        let from = LONG_HEAD - VNET_LEN;
        let room = &mut buffer[from..];
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        let mut got = -1;
        // an interface that went down leaves its error before the frames: the second attempt gets past it
        for _ in 0..2 {
            // SAFETY: a buffer of our own, as long as we say.
            got = unsafe { libc::recv(fd.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), flags) };
            if got >= 0 {
                break;
            }
        }
        let whole = usize::try_from(got).is_ok_and(|got| got == VNET_LEN + length && got <= room.len());
        if !whole {
            return None;
        }
        self.used += 1;
        // SAFETY: ten bytes, just received.
        let vnet = unsafe { room.as_ptr().cast::<VnetHdr>().read_unaligned() };
        let buf = NonNull::new(buffer.as_mut_ptr())?;
        Some(RxFrame { buf, start: LONG_HEAD, end: LONG_HEAD + length, vnet })
    }
}

/// A received frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct RxFrame {
    /// The first byte of the frame's buffer (head room, then the frame).
    buf: NonNull<u8>,
    /// Bytes of head room.
    pub(super) start: usize,
    /// Bytes of the buffer: where the frame ends.
    pub(super) end: usize,
    /// What the kernel says of it.
    pub(super) vnet: VnetHdr,
}

// SAFETY: the pointer is into a ring's memory, which is bound to no thread; only `bytes` follows it.
unsafe impl Send for RxFrame {}

/// Frames that are ours for the moment.
pub(super) struct Burst<'r> {
    ring: &'r mut RxRing,
    first: usize,
    taken: usize,
}

impl Burst<'_> {
    /// Frames taken so far, and those that wait behind them where the burst is as long as one may be.
    pub(super) fn depth(&self) -> usize {
        let more =
            if self.taken < MAX_BURST { 0 } else { self.ring.waiting().min(self.ring.slots - self.taken) };
        self.taken + more
    }

    /// Frames taken so far.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// The next frame, with its VLAN tag put back into it. The outer `None` is the end; the inner one stands for a frame
    /// that could not be had whole.
    pub(super) fn next(&mut self) -> Option<Option<RxFrame>> {
        let ring = &mut *self.ring;
        let number = ring.current;
        if self.taken == MAX_BURST.min(ring.slots) || !ring.handed_over(number) {
            return None;
        }
        let at = ring.slot(number);
        // SAFETY: the kernel has written the slot's header and leaves the slot alone until we give it back.
        let header = unsafe { at.cast::<tpacket2_hdr>().read() };
        if header.tp_status & libc::TP_STATUS_COPY != 0 && !ring.long.has_room() {
            return None;
        }
        ring.current = if number + 1 == ring.slots { 0 } else { number + 1 };
        self.taken += 1;
        let frame = if header.tp_status & libc::TP_STATUS_COPY != 0 {
            ring.long.receive(ring.fd.as_fd(), header.tp_len as usize)
        } else {
            short_frame(at, ring.slot, &header)
        };
        let Some(mut frame) = frame else { return Some(None) };
        if header.tp_status & libc::TP_STATUS_VLAN_VALID != 0 && frame.end - frame.start >= MACS {
            let tpid = match header.tp_status & libc::TP_STATUS_VLAN_TPID_VALID {
                0 => 0x8100,
                _ => header.tp_vlan_tpid,
            };
            frame.put_tag(tpid, header.tp_vlan_tci);
        }
        Some(Some(frame))
    }
}

/// The frame in a slot.
fn short_frame(at: *mut u8, slot: usize, header: &tpacket2_hdr) -> Option<RxFrame> {
    let (mac, len) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
    if header.tp_snaplen < header.tp_len || mac < HEADER_LEN + VNET_LEN + 2 * TAG || mac + len > slot {
        return None;
    }
    // SAFETY: before the frame, by the check above.
    let vnet = unsafe { at.wrapping_add(mac - VNET_LEN).cast::<VnetHdr>().read_unaligned() };
    let buf = NonNull::new(at.wrapping_add(HEADER_LEN))?;
    let start = mac - HEADER_LEN;
    Some(RxFrame { buf, start, end: start + len, vnet })
}

impl RxFrame {
    /// The buffer.
    ///
    /// # Safety
    ///
    /// The burst must not have been given back, and no other slice of this frame may be in use.
    pub(super) unsafe fn bytes<'a>(&self) -> &'a mut [u8] {
        // SAFETY: inside the slot or the buffer that belongs to this frame alone.
        unsafe { std::slice::from_raw_parts_mut(self.buf.as_ptr(), self.end) }
    }

    fn put_tag(&mut self, tpid: u16, tci: u16) {
        // SAFETY: the burst is ours and this is the first use of the frame.
        let bytes = unsafe { self.bytes() };
        let from = self.start;
        bytes.copy_within(from..from + MACS, from - TAG);
        let tag = &mut bytes[from - TAG + MACS..from + MACS];
        tag[..2].copy_from_slice(&tpid.to_be_bytes());
        tag[2..].copy_from_slice(&tci.to_be_bytes());
        self.start -= TAG;
        self.vnet = self.vnet.shifted(TAG as u16);
    }
}

impl Drop for Burst<'_> {
    fn drop(&mut self) {
        let ring = &mut *self.ring;
        for n in 0..self.taken {
            ring.status((self.first + n) % ring.slots).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        }
        ring.long.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_hold_a_full_frame_and_are_odd_in_cache_lines() {
        for mtu in [68, 1280, 1500, 1501, 1600, 3000, 9000, 9216, 65535] {
            let slot = slot_size(mtu) as usize;
            assert!(slot >= FRAME_AT + 14 + 2 * TAG + mtu.min(MAX_SLOT_MTU) as usize);
            assert_eq!((slot % 64, slot / 64 % 2), (0, 1), "mtu {mtu}: {slot}");
            assert!(slot < BLOCK as usize / 16);
        }
        assert_eq!(slot_size(1500), 1728);
    }
}
