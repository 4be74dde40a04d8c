//! A port: an interface with the XDP program, the sockets, and the programs that put frames back.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use aya::programs::XdpMode;
use aya::programs::links::FdLink;

use super::socket::{Facts, Live, PortSockets, SocketPlan};
use super::umem::Area;
use super::{AfXdpConfig, Attach};
use super::{far, occupant};
use crate::io::attach::{Attachment, Ingress, os_error};
use crate::io::bpf::{XDP_QUEUES, XdpPortLine};
use crate::io::netdev::{self, PortLock};
use crate::io::rings::socket::{SendPair, bound_to};
use crate::io::rings::supervisor::{Hold, Holder};
use crate::io::{BpfTables, Hook, SetupError};
use crate::route::PortId;

/// How long something that is busy is tried again at the start; sockets of a killed process take up to 75 ms to go.
const BUSY: Duration = Duration::from_secs(1);
const BUSY_STEP: Duration = Duration::from_millis(20);

/// What all ports share.
pub(super) struct Common {
    pub(super) config: AfXdpConfig,
    pub(super) tables: Arc<BpfTables>,
    /// One for each worker.
    pub(super) areas: Vec<Arc<Area>>,
}

pub(super) struct XdpPort {
    id: PortId,
    name: String,
    /// Among all ports.
    place: u32,
    common: Arc<Common>,
    attached: Option<Attached>,
}

struct Attached {
    index: u32,
    // in this order: first the program lets everything pass, then it goes
    line: Line,
    program: Option<FdLink>,
    /// Whether the program must be attached again: veth does not run it on queues that came later (kernel 6.18).
    stale: bool,
    generic: bool,
    /// Attached last, since it takes the place of another daemon's program at the ingress hook, which may keep frames from the stack.
    back: Option<Attachment>,
    sockets: Option<Sockets>,
    _lock: PortLock,
}

/// What is known of the workers' sockets.
struct Sockets {
    queues: u32,
    facts: Arc<Facts>,
    probe: OwnedFd,
    live: Vec<Arc<Live>>,
}

/// The interface's line in the map of ports; the program takes frames while it is there.
struct Line {
    tables: Arc<BpfTables>,
    name: String,
    index: u32,
    value: XdpPortLine,
    set: bool,
}

impl Line {
    fn put(&mut self, mac: [u8; 6]) -> Result<(), SetupError> {
        let value = XdpPortLine { mac, ..self.value };
        if !self.set || value != self.value {
            self.tables.set_xdp_port(self.index, value)?;
            (self.value, self.set) = (value, true);
        }
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // else what goes on without us would pass all to the stack, which resets the connections
        if !self.tables.goes_on(&self.name, self.index) {
            self.tables.remove_xdp_port(self.index);
        }
    }
}

/// The number of an interface's queues; one where its driver does not tell.
pub(super) fn queues(name: &str) -> Result<u32, SetupError> {
    match netdev::queues(name).unwrap_or(1) {
        n if n <= XDP_QUEUES => Ok(n),
        n => Err(SetupError::Bpf {
            what: format!("interface {name}"),
            reason: format!(
                "{n} receive queues, but at most {XDP_QUEUES} can be served; set fewer by 'ethtool -L'"
            ),
        }),
    }
}

impl XdpPort {
    pub(super) fn new(id: PortId, name: &str, place: u32, common: Arc<Common>) -> XdpPort {
        XdpPort { id, name: name.into(), place, common, attached: None }
    }

    /// Sets it up, patiently where something is busy.
    pub(super) fn attach(&mut self) -> Result<Vec<PortSockets>, SetupError> {
        let since = Instant::now();
        // the locks of a daemon that has just ended go with its process
        let after = self.common.tables.adopted();
        loop {
            match self.set_up() {
                Err(SetupError::InUse(_)) if after && since.elapsed() < BUSY => std::thread::sleep(BUSY_STEP),
                Err(SetupError::Busy(..)) if since.elapsed() < BUSY => std::thread::sleep(BUSY_STEP),
                done => {
                    if done.is_err() {
                        self.attached = None;
                    }
                    return done;
                }
            }
        }
    }

    fn attach_programs(&self) -> Result<Attached, SetupError> {
        let index = netdev::ethernet_index(&self.name)?;
        let lock = PortLock::take(&self.name, index)?;
        let tables = &self.common.tables;
        // the program of another daemon works on until ours has its sockets
        let (program, generic) = if self.common.config.attach != Attach::Generic && tables.has_xdp_link(index)
        {
            (None, false)
        } else {
            let (program, generic) = self.attach_xdp(index)?;
            (Some(program), generic)
        };
        let value = XdpPortLine { mac: [0; 6], generic, place: self.place };
        let line = Line { tables: Arc::clone(tables), name: self.name.clone(), index, value, set: false };
        Ok(Attached { index, line, program, stale: false, generic, back: None, sockets: None, _lock: lock })
    }

    fn attach_xdp(&self, index: u32) -> Result<(FdLink, bool), SetupError> {
        let attempt = |mode| self.common.tables.attach_xdp(index, mode);
        let what = || format!("interface {}: attaching the XDP program", self.name);
        let errno = |e: &_| os_error(e).unwrap_or(0);
        if self.common.config.attach != Attach::Generic {
            match attempt(XdpMode::Driver) {
                Ok(link) => return Ok((link, false)),
                Err(e) => match errno(&e) {
                    libc::EBUSY | libc::EEXIST => return Err(self.occupied(index)),
                    libc::ENOSPC => {
                        return Err(SetupError::Bpf {
                            what: what(),
                            reason: "it has fewer receive queues than its veth peer has transmit queues; give it as many \
                                     (numrxqueues when it is made, 'ethtool -L'), or use --datapath afpacket"
                                .into(),
                        });
                    }
                    libc::EPERM | libc::ENODEV => return Err(failed(&self.name, what(), &e)),
                    _ if self.common.config.attach == Attach::Auto => {
                        tracing::info!("interface {}: no native XDP ({e}); generic mode", self.name);
                    }
                    libc::EOPNOTSUPP => {
                        return Err(SetupError::Bpf { what: what(), reason: self.no_native().into() });
                    }
                    _ => return Err(failed(&self.name, what(), &e)),
                },
            }
        }
        match attempt(XdpMode::Skb) {
            Ok(link) => Ok((link, true)),
            Err(e) if matches!(errno(&e), libc::EBUSY | libc::EEXIST) => Err(self.occupied(index)),
            Err(e) => Err(failed(&self.name, what(), &e)),
        }
    }

    /// What is said where the driver has no XDP.
    fn no_native(&self) -> &'static str {
        if self.common.tables.tier().is_some() {
            "its driver has no native XDP, without which the tier at XDP sends nothing by it; use --datapath tc"
        } else {
            "its driver has no native XDP; use --xdp-mode generic, or --datapath afpacket"
        }
    }

    fn occupied(&self, index: u32) -> SetupError {
        SetupError::Busy(format!("interface {}", self.name), occupant::remedy(index))
    }

    /// Makes sockets on all queues, each with the memory of the worker that serves it.
    fn make_sockets(&self, index: u32, generic: bool) -> Result<(Sockets, Vec<PortSockets>), SetupError> {
        let config = &self.common.config;
        let (queues, mtu) = (queues(&self.name)?, netdev::mtu(&self.name)?);
        let facts = Arc::new(Facts { mtu: AtomicU32::new(mtu), generic });
        let mut sets = Vec::with_capacity(config.workers);
        for _ in 0..config.workers {
            let send = SendPair::new(&self.name, index, self.common.tables.magic())?;
            sets.push(PortSockets { queues: Vec::new(), send, facts: Arc::clone(&facts) });
        }
        let mut live = Vec::new();
        for queue in 0..queues {
            let worker = queue as usize % config.workers;
            let plan = SocketPlan {
                name: &self.name,
                index,
                queue,
                ring: config.ring,
                zero_copy: config.zero_copy && !generic,
                busy_poll: config.busy_poll,
            };
            let socket = plan.make(&self.common.areas[worker])?;
            let mode = format!("{} {}", if generic { "generic" } else { "native" }, socket.mode);
            let place = (self.place * XDP_QUEUES + queue) as usize;
            let given_before = self.common.tables.tier().map_or(0, |t| t.given(place));
            let one = Arc::new(Live { queue, worker, mode, place, given_before, ..Live::default() });
            self.common.tables.set_xdp_socket(self.place, queue, socket.fd.as_fd())?;
            live.push(Arc::clone(&one));
            sets[worker].queues.push((socket, one));
        }
        let first = sets.first().ok_or(SetupError::Workers(0))?;
        let probe = first.send.tx.try_clone().map_err(|e| SetupError::os("duplicating a socket", "", e))?;
        Ok((Sockets { queues, facts, probe, live }, sets))
    }

    /// Lets the tier send by this interface, if frames that it redirects there arrive.
    fn open_for_tier(&self, attached: &Attached, mac: [u8; 6]) -> Result<(), SetupError> {
        let Some(tier) = self.common.tables.tier() else { return Ok(()) };
        let why = if attached.generic {
            "its driver has no native XDP (--datapath tc has the tier there)"
        } else if !far::takes_redirected(&self.common.tables, &self.name, attached.index, mac) {
            "frames that XDP redirects to it do not arrive (on a veth, the far end needs an XDP program or 'ethtool -K DEV gro on')"
        } else {
            return tier.set_port(self.id, attached.index);
        };
        tracing::warn!(
            "interface {}: {why}; what leaves by it is forwarded by the rings, not by the tier",
            self.name
        );
        tier.set_port(self.id, 0)
    }

    fn close_for_tier(&self) {
        if self.attached.as_ref().is_some_and(|a| self.common.tables.goes_on(&self.name, a.index)) {
            return;
        }
        if let Some(Err(e)) = self.common.tables.tier().map(|t| t.set_port(self.id, 0)) {
            tracing::warn!("interface {}: {e}", self.name);
        }
    }

    /// How the queues are served, by queue.
    pub(super) fn live(&self) -> &[Arc<Live>] {
        self.attached.as_ref().and_then(|a| a.sockets.as_ref()).map_or(&[], |s| &s.live)
    }
}

fn failed(name: &str, what: String, e: &aya::programs::ProgramError) -> SetupError {
    match os_error(e) {
        Some(libc::ENODEV) => SetupError::NoSuchInterface(name.into()),
        Some(code) => {
            SetupError::os(what, "CAP_NET_ADMIN and CAP_BPF", std::io::Error::from_raw_os_error(code))
        }
        None => SetupError::Bpf { what, reason: e.to_string() },
    }
}

impl Holder for XdpPort {
    type Sockets = PortSockets;

    fn id(&self) -> PortId {
        self.id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn is_attached(&self) -> bool {
        self.attached.as_ref().is_some_and(|a| a.sockets.is_some())
    }

    fn look(&mut self) -> Hold {
        let Some(a) = &mut self.attached else { return Hold::Gone };
        let Some(s) = &a.sockets else { return Hold::Gone };
        if netdev::index(&self.name) != Some(a.index) || bound_to(s.probe.as_fd()) != Some(a.index) {
            return Hold::Gone;
        }
        let (Ok(mac), Ok(mtu)) = (netdev::mac(&self.name), netdev::mtu(&self.name)) else {
            return Hold::Gone;
        };
        s.facts.mtu.store(mtu, Ordering::Relaxed);
        if let Err(e) = a.line.put(mac) {
            tracing::warn!("{e}");
        }
        match netdev::queues(&self.name).unwrap_or(1) {
            n if n != s.queues => Hold::Changed(format!("{n} queues, {} before", s.queues)),
            _ => Hold::Fast,
        }
    }

    fn set_up(&mut self) -> Result<Vec<PortSockets>, SetupError> {
        // what was attached to another interface of that name is of no use
        let index = netdev::index(&self.name);
        if self.attached.as_ref().is_some_and(|a| index != Some(a.index)) {
            self.attached = None;
        }
        let mut attached = match self.attached.take() {
            Some(a) => a,
            None => self.attach_programs()?,
        };
        match self.make_sockets(attached.index, attached.generic) {
            Ok((sockets, sets)) => {
                let mac = netdev::mac(&self.name)?;
                if attached.program.is_none() {
                    attached.line.put(mac)?;
                }
                if std::mem::take(&mut attached.stale) || attached.program.is_none() {
                    // not before: meanwhile it keeps what is ours from the stack
                    if attached.program.take().is_some() {
                        self.common.tables.forget_xdp_link(attached.index);
                    }
                    attached.program = Some(self.attach_xdp(attached.index)?.0);
                }
                if attached.back.is_none() {
                    let tables = &self.common.tables;
                    let back =
                        Attachment::new(tables, &self.name, attached.index, Hook::Auto, Ingress::Unmark)?;
                    attached.back = Some(back);
                }
                attached.line.put(mac)?;
                self.open_for_tier(&attached, mac)?;
                attached.sockets = Some(sockets);
                self.attached = Some(attached);
                Ok(sets)
            }
            Err(e) => {
                self.attached = Some(attached);
                Err(e)
            }
        }
    }

    fn loosen(&mut self) {
        self.close_for_tier();
        if let Some(a) = &mut self.attached {
            a.sockets = None;
            a.stale = true;
        }
    }

    fn detach(&mut self) {
        self.close_for_tier();
        self.attached = None;
    }

    fn exists(&self) -> bool {
        netdev::index(&self.name).is_some()
    }
}
