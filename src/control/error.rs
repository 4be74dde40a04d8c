use std::io;
use std::path::PathBuf;

use ipvs_netlink::{Errno, SavedError};

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
        "--state-file {path}, line {line}: '{text}': {source}; mend or remove the line, or move the file away to start empty"
    )]
    Refused {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// The line.
        text: String,
        /// What the director says to it.
        source: Errno,
    },
}
