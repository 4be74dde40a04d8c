//! One socket as its worker uses it: taking, sending, giving buffers, counting.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::xdp_desc;

use super::socket::{Live, METADATA, XskSocket};
use super::umem::Frames;
use crate::engine::RxChecksum;
use crate::io::rings::Counters;
use crate::io::rings::vnet::VnetHdr;

/// Frames taken at a time.
pub(super) const BATCH: usize = 64;
/// How often one flush asks the kernel to go on before it leaves the rest for the next time.
const PATIENCE: u32 = 8;
/// Longest frame put together from pieces; a longer one cannot be an IP packet.
const LONGEST: usize = 14 + 8 + 65_535 + 40;
/// Head room before a frame that was put together.
pub(super) const LONG_HEAD: usize = 128;

/// A received frame: where its buffer begins, where in it the frame is, and what to give back.
#[derive(Debug)]
pub(super) enum Received {
    /// In a chunk.
    Chunk { chunk: u32, start: usize, end: usize },
    /// Put together from pieces, with [`LONG_HEAD`] bytes before it.
    Long(Vec<u8>),
}

/// A frame that is ready to be sent, in a chunk of the worker's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) chunk: u32,
    pub(super) start: usize,
    pub(super) length: usize,
    pub(super) checksum: RxChecksum,
}

pub(super) struct Queue {
    socket: XskSocket,
    /// The socket's number in the book of chunks.
    number: u32,
    live: Arc<Live>,
    seen: [u64; 5],
    /// Pieces of a frame whose last one has not come yet.
    pieces: Option<Vec<u8>>,
    /// Whether the interface was down when a frame was last sent.
    pub(super) down: bool,
    /// Frames pushed and not shown to the kernel yet.
    pushed: bool,
    /// Frames taken so far, whole or not.
    taken: u64,
}

impl Queue {
    /// Takes a socket and gives it buffers.
    pub(super) fn new(socket: XskSocket, live: Arc<Live>, number: u32, frames: &mut Frames) -> Queue {
        let mut queue =
            Queue { socket, number, live, seen: [0; 5], pieces: None, down: false, pushed: false, taken: 0 };
        queue.refill(frames);
        queue.note_levels(frames);
        queue
    }

    /// Closes the socket; its chunks are on their way back.
    pub(super) fn close(self, frames: &mut Frames, now: u64) {
        let number = self.number;
        drop(self);
        frames.recover(number, now);
    }

    pub(super) fn fd(&self) -> i32 {
        use std::os::fd::AsRawFd;
        self.socket.fd.as_raw_fd()
    }

    /// Whether partial checksums can be handed on.
    pub(super) fn hands_on_checksums(&self) -> bool {
        self.socket.mode.metadata
    }

    /// Gives the kernel all the buffers that it has room for.
    pub(super) fn refill(&mut self, frames: &mut Frames) {
        let fill = &mut self.socket.fill;
        let mut room = fill.room();
        while room > 0
            && let Some(address) = frames.lend(self.number)
        {
            fill.push(address);
            room -= 1;
        }
        fill.publish();
        if self.socket.mode.zero_copy && fill.needs_wakeup() {
            self.socket.poll_device();
        }
    }

    pub(super) fn poll_device(&self) {
        self.socket.poll_device();
    }

    /// Takes up to [`BATCH`] frames; whether there was anything.
    pub(super) fn take(&mut self, frames: &mut Frames, to: &mut Vec<Received>, counters: &Counters) -> bool {
        let waiting = self.socket.rx.waiting().min(BATCH as u32);
        let (mut bytes, mut invalid, before) = (0, 0, to.len());
        for _ in 0..waiting {
            let descriptor = self.socket.rx.pop();
            self.taken += u64::from(descriptor.options & libc::XDP_PKT_CONTD == 0);
            let length = descriptor.len as usize;
            let Some((chunk, start)) = frames.back_from(self.number, descriptor.addr) else {
                invalid += 1;
                continue;
            };
            let end = start.saturating_add(length);
            if end > frames.area().chunk as usize {
                frames.give_back(chunk);
                invalid += 1;
                continue;
            }
            let more = descriptor.options & libc::XDP_PKT_CONTD != 0;
            if !more && self.pieces.is_none() {
                bytes += length as u64;
                to.push(Received::Chunk { chunk, start, end });
                continue;
            }
            // SAFETY: inside a chunk that is ours now.
            let piece = unsafe { std::slice::from_raw_parts(frames.at(chunk).wrapping_add(start), length) };
            let whole = self.pieces.get_or_insert_with(|| vec![0; LONG_HEAD]);
            if whole.len() + length <= LONG_HEAD + LONGEST {
                whole.extend_from_slice(piece);
            } else {
                whole.truncate(LONG_HEAD);
            }
            frames.give_back(chunk);
            if !more && let Some(whole) = self.pieces.take() {
                if whole.len() == LONG_HEAD {
                    counters.rx_truncated.add(1);
                    continue;
                }
                bytes += (whole.len() - LONG_HEAD) as u64;
                to.push(Received::Long(whole));
            }
        }
        self.socket.rx.release();
        let taken = (to.len() - before) as u64;
        counters.rx_frames.add(taken);
        counters.rx_bytes.add(bytes);
        counters.rx_invalid.add(invalid);
        add(&self.live.rx[0], taken);
        add(&self.live.rx[1], bytes);
        waiting > 0
    }

    /// Puts a frame into the tx ring. `false` where that is full: the frame is still the worker's.
    pub(super) fn push(&mut self, frames: &mut Frames, ready: Ready, counters: &Counters) -> bool {
        if self.socket.tx.room() == 0 {
            self.flush(frames, counters);
            if self.socket.tx.room() == 0 {
                return false;
            }
        }
        let address = u64::from(ready.chunk) * u64::from(frames.area().chunk) + ready.start as u64;
        let options = if ready.checksum == RxChecksum::Partial { libc::XDP_TX_METADATA } else { 0 };
        frames.pass_on(ready.chunk, self.number);
        self.socket.tx.push(xdp_desc { addr: address, len: ready.length as u32, options });
        self.pushed = true;
        counters.tx_frames.add(1);
        counters.tx_bytes.add(ready.length as u64);
        add(&self.live.tx[0], 1);
        add(&self.live.tx[1], ready.length as u64);
        true
    }

    /// Shows the kernel what was pushed, has it send that, and takes back what has been sent.
    pub(super) fn flush(&mut self, frames: &mut Frames, counters: &Counters) {
        if std::mem::take(&mut self.pushed) {
            self.socket.tx.publish();
        }
        for _ in 0..PATIENCE {
            let left = self.socket.tx.level().used > 0;
            let wake = !self.socket.mode.zero_copy || self.socket.tx.needs_wakeup();
            if !(left && wake || self.down) {
                break;
            }
            let kicked = self.socket.kick();
            self.down = false;
            match kicked.map_err(|e| e.raw_os_error()) {
                Ok(()) => {
                    if self.socket.mode.zero_copy {
                        break;
                    }
                }
                Err(Some(libc::EAGAIN | libc::EBUSY | libc::EINTR)) => {}
                // the device's queue is full: let it work
                Err(Some(libc::ENOBUFS)) => std::thread::yield_now(),
                Err(Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV)) => {
                    self.down = true;
                    break;
                }
                Err(_) => {
                    counters.tx_refused.add(1);
                    break;
                }
            }
            self.reap(frames, counters);
        }
        self.reap(frames, counters);
    }

    /// The socket's place among the XDP program's.
    pub(super) fn place(&self) -> usize {
        self.live.place
    }

    /// How many frames the program has given to this place as far as the worker can tell: those that it has taken, and those that the
    /// kernel lost on the way.
    pub(super) fn accounted(&self) -> u64 {
        let s = self.socket.statistics();
        let lost = s.rx_dropped.wrapping_add(s.rx_ring_full);
        self.live.given_before.wrapping_add(self.taken).wrapping_add(lost)
    }

    /// Whether no frame waits to be taken.
    pub(super) fn is_empty(&self) -> bool {
        self.socket.rx.waiting() == 0
    }

    /// Whether no frame waits to be sent.
    pub(super) fn has_sent_all(&self) -> bool {
        self.down || self.socket.tx.level().used == 0
    }

    /// Whether frames wait in the tx ring that a later flush can send.
    pub(super) fn is_stuck(&self) -> bool {
        !self.down && self.socket.tx.level().used > 0
    }

    fn reap(&mut self, frames: &mut Frames, counters: &Counters) {
        let ring = &mut self.socket.completion;
        let waiting = ring.waiting();
        if waiting == 0 {
            return;
        }
        for _ in 0..waiting {
            match frames.back_from(self.number, ring.pop()) {
                Some((chunk, _)) => frames.give_back(chunk),
                None => counters.tx_invalid.add(1),
            }
        }
        ring.release();
    }

    /// Adds what the kernel has counted since the last time, takes back what has been sent meanwhile, and notes how full the
    /// rings are.
    pub(super) fn read_counters(&mut self, frames: &mut Frames, counters: &Counters) {
        self.reap(frames, counters);
        let s = self.socket.statistics();
        let now = [
            s.rx_dropped,
            s.rx_ring_full,
            s.rx_invalid_descs,
            s.tx_invalid_descs,
            s.rx_fill_ring_empty_descs,
        ];
        let mut new = now;
        for (n, seen) in new.iter_mut().zip(self.seen) {
            *n = n.saturating_sub(seen);
        }
        self.seen = now;
        // a device that fills the memory itself has no other word for frames that found no buffer
        let no_buffer = if self.socket.mode.zero_copy { new[4] } else { 0 };
        counters.rx_no_buffer.add(new[0] + no_buffer);
        counters.rx_ring_full.add(new[1]);
        counters.rx_invalid.add(new[2]);
        counters.tx_invalid.add(new[3]);
        self.note_levels(frames);
    }

    fn note_levels(&self, frames: &Frames) {
        let s = &self.socket;
        let levels = [s.fill.level(), s.rx.level(), s.tx.level(), s.completion.level()];
        for (to, level) in self.live.levels.iter().zip(levels) {
            to.store(level.used, Ordering::Relaxed);
        }
        let all = frames.area().chunks;
        self.live.chunks[0].store(all - frames.free() as u32, Ordering::Relaxed);
        self.live.chunks[1].store(all, Ordering::Relaxed);
    }
}

/// Writes the note of a partial checksum before a frame; `false` where it cannot belong to such a frame.
pub(super) fn note_checksum(buf: &mut [u8], start: usize, length: usize) -> bool {
    let Some(frame) = buf.get(start..start + length) else { return false };
    let header = VnetHdr::describe(frame, RxChecksum::Partial, None);
    let Some((at, offset)) = header.and_then(|h| h.checksum_place()) else { return false };
    let Some(from) = start.checked_sub(METADATA) else { return false };
    let note = &mut buf[from..start];
    note.fill(0);
    // struct xsk_tx_metadata: flags, then where the sum begins and where it goes from there
    note[..8].copy_from_slice(&u64::from(libc::XDP_TXMD_FLAGS_CHECKSUM).to_ne_bytes());
    note[8..10].copy_from_slice(&at.to_ne_bytes());
    note[10..12].copy_from_slice(&offset.to_ne_bytes());
    true
}

/// Adds to a counter that only this worker writes.
fn add(counter: &std::sync::atomic::AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}
