use std::collections::VecDeque;
use std::vec;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};

use crate::reply::{encode_done, encode_error};
use crate::wire::{self, Frame, ctrl, ipvs};
use crate::{Backend, ConnEntry, Envelope, Errno, Family, FamilyInfo, Reply, Request, ServiceKey, Sysctl};

/// The largest datagram of replies in bytes: a Unix socket's default buffer holds several.
pub const DATAGRAM_MAX: usize = 32 * 1024;
/// The number of `nlctrl`.
const FAMILY_CTRL: u16 = 16;
/// The number by which this server knows family IPVS.
pub const FAMILY_IPVS: u16 = 32;
/// The number by which this server knows family LVSD.
pub const FAMILY_LVSD: u16 = 33;
/// Message types below this are netlink's own.
const FIRST_FAMILY: u16 = 16;
/// Connections asked for at a time.
const CONNS_AT_A_TIME: usize = 256;

/// Serves the requests in a datagram: each item is a datagram to send back, at most [`DATAGRAM_MAX`] bytes.
///
/// A request is carried out when the iterator reaches it, and a dump goes on only as fast as the iterator is advanced;
/// lists of services and destinations are as they were when their dump began. What the datagram holds behind a message
/// of impossible length is ignored, as by the kernel.
pub fn serve<'a>(backend: &'a dyn Backend, datagram: &'a [u8]) -> Replies<'a> {
    Replies { backend, rest: datagram, queue: VecDeque::new(), dump: None, admin: true }
}

/// As [`serve`] for a caller who may not administer: names are resolved, all else is refused with `EPERM`.
pub fn serve_unprivileged<'a>(backend: &'a dyn Backend, datagram: &'a [u8]) -> Replies<'a> {
    Replies { admin: false, ..serve(backend, datagram) }
}

/// The datagrams that answer one datagram; see [`serve`].
pub struct Replies<'a> {
    backend: &'a dyn Backend,
    rest: &'a [u8],
    /// At most a reply and its acknowledgement.
    queue: VecDeque<Vec<u8>>,
    dump: Option<Dump<'a>>,
    admin: bool,
}

struct Dump<'a> {
    frame: Frame<'a>,
    envelope: Envelope,
    items: Box<dyn Iterator<Item = Reply> + Send + 'a>,
    /// An item that had no place in the last datagram.
    waiting: Option<Vec<u8>>,
}

impl Dump<'_> {
    /// The next datagram; `Ok(None)` after the last item.
    fn next(&mut self) -> Result<Option<Vec<u8>>, Errno> {
        let mut out = self.waiting.take().unwrap_or_default();
        for item in self.items.by_ref() {
            let message = item.encode(self.envelope, true).map_err(|_| Errno::EMSGSIZE)?;
            if message.len() > DATAGRAM_MAX {
                return Err(Errno::EMSGSIZE);
            }
            if out.len() + message.len() > DATAGRAM_MAX {
                self.waiting = Some(message);
                break;
            }
            out.extend_from_slice(&message);
        }
        Ok(if out.is_empty() { None } else { Some(out) })
    }
}

impl Iterator for Replies<'_> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(datagram) = self.queue.pop_front() {
                return Some(datagram);
            }
            if let Some(dump) = &mut self.dump {
                let datagram = match dump.next() {
                    Ok(Some(datagram)) => return Some(datagram),
                    Ok(None) => encode_done(&dump.frame),
                    Err(e) => encode_error(&dump.frame, Some(e)),
                };
                self.dump = None;
                return Some(datagram);
            }
            let frame = wire::next_frame(&mut self.rest)?;
            self.handle(frame);
        }
    }
}

impl<'a> Replies<'a> {
    fn handle(&mut self, frame: Frame<'a>) {
        if frame.flags & NLM_F_REQUEST == 0 || frame.kind < FIRST_FAMILY {
            return self.finish(&frame, Ok(None));
        }
        let family = match frame.kind {
            FAMILY_CTRL => Family::Ctrl,
            FAMILY_IPVS => Family::Ipvs,
            FAMILY_LVSD => Family::Lvsd,
            _ => return self.finish(&frame, Err(Errno::ENOENT)),
        };
        if !self.admin && family != Family::Ctrl {
            return self.finish(&frame, Err(Errno::EPERM));
        }
        let dump = frame.flags & NLM_F_DUMP == NLM_F_DUMP;
        match Request::decode(family, dump, frame.payload) {
            Ok(request) if request.is_dump() => self.start_dump(frame, request),
            Ok(request) => {
                let done = perform(self.backend, request);
                self.finish(&frame, done);
            }
            // A dump of destinations without a sound service is an empty one.
            Err(e) if dump && family == Family::Ipvs && frame.payload.first() == Some(&ipvs::GET_DEST) => {
                if frame.payload.len() < wire::GENL_HDRLEN {
                    self.finish(&frame, Err(e.errno));
                } else {
                    self.dump_items(frame, Box::new(std::iter::empty()));
                }
            }
            Err(e) => {
                let missing = e.service.and_then(|key| self.backend.service(&key).err());
                self.finish(&frame, Err(missing.unwrap_or(e.errno)));
            }
        }
    }

    /// Queues a reply, if any, and the acknowledgement or error.
    fn finish(&mut self, frame: &Frame<'a>, result: Result<Option<Reply>, Errno>) {
        let envelope = Envelope { family: frame.kind, seq: frame.seq, pid: frame.pid };
        let result = match result {
            Ok(Some(reply)) => match reply.encode(envelope, false) {
                Ok(datagram) if datagram.len() <= DATAGRAM_MAX => {
                    self.queue.push_back(datagram);
                    Ok(())
                }
                _ => Err(Errno::EMSGSIZE),
            },
            Ok(None) => Ok(()),
            Err(e) => Err(e),
        };
        match result {
            Ok(()) if frame.flags & NLM_F_ACK != 0 => self.queue.push_back(encode_error(frame, None)),
            Ok(()) => {}
            Err(e) => self.queue.push_back(encode_error(frame, Some(e))),
        }
    }

    fn start_dump(&mut self, frame: Frame<'a>, request: Request) {
        let b = self.backend;
        self.dump_items(
            frame,
            match request {
                Request::DumpFamilies => Box::new(families().into_iter().map(Reply::Family)),
                Request::DumpServices => Box::new(b.services().into_iter().map(Reply::Service)),
                Request::DumpDests(key) => dump_dests(b, &key),
                Request::DumpDaemons => Box::new(b.daemons().into_iter().map(Reply::Daemon)),
                Request::DumpConns => {
                    let conns = Conns { backend: b, batch: Vec::new().into_iter(), cursor: Some(0) };
                    Box::new(conns.map(Reply::Conn))
                }
                Request::GetStatus => Box::new(b.counters().into_iter().map(Reply::Counter)),
                Request::DumpQueues => Box::new(b.queues().into_iter().map(Reply::Queue)),
                Request::DumpSchedulers => Box::new(b.schedulers().into_iter().map(Reply::Scheduler)),
                Request::DumpNotices => Box::new(b.notices().into_iter().map(Reply::Notice)),
                Request::GetSysctl(None) => Box::new(b.sysctls().into_iter().map(Reply::Sysctl)),
                _ => return self.finish(&frame, Err(Errno::EOPNOTSUPP)),
            },
        );
    }

    fn dump_items(&mut self, frame: Frame<'a>, items: Box<dyn Iterator<Item = Reply> + Send + 'a>) {
        let envelope = Envelope { family: frame.kind, seq: frame.seq, pid: frame.pid };
        self.dump = Some(Dump { frame, envelope, items, waiting: None });
    }
}

fn dump_dests<'a>(b: &dyn Backend, key: &ServiceKey) -> Box<dyn Iterator<Item = Reply> + Send + 'a> {
    // An unknown service has no destinations: an empty dump, not an error.
    Box::new(b.dests(key).unwrap_or_default().into_iter().map(Reply::Dest))
}

/// All connections, a batch at a time.
struct Conns<'a> {
    backend: &'a dyn Backend,
    batch: vec::IntoIter<ConnEntry>,
    cursor: Option<u64>,
}

impl Iterator for Conns<'_> {
    type Item = ConnEntry;

    fn next(&mut self) -> Option<ConnEntry> {
        loop {
            if let Some(conn) = self.batch.next() {
                return Some(conn);
            }
            let cursor = self.cursor?;
            let (batch, next) = self.backend.conns(cursor, CONNS_AT_A_TIME);
            self.batch = batch.into_iter();
            // A cursor that stands still would never end.
            self.cursor = next.filter(|n| *n > cursor);
        }
    }
}

fn families() -> [FamilyInfo; 3] {
    let info = |family: Family, id, version: u8| FamilyInfo {
        name: family.name().to_owned(),
        id,
        version: version.into(),
    };
    [
        info(Family::Ctrl, FAMILY_CTRL, ctrl::VERSION),
        info(Family::Ipvs, FAMILY_IPVS, wire::VERSION),
        info(Family::Lvsd, FAMILY_LVSD, wire::VERSION),
    ]
}

/// Carries out a request that is no dump.
fn perform(b: &dyn Backend, request: Request) -> Result<Option<Reply>, Errno> {
    match request {
        Request::GetFamily(name) => {
            let info = families().into_iter().find(|f| f.name == name).ok_or(Errno::ENOENT)?;
            return Ok(Some(Reply::Family(info)));
        }
        Request::GetService(key) => return b.service(&key).map(|e| Some(Reply::Service(e))),
        Request::GetConfig => return Ok(Some(Reply::Config(b.timeouts()))),
        Request::GetInfo => return Ok(Some(Reply::Info(b.info()))),
        Request::GetOverview => return Ok(Some(Reply::Overview(b.overview()))),
        Request::GetSysctl(Some(name)) => {
            let found: Option<Sysctl> = b.sysctls().into_iter().find(|s| s.name == name);
            return found.map(|s| Some(Reply::Sysctl(s))).ok_or(Errno::ENOENT);
        }
        Request::NewService(s) => b.add_service(&s)?,
        Request::SetService(s) => b.edit_service(&s)?,
        Request::DelService(key) => b.delete_service(&key)?,
        Request::NewDest(key, dest) => b.add_dest(&key, &dest)?,
        Request::SetDest(key, dest) => b.edit_dest(&key, &dest)?,
        Request::DelDest(key, addr, port) => b.delete_dest(&key, addr, port)?,
        Request::NewDaemon(d) => b.start_daemon(&d)?,
        Request::DelDaemon(state) => b.stop_daemon(state)?,
        Request::SetConfig(t) => b.set_timeouts(t)?,
        Request::Zero(key) => b.zero(key.as_ref())?,
        Request::Flush => b.flush()?,
        Request::SetSysctl(s) => b.set_sysctl(&s.name, &s.value)?,
        Request::DumpFamilies
        | Request::DumpServices
        | Request::DumpDests(_)
        | Request::DumpDaemons
        | Request::DumpConns
        | Request::GetStatus
        | Request::DumpQueues
        | Request::DumpSchedulers
        | Request::DumpNotices
        | Request::GetSysctl(None) => return Err(Errno::EOPNOTSUPP),
    }
    Ok(None)
}
