//! Sending: frames are gathered by interface and sent 64 at a time, from where they lie.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use super::socket::SendPair;
use super::stats::{Counter, Counters};
use super::vnet::{VNET_LEN, VnetHdr};
use crate::engine::{Gso, RxChecksum};
use crate::route::PortId;

/// Frames in one system call.
pub(in crate::io) const BATCH: usize = 64;
/// How often one flush waits for room before it drops what does not fit.
const PATIENCE: u32 = 4;

/// Which counters a queue writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Out of the interface.
    Send,
    /// Back into the stack.
    Back,
}

/// A worker's sending half of a port: by packet sockets, out of the interface and back into the stack.
pub(in crate::io) struct Sender {
    pub(in crate::io) id: PortId,
    pub(in crate::io) counters: Arc<Counters>,
    queues: Option<(TxQueue, TxQueue)>,
}

impl Sender {
    pub(in crate::io) fn new(id: PortId, counters: Arc<Counters>, sockets: SendPair) -> Sender {
        let mut sender = Sender { id, counters, queues: None };
        sender.replace(Some(sockets));
        sender
    }

    /// Uses other sockets, or none. What waits is lost; call it with nothing waiting.
    pub(in crate::io) fn replace(&mut self, sockets: Option<SendPair>) {
        self.queues = sockets.map(|s| (TxQueue::new(s.tx, Kind::Send), TxQueue::new(s.back, Kind::Back)));
    }

    /// Whether it has sockets.
    pub(in crate::io) fn is_up(&self) -> bool {
        self.queues.is_some()
    }

    pub(in crate::io) fn flush(&mut self) {
        if let Some((tx, back)) = &mut self.queues {
            tx.flush(&self.counters);
            back.flush(&self.counters);
        }
    }

    /// Queues a frame to go out, or drops and counts it.
    ///
    /// # Safety
    ///
    /// The bytes must stay as they are until the next [`Sender::flush`] has returned.
    pub(in crate::io) unsafe fn forward(&mut self, bytes: &[u8], checksum: RxChecksum, gso: Option<Gso>) {
        let Some((queue, _)) = &mut self.queues else {
            self.counters.tx_down.add(1);
            return;
        };
        match VnetHdr::describe(bytes, checksum, gso) {
            // SAFETY: passed on to our caller.
            Some(header) => unsafe { queue.push(bytes.as_ptr(), bytes.len(), header, &self.counters) },
            None => self.counters.tx_refused.add(1),
        }
    }

    /// Queues a frame to go back into the stack, or drops and counts it.
    ///
    /// # Safety
    ///
    /// As for [`Sender::forward`].
    pub(in crate::io) unsafe fn put_back(&mut self, bytes: &[u8], header: VnetHdr) {
        let Some((_, queue)) = &mut self.queues else {
            self.counters.pass_dropped.add(1);
            return;
        };
        // SAFETY: passed on to our caller.
        unsafe { queue.push(bytes.as_ptr(), bytes.len(), header, &self.counters) };
    }
}

/// A socket and the frames that wait for it.
struct TxQueue {
    fd: OwnedFd,
    kind: Kind,
    messages: Box<[libc::mmsghdr; BATCH]>,
    parts: Box<[[libc::iovec; 2]; BATCH]>,
    headers: Box<[VnetHdr; BATCH]>,
    waiting: usize,
}

// SAFETY: the raw pointers lead into the queue's own boxes, or to frames for which `push` makes its caller answer.
unsafe impl Send for TxQueue {}

impl TxQueue {
    fn new(fd: OwnedFd, kind: Kind) -> TxQueue {
        let mut headers = Box::new([VnetHdr::default(); BATCH]);
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut parts = Box::new([[empty; 2]; BATCH]);
        // SAFETY: zeros are a message without anything.
        let nothing: libc::mmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut messages = Box::new([nothing; BATCH]);
        let headers_at = headers.as_mut_ptr();
        for (i, part) in parts.iter_mut().enumerate() {
            part[0] = libc::iovec { iov_base: headers_at.wrapping_add(i).cast(), iov_len: VNET_LEN };
        }
        let parts_at = parts.as_mut_ptr();
        for (i, message) in messages.iter_mut().enumerate() {
            message.msg_hdr.msg_iov = parts_at.wrapping_add(i).cast();
            message.msg_hdr.msg_iovlen = 2;
        }
        TxQueue { fd, kind, messages, parts, headers, waiting: 0 }
    }

    /// Puts a frame into the queue, sending what is there first if it is full.
    ///
    /// # Safety
    ///
    /// `len` bytes at `data` must stay as they are until the next [`TxQueue::flush`] has returned.
    unsafe fn push(&mut self, data: *const u8, len: usize, header: VnetHdr, counters: &Counters) {
        if self.waiting == BATCH {
            self.flush(counters);
        }
        let i = self.waiting;
        self.headers[i] = header;
        self.parts[i][1] = libc::iovec { iov_base: data.cast_mut().cast(), iov_len: len };
        self.waiting += 1;
    }

    /// Sends what waits. Returns only when nothing waits any more: sent, or dropped and counted.
    fn flush(&mut self, counters: &Counters) {
        let mut sent = 0;
        let mut patience = PATIENCE;
        while sent < self.waiting {
            let rest = &mut self.messages[sent..self.waiting];
            // SAFETY: messages whose parts lead to our headers and to frames that their pusher keeps in place.
            let n = unsafe {
                libc::sendmmsg(self.fd.as_raw_fd(), rest.as_mut_ptr(), rest.len() as u32, libc::MSG_DONTWAIT)
            };
            if n > 0 {
                let n = (n as usize).min(self.waiting - sent);
                self.count_sent(sent, n, counters);
                sent += n;
                continue;
            }
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                Some(libc::EAGAIN) if patience > 0 => {
                    patience -= 1;
                    self.wait_for_room();
                }
                Some(libc::ENOBUFS) if patience > 0 => {
                    // the device's queue is full, which no descriptor tells the end of
                    patience -= 1;
                    std::thread::yield_now();
                }
                Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                    self.count_dropped(&counters.tx_down, (self.waiting - sent) as u64, counters);
                    sent = self.waiting;
                }
                error => {
                    let counter = match error {
                        Some(libc::EAGAIN | libc::ENOBUFS) => &counters.tx_full,
                        Some(libc::EMSGSIZE) => &counters.tx_too_big,
                        _ => &counters.tx_refused,
                    };
                    self.count_dropped(counter, 1, counters);
                    sent += 1;
                }
            }
        }
        self.waiting = 0;
    }

    fn count_sent(&self, from: usize, n: usize, counters: &Counters) {
        if self.kind == Kind::Back {
            counters.passed.add(n as u64);
            return;
        }
        let bytes: usize = self.parts[from..from + n].iter().map(|p| p[1].iov_len).sum();
        counters.tx_frames.add(n as u64);
        counters.tx_bytes.add(bytes as u64);
    }

    fn count_dropped(&self, counter: &Counter, n: u64, counters: &Counters) {
        match self.kind {
            Kind::Send => counter.add(n),
            Kind::Back => counters.pass_dropped.add(n),
        }
    }

    fn wait_for_room(&self) {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one pollfd; at most 1 ms. Whatever comes back, the caller tries again.
        unsafe { libc::poll(&raw mut poll, 1, 1) };
    }
}
