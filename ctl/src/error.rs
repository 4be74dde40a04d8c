//! Errors of the command line: one line of text and ipvsadm's exit status.

use std::fmt;

use ipvs_netlink::Errno;

use crate::grammar::Cmd;

/// Exit status when everything was done.
pub const EXIT_OK: i32 = 0;
/// Exit status of a listing that the daemon refused.
pub const EXIT_LIST: i32 = 1;
/// Exit status of a wrong value or combination, and when there is no daemon.
pub const EXIT_USAGE: i32 = 2;
/// Exit status (ipvsadm's -1) of a refused change, an unknown option and a missing command.
pub const EXIT_REFUSED: i32 = 255;

/// Why a command was not carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CliError {
    /// Exit status.
    pub code: i32,
    /// One line (without a newline). Begins with ipvsadm's words where it has some.
    pub message: String,
    /// Whether `--restore` goes on with the next line.
    pub carries_on: bool,
}

impl CliError {
    /// A wrong value or combination.
    pub fn usage(message: impl Into<String>) -> CliError {
        CliError { code: EXIT_USAGE, message: message.into(), carries_on: false }
    }

    /// An unknown option, or no command.
    pub fn syntax(message: impl Into<String>) -> CliError {
        CliError { code: EXIT_REFUSED, message: message.into(), carries_on: false }
    }

    /// No command where one must be.
    pub fn try_help() -> CliError {
        CliError::syntax("no command: try `lvsctl -h' or `lvsctl --help' for more information")
    }

    /// The same, where it is known what is there in its place.
    pub fn try_help_after(what: &str) -> CliError {
        CliError::syntax(format!("{what}; try `lvsctl -h' for help"))
    }

    /// The daemon's refusal of a command; `subject` names what it was about.
    pub fn refused(cmd: Cmd, errno: Errno, subject: &str) -> CliError {
        let code = if cmd == Cmd::List { EXIT_LIST } else { EXIT_REFUSED };
        let mut message = explain(cmd, errno);
        if !subject.is_empty() {
            message.push_str(": ");
            message.push_str(subject);
        }
        CliError { code, message, carries_on: true }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for CliError {}

/// What an error number means for a command: ipvsadm's sentence, else `strerror(3)`'s.
pub fn explain(cmd: Cmd, errno: Errno) -> String {
    use Cmd::*;
    let server = matches!(cmd, AddServer | EditServer | DeleteServer);
    let text = match (errno, cmd) {
        (Errno::EEXIST, AddService) => "Service already exists",
        (Errno::EEXIST, AddServer) => "Destination already exists",
        (Errno::EEXIST, StartDaemon) => "Daemon has already run",
        (Errno::ENOENT, AddService | EditService) => "Scheduler or persistence engine not found",
        (Errno::ENOENT, EditServer | DeleteServer) => "No such destination",
        (Errno::ESRCH, StopDaemon) => "No daemon is running",
        (Errno::ESRCH, EditService | DeleteService | Zero | List) => "No such service",
        (Errno::ESRCH, _) if server => "Service not defined",
        (Errno::EPERM, _) => "Permission denied (you must be root)",
        (Errno::EINVAL, _) => "Invalid operation.  Possibly wrong module version, address not unicast, ...",
        (Errno::ENOPROTOOPT, _) => "Protocol not available",
        (Errno::ENOMEM, _) => "Memory allocation problem",
        (Errno::EOPNOTSUPP, StartDaemon | StopDaemon) => "Operation not supported by this daemon",
        (Errno::EOPNOTSUPP, _) => "Operation not supported with IPv6",
        (Errno::EAFNOSUPPORT, _) => "Operation not supported with specified address family",
        (Errno::EMSGSIZE, _) => "Module is wrong version",
        _ => return errno.to_string(),
    };
    text.to_owned()
}
