//! `lvsctl`: ipvsadm's grammar, output and exit statuses, spoken to lvsd's socket.
//!
//! A command line goes through [`popt`] (words), [`lowargs`] (typed and legal by the tables of [`grammar`]),
//! [`command`] (what it means) and [`session`] (asking the daemon), and comes out through [`print`]. Nothing of it
//! needs a process or a socket: [`run`] takes its arguments, streams, names and connection from the caller.
//!
//! lvsctl's own subcommands and options are clap's, in [`cli`].
#![forbid(unsafe_code)]

pub mod cli;
pub mod command;
pub mod error;
pub mod grammar;
pub mod help;
pub mod lowargs;
pub mod man;
pub mod names;
pub mod popt;
pub mod print;
pub mod session;
pub mod value;

#[cfg(test)]
mod tests;

use std::io::{BufRead, Write};

pub use session::{Client, Connect};

use crate::cli::Invocation;
use crate::error::{CliError, EXIT_LIST, EXIT_OK, EXIT_USAGE};
use crate::names::Names;
use crate::session::{Failure, Session};

/// The streams of a run.
pub struct Io<'a> {
    /// Read by `--restore`.
    pub stdin: &'a mut dyn BufRead,
    /// Listings.
    pub stdout: &'a mut dyn Write,
    /// One line for each error.
    pub stderr: &'a mut dyn Write,
}

/// Carries out a command line of a program of this name: `ipvsadm`, `ipvsadm-save` and `ipvsadm-restore` have their own, every other
/// name is lvsctl's ([`run`]).
pub fn run_as(
    name: &str,
    args: &[String],
    io: &mut Io<'_>,
    names: &dyn Names,
    connect: &mut Connect<'_>,
) -> i32 {
    let mut all = |first: Option<&str>, io: &mut Io<'_>| {
        let words = first.map(str::to_owned).into_iter().chain(args.iter().cloned()).collect();
        carry_out(&Invocation::of_ipvsadm(words), io, names, connect)
    };
    match name {
        "ipvsadm" => all(None, io),
        "ipvsadm-save" => all(Some("-S"), io),
        "ipvsadm-restore" => {
            // a wrong word is found before the table is emptied
            if let Some(word) = args.first() {
                report(
                    io.stderr,
                    &CliError::usage(format!("ipvsadm-restore: {word}: it takes no arguments")),
                );
                return EXIT_USAGE;
            }
            match all(Some("-C"), io) {
                EXIT_OK => all(Some("-R"), io),
                failed => failed,
            }
        }
        _ => run(args, io, names, connect),
    }
}

/// Carries out one command line (without the program's name) and gives the exit status.
///
/// `connect` is called at most once, and not at all for a wrong command line or a help text.
pub fn run(args: &[String], io: &mut Io<'_>, names: &dyn Names, connect: &mut Connect<'_>) -> i32 {
    let invocation = match Invocation::parse(args) {
        Ok(invocation) => invocation,
        Err(e) => {
            // Nothing is left to tell of a failure here; the status stays that of the parse.
            let _ = if e.use_stderr() { write!(io.stderr, "{e}") } else { write!(io.stdout, "{e}") };
            return e.exit_code();
        }
    };
    carry_out(&invocation, io, names, connect)
}

fn carry_out(invocation: &Invocation, io: &mut Io<'_>, names: &dyn Names, connect: &mut Connect<'_>) -> i32 {
    let mut session = Session::new(invocation, names, connect);
    let done = match &invocation.sub {
        Some(sub) => session.subcommand(sub, io.stdout),
        None => session.ipvsadm(&invocation.words, io),
    };
    let done = done.and_then(|code| io.stdout.flush().map(|()| code).map_err(Failure::from));
    match done {
        Ok(code) => code,
        Err(Failure::Command(e)) => {
            report(io.stderr, &e);
            e.code
        }
        // Whoever read the output has seen enough.
        Err(Failure::Output(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => EXIT_OK,
        Err(Failure::Output(e)) => {
            let _ = writeln!(io.stderr, "standard output: {e}");
            EXIT_LIST
        }
    }
}

/// One line on standard error; a failure to write it cannot be told anywhere.
pub(crate) fn report(stderr: &mut dyn Write, e: &CliError) {
    let _ = writeln!(stderr, "{e}");
}
