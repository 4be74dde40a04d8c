//! `lvsctl completions`: what shells need to complete lvsctl's words, made from the tables that parse them.

use std::io::{self, Write};

use clap::{Arg as ClapArg, ArgAction, Command, ValueEnum};
use clap_complete::{Generator, Shell as ClapShell};

use crate::cli;
use crate::grammar::{Arg, COMMANDS, Cmd, OPTIONS};

/// A shell.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shell {
    /// bash, for example in /usr/share/bash-completion/completions/lvsctl
    Bash,
    /// zsh, as _lvsctl in a directory of fpath
    Zsh,
    /// fish, for example in /usr/share/fish/vendor_completions.d/lvsctl.fish
    Fish,
}

/// A word of ipvsadm's grammar.
fn word(long: &'static str, short: &[char], arg: Arg, doc: &'static str) -> ClapArg {
    let mut a = ClapArg::new(long).long(long).help(doc);
    if let Some((first, more)) = short.split_first() {
        a = a.short(*first).visible_short_aliases(more.to_vec());
    }
    match arg {
        Arg::None => a.action(ArgAction::SetTrue),
        Arg::Required(name) => a.value_name(name),
        Arg::Optional(name) => a.value_name(name).num_args(0..=1),
    }
}

/// The whole command line as clap would have it: our own part, and ipvsadm's words as options. It is for completion, and parses nothing.
fn grammar() -> Command {
    let commands =
        COMMANDS.iter().filter(|c| c.cmd != Cmd::Help).map(|c| word(c.long, c.short, c.arg, c.doc));
    let options = OPTIONS.iter().map(|o| word(o.long, o.short.as_slice(), o.arg, o.doc));
    cli::definition().args(commands).args(options)
}

/// Writes what a shell reads.
///
/// # Errors
/// Those of `w`.
pub(crate) fn print_into(w: &mut dyn Write, shell: Shell) -> io::Result<()> {
    let shell = match shell {
        Shell::Bash => ClapShell::Bash,
        Shell::Zsh => ClapShell::Zsh,
        Shell::Fish => ClapShell::Fish,
    };
    let mut command = grammar();
    command.set_bin_name("lvsctl");
    command.build();
    let mut script = Vec::new();
    shell.generate(&command, &mut script);
    w.write_all(&script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_in_every_script() {
        grammar().debug_assert();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut text = Vec::new();
            print_into(&mut text, shell).unwrap();
            let text = String::from_utf8(text).unwrap();
            for long in COMMANDS.iter().map(|c| c.long).chain(OPTIONS.iter().map(|o| o.long)) {
                assert!(text.contains(long), "{shell:?}: {long}");
            }
            for own in ["realserver", "status", "--nonzero", "--socket"] {
                assert!(text.contains(own.trim_start_matches('-')), "{shell:?}: {own}");
            }
        }
    }
}
