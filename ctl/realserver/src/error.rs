//! Why something was not done: one line that says what to do.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use rustix::io::Errno;

/// Each is one line and names the interface or the file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No interface of this name in this network namespace.
    #[error("interface {0}: there is none; `ip link' lists them")]
    NoSuchInterface(String),
    /// The interface has no address to which a director could send.
    #[error(
        "interface {0}: it has no address; give it the one that the director knows the server by, then load again"
    )]
    NoAddress(String),
    /// The interface has more addresses than the program's table holds.
    #[error("interface {dev}: it has {count} addresses, the decapsulator takes at most {limit}")]
    TooManyAddresses {
        /// The interface.
        dev: String,
        /// Addresses it has.
        count: usize,
        /// Addresses there may be.
        limit: usize,
    },
    /// Somebody else's program sits there.
    #[error(
        "interface {dev}: another XDP program is there ({program}); {remedy}; or decapsulate with a tunnel device"
    )]
    OtherProgram {
        /// The interface.
        dev: String,
        /// Its name, its id, and how iproute2 calls the way it runs.
        program: String,
        /// How it goes.
        remedy: String,
    },
    /// Our program sits there by a link whose file we do not have.
    #[error("interface {dev}: its decapsulator is held by a link that is not pinned in {}; give the --pin-dir with which it was loaded", pin_dir.display())]
    ForeignLink {
        /// The interface.
        dev: String,
        /// Where we looked.
        pin_dir: PathBuf,
    },
    /// No virtual address, and why not.
    #[error("{0} cannot be a virtual address: it is {1}; give one that clients can call")]
    BadVip(IpAddr, &'static str),
    /// An IPv4 address in the clothes of IPv6, which no packet carries.
    #[error("{0} cannot be a virtual address: it is IPv4 mapped into IPv6; give {1}")]
    MappedVip(IpAddr, IpAddr),
    /// Nothing arrives there from outside.
    #[error("interface {0}: the loopback interface; name the one at which the director's packets arrive")]
    Loopback(String),
    /// The interface at which packets arrive was not named and cannot be guessed.
    #[error(
        "the interface at which the director's packets arrive is not to be found: there is no default route, and not just one \
         interface with an address; name it by --dev"
    )]
    WhichInterface,
    /// NAT needs no set-up.
    #[error("a server behind NAT has nothing to set up but its default route, which leads to the director")]
    NothingForNat,
    /// With NAT, the director is the gateway.
    #[error(
        "--mode nat: give the director's {family} address by --director; the servers' gateway must be it"
    )]
    NeedsDirector {
        /// `IPv4` or `IPv6`.
        family: &'static str,
    },
    /// The virtual address is there, but wrongly.
    #[error("{what}; mend that first: {mend}")]
    InTheWay {
        /// What is wrong.
        what: String,
        /// The command.
        mend: String,
    },
    /// The kernel has no such device.
    #[error(
        "this kernel makes no {kind} devices (`modprobe {kind}'?); without --kernel-tunnel the decapsulator does"
    )]
    NoTunnelDevice {
        /// The kernel's name for the kind.
        kind: &'static str,
    },
    /// IPv6 is switched off where the address should be.
    #[error("IPv6 is off on {dev}: sysctl -w net.ipv6.conf.{dev}.disable_ipv6=0")]
    NoIpv6 {
        /// The interface.
        dev: String,
    },
    /// A file's name that cannot be written down.
    #[error("{}: not a name that can stand in a record", .0.display())]
    BadPath(PathBuf),
    /// The record is no record.
    #[error("{}, line {line}: no record of lvsctl; nothing was taken back. Remove the file if it is not wanted", path.display())]
    BadRecord {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// The record is no text.
    #[error("{}: byte {offset} (from 0) is no UTF-8 text, so this is no record of lvsctl; nothing was taken back. Remove the file if it is not wanted", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// How many bytes before it are text.
        offset: usize,
    },
    /// Another one is at it.
    #[error("{}: another lvsctl is setting this server up or back; try again when it has ended", .0.display())]
    Busy(PathBuf),
    /// A step failed, and another could not be taken back.
    #[error("{cause}; and not all that was done before could be taken back: {left}. It is in the record")]
    HalfUndone {
        /// Why the step failed.
        cause: String,
        /// Why others stay.
        left: String,
    },
    /// A right is missing.
    #[error("{what}: permission denied; run as root (CAP_NET_ADMIN and CAP_BPF)")]
    Permission {
        /// What was tried.
        what: String,
    },
    /// The kernel refused.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: String,
        /// Why not.
        source: io::Error,
    },
    /// Something else went wrong with BPF.
    #[error("{what}: {reason}")]
    Bpf {
        /// What was tried.
        what: String,
        /// Why not, on one line.
        reason: String,
    },
}

impl Error {
    /// An error of the system, with the usual reasons spelled out.
    pub(crate) fn os(what: impl Into<String>, source: impl Into<io::Error>) -> Error {
        let (what, source) = (what.into(), source.into());
        match Errno::from_io_error(&source) {
            Some(Errno::PERM | Errno::ACCESS) => Error::Permission { what },
            _ => Error::Os { what, source },
        }
    }

    /// An error of aya: the system's, if one is at its root.
    pub(crate) fn bpf(what: impl Into<String>, e: &(dyn std::error::Error + 'static)) -> Error {
        match os_error(e) {
            Some(errno @ (Errno::PERM | Errno::ACCESS)) => Error::os(what, errno),
            _ => Error::Bpf { what: what.into(), reason: chain(e) },
        }
    }
}

/// The error number at the root of a chain of errors.
pub(crate) fn os_error(e: &(dyn std::error::Error + 'static)) -> Option<Errno> {
    let mut source = Some(e);
    while let Some(s) = source {
        if let Some(errno) = s.downcast_ref::<io::Error>().and_then(Errno::from_io_error) {
            return Some(errno);
        }
        source = s.source();
    }
    None
}

/// An error with all its causes, on one line.
fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(s) = source {
        let cause = s.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        source = s.source();
    }
    text.trim_end().replace('\n', " | ")
}
