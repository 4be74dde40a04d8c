use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CAPPED, NLM_F_MULTIPART, NLMSG_DONE, NLMSG_ERROR};

use crate::attr::{Attrs, TooLong, Writer};
use crate::request::{IPVS_OPS, LVSD_OPS, Op, put_sysctl};
use crate::server::DATAGRAM_MAX;
use crate::status;
use crate::wire::{self, Frame, ctrl, ipvs, lvsd};
use crate::{
    Af, ConnEntry, Counter, Daemon, DestEntry, Envelope, Errno, Family, Info, Notice, Overview, QueueStatus,
    SchedulerInfo, ServiceEntry, Sysctl, Timeouts,
};

/// What `nlctrl` tells of a family.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FamilyInfo {
    /// Name.
    pub name: String,
    /// Number, for [`Envelope::family`].
    pub id: u16,
    /// Version.
    pub version: u32,
}

/// A message of the server that carries something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// A family's number.
    Family(FamilyInfo),
    /// A service.
    Service(ServiceEntry),
    /// A destination.
    Dest(DestEntry),
    /// A synchronisation daemon.
    Daemon(Daemon),
    /// The timeouts.
    Config(Timeouts),
    /// Version and table size.
    Info(Info),
    /// A connection.
    Conn(ConnEntry),
    /// A counter of the data path.
    Counter(Counter),
    /// A setting.
    Sysctl(Sysctl),
    /// What the daemon is.
    Overview(Overview),
    /// A queue of a port.
    Queue(QueueStatus),
    /// A scheduler.
    Scheduler(SchedulerInfo),
    /// A notice.
    Notice(Notice),
}

/// Any message of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Something asked for.
    Reply(Reply),
    /// The request succeeded.
    Ack,
    /// The request failed.
    Error(Errno),
    /// A dump is complete.
    Done,
}

/// A message of the server that makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed reply (command {command}, {errno})")]
pub struct ReplyError {
    /// Its command, or 0.
    pub command: u8,
    /// What is wrong with it.
    pub errno: Errno,
}

impl Reply {
    fn command(&self) -> (u8, u8) {
        let command = match self {
            Reply::Family(_) => return (ctrl::NEWFAMILY, ctrl::VERSION),
            Reply::Service(_) => ipvs::NEW_SERVICE,
            Reply::Dest(_) => ipvs::NEW_DEST,
            Reply::Daemon(_) => ipvs::NEW_DAEMON,
            Reply::Config(_) => ipvs::SET_CONFIG,
            Reply::Info(_) => ipvs::SET_INFO,
            Reply::Conn(_) => lvsd::GET_CONN,
            Reply::Counter(_) => lvsd::GET_COUNTER,
            Reply::Sysctl(_) => lvsd::GET_SYSCTL,
            Reply::Overview(_) => lvsd::GET_OVERVIEW,
            Reply::Queue(_) => lvsd::GET_QUEUE,
            Reply::Scheduler(_) => lvsd::GET_SCHEDULER,
            Reply::Notice(_) => lvsd::GET_NOTICE,
        };
        (command, wire::VERSION)
    }

    /// The reply as one netlink message with the kernel's attributes in its order; `multi`: as a part of a dump.
    ///
    /// # Errors
    /// [`TooLong`] where a name exceeds 64 KiB.
    pub fn encode(&self, envelope: Envelope, multi: bool) -> Result<Vec<u8>, TooLong> {
        let (command, version) = self.command();
        let mut w = wire::begin(command, version);
        match self {
            Reply::Family(f) => put_family(&mut w, f),
            Reply::Service(e) => wire::put_service(&mut w, &e.service, Some(&e.stats)),
            Reply::Dest(e) => wire::put_dest_entry(&mut w, e),
            Reply::Daemon(d) => wire::put_daemon(&mut w, d, false),
            Reply::Config(t) => wire::put_timeouts(&mut w, t),
            Reply::Info(i) => {
                w.u32(ipvs::A_INFO_VERSION, i.version);
                w.u32(ipvs::A_INFO_CONN_TAB_SIZE, i.conn_tab_size);
            }
            Reply::Conn(c) => put_conn(&mut w, c),
            Reply::Counter(c) => w.nested(lvsd::A_COUNTER, false, |w| status::put_counter(w, c)),
            Reply::Sysctl(s) => put_sysctl(&mut w, s, false),
            Reply::Overview(o) => status::put_overview(&mut w, o),
            Reply::Queue(q) => status::put_queue(&mut w, q),
            Reply::Scheduler(s) => status::put_scheduler(&mut w, s),
            Reply::Notice(n) => status::put_notice(&mut w, n),
        }
        let flags = if multi { NLM_F_MULTIPART } else { 0 };
        wire::seal(w, envelope.family, flags, envelope.seq, envelope.pid)
    }

    fn decode(family: Family, command: u8, attrs: &[u8], af: Af) -> Result<Self, Errno> {
        match (family, command) {
            (Family::Ctrl, ctrl::NEWFAMILY) => {
                let a = Attrs::parse(attrs, ctrl::POLICY)?;
                Ok(Reply::Family(FamilyInfo {
                    name: a.string(ctrl::A_NAME).ok_or(Errno::EINVAL)?,
                    id: a.u16(ctrl::A_ID).ok_or(Errno::EINVAL)?,
                    version: a.u32(ctrl::A_VERSION).unwrap_or(0),
                }))
            }
            (Family::Ipvs, ipvs::SET_INFO) => {
                let a = Attrs::parse(attrs, ipvs::INFO_POLICY)?;
                Ok(Reply::Info(Info {
                    version: a.u32(ipvs::A_INFO_VERSION).ok_or(Errno::EINVAL)?,
                    conn_tab_size: a.u32(ipvs::A_INFO_CONN_TAB_SIZE).ok_or(Errno::EINVAL)?,
                }))
            }
            (Family::Ipvs, _) => decode_ipvs(command, &Attrs::parse(attrs, ipvs::POLICY)?, af),
            (Family::Lvsd, _) => decode_lvsd(command, &Attrs::parse(attrs, lvsd::POLICY)?),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

fn decode_ipvs(command: u8, a: &Attrs<'_>, af: Af) -> Result<Reply, Errno> {
    match command {
        ipvs::NEW_SERVICE => {
            let s = a.nested(ipvs::A_SERVICE, wire::SVC_POLICY).ok_or(Errno::EINVAL)?;
            let service = wire::get_service(&s)?;
            Ok(Reply::Service(ServiceEntry { service, stats: wire::get_service_stats(&s) }))
        }
        ipvs::NEW_DEST => {
            let d = a.nested(ipvs::A_DEST, wire::DEST_POLICY).ok_or(Errno::EINVAL)?;
            Ok(Reply::Dest(wire::get_dest_entry(&d, af)?))
        }
        ipvs::NEW_DAEMON => {
            let d = a.nested(ipvs::A_DAEMON, wire::DAEMON_POLICY).ok_or(Errno::EINVAL)?;
            Ok(Reply::Daemon(wire::get_daemon(&d)?))
        }
        ipvs::SET_CONFIG => Ok(Reply::Config(wire::get_timeouts(a))),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

fn decode_lvsd(command: u8, a: &Attrs<'_>) -> Result<Reply, Errno> {
    match command {
        lvsd::GET_CONN => {
            let c = a.nested(lvsd::A_CONN, lvsd::CONN_POLICY).ok_or(Errno::EINVAL)?;
            get_conn(&c).map(Reply::Conn)
        }
        lvsd::GET_COUNTER => {
            let c = a.nested(lvsd::A_COUNTER, lvsd::COUNTER_POLICY).ok_or(Errno::EINVAL)?;
            status::get_counter(&c).map(Reply::Counter).ok_or(Errno::EINVAL)
        }
        lvsd::GET_OVERVIEW => status::get_overview(a).map(Reply::Overview),
        lvsd::GET_QUEUE => status::get_queue(a).map(Reply::Queue),
        lvsd::GET_SCHEDULER => status::get_scheduler(a).map(Reply::Scheduler),
        lvsd::GET_NOTICE => status::get_notice(a).map(Reply::Notice),
        lvsd::GET_SYSCTL => {
            let s = a.nested(lvsd::A_SYSCTL, lvsd::SYSCTL_POLICY).ok_or(Errno::EINVAL)?;
            Ok(Reply::Sysctl(Sysctl {
                name: s.string(lvsd::A_NAME).ok_or(Errno::EINVAL)?,
                value: s.string(lvsd::A_VALUE).ok_or(Errno::EINVAL)?,
            }))
        }
        _ => Err(Errno::EOPNOTSUPP),
    }
}

fn put_family(w: &mut Writer, f: &FamilyInfo) {
    let (ops, maxattr): (&[Op], u32) = match f.name.as_str() {
        "IPVS" => (IPVS_OPS, ipvs::MAXATTR),
        "LVSD" => (LVSD_OPS, lvsd::MAXATTR),
        _ => (&[], 0),
    };
    w.string(ctrl::A_NAME, &f.name);
    w.u16(ctrl::A_ID, f.id);
    w.u32(ctrl::A_VERSION, f.version);
    w.u32(ctrl::A_HDRSIZE, 0);
    w.u32(ctrl::A_MAXATTR, maxattr);
    if ops.is_empty() {
        return;
    }
    w.nested(ctrl::A_OPS, false, |w| {
        for (i, op) in (1..).zip(ops) {
            // GENL_ADMIN_PERM 1, GENL_CMD_CAP_DO 2, GENL_CMD_CAP_DUMP 4, GENL_CMD_CAP_HASPOL 8
            let flags = 1 | 8 | (u32::from(op.can_do) << 1) | (u32::from(op.can_dump) << 2);
            w.nested(i, false, |w| {
                w.u32(ctrl::A_OP_ID, op.cmd.into());
                w.u32(ctrl::A_OP_FLAGS, flags);
            });
        }
    });
}

fn put_conn(w: &mut Writer, c: &ConnEntry) {
    w.nested(lvsd::A_CONN, false, |w| {
        w.u16(lvsd::A_CONN_PROTOCOL, c.protocol.into());
        w.u16(lvsd::A_CONN_AF, Af::from(c.client.0) as u16);
        w.addr(lvsd::A_CONN_CADDR, c.client.0);
        w.be16(lvsd::A_CONN_CPORT, c.client.1);
        w.addr(lvsd::A_CONN_VADDR, c.virt.0);
        w.be16(lvsd::A_CONN_VPORT, c.virt.1);
        w.u16(lvsd::A_CONN_DAF, Af::from(c.dest.0) as u16);
        w.addr(lvsd::A_CONN_DADDR, c.dest.0);
        w.be16(lvsd::A_CONN_DPORT, c.dest.1);
        w.string(lvsd::A_CONN_STATE, &c.state);
        w.u32(lvsd::A_CONN_EXPIRES, c.expires);
        w.u32(lvsd::A_CONN_FLAGS, c.flags);
    });
}

fn get_conn(a: &Attrs<'_>) -> Result<ConnEntry, Errno> {
    let af = wire::af_attr(a, lvsd::A_CONN_AF).ok_or(Errno::EAFNOSUPPORT)?;
    let daf = wire::af_attr(a, lvsd::A_CONN_DAF).ok_or(Errno::EAFNOSUPPORT)?;
    let end = |addr, port, af| -> Result<(IpAddr, u16), Errno> {
        Ok((a.addr(addr, af).ok_or(Errno::EINVAL)?, a.be16(port).ok_or(Errno::EINVAL)?))
    };
    let protocol = a.u16(lvsd::A_CONN_PROTOCOL).ok_or(Errno::EINVAL)?;
    Ok(ConnEntry {
        protocol: u8::try_from(protocol).map_err(|_| Errno::EINVAL)?,
        client: end(lvsd::A_CONN_CADDR, lvsd::A_CONN_CPORT, af)?,
        virt: end(lvsd::A_CONN_VADDR, lvsd::A_CONN_VPORT, af)?,
        dest: end(lvsd::A_CONN_DADDR, lvsd::A_CONN_DPORT, daf)?,
        state: a.string(lvsd::A_CONN_STATE).ok_or(Errno::EINVAL)?,
        expires: a.u32(lvsd::A_CONN_EXPIRES).ok_or(Errno::EINVAL)?,
        flags: a.u32(lvsd::A_CONN_FLAGS).ok_or(Errno::EINVAL)?,
    })
}

/// Reads a message of the server. `family` and `af` are those of the request: old servers leave a destination's family
/// out where it is the service's.
pub(crate) fn decode_message(frame: &Frame<'_>, family: Family, af: Af) -> Result<Message, ReplyError> {
    let malformed = |errno| ReplyError { command: 0, errno };
    match frame.kind {
        NLMSG_ERROR => {
            let code = frame.payload.first_chunk::<4>().ok_or(malformed(Errno::EINVAL))?;
            Ok(match i32::from_ne_bytes(*code) {
                0 => Message::Ack,
                n @ ..0 => Message::Error(Errno(n.checked_neg().unwrap_or(i32::MAX))),
                _ => return Err(malformed(Errno::ERANGE)),
            })
        }
        NLMSG_DONE => match frame.payload.first_chunk::<4>().map(|c| i32::from_ne_bytes(*c)) {
            // A dump that failed underway ends with its error.
            Some(n @ ..0) => Ok(Message::Error(Errno(n.checked_neg().unwrap_or(i32::MAX)))),
            _ => Ok(Message::Done),
        },
        _ => {
            let (Some(command), Some(attrs)) =
                (frame.payload.first(), frame.payload.get(wire::GENL_HDRLEN..))
            else {
                return Err(malformed(Errno::EINVAL));
            };
            Reply::decode(family, *command, attrs, af)
                .map(Message::Reply)
                .map_err(|errno| ReplyError { command: *command, errno })
        }
    }
}

/// `NLMSG_ERROR`: an acknowledgement quotes the request's header, an error the whole request if a datagram holds it.
pub(crate) fn encode_error(request: &Frame<'_>, error: Option<Errno>) -> Vec<u8> {
    let code = error.map_or(0, |e| e.0.saturating_neg());
    let (quote, flags) = if error.is_some() && request.whole.len() <= DATAGRAM_MAX - wire::NLMSG_HDRLEN - 4 {
        (request.whole, 0)
    } else {
        (request.whole.get(..wire::NLMSG_HDRLEN).unwrap_or_default(), NLM_F_CAPPED)
    };
    control(request, NLMSG_ERROR, flags, code, quote)
}

/// `NLMSG_DONE`.
pub(crate) fn encode_done(request: &Frame<'_>) -> Vec<u8> {
    control(request, NLMSG_DONE, NLM_F_MULTIPART, 0, &[])
}

fn control(request: &Frame<'_>, kind: u16, flags: u16, code: i32, quote: &[u8]) -> Vec<u8> {
    let len = wire::NLMSG_HDRLEN + 4 + quote.len();
    let mut out = Vec::with_capacity(len);
    out.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(&flags.to_ne_bytes());
    out.extend_from_slice(&request.seq.to_ne_bytes());
    out.extend_from_slice(&request.pid.to_ne_bytes());
    out.extend_from_slice(&code.to_ne_bytes());
    out.extend_from_slice(quote);
    out
}
