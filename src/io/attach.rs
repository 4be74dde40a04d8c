//! The classifier's two programs at an interface's hooks: tcx links where the kernel has them (6.6), else clsact filters.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aya::programs::links::FdLink;
use aya::programs::tc::{
    NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle, qdisc_add_clsact,
};
use aya::programs::{LinkOrder, Program, ProgramError, SchedClassifier, TcAttachType, loaded_programs};

use crate::io::afxdp::occupant;
use crate::io::bpf::XDP_HOOK;
use crate::io::{BpfTables, SetupError, netlink};

/// Names of the hooks, where their links are pinned.
pub(crate) const INGRESS: &str = "ingress";
/// As [`INGRESS`].
pub(crate) const EGRESS: &str = "egress";

/// How the programs are attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Hook {
    /// tcx where the kernel has it, else clsact.
    #[default]
    Auto,
    /// tcx links (kernel 6.6); they go with the process.
    Tcx,
    /// A clsact qdisc with direct-action filters; they survive a killed process.
    Clsact,
}

/// What the program at the ingress hook does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ingress {
    /// Takes from the stack what a packet ring has got.
    Take,
    /// The same, and forwards what is the tier's.
    Forward,
    /// Only takes the mark off frames that are put back.
    Unmark,
}

impl Ingress {
    const fn program(self) -> &'static str {
        match self {
            Ingress::Take => "lvsd_ingress",
            Ingress::Forward => "lvsd_tier_ingress",
            Ingress::Unmark => "lvsd_unmark",
        }
    }
}

/// The tier's programs at the ingress hook and at XDP, as far as the kernel keeps names.
const TIERS: [&str; 2] = ["lvsd_tier_ingre", "lvsd_tier_xdp"];
/// How long links of a killed process may take to go.
const LINGER: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(10);

/// Whether the data plane of another lvsd, which has ended, is on the interface: it would go on dropping what it takes for its own.
fn wait_for_others(tables: &BpfTables, name: &str, index: u32) -> Result<(), SetupError> {
    let links = [INGRESS, XDP_HOOK].map(|hook| tables.plane()?.link(index, hook)?.info().ok());
    let mut own: Vec<u32> = links.iter().flatten().map(|link| link.program_id()).collect();
    own.extend(tables.programs().programs().filter_map(|(_, program)| Some(program.info().ok()?.id())));
    let others = || {
        // a kernel without tcx has none
        let (_, mut list) = SchedClassifier::query_tcx(name, TcAttachType::Ingress).unwrap_or_default();
        let at_xdp = occupant::program(index).filter(|id| !own.contains(id));
        list.extend(at_xdp.and_then(|id| loaded_programs().flatten().find(|p| p.id() == id)));
        list.iter().any(|p| p.name_as_str().is_some_and(|n| TIERS.contains(&n)) && !own.contains(&p.id()))
    };
    let since = Instant::now();
    while others() {
        if since.elapsed() > LINGER {
            return Err(SetupError::Busy(
                format!("interface {name}"),
                "the data plane of another lvsd is attached, which has ended; 'lvsctl datapath off' with that one's --socket or \
                 --pin-dir removes it",
            ));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Where our filters stand at a clsact qdisc. Nobody else should be at this place, so a filter that is there is that of another lvsd, which
/// has ended: it is replaced, and the stack sees nothing meanwhile.
const PRIORITY: u16 = 1;
const HANDLE: u32 = 0x6c76_7364;

/// Both programs, attached; dropping it detaches them, unless they are part of a data plane that goes on.
pub(crate) struct Attachment {
    name: String,
    index: u32,
    tcx: bool,
    tables: Arc<BpfTables>,
    // in this order: first the stack gets its frames back, then putting frames back ends
    links: Option<(SchedClassifierLink, SchedClassifierLink)>,
    qdisc: Option<ClsactQdisc>,
}

impl Attachment {
    /// Which hook the programs are at: `tcx` or `clsact`.
    pub(crate) fn hook(&self) -> &'static str {
        if self.tcx { "tcx" } else { "clsact" }
    }

    pub(crate) fn new(
        tables: &Arc<BpfTables>,
        name: &str,
        index: u32,
        hook: Hook,
        ingress: Ingress,
    ) -> Result<Attachment, SetupError> {
        let make = |tcx| {
            let place = Place { tables, name, index, tcx };
            let egress = place.link("lvsd_egress", TcAttachType::Egress)?;
            Ok((place.link(ingress.program(), TcAttachType::Ingress)?, egress))
        };
        let attachment = |tcx, links, qdisc| Attachment {
            name: name.to_owned(),
            index,
            tcx,
            tables: Arc::clone(tables),
            links: Some(links),
            qdisc,
        };
        if hook != Hook::Clsact {
            wait_for_others(tables, name, index)?;
            match make(true) {
                Ok(links) => return Ok(attachment(true, links, None)),
                Err(e) if hook == Hook::Auto && without_tcx(&e) => {}
                Err(e) => return Err(failed(name, &e)),
            }
        }
        let qdisc = ClsactQdisc::add(name, index)?;
        make(false).map(|links| attachment(false, links, qdisc)).map_err(|e| failed(name, &e))
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if !self.tcx && self.tables.goes_on(&self.name, self.index) {
            // links of tcx are pinned; filters stay if nobody detaches them
            std::mem::forget(self.links.take());
            std::mem::forget(self.qdisc.take());
        }
    }
}

fn pin_name(hook: TcAttachType) -> &'static str {
    if matches!(hook, TcAttachType::Egress) { EGRESS } else { INGRESS }
}

/// The hooks of an interface.
struct Place<'a> {
    tables: &'a BpfTables,
    name: &'a str,
    index: u32,
    tcx: bool,
}

impl Place<'_> {
    /// Puts a program to a hook, in the place of what another lvsd has left there.
    fn link(&self, program: &str, hook: TcAttachType) -> Result<SchedClassifierLink, ProgramError> {
        let mut programs = self.tables.programs();
        let Some(Program::SchedClassifier(p)) = programs.program_mut(program) else {
            return Err(ProgramError::NotLoaded);
        };
        if self.tcx { self.tcx(p, hook) } else { self.clsact(p, hook) }
    }

    fn tcx(&self, p: &mut SchedClassifier, hook: TcAttachType) -> Result<SchedClassifierLink, ProgramError> {
        let pin = pin_name(hook);
        let plane = self.tables.plane();
        if let Some(old) = plane.and_then(|plane| plane.link(self.index, pin)) {
            let replaced = SchedClassifierLink::try_from(old).map_err(|_| ProgramError::NotAttached);
            match replaced.and_then(|link| p.attach_to_link(link)) {
                Ok(id) => return p.take_link(id),
                // its interface is gone, and another one has the number now
                Err(e) => tracing::debug!("interface {}: the pinned link of {pin}: {e}", self.name),
            }
        }
        let options = TcAttachOptions::TcxOrder(LinkOrder::first());
        let id = p.attach_with_options(self.name, hook, options)?;
        let link = p.take_link(id)?;
        let Some(plane) = plane else { return Ok(link) };
        let link = FdLink::try_from(link).map_err(|_| ProgramError::NotAttached)?;
        let link = plane.pin_link(link, self.index, pin)?;
        SchedClassifierLink::try_from(link).map_err(|_| ProgramError::NotAttached)
    }

    fn clsact(
        &self,
        p: &mut SchedClassifier,
        hook: TcAttachType,
    ) -> Result<SchedClassifierLink, ProgramError> {
        let (priority, handle) = (PRIORITY, TcHandle::from(HANDLE));
        let options = TcAttachOptions::Netlink(NlOptions { priority, handle, classid: None });
        let id = match p.attach_with_options(self.name, hook, options) {
            Err(e) if os_error(&e) == Some(libc::EEXIST) => {
                let old = SchedClassifierLink::attached(self.name, hook, priority, handle, None)?;
                tracing::info!(
                    "interface {}: replacing the filter of another lvsd, which has ended",
                    self.name
                );
                p.attach_to_link(old)?
            }
            done => done?,
        };
        if let Some(plane) = self.tables.plane() {
            // there is no link to pin, but who takes the plane down has to know of the interface
            let path = plane.free_link(self.index, pin_name(hook))?;
            p.pin(path).map_err(io::Error::other)?;
        }
        p.take_link(id)
    }
}

/// The `io::Error` at the root of aya's errors.
pub(crate) fn os_error(e: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut source = Some(e);
    while let Some(s) = source {
        if let Some(code) = s.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(code);
        }
        source = s.source();
    }
    None
}

fn without_tcx(e: &ProgramError) -> bool {
    matches!(os_error(e), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS))
}

fn failed(name: &str, e: &ProgramError) -> SetupError {
    let what = format!("interface {name}: attaching the classifier");
    match os_error(e) {
        Some(libc::ENODEV) => SetupError::NoSuchInterface(name.into()),
        Some(code) => SetupError::os(what, "CAP_NET_ADMIN and CAP_BPF", io::Error::from_raw_os_error(code)),
        None => SetupError::Bpf { what, reason: e.to_string() },
    }
}

/// A clsact qdisc that we added, and so remove.
struct ClsactQdisc {
    index: u32,
}

impl ClsactQdisc {
    /// None where the interface has one already.
    fn add(name: &str, index: u32) -> Result<Option<ClsactQdisc>, SetupError> {
        match qdisc_add_clsact(name) {
            Ok(()) => Ok(Some(ClsactQdisc { index })),
            Err(TcError::AlreadyAttached) => Ok(None),
            Err(e) => match os_error(&e) {
                Some(libc::EEXIST) => Ok(None),
                Some(code) => Err(SetupError::os(
                    format!("interface {name}: adding a clsact qdisc"),
                    "CAP_NET_ADMIN",
                    io::Error::from_raw_os_error(code),
                )),
                None => Err(SetupError::Bpf {
                    what: format!("interface {name}: adding a clsact qdisc"),
                    reason: e.to_string(),
                }),
            },
        }
    }
}

impl Drop for ClsactQdisc {
    fn drop(&mut self) {
        match delete_clsact(self.index) {
            Ok(()) => {}
            // the interface is gone, and the qdisc with it
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {}
            Err(e) => tracing::warn!("interface {}: removing the clsact qdisc: {e}", self.index),
        }
    }
}

/// `RTM_DELQDISC` of an interface's clsact qdisc.
fn delete_clsact(index: u32) -> io::Result<()> {
    const TC_H_CLSACT: u32 = 0xffff_fff1;
    const LENGTH: u32 = 16 + 20 + 12;
    let mut message = Vec::with_capacity(LENGTH as usize);
    // nlmsghdr
    message.extend(LENGTH.to_ne_bytes());
    message.extend(libc::RTM_DELQDISC.to_ne_bytes());
    message.extend(((libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16).to_ne_bytes());
    message.extend([0; 8]);
    // tcmsg: family and padding, index, handle, parent, info
    message.extend([0; 4]);
    message.extend(index.to_ne_bytes());
    message.extend(0u32.to_ne_bytes());
    message.extend(TC_H_CLSACT.to_ne_bytes());
    message.extend(0u32.to_ne_bytes());
    // TCA_KIND
    message.extend(11u16.to_ne_bytes());
    message.extend(1u16.to_ne_bytes());
    message.extend(b"clsact\0\0");

    netlink::ask(libc::NETLINK_ROUTE, &message).map(drop)
}
