//! A worker: its sockets on all interfaces, its handler, one loop.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::ring::{Burst, RxFrame, RxRing};
use super::socket::{PortSockets, read_option};
use super::stats::Counters;
use super::tx::{BATCH, Kind, TxQueue};
use super::vnet::VnetHdr;
use crate::engine::{Frame, FrameHandler, Out, Verdict};
use crate::route::PortId;
use crate::time::Now;

/// Longest sleep: within this time a worker notices anything.
const MAX_SLEEP_NS: u64 = 50_000_000;
/// How often the kernel's drop counters are read.
const COUNTERS_NS: u64 = 1_000_000_000;

/// What a worker shares with the rest.
pub(super) struct Shared {
    pub(super) stop: AtomicBool,
    /// Written to wake the worker.
    pub(super) wake: OwnedFd,
    /// Set where the inbox holds something.
    pub(super) news: AtomicBool,
    /// New sockets for a port (by its place), or none where its interface has gone.
    pub(super) inbox: Mutex<Vec<(usize, Option<PortSockets>)>>,
}

impl Shared {
    pub(super) fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // a full counter wakes as well
        let _ = rustix::io::write(&self.wake, &one);
    }
}

/// A port's sending half.
struct Sender {
    id: PortId,
    counters: Arc<Counters>,
    queues: Option<(TxQueue, TxQueue)>,
}

impl Sender {
    fn flush(&mut self) {
        if let Some((tx, back)) = &mut self.queues {
            tx.flush(&self.counters);
            back.flush(&self.counters);
        }
    }
}

pub(super) struct Worker {
    rings: Vec<Option<RxRing>>,
    senders: Vec<Sender>,
    /// Places of ports by number.
    places: Vec<Option<usize>>,
    handler: Box<dyn FrameHandler + Send>,
    shared: Arc<Shared>,
    verdicts: Vec<Verdict>,
    batch: Vec<RxFrame>,
    counters_at: u64,
    /// The most frames that a burst of each ring met since the counters were last read.
    peaks: Vec<usize>,
}

/// Monotonic time.
pub(super) fn clock() -> Now {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Now(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

impl Worker {
    pub(super) fn new(
        ports: Vec<(PortId, PortSockets, Arc<Counters>)>,
        handler: Box<dyn FrameHandler + Send>,
        shared: Arc<Shared>,
    ) -> Worker {
        let last = ports.iter().map(|(id, ..)| usize::from(id.0)).max().unwrap_or(0);
        let mut places = vec![None; last + 1];
        let (mut rings, mut senders) = (Vec::new(), Vec::new());
        for (place, (id, sockets, counters)) in ports.into_iter().enumerate() {
            places[usize::from(id.0)] = Some(place);
            let (ring, queues) = halves(sockets);
            rings.push(Some(ring));
            senders.push(Sender { id, counters, queues: Some(queues) });
        }
        let verdicts = Vec::with_capacity(BATCH);
        let batch = Vec::with_capacity(BATCH);
        let peaks = vec![0; rings.len()];
        Worker { rings, senders, places, handler, shared, verdicts, batch, counters_at: 0, peaks }
    }

    /// Works until it is told to stop.
    pub(super) fn run(&mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            let busy = self.turn();
            let now = clock();
            if self.handler.next_deadline(now) <= now {
                self.handler.tick(now);
                self.send_outbox();
            }
            if now.0 >= self.counters_at {
                self.counters_at = now.0 + COUNTERS_NS;
                self.read_rings();
            }
            if self.shared.news.load(Ordering::Acquire) {
                self.take_inbox();
            } else if !busy {
                self.sleep(now);
            }
        }
        self.read_rings();
    }

    /// One look at each ring; whether there was anything.
    fn turn(&mut self) -> bool {
        let mut busy = false;
        for place in 0..self.rings.len() {
            busy |= self.work_off_burst(place);
        }
        busy
    }

    fn work_off_burst(&mut self, place: usize) -> bool {
        let Some(mut burst) = self.rings[place].as_mut().and_then(RxRing::burst) else {
            return false;
        };
        let mut desk = Desk {
            place,
            senders: &mut self.senders,
            places: &self.places,
            handler: self.handler.as_mut(),
            verdicts: &mut self.verdicts,
        };
        // what the core emits is kept until it has been sent
        let mut kept = Vec::new();
        while desk.gather(&mut burst, &mut self.batch) {
            // SAFETY: frames of the burst, which is given back after the flush below.
            unsafe { desk.judge(&mut self.batch, &mut kept) };
        }
        self.senders.iter_mut().for_each(Sender::flush);
        let depth = burst.depth();
        drop(burst);
        if let Some(peak) = self.peaks.get_mut(place) {
            *peak = depth.max(*peak);
        }
        true
    }

    fn send_outbox(&mut self) {
        let mut kept = Vec::new();
        let mut desk = Desk {
            place: 0,
            senders: &mut self.senders,
            places: &self.places,
            handler: self.handler.as_mut(),
            verdicts: &mut self.verdicts,
        };
        desk.collect_outbox(&mut kept);
        self.senders.iter_mut().for_each(Sender::flush);
    }

    /// What the kernel dropped, and how full the rings were.
    fn read_rings(&mut self) {
        for ((ring, sender), peak) in self.rings.iter().zip(&self.senders).zip(&mut self.peaks) {
            let Some(ring) = ring else { continue };
            let counters = &sender.counters;
            counters.rx_ring_full.add(ring.take_drops());
            let used = std::mem::take(peak).max(ring.waiting());
            counters.ring_used.store(u32::try_from(used).unwrap_or(u32::MAX), Ordering::Relaxed);
            counters.ring_size.store(u32::try_from(ring.size()).unwrap_or(u32::MAX), Ordering::Relaxed);
        }
    }

    fn sleep(&mut self, now: Now) {
        let until = self.handler.next_deadline(now).0.min(now.0.saturating_add(MAX_SLEEP_NS));
        let nanoseconds = until.saturating_sub(now.0).min(MAX_SLEEP_NS);
        let timeout = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds as i64 };
        let watch = |fd: Option<i32>| libc::pollfd { fd: fd.unwrap_or(-1), events: libc::POLLIN, revents: 0 };
        let mut fds: Vec<libc::pollfd> = vec![watch(Some(self.shared.wake.as_raw_fd()))];
        fds.extend(self.rings.iter().map(|r| watch(r.as_ref().map(|r| r.fd().as_raw_fd()))));
        // SAFETY: pollfds of our own, as many as we say; no signal mask.
        let n =
            unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, &timeout, std::ptr::null()) };
        if n <= 0 {
            return;
        }
        for fd in &fds[1..] {
            if fd.revents & (libc::POLLERR | libc::POLLHUP) != 0 {
                // an interface that went down or away says so once; reading the error lets the next poll sleep
                let mut error: libc::c_int = 0;
                let _ = read_option(fd.fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut error);
            }
        }
        if fds[0].revents != 0 {
            let mut counter = [0; 8];
            let _ = rustix::io::read(&self.shared.wake, &mut counter);
        }
    }

    fn take_inbox(&mut self) {
        self.shared.news.store(false, Ordering::Release);
        let news = std::mem::take(&mut *self.shared.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        for (place, sockets) in news {
            let (ring, queues) = sockets.map(halves).unzip();
            if let (Some(r), Some(s)) = (self.rings.get_mut(place), self.senders.get_mut(place)) {
                *r = ring;
                s.queues = queues;
            }
        }
    }
}

fn halves(sockets: PortSockets) -> (RxRing, (TxQueue, TxQueue)) {
    (sockets.rx, (TxQueue::new(sockets.tx, Kind::Send), TxQueue::new(sockets.back, Kind::Back)))
}

/// What frames of one burst meet: the handler, then the queues that its verdicts name.
struct Desk<'w> {
    place: usize,
    senders: &'w mut [Sender],
    places: &'w [Option<usize>],
    handler: &'w mut dyn FrameHandler,
    verdicts: &'w mut Vec<Verdict>,
}

impl Desk<'_> {
    /// Takes the next frames of the burst; false at its end.
    fn gather(&mut self, burst: &mut Burst<'_>, batch: &mut Vec<RxFrame>) -> bool {
        batch.clear();
        let (mut bytes, mut truncated) = (0, 0);
        while batch.len() < BATCH {
            match burst.next() {
                None => break,
                Some(None) => truncated += 1,
                Some(Some(frame)) => {
                    bytes += (frame.end - frame.start) as u64;
                    batch.push(frame);
                }
            }
        }
        let counters = &self.senders[self.place].counters;
        counters.rx_frames.add(batch.len() as u64);
        counters.rx_bytes.add(bytes);
        counters.rx_truncated.add(truncated);
        !batch.is_empty() || truncated > 0
    }

    /// Has the handler judge a batch and queues what is to be sent.
    ///
    /// # Safety
    ///
    /// The frames must stay where they are until the queues have been flushed, and `kept` likewise.
    unsafe fn judge(&mut self, batch: &mut [RxFrame], kept: &mut Vec<Out>) {
        if batch.is_empty() {
            return;
        }
        let port = self.senders[self.place].id;
        let mut frames: Vec<Frame<'_>> = Vec::with_capacity(batch.len());
        for f in batch.iter() {
            frames.push(Frame {
                // SAFETY: by this function's contract; each frame of the batch is another one.
                buf: unsafe { f.bytes() },
                start: f.start,
                end: f.end,
                port,
                checksum: f.vnet.checksum(),
                gso: f.vnet.gso(),
            });
        }
        self.verdicts.clear();
        self.handler.batch(clock(), &mut frames, self.verdicts);
        let missing = frames.len().saturating_sub(self.verdicts.len());
        if missing > 0 {
            self.senders[self.place].counters.no_verdict.add(missing as u64);
        }
        for i in 0..frames.len().min(self.verdicts.len()) {
            match self.verdicts[i] {
                Verdict::Forward(out) => {
                    let frame = &frames[i];
                    let bytes = frame.buf.get(frame.start..frame.end).unwrap_or_default();
                    // SAFETY: in the burst, by this function's contract.
                    unsafe { self.forward(out, bytes, frame.checksum, frame.gso) };
                }
                Verdict::Pass => {
                    let frame = &frames[i];
                    let changed = frame.checksum != batch[i].vnet.checksum();
                    let bytes = frame.buf.get(frame.start..frame.end).unwrap_or_default();
                    let header =
                        if changed { VnetHdr::describe(bytes, frame.checksum, frame.gso) } else { None };
                    // SAFETY: in the burst, by this function's contract.
                    unsafe { self.put_back(&batch[i], header.unwrap_or(batch[i].vnet)) };
                }
                Verdict::Emitted | Verdict::Queued | Verdict::Drop(_) => {}
            }
        }
        drop(frames);
        self.collect_outbox(kept);
    }

    /// Queues what the core has made itself. `kept` must outlive the next flush of all queues.
    fn collect_outbox(&mut self, kept: &mut Vec<Out>) {
        let first = kept.len();
        self.handler.drain_outbox(&mut |out| kept.push(out));
        for out in &kept[first..] {
            // SAFETY: the bytes are on the heap, and stay there when `kept` grows, until the caller drops it.
            unsafe { self.forward(out.port, &out.data, out.checksum, out.gso) };
        }
    }

    /// # Safety
    ///
    /// As for [`TxQueue::push`].
    unsafe fn forward(
        &mut self,
        port: PortId,
        bytes: &[u8],
        checksum: crate::engine::RxChecksum,
        gso: Option<crate::engine::Gso>,
    ) {
        let place = self.places.get(usize::from(port.0)).copied().flatten();
        let Some(place) = place else {
            self.senders[self.place].counters.tx_no_port.add(1);
            return;
        };
        let sender = &mut self.senders[place];
        let Some((queue, _)) = &mut sender.queues else {
            sender.counters.tx_down.add(1);
            return;
        };
        match VnetHdr::describe(bytes, checksum, gso) {
            // SAFETY: passed on to our caller.
            Some(header) => unsafe { queue.push(bytes.as_ptr(), bytes.len(), header, &sender.counters) },
            None => sender.counters.tx_refused.add(1),
        }
    }

    /// # Safety
    ///
    /// As for [`TxQueue::push`].
    unsafe fn put_back(&mut self, frame: &RxFrame, header: VnetHdr) {
        let sender = &mut self.senders[self.place];
        let Some((_, queue)) = &mut sender.queues else {
            sender.counters.pass_dropped.add(1);
            return;
        };
        // SAFETY: passed on to our caller.
        unsafe { queue.push(frame.data(), frame.end - frame.start, header, &sender.counters) };
    }
}
