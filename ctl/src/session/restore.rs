//! `--restore`: a command a line.

use std::io::{BufRead, Read};

use super::{Failure, Session};
use crate::command::Command;
use crate::error::{CliError, EXIT_OK};
use crate::{Io, report};

/// Longest line in bytes.
const LINE_MAX: u64 = 64 * 1024;

impl Session<'_, '_> {
    /// Carries out the lines of standard input. The status is the last line's. What the daemon refuses and an unknown
    /// option are told and passed over; a wrong value, and a line without a command (comments are such lines), end it.
    /// Blank lines do nothing; a leading word `ipvsadm` or `lvsctl` is dropped.
    ///
    /// To keep going is to pass over whatever fails, and comments, too; the status is then that of the first failure.
    pub(super) fn restore(&mut self, io: &mut Io<'_>, keep_going: bool) -> Result<i32, Failure> {
        let mut status = EXIT_OK;
        let mut number: u64 = 0;
        loop {
            number += 1;
            let numbered = |e: CliError| CliError { message: format!("line {number}: {e}"), ..e };
            let Some(line) = read_line(io.stdin).map_err(numbered)? else { return Ok(status) };
            let words: Vec<String> = line.split_ascii_whitespace().map(str::to_owned).collect();
            let words = match &words[..] {
                [] => continue,
                [program, rest @ ..] if program == "ipvsadm" || program == "lvsctl" => rest,
                all => all,
            };
            if keep_going && words.first().is_some_and(|w| w.starts_with('#')) {
                continue;
            }
            match self.line(number, words, io) {
                Ok(_) if keep_going => {}
                Ok(Next::Line) => status = EXIT_OK,
                Ok(Next::Stop) => return Ok(EXIT_OK),
                Err(Failure::Command(e)) if e.carries_on || keep_going => {
                    if status == EXIT_OK || !keep_going {
                        status = e.code;
                    }
                    report(io.stderr, &numbered(e));
                }
                Err(Failure::Command(e)) => return Err(numbered(e).into()),
                Err(e) => return Err(e),
            }
        }
    }

    fn line(&mut self, number: u64, words: &[String], io: &mut Io<'_>) -> Result<Next, Failure> {
        if words.is_empty() {
            return Err(CliError::try_help().into());
        }
        let (command, note) = self.command(words)?;
        self.execute(&command, io.stdout)?;
        if let Some(note) = note {
            let _ = writeln!(io.stderr, "line {number}: {note}");
        }
        Ok(if matches!(command, Command::Help | Command::Version) { Next::Stop } else { Next::Line })
    }
}

enum Next {
    Line,
    Stop,
}

fn read_line(stdin: &mut dyn BufRead) -> Result<Option<String>, CliError> {
    let mut line = Vec::new();
    let read = stdin.take(LINE_MAX + 1).read_until(b'\n', &mut line);
    match read {
        Err(e) => Err(CliError::usage(format!("standard input: {e}"))),
        Ok(0) => Ok(None),
        Ok(n) if n as u64 > LINE_MAX => Err(CliError::usage(format!("longer than {LINE_MAX} bytes"))),
        Ok(_) => match String::from_utf8(line) {
            Ok(line) => Ok(Some(line)),
            Err(_) => Err(CliError::usage("not UTF-8")),
        },
    }
}
