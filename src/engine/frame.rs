use crate::engine::Reason;
use crate::route::PortId;

/// What the receiver knows of a frame's transport checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RxChecksum {
    /// Whatever is in the header is meant to be final.
    Complete,
    /// The field holds only the pseudo-header's sum, folded and not complemented (`CHECKSUM_PARTIAL`); the sender of
    /// the frame must complete it, or hand this note on.
    Partial,
    /// The receiver was not told (XDP does not tell): the core finds out by the field (`modes::checksum::is_partial`), and
    /// says so in the frame that it forwards.
    Unknown,
}

/// A super-packet: the frame stands for several segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gso {
    /// Payload bytes of each segment.
    pub size: u16,
    /// Whether the port could not tell and took the most that it may be: the core then cuts smaller segments where they must be.
    pub guessed: bool,
}

/// A frame on its way through the director: bytes `start..end` of `buf` (what is before and behind is head and tail room).
#[derive(Debug)]
pub struct Frame<'a> {
    /// The buffer.
    pub buf: &'a mut [u8],
    /// First byte of the Ethernet header.
    pub start: usize,
    /// Behind the last byte.
    pub end: usize,
    /// The port it came in by.
    pub port: PortId,
    /// Its checksum's state.
    pub checksum: RxChecksum,
    /// Set where it is a super-packet.
    pub gso: Option<Gso>,
}

impl Frame<'_> {
    /// The frame's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }
    /// The frame's bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buf[self.start..self.end]
    }
}

/// What is to be done with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Send the (changed) frame out of a port, with the checksum note and GSO size that it came with.
    Forward(PortId),
    /// The frame is used up; what comes of it (an ICMP error, fragments) is in the worker's outbox.
    Emitted,
    /// Kept by the core until its next hop is resolved; the core has copied it.
    Queued,
    /// Not ours: to the kernel, unchanged (but for the checksum of a super-packet, which may have been made partial).
    Pass,
    /// Away with it, and count why.
    Drop(Reason),
}

/// A frame made by the core, to be sent out of `port`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Out {
    /// Where.
    pub port: PortId,
    /// The Ethernet frame.
    pub data: Vec<u8>,
    /// As in [`Frame::checksum`].
    pub checksum: RxChecksum,
    /// As in [`Frame::gso`].
    pub gso: Option<Gso>,
}
