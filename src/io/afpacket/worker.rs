//! A worker's rings on all interfaces.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ring::{Burst, RxFrame, RxRing};
use super::socket::PortSockets;
use crate::engine::{Frame, FrameHandler, Out, Verdict};
use crate::io::BpfTables;
use crate::io::bpf::Begun;
use crate::io::rings::Seat;
use crate::io::rings::tx::{BATCH, Sender};
use crate::io::rings::vnet::VnetHdr;
use crate::io::rings::worker::{Station, clock, readable};
use crate::route::PortId;
use crate::time::Now;

pub(super) struct Rings {
    rings: Vec<Option<RxRing>>,
    senders: Vec<Sender>,
    /// Places of ports by number.
    places: Vec<Option<usize>>,
    verdicts: Vec<Verdict>,
    batch: Vec<RxFrame>,
    /// The most frames that a burst of each ring met since the counters were last read.
    peaks: Vec<usize>,
    tables: Arc<BpfTables>,
    grace: Grace,
}

/// Waiting for what is on its way to the rings.
enum Grace {
    Idle,
    /// For frames that the programs have begun with, since a time.
    Programs(Begun, Now),
    /// For frames that are in the rings: of each how many are still to be worked off.
    Rings(Vec<usize>),
}

/// The longest that a program's work on one frame is waited for, nanoseconds. Only where other programs take frames away between the
/// tap and the ingress hook does one not come to its end.
const PROGRAM_NS: u64 = 20_000_000;

impl Rings {
    pub(super) fn new(ports: Vec<Seat<PortSockets>>, tables: Arc<BpfTables>) -> Rings {
        let last = ports.iter().map(|(id, ..)| usize::from(id.0)).max().unwrap_or(0);
        let mut places = vec![None; last + 1];
        let (mut rings, mut senders) = (Vec::new(), Vec::new());
        for (place, (id, sockets, counters)) in ports.into_iter().enumerate() {
            places[usize::from(id.0)] = Some(place);
            rings.push(Some(sockets.rx));
            senders.push(Sender::new(id, counters, sockets.send));
        }
        let verdicts = Vec::with_capacity(BATCH);
        let batch = Vec::with_capacity(BATCH);
        let peaks = vec![0; rings.len()];
        Rings { rings, senders, places, verdicts, batch, peaks, tables, grace: Grace::Idle }
    }

    fn work_off_burst(&mut self, place: usize, handler: &mut dyn FrameHandler) -> bool {
        let Some(mut burst) = self.rings[place].as_mut().and_then(RxRing::burst) else {
            self.worked_off(place, usize::MAX);
            return false;
        };
        let mut desk = Desk {
            place,
            senders: &mut self.senders,
            places: &self.places,
            handler,
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
        let taken = burst.taken();
        drop(burst);
        self.worked_off(place, taken);
        if let Some(peak) = self.peaks.get_mut(place) {
            *peak = depth.max(*peak);
        }
        true
    }

    /// Frames of a ring have been judged and sent.
    fn worked_off(&mut self, place: usize, frames: usize) {
        if let Grace::Rings(left) = &mut self.grace
            && let Some(left) = left.get_mut(place)
        {
            *left = left.saturating_sub(frames);
        }
    }
}

impl Station for Rings {
    type Sockets = PortSockets;

    fn turn(&mut self, handler: &mut dyn FrameHandler) -> bool {
        let mut busy = false;
        for place in 0..self.rings.len() {
            busy |= self.work_off_burst(place, handler);
        }
        busy
    }

    fn send_outbox(&mut self, handler: &mut dyn FrameHandler) {
        let mut kept = Vec::new();
        let mut desk = Desk {
            place: 0,
            senders: &mut self.senders,
            places: &self.places,
            handler,
            verdicts: &mut self.verdicts,
        };
        desk.collect_outbox(&mut kept);
        self.senders.iter_mut().for_each(Sender::flush);
    }

    fn read_counters(&mut self) {
        for ((ring, sender), peak) in self.rings.iter().zip(&self.senders).zip(&mut self.peaks) {
            let Some(ring) = ring else { continue };
            let counters = &sender.counters;
            counters.rx_ring_full.add(ring.take_drops());
            let used = std::mem::take(peak).max(ring.waiting());
            counters.ring_used.store(u32::try_from(used).unwrap_or(u32::MAX), Ordering::Relaxed);
            counters.ring_size.store(u32::try_from(ring.size()).unwrap_or(u32::MAX), Ordering::Relaxed);
        }
    }

    fn replace(&mut self, place: usize, sockets: Option<PortSockets>) {
        let (ring, send) = sockets.map(|s| (s.rx, s.send)).unzip();
        if let (Some(r), Some(s)) = (self.rings.get_mut(place), self.senders.get_mut(place)) {
            *r = ring;
            s.replace(send);
        }
    }

    fn begin_grace(&mut self) {
        if let Some(tier) = self.tables.tier() {
            self.grace = Grace::Programs(tier.begun(), clock());
        }
    }

    fn is_over(&mut self) -> bool {
        match &self.grace {
            Grace::Idle => true,
            Grace::Programs(begun, since) => {
                let ended = self.tables.tier().is_none_or(|t| t.ended(begun));
                if !ended && clock().0.saturating_sub(since.0) <= PROGRAM_NS {
                    return false;
                }
                let left = |r: &Option<RxRing>| r.as_ref().map_or(0, RxRing::waiting);
                let left: Vec<usize> = self.rings.iter().map(left).collect();
                let over = left.iter().all(|n| *n == 0);
                self.grace = if over { Grace::Idle } else { Grace::Rings(left) };
                over
            }
            Grace::Rings(left) => {
                let over = left.iter().all(|n| *n == 0);
                if over {
                    self.grace = Grace::Idle;
                }
                over
            }
        }
    }

    fn watch(&self, fds: &mut Vec<libc::pollfd>) {
        fds.extend(self.rings.iter().map(|r| readable(r.as_ref().map(|r| r.fd().as_raw_fd()))));
    }
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
                    unsafe { self.senders[self.place].put_back(bytes, header.unwrap_or(batch[i].vnet)) };
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
    /// As for [`Sender::forward`].
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
        // SAFETY: passed on to our caller.
        unsafe { self.senders[place].forward(bytes, checksum, gso) };
    }
}
