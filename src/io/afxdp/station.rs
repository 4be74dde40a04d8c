//! A worker's sockets on all interfaces: takes frames, has them judged, sends them from where they lie.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use modes::{checksum, packet};

use super::queue::{BATCH, LONG_HEAD, Queue, Ready, Received, note_checksum};
use super::socket::{Facts, METADATA, PortSockets};
use super::umem::{Area, FIRST_SOCKET, Frames, HEAD_ROOM};
use crate::engine::{Frame, FrameHandler, Gso, Out, RxChecksum, Verdict};
use crate::io::BpfTables;
use crate::io::rings::Seat;
use crate::io::rings::tx::Sender;
use crate::io::rings::vnet::VnetHdr;
use crate::io::rings::worker::{Station, clock, readable};
use crate::route::PortId;

/// Ethernet header and one VLAN tag: what a frame may have beyond the MTU.
const LINK: usize = 18;
/// How long a worker sleeps while frames wait that the kernel did not take, nanoseconds.
const STUCK_NS: u64 = 1_000_000;

/// A port of this worker.
struct Place {
    /// Sends by packet sockets: what goes back to the stack, what has no chunk, and all where this worker has no queue of the
    /// interface.
    sender: Sender,
    queues: Vec<Queue>,
    facts: Arc<Facts>,
}

impl Place {
    /// Whether frames go out by a socket of ours: not where some would have to go another way and overtake, or be overtaken.
    fn has_ring(&self, room: usize) -> bool {
        let long = self.facts.mtu.load(Ordering::Relaxed) as usize + LINK > room;
        !self.queues.is_empty() && !self.facts.generic && !long
    }
}

pub(super) struct Xsks {
    frames: Frames,
    places: Vec<Place>,
    /// Places of ports by number.
    by_port: Vec<Option<usize>>,
    next_number: u32,
    /// Microseconds to go on looking after the last frame.
    busy_poll: u32,
    last_frame: u64,
    received: Vec<Received>,
    verdicts: Vec<Verdict>,
    /// Chunks whose frames have gone by a packet socket, free when that has been flushed.
    lent: Vec<u32>,
    tables: Arc<BpfTables>,
    grace: Option<Grace>,
}

/// Waiting for the frames that had been given to the sockets at a time.
struct Grace {
    since: u64,
    /// By place among the program's sockets.
    given: Vec<(usize, u64)>,
}

/// How long frames are waited for that were given to a socket and never came: some are lost without a count when sockets change.
const GIVEN_NS: u64 = 20_000_000;

/// A frame that is to be sent: in a chunk, or elsewhere.
struct Parcel<'a> {
    chunk: Option<u32>,
    /// The buffer, and where in it the frame is.
    buf: &'a mut [u8],
    start: usize,
    end: usize,
    checksum: RxChecksum,
    gso: Option<Gso>,
}

impl Xsks {
    pub(super) fn new(
        area: Arc<Area>,
        tables: Arc<BpfTables>,
        busy_poll: u32,
        seats: Vec<Seat<PortSockets>>,
    ) -> Xsks {
        let last = seats.iter().map(|(id, ..)| usize::from(id.0)).max().unwrap_or(0);
        let mut station = Xsks {
            frames: Frames::new(area),
            places: Vec::new(),
            by_port: vec![None; last + 1],
            next_number: FIRST_SOCKET,
            busy_poll,
            last_frame: 0,
            received: Vec::with_capacity(BATCH),
            verdicts: Vec::with_capacity(BATCH),
            lent: Vec::with_capacity(BATCH),
            tables,
            grace: None,
        };
        for (place, (id, sockets, counters)) in seats.into_iter().enumerate() {
            station.by_port[usize::from(id.0)] = Some(place);
            let (facts, send) = (sockets.facts, sockets.send);
            let queues = sockets.queues.into_iter().map(|(s, live)| station.queue(s, live)).collect();
            station.places.push(Place { sender: Sender::new(id, counters, send), queues, facts });
        }
        station
    }

    fn queue(&mut self, socket: super::socket::XskSocket, live: Arc<super::socket::Live>) -> Queue {
        let number = self.next_number;
        self.next_number = self.next_number.wrapping_add(1).max(FIRST_SOCKET);
        Queue::new(socket, live, number, &mut self.frames)
    }

    /// Works off what waits in one queue, at most a batch.
    fn serve(&mut self, place: usize, number: usize, handler: &mut dyn FrameHandler) -> bool {
        let Place { sender, queues, .. } = &mut self.places[place];
        let queue = &mut queues[number];
        if self.busy_poll > 0 {
            queue.poll_device();
        }
        let mut received = std::mem::take(&mut self.received);
        received.clear();
        let any = queue.take(&mut self.frames, &mut received, &sender.counters);
        if any {
            self.judge((place, number), &mut received, handler);
        }
        self.received = received;
        any
    }

    /// Has the handler judge a batch and does what it says; nothing waits any more when it returns, but in rings.
    fn judge(
        &mut self,
        (place, number): (usize, usize),
        received: &mut [Received],
        handler: &mut dyn FrameHandler,
    ) {
        let port = self.places[place].sender.id;
        let mtu = self.places[place].facts.mtu.load(Ordering::Relaxed) as usize;
        let generic = self.places[place].facts.generic;
        let mut chunks: Vec<Option<u32>> = Vec::with_capacity(received.len());
        let mut batch: Vec<Frame<'_>> = Vec::with_capacity(received.len());
        for r in received.iter_mut() {
            let (buf, start, end, chunk) = match r {
                Received::Chunk { chunk, start, end } => {
                    // SAFETY: a chunk that the worker has, and another one for each frame; it stays the worker's until
                    // the frame's verdict has been carried out, which is the last use of the slice.
                    let buf = unsafe { std::slice::from_raw_parts_mut(self.frames.at(*chunk), *end) };
                    (buf, *start, *end, Some(*chunk))
                }
                Received::Long(bytes) => {
                    let end = bytes.len();
                    (&mut bytes[..], LONG_HEAD, end, None)
                }
            };
            let length = end - start;
            let gso = segment_size(&buf[start..end], mtu, generic);
            if length > mtu + LINK && gso.is_none() {
                self.places[place].sender.counters.rx_super_packet.add(1);
                self.discard(chunk);
                continue;
            }
            chunks.push(chunk);
            batch.push(Frame { buf, start, end, port, checksum: RxChecksum::Unknown, gso });
        }
        let mut verdicts = std::mem::take(&mut self.verdicts);
        verdicts.clear();
        handler.batch(clock(), &mut batch, &mut verdicts);
        let missing = batch.len().saturating_sub(verdicts.len());
        self.places[place].sender.counters.no_verdict.add(missing as u64);
        verdicts.resize(batch.len(), Verdict::Emitted);
        for ((frame, chunk), verdict) in batch.iter_mut().zip(chunks).zip(&verdicts) {
            let parcel = Parcel {
                chunk,
                buf: &mut *frame.buf,
                start: frame.start,
                end: frame.end,
                checksum: frame.checksum,
                gso: frame.gso,
            };
            match *verdict {
                // SAFETY: in a chunk that is free only after the flush below, or in `received`.
                Verdict::Forward(out) => unsafe { self.forward((place, number), out, parcel) },
                // SAFETY: as above.
                Verdict::Pass => unsafe { self.put_back(place, parcel) },
                Verdict::Emitted | Verdict::Queued | Verdict::Drop(_) => {
                    if let Some(chunk) = chunk {
                        self.frames.give_back(chunk);
                    }
                }
            }
        }
        self.verdicts = verdicts;
        self.send_out((place, number), handler);
    }

    /// Sends what the core has made itself, and flushes.
    fn send_out(&mut self, from: (usize, usize), handler: &mut dyn FrameHandler) {
        let mut kept: Vec<Out> = Vec::new();
        handler.drain_outbox(&mut |out| kept.push(out));
        for out in &mut kept {
            let (length, room) = (out.data.len(), self.frames.area().room());
            let mut parcel = Parcel {
                chunk: None,
                buf: &mut out.data,
                start: 0,
                end: length,
                checksum: out.checksum,
                gso: out.gso,
            };
            let ring = self.place(out.port).is_some_and(|p| self.places[p].has_ring(room));
            if ring
                && out.gso.is_none()
                && length <= room
                && let Some(chunk) = self.frames.take()
            {
                let end = HEAD_ROOM + length;
                // SAFETY: a chunk that the worker has just taken.
                let buf = unsafe { std::slice::from_raw_parts_mut(self.frames.at(chunk), end) };
                buf[HEAD_ROOM..].copy_from_slice(parcel.buf);
                (parcel.chunk, parcel.buf, parcel.start, parcel.end) = (Some(chunk), buf, HEAD_ROOM, end);
            }
            // SAFETY: in a chunk, or in `kept`, which goes after the flush.
            unsafe { self.forward(from, out.port, parcel) };
        }
        self.flush();
    }

    fn flush(&mut self) {
        for Place { sender, queues, .. } in &mut self.places {
            sender.flush();
            for queue in queues {
                queue.flush(&mut self.frames, &sender.counters);
            }
        }
        for chunk in self.lent.drain(..) {
            self.frames.give_back(chunk);
        }
        for Place { queues, .. } in &mut self.places {
            for queue in queues {
                queue.refill(&mut self.frames);
            }
        }
    }

    fn place(&self, port: PortId) -> Option<usize> {
        self.by_port.get(usize::from(port.0)).copied().flatten()
    }

    fn discard(&mut self, chunk: Option<u32>) {
        if let Some(chunk) = chunk {
            self.frames.give_back(chunk);
        }
    }

    /// Sends a frame out of a port, or drops and counts it.
    ///
    /// # Safety
    ///
    /// Its buffer must stay as it is until the next flush.
    unsafe fn forward(&mut self, from: (usize, usize), port: PortId, parcel: Parcel<'_>) {
        let Parcel { chunk, buf, start, end, checksum, gso } = parcel;
        let Some(place) = self.place(port) else {
            self.places[from.0].sender.counters.tx_no_port.add(1);
            return self.discard(chunk);
        };
        let room = self.frames.area().room();
        // what came in generic mode may go on as super-packets, which only packet sockets can send; so all of it does
        let by_ring = !self.places[from.0].facts.generic && self.places[place].has_ring(room);
        let Place { sender, queues, facts } = &mut self.places[place];
        let length = end.saturating_sub(start);
        let (Some(held), true) = (chunk, by_ring && gso.is_none() && start >= METADATA && length > 0) else {
            let bytes = buf.get(start..end).unwrap_or_default();
            // SAFETY: passed on to our caller; the chunk is given back only after the flush.
            unsafe { sender.forward(bytes, checksum, gso) };
            self.lent.extend(chunk);
            return;
        };
        let counters = Arc::clone(&sender.counters);
        let queue_count = queues.len();
        let queue = &mut queues[from.1 % queue_count];
        let dropped = if queue.down || !sender.is_up() {
            Some(&counters.tx_down)
        } else if length > facts.mtu.load(Ordering::Relaxed) as usize + LINK {
            Some(&counters.tx_too_big)
        } else {
            match ready(queue, held, buf, (start, length), checksum) {
                None => Some(&counters.tx_refused),
                Some(ready) if queue.push(&mut self.frames, ready, &counters) => None,
                Some(_) => Some(&counters.tx_full),
            }
        };
        if let Some(counter) = dropped {
            counter.add(1);
            self.frames.give_back(held);
        }
    }

    /// Puts a frame back into the stack.
    ///
    /// # Safety
    ///
    /// As for [`Xsks::forward`].
    unsafe fn put_back(&mut self, place: usize, parcel: Parcel<'_>) {
        let bytes = parcel.buf.get(parcel.start..parcel.end).unwrap_or_default();
        let checksum = match parcel.checksum {
            RxChecksum::Unknown if packet::parse(bytes).is_ok_and(|p| checksum::is_partial(bytes, &p)) => {
                RxChecksum::Partial
            }
            known => known,
        };
        let header = VnetHdr::describe(bytes, checksum, parcel.gso).unwrap_or_default();
        // SAFETY: passed on to our caller; the chunk is given back only after the flush.
        unsafe { self.places[place].sender.put_back(bytes, header) };
        self.lent.extend(parcel.chunk);
    }
}

/// Makes a frame in a chunk ready for a queue: its checksum completed, or the note of it written. `None` where that cannot be.
fn ready(
    queue: &Queue,
    chunk: u32,
    buf: &mut [u8],
    (start, length): (usize, usize),
    mut checksum: RxChecksum,
) -> Option<Ready> {
    if checksum == RxChecksum::Partial {
        if queue.hands_on_checksums() {
            note_checksum(buf, start, length).then_some(())?;
        } else {
            let frame = buf.get_mut(start..start + length)?;
            let p = packet::parse(frame).ok()?;
            checksum::complete_partial(frame, &p).then_some(())?;
            checksum = RxChecksum::Complete;
        }
    }
    Some(Ready { chunk, start, length, checksum })
}

/// Largest IP packet that a super-packet is cut into: IPv6 demands that every path takes it, and hardly one takes less. What size its
/// sender cuts it into, and whether that has learned of a narrower path, XDP does not tell; a larger guess could be refused on the way
/// for ever.
const SAFE: usize = 1280;

/// The segment size of what may be a super-packet of TCP, a guess; `None` for all others. Longer than the MTU it is one. In generic mode
/// one of two small segments may fit; then its checksum is partial, as it is of all that no wire has carried yet.
fn segment_size(frame: &[u8], mtu: usize, generic: bool) -> Option<Gso> {
    let long = frame.len() > mtu + LINK;
    let perhaps = generic && frame.len() > SAFE + 14;
    if !long && !perhaps {
        return None;
    }
    let p = packet::parse(frame).ok().filter(|p| p.proto == packet::proto::TCP)?;
    if !long && !checksum::is_partial(frame, &p) {
        return None;
    }
    let header = usize::from(frame.get(p.l4 + 12)? >> 4) * 4;
    let size = SAFE.min(mtu).checked_sub(p.l4 - p.l3 + header).filter(|&s| s > 0)?;
    Some(Gso { size: u16::try_from(size).ok()?, guessed: true })
}

impl Station for Xsks {
    type Sockets = PortSockets;

    fn turn(&mut self, handler: &mut dyn FrameHandler) -> bool {
        let mut busy = false;
        for place in 0..self.places.len() {
            for number in 0..self.places[place].queues.len() {
                busy |= self.serve(place, number, handler);
            }
        }
        if !busy {
            // what a device did not take at first, and buffers that have come back meanwhile
            self.flush();
        }
        if self.busy_poll > 0 {
            let now = clock().0;
            if busy {
                self.last_frame = now;
            }
            busy |= now < self.last_frame.saturating_add(u64::from(self.busy_poll) * 1000);
        }
        busy
    }

    fn send_outbox(&mut self, handler: &mut dyn FrameHandler) {
        self.send_out((0, 0), handler);
    }

    fn read_counters(&mut self) {
        self.frames.wake(clock().0);
        for Place { sender, queues, .. } in &mut self.places {
            for queue in queues {
                queue.read_counters(&mut self.frames, &sender.counters);
            }
        }
    }

    fn replace(&mut self, place: usize, sockets: Option<PortSockets>) {
        let Some(old) = self.places.get_mut(place) else { return };
        let now = clock().0;
        for mut queue in std::mem::take(&mut old.queues) {
            queue.read_counters(&mut self.frames, &old.sender.counters);
            queue.close(&mut self.frames, now);
        }
        let Some(new) = sockets else {
            return old.sender.replace(None);
        };
        old.sender.replace(Some(new.send));
        old.facts = new.facts;
        let queues = new.queues.into_iter().map(|(s, live)| self.queue(s, live)).collect();
        self.places[place].queues = queues;
    }

    fn begin_grace(&mut self) {
        let Some(tier) = self.tables.tier() else { return };
        let queues = self.places.iter().flat_map(|p| &p.queues);
        let given = queues.map(|q| q.place()).map(|place| (place, tier.given(place))).collect();
        self.grace = Some(Grace { since: clock().0, given });
    }

    fn is_over(&mut self) -> bool {
        let (Some(grace), Some(tier)) = (&self.grace, self.tables.tier()) else { return true };
        // what is still to be sent would be overtaken
        let mut queues = self.places.iter().flat_map(|p| &p.queues);
        let late = clock().0.saturating_sub(grace.since) > GIVEN_NS;
        let over = queues.all(|q| {
            let Some((_, then)) = grace.given.iter().find(|(place, _)| *place == q.place()) else {
                return true;
            };
            if !q.has_sent_all() {
                return false;
            }
            let seen = q.accounted();
            // while the program is about to decide, the count is one too high for a moment
            let all =
                seen.wrapping_sub(*then) as i64 >= 0 || seen.wrapping_sub(tier.given(q.place())) as i64 >= 0;
            all || late && q.is_empty()
        });
        if over {
            self.grace = None;
        }
        over
    }

    fn watch(&self, fds: &mut Vec<libc::pollfd>) {
        fds.extend(self.places.iter().flat_map(|p| p.queues.iter().map(|q| readable(Some(q.fd())))));
    }

    fn longest_sleep(&mut self) -> u64 {
        let stuck = self.places.iter().any(|p| p.queues.iter().any(Queue::is_stuck));
        if stuck { STUCK_NS } else { u64::MAX }
    }
}
