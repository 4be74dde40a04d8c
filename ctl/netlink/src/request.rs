use std::net::IpAddr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};

use crate::attr::{Attrs, TooLong, Writer};
use crate::wire::{self, ctrl, ipvs, lvsd};
use crate::{
    Af, Daemon, DaemonState, Dest, Errno, FwdMethod, Netmask, Service, ServiceKey, Sysctl, Timeouts, Tunnel,
};

/// A generic netlink family that the protocol's server knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Family {
    /// `nlctrl`: resolves names. Its number is 16 everywhere.
    Ctrl,
    /// IPVS, version 1.
    Ipvs,
    /// LVSD, version 1: what IPVS has no message for.
    Lvsd,
}

impl Family {
    /// Name to resolve.
    pub fn name(self) -> &'static str {
        match self {
            Family::Ctrl => "nlctrl",
            Family::Ipvs => "IPVS",
            Family::Lvsd => "LVSD",
        }
    }
}

/// A command to the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Resolves a family's name.
    GetFamily(String),
    /// Lists the families.
    DumpFamilies,
    /// Adds a service.
    NewService(Service),
    /// Changes a service.
    SetService(Service),
    /// Removes a service.
    DelService(ServiceKey),
    /// One service.
    GetService(ServiceKey),
    /// All services.
    DumpServices,
    /// Adds a destination.
    NewDest(ServiceKey, Dest),
    /// Changes a destination.
    SetDest(ServiceKey, Dest),
    /// Removes a destination.
    DelDest(ServiceKey, IpAddr, u16),
    /// A service's destinations.
    DumpDests(ServiceKey),
    /// Starts a synchronisation daemon.
    NewDaemon(Daemon),
    /// Stops a synchronisation daemon.
    DelDaemon(DaemonState),
    /// The synchronisation daemons.
    DumpDaemons,
    /// Sets timeouts.
    SetConfig(Timeouts),
    /// The timeouts.
    GetConfig,
    /// Version and table size.
    GetInfo,
    /// Zeroes the statistics of one service or of all.
    Zero(Option<ServiceKey>),
    /// Removes all services.
    Flush,
    /// LVSD: all connections.
    DumpConns,
    /// LVSD: the data path's counters.
    GetStatus,
    /// LVSD: what the daemon is.
    GetOverview,
    /// LVSD: the queues of its ports.
    DumpQueues,
    /// LVSD: the schedulers that it has.
    DumpSchedulers,
    /// LVSD: what the operator should know.
    DumpNotices,
    /// LVSD: one setting by name, or all.
    GetSysctl(Option<String>),
    /// LVSD: changes a setting.
    SetSysctl(Sysctl),
}

/// Numbers of one message's envelope.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// The family's number, from [`Request::GetFamily`].
    pub family: u16,
    /// Sequence number, echoed.
    pub seq: u32,
    /// Port number, echoed.
    pub pid: u32,
}

/// Why a request can't be understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{errno}")]
pub struct RequestError {
    /// What the kernel would answer.
    pub errno: Errno,
    /// The service, if that part was sound: the kernel looks it up first and answers `ESRCH` if it is missing.
    pub service: Option<ServiceKey>,
}

impl From<Errno> for RequestError {
    fn from(errno: Errno) -> Self {
        Self { errno, service: None }
    }
}

impl Request {
    /// The family whose number the envelope needs.
    pub fn family(&self) -> Family {
        match self {
            Request::GetFamily(_) | Request::DumpFamilies => Family::Ctrl,
            Request::DumpConns
            | Request::GetStatus
            | Request::GetOverview
            | Request::DumpQueues
            | Request::DumpSchedulers
            | Request::DumpNotices
            | Request::GetSysctl(_)
            | Request::SetSysctl(_) => Family::Lvsd,
            _ => Family::Ipvs,
        }
    }

    /// Whether the answer is a series of messages that ends with `NLMSG_DONE` (else it ends with the acknowledgement).
    pub fn is_dump(&self) -> bool {
        matches!(
            self,
            Request::DumpFamilies
                | Request::DumpServices
                | Request::DumpDests(_)
                | Request::DumpDaemons
                | Request::DumpConns
                | Request::GetStatus
                | Request::DumpQueues
                | Request::DumpSchedulers
                | Request::DumpNotices
                | Request::GetSysctl(None)
        )
    }

    fn command(&self) -> u8 {
        match self {
            Request::GetFamily(_) | Request::DumpFamilies => ctrl::GETFAMILY,
            Request::NewService(_) => ipvs::NEW_SERVICE,
            Request::SetService(_) => ipvs::SET_SERVICE,
            Request::DelService(_) => ipvs::DEL_SERVICE,
            Request::GetService(_) | Request::DumpServices => ipvs::GET_SERVICE,
            Request::NewDest(..) => ipvs::NEW_DEST,
            Request::SetDest(..) => ipvs::SET_DEST,
            Request::DelDest(..) => ipvs::DEL_DEST,
            Request::DumpDests(_) => ipvs::GET_DEST,
            Request::NewDaemon(_) => ipvs::NEW_DAEMON,
            Request::DelDaemon(_) => ipvs::DEL_DAEMON,
            Request::DumpDaemons => ipvs::GET_DAEMON,
            Request::SetConfig(_) => ipvs::SET_CONFIG,
            Request::GetConfig => ipvs::GET_CONFIG,
            Request::GetInfo => ipvs::GET_INFO,
            Request::Zero(_) => ipvs::ZERO,
            Request::Flush => ipvs::FLUSH,
            Request::DumpConns => lvsd::GET_CONN,
            Request::GetStatus => lvsd::GET_COUNTER,
            Request::GetOverview => lvsd::GET_OVERVIEW,
            Request::DumpQueues => lvsd::GET_QUEUE,
            Request::DumpSchedulers => lvsd::GET_SCHEDULER,
            Request::DumpNotices => lvsd::GET_NOTICE,
            Request::GetSysctl(_) => lvsd::GET_SYSCTL,
            Request::SetSysctl(_) => lvsd::SET_SYSCTL,
        }
    }

    /// The request as one netlink message that asks for an acknowledgement, with ipvsadm's attributes in its order.
    ///
    /// # Errors
    /// [`TooLong`] where a name exceeds 64 KiB.
    pub fn encode(&self, envelope: Envelope) -> Result<Vec<u8>, TooLong> {
        let mut w = wire::begin(self.command(), wire::VERSION);
        self.put(&mut w);
        let dump = if self.is_dump() { NLM_F_DUMP } else { 0 };
        wire::seal(w, envelope.family, NLM_F_REQUEST | NLM_F_ACK | dump, envelope.seq, envelope.pid)
    }

    fn put(&self, w: &mut Writer) {
        let bare = |key: &ServiceKey| wire::bare_service(key, wire::host_mask(key.af()));
        match self {
            Request::GetFamily(name) => w.string(ctrl::A_NAME, name),
            Request::NewService(s) | Request::SetService(s) => wire::put_service(w, s, None),
            Request::DelService(key) | Request::Zero(Some(key)) => wire::put_service(w, &bare(key), None),
            Request::GetService(key) => {
                let no_mask = match key.af() {
                    Af::V4 => Netmask::V4(std::net::Ipv4Addr::UNSPECIFIED),
                    Af::V6 => Netmask::V6(0),
                };
                wire::put_service(w, &wire::bare_service(key, no_mask), None);
            }
            Request::NewDest(key, dest) | Request::SetDest(key, dest) => {
                wire::put_service(w, &bare(key), None);
                wire::put_dest(w, dest);
            }
            Request::DelDest(key, addr, port) => {
                let dest = Dest {
                    addr: *addr,
                    port: *port,
                    method: FwdMethod::Droute,
                    weight: 1,
                    upper: 0,
                    lower: 0,
                    tunnel: Tunnel::default(),
                };
                wire::put_service(w, &bare(key), None);
                wire::put_dest(w, &dest);
            }
            Request::DumpDests(key) => wire::put_service_key(w, key),
            Request::NewDaemon(d) => wire::put_daemon(w, d, true),
            Request::DelDaemon(state) => {
                let d = Daemon {
                    state: *state,
                    interface: String::new(),
                    sync_id: 0,
                    maxlen: 0,
                    group: None,
                    port: 0,
                    ttl: 0,
                };
                wire::put_daemon(w, &d, true);
            }
            Request::SetConfig(t) => wire::put_timeouts(w, t),
            Request::GetSysctl(Some(name)) => {
                w.nested(lvsd::A_SYSCTL, true, |w| w.string(lvsd::A_NAME, name));
            }
            Request::SetSysctl(s) => put_sysctl(w, s, true),
            Request::DumpFamilies
            | Request::DumpServices
            | Request::DumpDaemons
            | Request::GetConfig
            | Request::GetInfo
            | Request::Zero(None)
            | Request::Flush
            | Request::DumpConns
            | Request::GetStatus
            | Request::GetOverview
            | Request::DumpQueues
            | Request::DumpSchedulers
            | Request::DumpNotices
            | Request::GetSysctl(None) => {}
        }
    }

    /// Reads what follows the netlink header of a message to `family`; `dump` says whether its flags ask for a dump.
    ///
    /// # Errors
    /// The kernel's: `EOPNOTSUPP` for an unknown command, `EINVAL` where something is missing or damaged, `ERANGE` for
    /// a value of a wrong length, `EAFNOSUPPORT`.
    pub fn decode(family: Family, dump: bool, payload: &[u8]) -> Result<Self, RequestError> {
        let (Some(cmd), Some(attrs)) = (payload.first(), payload.get(wire::GENL_HDRLEN..)) else {
            return Err(Errno::EINVAL.into());
        };
        match family {
            Family::Ctrl => decode_ctrl(*cmd, dump, attrs),
            Family::Ipvs => decode_ipvs(*cmd, dump, attrs),
            Family::Lvsd => decode_lvsd(*cmd, dump, attrs),
        }
    }
}

/// What a command's table entry says to `nlctrl`: number and whether do and dump exist.
pub(crate) struct Op {
    pub(crate) cmd: u8,
    pub(crate) can_do: bool,
    pub(crate) can_dump: bool,
}

const fn op(cmd: u8, can_do: bool, can_dump: bool) -> Op {
    Op { cmd, can_do, can_dump }
}

pub(crate) const IPVS_OPS: &[Op] = &[
    op(ipvs::NEW_SERVICE, true, false),
    op(ipvs::SET_SERVICE, true, false),
    op(ipvs::DEL_SERVICE, true, false),
    op(ipvs::GET_SERVICE, true, true),
    op(ipvs::NEW_DEST, true, false),
    op(ipvs::SET_DEST, true, false),
    op(ipvs::DEL_DEST, true, false),
    op(ipvs::GET_DEST, false, true),
    op(ipvs::NEW_DAEMON, true, false),
    op(ipvs::DEL_DAEMON, true, false),
    op(ipvs::GET_DAEMON, false, true),
    op(ipvs::SET_CONFIG, true, false),
    op(ipvs::GET_CONFIG, true, false),
    op(ipvs::GET_INFO, true, false),
    op(ipvs::ZERO, true, false),
    op(ipvs::FLUSH, true, false),
];

pub(crate) const LVSD_OPS: &[Op] = &[
    op(lvsd::GET_CONN, false, true),
    op(lvsd::GET_COUNTER, false, true),
    op(lvsd::GET_SYSCTL, true, true),
    op(lvsd::SET_SYSCTL, true, false),
    op(lvsd::GET_OVERVIEW, true, false),
    op(lvsd::GET_QUEUE, false, true),
    op(lvsd::GET_SCHEDULER, false, true),
    op(lvsd::GET_NOTICE, false, true),
];

fn known(ops: &[Op], cmd: u8, dump: bool) -> Result<(), Errno> {
    match ops.iter().find(|o| o.cmd == cmd) {
        Some(o) if if dump { o.can_dump } else { o.can_do } => Ok(()),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

fn decode_ctrl(cmd: u8, dump: bool, attrs: &[u8]) -> Result<Request, RequestError> {
    if cmd != ctrl::GETFAMILY {
        return Err(Errno::EOPNOTSUPP.into());
    }
    if dump {
        return Ok(Request::DumpFamilies);
    }
    let a = Attrs::parse(attrs, ctrl::POLICY)?;
    Ok(Request::GetFamily(a.string(ctrl::A_NAME).ok_or(Errno::EINVAL)?))
}

fn decode_ipvs(cmd: u8, dump: bool, attrs: &[u8]) -> Result<Request, RequestError> {
    known(IPVS_OPS, cmd, dump)?;
    match (cmd, dump) {
        (ipvs::GET_SERVICE, true) => return Ok(Request::DumpServices),
        (ipvs::GET_DAEMON, _) => return Ok(Request::DumpDaemons),
        (ipvs::GET_CONFIG, _) => return Ok(Request::GetConfig),
        (ipvs::GET_INFO, _) => return Ok(Request::GetInfo),
        (ipvs::FLUSH, _) => return Ok(Request::Flush),
        _ => {}
    }
    let a = Attrs::parse(attrs, ipvs::POLICY)?;
    match cmd {
        ipvs::NEW_DAEMON | ipvs::DEL_DAEMON => {
            let d = a.nested(ipvs::A_DAEMON, wire::DAEMON_POLICY).ok_or(Errno::EINVAL)?;
            return Ok(if cmd == ipvs::NEW_DAEMON {
                Request::NewDaemon(wire::get_daemon(&d)?)
            } else {
                Request::DelDaemon(wire::get_daemon_state(&d)?)
            });
        }
        ipvs::SET_CONFIG => return Ok(Request::SetConfig(wire::get_timeouts(&a))),
        ipvs::ZERO if a.get(ipvs::A_SERVICE).is_none() => return Ok(Request::Zero(None)),
        _ => {}
    }
    let s = a.nested(ipvs::A_SERVICE, wire::SVC_POLICY).ok_or(Errno::EINVAL)?;
    if matches!(cmd, ipvs::NEW_SERVICE | ipvs::SET_SERVICE) {
        let service = wire::get_service(&s)?;
        return Ok(if cmd == ipvs::NEW_SERVICE {
            Request::NewService(service)
        } else {
            Request::SetService(service)
        });
    }
    let key = wire::get_key(&s)?;
    match cmd {
        ipvs::DEL_SERVICE => Ok(Request::DelService(key)),
        ipvs::GET_SERVICE => Ok(Request::GetService(key)),
        ipvs::ZERO => Ok(Request::Zero(Some(key))),
        ipvs::GET_DEST => Ok(Request::DumpDests(key)),
        _ => decode_dest(cmd, key, &a).map_err(|errno| RequestError { errno, service: Some(key) }),
    }
}

fn decode_dest(cmd: u8, key: ServiceKey, a: &Attrs<'_>) -> Result<Request, Errno> {
    let d = a.nested(ipvs::A_DEST, wire::DEST_POLICY).ok_or(Errno::EINVAL)?;
    match cmd {
        ipvs::NEW_DEST => Ok(Request::NewDest(key, wire::get_dest(&d, key.af())?)),
        ipvs::SET_DEST => Ok(Request::SetDest(key, wire::get_dest(&d, key.af())?)),
        ipvs::DEL_DEST => {
            let (addr, port) = wire::get_dest_key(&d, key.af())?;
            Ok(Request::DelDest(key, addr, port))
        }
        _ => Err(Errno::EOPNOTSUPP),
    }
}

fn decode_lvsd(cmd: u8, dump: bool, attrs: &[u8]) -> Result<Request, RequestError> {
    known(LVSD_OPS, cmd, dump)?;
    match (cmd, dump) {
        (lvsd::GET_CONN, _) => return Ok(Request::DumpConns),
        (lvsd::GET_COUNTER, _) => return Ok(Request::GetStatus),
        (lvsd::GET_OVERVIEW, _) => return Ok(Request::GetOverview),
        (lvsd::GET_QUEUE, _) => return Ok(Request::DumpQueues),
        (lvsd::GET_SCHEDULER, _) => return Ok(Request::DumpSchedulers),
        (lvsd::GET_NOTICE, _) => return Ok(Request::DumpNotices),
        (lvsd::GET_SYSCTL, true) => return Ok(Request::GetSysctl(None)),
        _ => {}
    }
    let a = Attrs::parse(attrs, lvsd::POLICY)?;
    let s = a.nested(lvsd::A_SYSCTL, lvsd::SYSCTL_POLICY).ok_or(Errno::EINVAL)?;
    let name = s.string(lvsd::A_NAME).ok_or(Errno::EINVAL)?;
    if cmd == lvsd::GET_SYSCTL {
        return Ok(Request::GetSysctl(Some(name)));
    }
    let value = s.string(lvsd::A_VALUE).ok_or(Errno::EINVAL)?;
    Ok(Request::SetSysctl(Sysctl { name, value }))
}

pub(crate) fn put_sysctl(w: &mut Writer, s: &Sysctl, request: bool) {
    w.nested(lvsd::A_SYSCTL, request, |w| {
        w.string(lvsd::A_NAME, &s.name);
        w.string(lvsd::A_VALUE, &s.value);
    });
}
