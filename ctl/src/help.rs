//! `--help` and `--version`.

use std::io::{self, Write};

use crate::cli::{own_options, own_subcommands};
use crate::grammar::{Arg, COMMANDS, CmdSpec, OPTIONS, OptSpec, Section};

/// The version that scripts parse to learn what this tool is compatible with: ipvsadm's own line.
pub const VERSION_LINE: &str = "ipvsadm v1.31 2019/12/24 (compiled with popt and IPVS v1.2.1)";

/// Columns before the sentences, and of a whole line.
const INDENT: usize = 34;
const WIDTH: usize = 110;
/// Columns before a usage that goes on.
const CONTINUED: usize = 6;

/// Prints the help.
///
/// # Errors
/// Those of `w`.
pub fn print_help_into(w: &mut dyn Write) -> io::Result<()> {
    writeln!(w, "lvsctl {} administers lvsd with ipvsadm's grammar.", env!("CARGO_PKG_VERSION"))?;
    writeln!(w, "\nUsage:")?;
    writeln!(w, "  lvsctl [--socket PATH] COMMAND [OPTION]...")?;
    writeln!(w, "  lvsctl [--socket PATH] SUBCOMMAND [ARGUMENT]...")?;
    writeln!(w, "\nCommands (exactly one, before all options; none is -L):")?;
    for command in COMMANDS {
        let words = command_words(command);
        let synopsis =
            if command.synopsis.is_empty() { String::new() } else { format!(" {}", command.synopsis) };
        row(w, &format!("{words}{synopsis}"), command.doc)?;
    }
    writeln!(w, "\nSubcommands:")?;
    for sub in own_subcommands() {
        row(w, &sub.usage, &sub.doc)?;
    }
    writeln!(w, "\nBefore the command:")?;
    for option in own_options() {
        row(w, &option.usage, &option.doc)?;
    }
    for section in Section::ALL {
        writeln!(w, "\n{}:", section.title())?;
        for option in OPTIONS.iter().filter(|o| o.section == section) {
            row(w, &option_words(option), option.doc)?;
        }
    }
    Ok(())
}

/// `-A, --add-service`.
pub(crate) fn command_words(c: &CmdSpec) -> String {
    let letters = c.short.iter().map(|letter| format!("-{letter}, "));
    format!("{}--{}{}", letters.collect::<String>(), c.long, value(c.arg))
}

/// `-t, --tcp-service HOST[:PORT]`.
pub(crate) fn option_words(o: &OptSpec) -> String {
    let letter = o.short.map(|letter| format!("-{letter}, ")).unwrap_or_default();
    format!("{letter}--{}{}", o.long, value(o.arg))
}

fn value(arg: Arg) -> String {
    match arg {
        Arg::None => String::new(),
        Arg::Required(name) => format!(" {name}"),
        Arg::Optional(name) => format!(" [{name}]"),
    }
}

/// Words on the left, a sentence on the right, wrapped.
fn row(w: &mut dyn Write, words: &str, doc: &str) -> io::Result<()> {
    let mut line = format!("  {words}");
    // A long usage goes on further in, cut between its options.
    while line.chars().count() > WIDTH {
        let fits: String = line.chars().take(WIDTH + 1).collect();
        let Some(at) = fits.rfind(" [").or_else(|| fits.rfind(' ')).filter(|at| *at > CONTINUED) else {
            break;
        };
        writeln!(w, "{}", &line[..at])?;
        line = format!("{:CONTINUED$}{}", "", line[at..].trim_start());
    }
    if line.chars().count() + 2 > INDENT {
        writeln!(w, "{line}")?;
        line.clear();
    }
    line = format!("{line:<INDENT$}");
    let mut empty = true;
    for word in doc.split(' ') {
        if !empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
            writeln!(w, "{line}")?;
            line = " ".repeat(INDENT);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    writeln!(w, "{line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_lists_the_schedulers_that_there_are() {
        let doc = OPTIONS.iter().find(|o| o.long == "scheduler").unwrap().doc;
        let (_, list) = doc.split_once(": ").unwrap();
        let (list, lacking) = list.split_once(", or ").unwrap();
        let there: Vec<&str> = schedulers::names().iter().map(|a| a.name).collect();
        assert_eq!(list.split(' ').collect::<Vec<_>>(), there);
        let (_, lacking) = lacking.split_once("IPVS's ").unwrap();
        let (lacking, _) = lacking.split_once(" are").unwrap();
        assert!(lacking.split(' ').all(|name| !there.contains(&name)), "{lacking}");
        assert_eq!(lacking.split(' ').count(), 3);
    }

    #[test]
    fn help_names_every_word() {
        let mut text = Vec::new();
        print_help_into(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for long in COMMANDS.iter().map(|c| c.long).chain(OPTIONS.iter().map(|o| o.long)) {
            assert!(text.contains(&format!("--{long}")), "--{long}");
        }
        assert!(text.contains("--socket PATH") && text.contains("sysctl [NAME[=VALUE]]"));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH && line == line.trim_end()), "{text}");
    }
}
