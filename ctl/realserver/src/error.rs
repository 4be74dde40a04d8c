//! Why a decapsulator was not loaded or unloaded: one line that says what to do.

use std::io;
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
        "interface {dev}: another XDP program is there ({program}); remove it first, or decapsulate with a tunnel device"
    )]
    OtherProgram {
        /// The interface.
        dev: String,
        /// Its name, its id, and how iproute2 calls the way it runs.
        program: String,
    },
    /// Our program sits there by a link whose file we do not have.
    #[error("interface {dev}: its decapsulator is held by a link that is not pinned in {}; give the --pin-dir with which it was loaded", pin_dir.display())]
    ForeignLink {
        /// The interface.
        dev: String,
        /// Where we looked.
        pin_dir: PathBuf,
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
