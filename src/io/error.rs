use std::io;

/// Why a port could not be set up: one line that names the interface and says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// The name is not that of an interface in this network namespace.
    #[error("interface {0}: there is no such interface in this network namespace (see 'ip link')")]
    NoSuchInterface(String),
    /// The interface is one that frames cannot be taken from.
    #[error("interface {0}: {1}")]
    Unsuitable(String, &'static str),
    /// Named twice.
    #[error("interface {0} is named twice")]
    Duplicate(String),
    /// No interface at all.
    #[error("no interface to work on; name at least one with --interface")]
    NoInterface,
    /// The number of workers is out of range.
    #[error("{0} workers: must be 1 to {max}", max = crate::io::rings::MAX_WORKERS)]
    Workers(usize),
    /// Another director has the interface.
    #[error("interface {0}: another lvsd works on it in this network namespace; stop that one first")]
    InUse(String),
    /// Something else is where we want to be; it may just be going.
    #[error("{0}: {1}")]
    Busy(String, &'static str),
    /// Privilege is missing.
    #[error(
        "{what}: permission denied; lvsd needs {capability} (run it as root, or give it that capability)"
    )]
    Permission {
        /// What was tried, with the interface where there is one.
        what: String,
        /// The capability that the kernel asks for.
        capability: &'static str,
    },
    /// The data plane cannot be pinned.
    #[error("{0} (--pin-dir names another place; with 'none' the data plane ends with lvsd)")]
    Pins(pinned::PinError),
    /// What the daemon had to do in between has failed.
    #[error(transparent)]
    Between(Box<dyn std::error::Error + Send + Sync>),
    /// The kernel refused a BPF program.
    #[error("BPF program {program}: the kernel's verifier refused it: {log}")]
    Verifier {
        /// Its function's name.
        program: &'static str,
        /// The last lines of the verifier's log.
        log: String,
    },
    /// BPF objects could not be made.
    #[error("{what}: {reason}")]
    Bpf {
        /// What was tried.
        what: String,
        /// What came back.
        reason: String,
    },
    /// A system call failed.
    #[error("{what}: {error}")]
    Os {
        /// What was tried, with the interface where there is one.
        what: String,
        /// What came back.
        error: io::Error,
    },
}

impl SetupError {
    /// A system call's failure while `what`; lack of privilege names `capability`.
    pub(crate) fn os(what: impl Into<String>, capability: &'static str, error: io::Error) -> SetupError {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => SetupError::Permission { what: what.into(), capability },
            _ => SetupError::Os { what: what.into(), error },
        }
    }
}
