//! lvsctl's own part of the command line, which clap reads: options before the command, and subcommands.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::error::{EXIT_OK, EXIT_USAGE};

/// Where lvsd listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/lvsd.sock";

#[derive(Parser, Debug)]
#[command(name = "lvsctl", disable_help_subcommand = true)]
struct Cli {
    /// The daemon's socket; must come before the command
    #[arg(long, value_name = "PATH", env = "LVSD_SOCKET", default_value = DEFAULT_SOCKET, hide_env_values = true)]
    socket: PathBuf,
    #[command(subcommand)]
    sub: Option<Sub>,
}

/// What lvsctl has beside ipvsadm's commands.
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum Sub {
    /// Print the data path's counters, one `name value` a line
    Status,
    /// Print or change settings of net.ipv4.vs
    Sysctl {
        /// Print this one, or with a value change it; all are printed without any
        #[arg(value_name = "NAME[=VALUE]")]
        settings: Vec<String>,
    },
}

/// A command line, taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invocation {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// A subcommand, or else...
    pub sub: Option<Sub>,
    /// ...words of ipvsadm's grammar.
    pub words: Vec<String>,
}

/// clap's answer where it is not a command line: an error, or help that was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ClapAnswer(Box<clap::Error>);

impl ClapAnswer {
    /// Whether it belongs on standard error.
    pub fn use_stderr(&self) -> bool {
        self.0.use_stderr()
    }

    /// Exit status.
    pub fn exit_code(&self) -> i32 {
        if matches!(self.0.kind(), ErrorKind::DisplayHelp) { EXIT_OK } else { EXIT_USAGE }
    }
}

impl Invocation {
    /// Takes the words after the program's name apart: leading `--socket`, then a subcommand or ipvsadm's grammar.
    ///
    /// # Errors
    /// What clap says of its part.
    pub fn parse(args: &[String]) -> Result<Invocation, ClapAnswer> {
        let mut own = 0;
        while let Some(word) = args.get(own) {
            match word.as_str() {
                "--socket" => own = (own + 2).min(args.len()),
                word if word.starts_with("--socket=") => own += 1,
                _ => break,
            }
        }
        let (globals, rest) = args.split_at(own);
        let ours = rest.first().is_some_and(|word| Cli::command().find_subcommand(word).is_some());
        let (clap, words) = if ours { (args, &[][..]) } else { (globals, rest) };
        let words_of_clap = std::iter::once("lvsctl").chain(clap.iter().map(String::as_str));
        let cli = Cli::try_parse_from(words_of_clap).map_err(|e| ClapAnswer(Box::new(e)))?;
        Ok(Invocation { socket: cli.socket, sub: cli.sub, words: words.to_vec() })
    }
}

/// An option or subcommand of lvsctl for help and manual.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnWord {
    /// How it is written.
    pub usage: String,
    /// One sentence.
    pub doc: String,
}

/// Options that come before the command.
pub fn own_options() -> Vec<OwnWord> {
    let cli = Cli::command();
    let options = cli.get_arguments().filter_map(|arg| {
        let value = arg.get_value_names().and_then(|names| names.first())?;
        Some(OwnWord {
            usage: format!("--{} {value}", arg.get_long()?),
            doc: format!(
                "{}. Default: the environment's LVSD_SOCKET, else {DEFAULT_SOCKET}.",
                arg.get_help()?
            ),
        })
    });
    options.collect()
}

/// Subcommands.
pub fn own_subcommands() -> Vec<OwnWord> {
    let cli = Cli::command();
    let subs = cli.get_subcommands().map(|sub| {
        let args = sub
            .get_positionals()
            .filter_map(|arg| arg.get_value_names()?.first().map(|n| format!(" [{n}]...")));
        OwnWord {
            usage: format!("{}{}", sub.get_name(), args.collect::<String>()),
            doc: sub.get_about().map(|about| format!("{about}.")).unwrap_or_default(),
        }
    });
    subs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Invocation, ClapAnswer> {
        Invocation::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn socket_and_words() {
        let i = parse("--socket /a -Ln --stats").unwrap();
        assert_eq!((i.socket.to_str(), i.sub), (Some("/a"), None));
        assert_eq!(i.words, ["-Ln", "--stats"]);
        let i = parse("--socket=/b status").unwrap();
        assert_eq!((i.socket.to_str(), i.sub), (Some("/b"), Some(Sub::Status)));
        let i = parse("sysctl drop_entry=1 conntrack").unwrap();
        assert_eq!(i.sub, Some(Sub::Sysctl { settings: vec!["drop_entry=1".into(), "conntrack".into()] }));
        // Not a subcommand: ipvsadm's grammar judges.
        assert_eq!(parse("statu").unwrap().words, ["statu"]);
        assert_eq!(parse("-A -s status").unwrap().sub, None);
    }

    #[test]
    fn errors() {
        assert_eq!(parse("--socket").unwrap_err().exit_code(), EXIT_USAGE);
        assert_eq!(parse("status --bogus").unwrap_err().exit_code(), EXIT_USAGE);
        let help = parse("status --help").unwrap_err();
        assert_eq!((help.exit_code(), help.use_stderr()), (EXIT_OK, false));
    }

    #[test]
    fn own_words_are_told() {
        assert_eq!(own_options().len(), 1);
        assert_eq!(own_options()[0].usage, "--socket PATH");
        let subs = own_subcommands();
        assert_eq!(subs[1].usage, "sysctl [NAME[=VALUE]]...");
        assert!(subs.iter().all(|s| s.doc.len() > 5));
    }
}
