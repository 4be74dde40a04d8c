use std::io;
use std::path::PathBuf;

use ipvs_netlink::{Backend, Errno, Saved, SavedError};

/// What can go wrong with the control socket and the state on disk. Each is one line that names the file.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Another daemon answers on the socket.
    #[error("--socket {0}: another lvsd is running and serves it; stop it, or give this one another socket")]
    InUse(PathBuf),
    /// Something else is in the socket's place.
    #[error("--socket {0}: exists and is not a socket; remove it, or give another path")]
    NotASocket(PathBuf),
    /// The socket can't be made.
    #[error("--socket {path}: {what}: {source}")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The group of `--socket-group` does not exist.
    #[error("--socket-group {0}: no such group in /etc/group")]
    NoGroup(String),
    /// The runtime, a signal handler or the thread can't be made.
    #[error("can't start the control thread: {0}")]
    Runtime(io::Error),
    /// The control thread panicked.
    #[error("the control thread panicked")]
    Panicked,
    /// The state can't be read or written.
    #[error("--state-file {path}: {what}: {source}")]
    State {
        /// The file.
        path: PathBuf,
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// Another daemon keeps its configuration in the same file.
    #[error("--state-file {path}: another lvsd{} keeps its state there; stop it, or give this one another file", by(*pid))]
    StateInUse {
        /// The file.
        path: PathBuf,
        /// The other daemon's process number, where it could be read.
        pid: Option<u32>,
    },
    /// The state is no text.
    #[error(
        "--state-file {path}: byte {offset} (from 0) is no UTF-8 text, so this is no saved state; move the file away to start empty"
    )]
    NotText {
        /// The file.
        path: PathBuf,
        /// How many bytes before it are text.
        offset: usize,
    },
    /// A line of the state can't be understood.
    #[error(
        "--state-file {path}, line {line}: {source}; mend or remove the line, or move the file away to start empty"
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// What is wrong with it.
        source: SavedError,
    },
    /// A line of the state is not possible.
    #[error(
        "--state-file {path}, line {line}: '{text}': {why}; mend or remove the line, or move the file away to start empty"
    )]
    Refused {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// The line.
        text: String,
        /// What the director says to it, in words.
        why: String,
    },
}

fn by(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
}

/// What a back-end's refusal of a saved line means.
pub(super) fn refusal(backend: &dyn Backend, saved: &Saved, errno: Errno) -> String {
    match (saved, errno) {
        (Saved::Service(s), Errno::ENOENT) => {
            let there = backend.schedulers();
            if let (true, Some(pe)) = (there.iter().any(|t| t.name == s.scheduler), &s.pe_name) {
                return format!("there is no persistence engine '{pe}' in this version");
            }
            let names: Vec<&str> = there.iter().map(|t| t.name.as_str()).collect();
            format!("there is no scheduler '{}' in this version, but {}", s.scheduler, names.join(" "))
        }
        (Saved::Service(_), Errno::EEXIST) => "an earlier line has the same service".to_owned(),
        (Saved::Dest(..), Errno::EEXIST) => "an earlier line has the same server".to_owned(),
        (Saved::Dest(..), Errno::ESRCH) => "no earlier line has its service".to_owned(),
        (Saved::Sysctl(s), Errno::ENOENT) => format!("there is no setting '{}' in this version", s.name),
        (Saved::Sysctl(s), Errno::EINVAL) => format!("'{}' is no value of '{}'", s.value, s.name),
        (Saved::Daemon(_), Errno::EOPNOTSUPP) => "this version has no synchronisation daemon".to_owned(),
        _ => errno.to_string(),
    }
}
