//! The classifier's two programs at an interface's hooks: tcx links where the kernel has them (6.6), else clsact filters.

use std::io;

use aya::programs::tc::{
    NlOptions, SchedClassifierLink, TcAttachOptions, TcError, qdisc_add_clsact, qdisc_detach_program,
};
use aya::programs::{LinkOrder, Program, ProgramError, SchedClassifier, TcAttachType};

use crate::io::{BpfTables, SetupError, netlink};

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

/// Both programs, attached; dropping it detaches them.
pub(crate) struct Attachment {
    // in this order: first the stack gets its frames back, then putting frames back ends
    _ingress: SchedClassifierLink,
    _egress: SchedClassifierLink,
    _qdisc: Option<ClsactQdisc>,
    tcx: bool,
}

impl Attachment {
    /// Which hook the programs are at: `tcx` or `clsact`.
    pub(crate) fn hook(&self) -> &'static str {
        if self.tcx { "tcx" } else { "clsact" }
    }

    pub(crate) fn new(
        tables: &BpfTables,
        name: &str,
        index: u32,
        hook: Hook,
        ingress: Ingress,
    ) -> Result<Attachment, SetupError> {
        if hook != Hook::Clsact {
            let first = || TcAttachOptions::TcxOrder(LinkOrder::first());
            match Attachment::with(tables, name, ingress, first, None) {
                Err(e) if hook == Hook::Auto && without_tcx(&e) => {}
                done => return done.map_err(|e| failed(name, &e)),
            }
        }
        let qdisc = ClsactQdisc::add(name, index)?;
        // filters of a director that was killed; none lives, or we would not have the interface's lock
        for (kind, program) in [
            (TcAttachType::Ingress, "lvsd_ingress"),
            (TcAttachType::Ingress, "lvsd_tier_ingress"),
            (TcAttachType::Ingress, "lvsd_unmark"),
            (TcAttachType::Egress, "lvsd_egress"),
        ] {
            match qdisc_detach_program(name, kind, program) {
                Ok(()) => tracing::info!("interface {name}: removed the filter {program} of a killed lvsd"),
                // as a rule there is none; and what cannot be removed does not keep ours from working
                Err(e) => tracing::debug!("interface {name}: no old filter {program}: {e}"),
            }
        }
        let options = || TcAttachOptions::Netlink(NlOptions { priority: 1, ..NlOptions::default() });
        Attachment::with(tables, name, ingress, options, qdisc).map_err(|e| failed(name, &e))
    }

    fn with(
        tables: &BpfTables,
        name: &str,
        ingress: Ingress,
        options: impl Fn() -> TcAttachOptions,
        qdisc: Option<ClsactQdisc>,
    ) -> Result<Attachment, ProgramError> {
        // not by the qdisc, which may have been there before
        let tcx = matches!(options(), TcAttachOptions::TcxOrder(_));
        let mut programs = tables.programs();
        let mut link = |program: &str, kind| -> Result<SchedClassifierLink, ProgramError> {
            let Some(Program::SchedClassifier(p)) = programs.program_mut(program) else {
                return Err(ProgramError::NotLoaded);
            };
            let p: &mut SchedClassifier = p;
            let id = p.attach_with_options(name, kind, options())?;
            p.take_link(id)
        };
        let egress = link("lvsd_egress", TcAttachType::Egress)?;
        let ingress = link(ingress.program(), TcAttachType::Ingress)?;
        Ok(Attachment { _ingress: ingress, _egress: egress, _qdisc: qdisc, tcx })
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
