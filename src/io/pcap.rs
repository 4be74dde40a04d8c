//! Files as ports: frames come from a pcap file with its time stamps as the time, and what is sent goes into another.

use std::io::{Read, Write};
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapReader, PcapWriter};
use pcap_file::{DataLink, PcapError, TsResolution};

use crate::engine::{Frame, FrameHandler, Out, RxChecksum, Verdict};
use crate::route::PortId;
use crate::time::Now;

/// Free bytes before and behind each frame.
const ROOM: usize = 128;
/// Most timer calls between two packets, so that a handler whose deadline does not move cannot hold a replay up.
const MAX_TICKS: u32 = 1_000_000;

/// Timer calls at one and the same time: a handler does some of what is due at each.
const MAX_TICKS_AT_ONCE: u32 = 4096;

/// Why a replay ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// Not a pcap file.
    #[error("not a capture in pcap format ({0}); 'tcpdump -w' writes that")]
    NotPcap(&'static str),
    /// The file can't be read.
    #[error("reading it: {0}")]
    Input(std::io::Error),
    /// A damaged file.
    #[error("packet {number}: {error}")]
    Read {
        /// Number of the packet, from 1.
        number: u64,
        /// What is wrong.
        error: PcapError,
    },
    /// The capture was cut: the frame's end is missing.
    #[error(
        "packet {number}: only {captured} of {length} bytes were captured; capture again with a larger snaplen (-s 0)"
    )]
    Truncated {
        /// Number of the packet, from 1.
        number: u64,
        /// Bytes in the file.
        captured: usize,
        /// Bytes on the wire.
        length: u32,
    },
    /// Not Ethernet.
    #[error("the capture's link type is {0:?}; only Ethernet can be replayed")]
    LinkType(DataLink),
    /// Time stamps go back.
    #[error(
        "packet {number}: its time stamp is before that of the packet before; sort the file (reordercap)"
    )]
    TimeGoesBack {
        /// Number of the packet, from 1.
        number: u64,
    },
    /// The handler left a frame without verdict.
    #[error("packet {number}: no verdict")]
    NoVerdict {
        /// Number of the packet, from 1.
        number: u64,
    },
    /// Writing failed.
    #[error("writing a packet: {0}")]
    Write(PcapError),
}

/// What a replay did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReplaySummary {
    /// Frames read.
    pub read: u64,
    /// Frames written.
    pub written: u64,
    /// Frames that the kernel would have got back.
    pub passed: u64,
    /// Frames dropped.
    pub dropped: u64,
}

/// Bytes of a pcap file's header.
const HEADER: usize = 24;
/// Its first four bytes: times in microseconds or nanoseconds, in either byte order.
const MAGICS: [[u8; 4]; 4] =
    [[0xa1, 0xb2, 0xc3, 0xd4], [0xd4, 0xc3, 0xb2, 0xa1], [0xa1, 0xb2, 0x3c, 0x4d], [0x4d, 0x3c, 0xb2, 0xa1]];
/// The first four bytes of a pcapng file.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// Looks whether an input is a capture at all; the result reads the same bytes.
///
/// # Errors
///
/// [`ReplayError::NotPcap`], [`ReplayError::Input`].
pub fn checked(mut input: impl Read) -> Result<impl Read, ReplayError> {
    let mut head = Vec::with_capacity(HEADER);
    input.by_ref().take(HEADER as u64).read_to_end(&mut head).map_err(ReplayError::Input)?;
    let why = match head.first_chunk::<4>() {
        _ if head.is_empty() => Some("it is empty"),
        Some(&PCAPNG) => Some("it is pcapng: convert it by 'editcap -F pcap'"),
        Some(magic) if !MAGICS.contains(magic) => Some("it begins otherwise"),
        _ if head.len() < HEADER => Some("it is shorter than a header"),
        _ => None,
    };
    match why {
        Some(why) => Err(ReplayError::NotPcap(why)),
        None => Ok(std::io::Cursor::new(head).chain(input)),
    }
}

/// Reads frames from `input`, gives each to `handler` as coming in by the port that `port` says, and writes what is sent by whatever port to
/// `output` (nanosecond time stamps, Ethernet). Timers that fall between two packets run at their time.
///
/// # Errors
///
/// [`ReplayError`]; names the packet by its number, from 1.
pub fn replay(
    input: impl Read,
    output: impl Write,
    port: impl Fn(&[u8]) -> PortId,
    handler: &mut dyn FrameHandler,
) -> Result<ReplaySummary, ReplayError> {
    let mut reader =
        PcapReader::new(checked(input)?).map_err(|error| ReplayError::Read { number: 0, error })?;
    let link = reader.header().datalink;
    if link != DataLink::ETHERNET {
        return Err(ReplayError::LinkType(link));
    }
    let header =
        PcapHeader { ts_resolution: TsResolution::NanoSecond, datalink: link, ..PcapHeader::default() };
    let writer = PcapWriter::with_header(output, header).map_err(ReplayError::Write)?;
    let mut replay = Replay { writer, handler, summary: ReplaySummary::default(), verdicts: Vec::new() };
    let mut last = None;
    while let Some(packet) = reader.next_packet() {
        let number = replay.summary.read + 1;
        let packet = packet.map_err(|error| ReplayError::Read { number, error })?;
        let now = nanoseconds(packet.timestamp);
        match last {
            Some(before) if now < before => return Err(ReplayError::TimeGoesBack { number }),
            Some(before) => replay.timers(before, now)?,
            None => {}
        }
        last = Some(now);
        replay.packet(number, now, port(&packet.data), &packet)?;
    }
    let Replay { writer, summary, .. } = replay;
    writer.into_writer().flush().map_err(|e| ReplayError::Write(PcapError::IoError(e)))?;
    Ok(summary)
}

fn nanoseconds(t: Duration) -> Now {
    Now(u64::try_from(t.as_nanos()).unwrap_or(u64::MAX))
}

struct Replay<'h, W: Write> {
    writer: PcapWriter<W>,
    handler: &'h mut dyn FrameHandler,
    summary: ReplaySummary,
    verdicts: Vec<Verdict>,
}

impl<W: Write> Replay<'_, W> {
    /// Lets timers run that are due between two packets.
    fn timers(&mut self, from: Now, to: Now) -> Result<(), ReplayError> {
        let (mut at, mut at_once) = (from, 0);
        for _ in 0..MAX_TICKS {
            let due = self.handler.next_deadline(at).max(at);
            if due > to {
                break;
            }
            self.handler.tick(due);
            self.outbox(due)?;
            at_once = if due == at { at_once + 1 } else { 0 };
            if at_once >= MAX_TICKS_AT_ONCE {
                // it wants no later time; the packet's own will do
                break;
            }
            at = due;
        }
        self.handler.tick(to);
        self.outbox(to)
    }

    fn packet(
        &mut self,
        number: u64,
        now: Now,
        port: PortId,
        packet: &PcapPacket<'_>,
    ) -> Result<(), ReplayError> {
        let (captured, length) = (packet.data.len(), packet.orig_len);
        if captured < length as usize {
            return Err(ReplayError::Truncated { number, captured, length });
        }
        let mut buf = vec![0; ROOM + captured + ROOM];
        buf[ROOM..ROOM + captured].copy_from_slice(&packet.data);
        let mut frames = [Frame {
            buf: &mut buf,
            start: ROOM,
            end: ROOM + captured,
            port,
            checksum: RxChecksum::Complete,
            gso: None,
        }];
        self.verdicts.clear();
        self.handler.batch(now, &mut frames, &mut self.verdicts);
        self.summary.read += 1;
        match self.verdicts.first() {
            None => return Err(ReplayError::NoVerdict { number }),
            Some(Verdict::Forward(_)) => {
                let data = frames[0].buf.get(frames[0].start..frames[0].end).unwrap_or_default();
                write(&mut self.writer, &mut self.summary, now, data)?;
            }
            Some(Verdict::Pass) => self.summary.passed += 1,
            Some(Verdict::Drop(_)) => self.summary.dropped += 1,
            Some(Verdict::Emitted | Verdict::Queued) => {}
        }
        self.outbox(now)
    }

    fn outbox(&mut self, now: Now) -> Result<(), ReplayError> {
        let mut out: Vec<Out> = Vec::new();
        self.handler.drain_outbox(&mut |o| out.push(o));
        out.iter().try_for_each(|o| write(&mut self.writer, &mut self.summary, now, &o.data))
    }
}

fn write<W: Write>(
    writer: &mut PcapWriter<W>,
    summary: &mut ReplaySummary,
    now: Now,
    data: &[u8],
) -> Result<(), ReplayError> {
    let packet = PcapPacket::new(Duration::from_nanos(now.0), data.len() as u32, data);
    writer.write_packet(&packet).map_err(ReplayError::Write)?;
    summary.written += 1;
    Ok(())
}

#[cfg(test)]
mod tests;
