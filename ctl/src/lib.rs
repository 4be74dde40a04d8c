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
pub mod completions;
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

use std::io::{self, BufRead, Read, Write};

pub use session::{Client, Connect};

use crate::cli::Invocation;
use crate::error::{CliError, EXIT_LIST, EXIT_OK};
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
    let mut ipvsadm = |words: &[&str], io: &mut Io<'_>| {
        let words = words.iter().map(|w| (*w).to_owned()).collect();
        carry_out(&Invocation::of_ipvsadm(words), io, names, connect)
    };
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match name {
        "ipvsadm" => ipvsadm(&words, io),
        "ipvsadm-save" => match words.iter().find(|w| w.starts_with('-') && **w != "-n") {
            Some(word) => {
                let what =
                    format!("ipvsadm-save: {word}: -n prints numbers for names, and there is nothing else");
                report(io.stderr, &CliError::usage(what));
                EXIT_LIST
            }
            None if words.contains(&"-n") => ipvsadm(&["-S", "-n"], io),
            None => ipvsadm(&["-S"], io),
        },
        "ipvsadm-restore" => {
            // a remark that nobody can be told is lost
            if let Some(word) = words.first() {
                let _ = writeln!(io.stderr, "note: ipvsadm-restore takes no arguments: {word} is ignored");
            }
            match ipvsadm(&["-C"], io) {
                EXIT_OK => {
                    let mut lines = WithoutComments::new(&mut *io.stdin);
                    let mut io = Io { stdin: &mut lines, stdout: &mut *io.stdout, stderr: &mut *io.stderr };
                    ipvsadm(&["-R"], &mut io)
                }
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
        Some(sub) => session.subcommand(sub, io),
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
        Err(Failure::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => EXIT_OK,
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

/// Text of which lines that begin with `#` are empty, so that the others keep their numbers.
struct WithoutComments<'r> {
    from: &'r mut dyn BufRead,
    /// Whether the next byte begins a line, and whether the line it is in is left out.
    begins: bool,
    comment: bool,
    /// Bytes that were looked at and may be given.
    clear: usize,
}

impl<'r> WithoutComments<'r> {
    fn new(from: &'r mut dyn BufRead) -> Self {
        WithoutComments { from, begins: true, comment: false, clear: 0 }
    }
}

impl Read for WithoutComments<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let from = self.fill_buf()?;
        let n = from.len().min(to.len());
        to[..n].copy_from_slice(&from[..n]);
        self.consume(n);
        Ok(n)
    }
}

impl BufRead for WithoutComments<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.clear == 0 {
            let bytes = self.from.fill_buf()?;
            let Some(first) = bytes.first() else { break };
            self.comment |= self.begins && *first == b'#';
            self.begins = false;
            let end = bytes.iter().position(|b| *b == b'\n');
            if !self.comment {
                // up to the end of the line
                self.clear = end.map_or(bytes.len(), |at| at + 1);
                self.begins = end.is_some();
                break;
            }
            match end {
                // the newline itself stays
                Some(at) => {
                    self.from.consume(at);
                    self.comment = false;
                    self.begins = true;
                    self.clear = 1;
                }
                None => {
                    let all = bytes.len();
                    self.from.consume(all);
                }
            }
        }
        let bytes = self.from.fill_buf()?;
        Ok(&bytes[..self.clear.min(bytes.len())])
    }

    fn consume(&mut self, n: usize) {
        self.from.consume(n);
        self.clear -= n.min(self.clear);
    }
}
