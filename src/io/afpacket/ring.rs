//! A TPACKET_V3 receive ring: blocks of frames that kernel and worker hand to each other.

use std::io;
use std::marker::PhantomData;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{tpacket_block_desc, tpacket_hdr_v1, tpacket3_hdr};

use super::socket::{option, read_option};
use super::vnet::{VNET_LEN, VnetHdr};

/// Bytes of the kernel's before each frame: its header and the link-layer address.
const HEADER_LEN: usize = size_of::<tpacket3_hdr>().next_multiple_of(16) + size_of::<libc::sockaddr_ll>();
/// Free bytes asked for before each frame; with what alignment adds at least 64 remain when two tags have been put back.
const RESERVE: libc::c_uint = 70;
/// Bytes of the two MAC addresses, behind which a tag goes.
const MACS: usize = 12;
const TAG: usize = 4;

/// Size of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingShape {
    /// Bytes of a block: a power of two, 256 KiB at least (a super-packet must fit in with its headers).
    pub block_size: u32,
    /// Blocks of each socket's ring; 2 at least.
    pub blocks: u32,
    /// Milliseconds after which a block that is not full is handed over; 1 at least.
    pub block_timeout_ms: u32,
}

impl Default for RingShape {
    fn default() -> RingShape {
        RingShape { block_size: 256 << 10, blocks: 64, block_timeout_ms: 1 }
    }
}

/// A socket with its ring.
#[derive(Debug)]
pub(super) struct RxRing {
    fd: OwnedFd,
    base: NonNull<u8>,
    shape: RingShape,
    current: u32,
}

// SAFETY: the mapping belongs to this value alone; nothing in it is bound to a thread.
unsafe impl Send for RxRing {}

impl RxRing {
    /// Sets the ring up on a packet socket that is not bound yet.
    pub(super) fn new(fd: OwnedFd, shape: RingShape) -> io::Result<RxRing> {
        option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_VERSION, &libc::tpacket_versions::TPACKET_V3)?;
        option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_RESERVE, &RESERVE)?;
        let request = libc::tpacket_req3 {
            tp_block_size: shape.block_size,
            tp_block_nr: shape.blocks,
            // V3 packs frames of any length; this only has to divide the block
            tp_frame_size: 2048,
            tp_frame_nr: shape.block_size / 2048 * shape.blocks,
            tp_retire_blk_tov: shape.block_timeout_ms,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        option(fd.as_fd(), libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let length = shape.block_size as usize * shape.blocks as usize;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever the kernel likes.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(at.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(RxRing { fd, base, shape, current: 0 })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Frames that the kernel dropped for want of room since the last call.
    pub(super) fn take_drops(&self) -> u64 {
        let mut stats = libc::tpacket_stats_v3 { tp_packets: 0, tp_drops: 0, tp_freeze_q_cnt: 0 };
        let read = read_option(self.fd.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut stats);
        if read.is_ok() { stats.tp_drops.into() } else { 0 }
    }

    /// The next block, if the kernel has handed it over. Dropping the [`Block`] gives it back.
    pub(super) fn block(&mut self) -> Option<Block<'_>> {
        let offset = self.current as usize * self.shape.block_size as usize;
        // SAFETY: `current` is below the number of blocks.
        let base = unsafe { self.base.add(offset) };
        // SAFETY: an aligned word in the mapping, which the kernel changes too.
        let status = unsafe { AtomicU32::from_ptr(base.as_ptr().wrapping_add(BLOCK_STATUS).cast()) };
        if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        self.current = (self.current + 1) % self.shape.blocks;
        // SAFETY: the kernel has written the block's header and leaves it alone until we give the block back.
        let header = unsafe { base.as_ptr().wrapping_add(BLOCK_HEADER).cast::<tpacket_hdr_v1>().read() };
        Some(Block {
            base,
            size: self.shape.block_size as usize,
            next: header.offset_to_first_pkt as usize,
            left: header.num_pkts,
            status,
            _ring: PhantomData,
        })
    }
}

impl Drop for RxRing {
    fn drop(&mut self) {
        let length = self.shape.block_size as usize * self.shape.blocks as usize;
        // SAFETY: the mapping made in `new`; blocks borrow the ring, so none is left.
        let r = unsafe { libc::munmap(self.base.as_ptr().cast(), length) };
        debug_assert_eq!(r, 0);
    }
}

const BLOCK_HEADER: usize = offset_of!(tpacket_block_desc, hdr);
const BLOCK_STATUS: usize = BLOCK_HEADER + offset_of!(tpacket_hdr_v1, block_status);

/// A frame in a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct RxFrame {
    /// The first byte of the frame's buffer (head room, then the frame).
    pub(super) buf: NonNull<u8>,
    /// Bytes of head room.
    pub(super) start: usize,
    /// Bytes of the buffer: where the frame ends.
    pub(super) end: usize,
    /// What the kernel says of it.
    pub(super) vnet: VnetHdr,
}

// SAFETY: the pointer is into a ring's mapping, which is bound to no thread; only `bytes` follows it.
unsafe impl Send for RxFrame {}

/// A block that is ours for the moment.
pub(super) struct Block<'r> {
    base: NonNull<u8>,
    size: usize,
    next: usize,
    left: u32,
    status: &'r AtomicU32,
    _ring: PhantomData<&'r mut RxRing>,
}

impl Block<'_> {
    /// The next frame, with its VLAN tag put back into it. The outer `None` is the end; the inner one stands for a frame
    /// that the ring could not hold whole.
    pub(super) fn next(&mut self) -> Option<Option<RxFrame>> {
        if self.left == 0 || self.next + HEADER_LEN > self.size {
            return None;
        }
        let at = self.next;
        // SAFETY: within the block by the check above; the kernel aligns frames' headers.
        let header = unsafe { self.base.as_ptr().wrapping_add(at).cast::<tpacket3_hdr>().read() };
        self.left -= 1;
        self.next = at.saturating_add(header.tp_next_offset as usize);
        let (mac, len) = (header.tp_mac as usize, header.tp_snaplen as usize);
        if header.tp_snaplen < header.tp_len || mac < HEADER_LEN + VNET_LEN || at + mac + len > self.size {
            return Some(None);
        }
        // SAFETY: before the frame, by the check above.
        let vnet = unsafe {
            self.base.as_ptr().wrapping_add(at + mac - VNET_LEN).cast::<VnetHdr>().read_unaligned()
        };
        // SAFETY: as above.
        let buf = unsafe { self.base.add(at + HEADER_LEN) };
        let start = mac - HEADER_LEN;
        let mut frame = RxFrame { buf, start, end: start + len, vnet };
        let variant = header.hv1;
        if header.tp_status & libc::TP_STATUS_VLAN_VALID != 0 && len >= MACS {
            let tpid = match header.tp_status & libc::TP_STATUS_VLAN_TPID_VALID {
                0 => 0x8100,
                _ => variant.tp_vlan_tpid,
            };
            frame.put_tag(tpid, variant.tp_vlan_tci as u16);
        }
        Some(Some(frame))
    }
}

impl RxFrame {
    /// The buffer.
    ///
    /// # Safety
    ///
    /// The block must not have been given back, and no other slice of this frame may be in use.
    pub(super) unsafe fn bytes<'a>(&self) -> &'a mut [u8] {
        // SAFETY: inside the block, and only this frame's (the kernel lays frames out one behind the other).
        unsafe { std::slice::from_raw_parts_mut(self.buf.as_ptr(), self.end) }
    }

    fn put_tag(&mut self, tpid: u16, tci: u16) {
        // SAFETY: the block is ours and this is the first use of the frame.
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

impl Drop for Block<'_> {
    fn drop(&mut self) {
        self.status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }
}
