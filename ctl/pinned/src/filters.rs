//! Filters at a clsact qdisc: what stays of the data plane by itself where the kernel has no tcx links (before 6.6).

use std::io;

use aya::programs::TcAttachType;
use aya::programs::tc::{TcError, qdisc_detach_program};

const ENOENT: i32 = 2;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;

/// The director's programs at clsact hooks.
const PROGRAMS: [(TcAttachType, &str); 4] = [
    (TcAttachType::Ingress, "lvsd_ingress"),
    (TcAttachType::Ingress, "lvsd_tier_ingress"),
    (TcAttachType::Ingress, "lvsd_unmark"),
    (TcAttachType::Egress, "lvsd_egress"),
];

/// Detaches the director's filters from an interface, and says how many there were.
///
/// # Errors
/// The kernel's, other than that there is none.
pub fn detach_filters(interface: &str) -> io::Result<usize> {
    let mut count = 0;
    for (hook, program) in PROGRAMS {
        match qdisc_detach_program(interface, hook, program) {
            Ok(()) => count += 1,
            Err(e) if is_absent(&e) => {}
            Err(e) => return Err(io::Error::other(e)),
        }
    }
    Ok(count)
}

/// No such filter, no such qdisc, or no such interface.
fn is_absent(e: &TcError) -> bool {
    if let TcError::IoError(e) = e {
        return e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(ENODEV);
    }
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(e);
    while let Some(s) = source {
        if let Some(e) = s.downcast_ref::<io::Error>() {
            // EINVAL: there is no clsact qdisc
            return matches!(e.raw_os_error(), Some(ENOENT | ENODEV | EINVAL));
        }
        source = s.source();
    }
    false
}
