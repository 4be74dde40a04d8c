//! lvsctl's own part of the command line, which clap reads: options before the command, and subcommands.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{ArgAction, Args, Command, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::completions::Shell;
use crate::error::{EXIT_OK, EXIT_USAGE};

/// Where lvsd listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/lvsd.sock";

#[derive(Parser, Debug)]
#[command(name = "lvsctl", disable_help_subcommand = true)]
struct Cli {
    /// The daemon's socket; must come before the command
    #[arg(long, value_name = "PATH", env = "LVSD_SOCKET", default_value = DEFAULT_SOCKET, hide_env_values = true)]
    socket: PathBuf,
    /// Listings (-L, status, schedulers, sysctl) as JSON; must come before the command
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    sub: Option<Sub>,
}

/// What lvsctl has beside ipvsadm's commands.
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum Sub {
    /// Print what the daemon is, its ports' queues with rates and ring levels, what should be known of the configuration, and
    /// the data path's counters, one `name value` a line
    Status {
        /// Leave out counters that are 0
        #[arg(long)]
        nonzero: bool,
    },
    /// Print the schedulers that the daemon has
    Schedulers,
    /// Print or change settings of net.ipv4.vs
    Sysctl {
        /// Print this one, or with a value change it; all are printed without any
        #[arg(value_name = "NAME[=VALUE]")]
        settings: Vec<String>,
    },
    /// Run a program, such as ipvsadm or keepalived, under a library that brings its IPVS requests, /proc/net/ip_vs* and
    /// net.ipv4.vs to the daemon; none needs to run yet
    Exec {
        /// The program and its arguments
        #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Carry out commands from standard input, one a line, as -R does
    Restore {
        /// Pass over lines that fail, and comments, and carry the rest out; the exit status is that of the first failure
        #[arg(long)]
        keep_going: bool,
    },
    /// The data plane in the kernel that outlives the daemon; no daemon is asked
    #[command(subcommand)]
    Datapath(Datapath),
    /// Prepare this machine as a real server; no daemon is asked
    #[command(subcommand)]
    Realserver(RealServer),
    /// Print what a shell needs to complete lvsctl's words; no daemon is asked
    Completions {
        /// bash, zsh or fish
        #[arg(value_name = "SHELL", value_enum)]
        shell: Shell,
    },
}

/// clap's part of the command line.
pub(crate) fn definition() -> Command {
    Cli::command()
}

/// What lvsctl does with a data plane that was left.
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum Datapath {
    /// Remove the data plane that an lvsd with --datapath xdp or tc has left when it ended: its connections are lost, and packets to
    /// virtual addresses go to this machine's own stack; refused while an lvsd works on it
    Off {
        /// Where it is pinned, if lvsd was told to (default: the place that belongs to --socket)
        #[arg(long, value_name = "DIR")]
        pin_dir: Option<PathBuf>,
    },
}

/// Where decapsulators are pinned unless told otherwise.
pub const DEFAULT_PIN_DIR: &str = "/sys/fs/bpf/lvsd-realserver";

/// What lvsctl does on a real server.
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum RealServer {
    /// Make this machine a real server for direct routing or tunnels: the virtual addresses on lo, nobody who answers for them,
    /// and for tunnels a decapsulator and a smaller announced MSS; what was before is written down
    Setup(Setup),
    /// Say what is wrong with this real server and how to mend it; exit status 1 when something is
    Check(Check),
    /// Take back what setup has done
    Undo {
        /// What setup has written (default: that of this network namespace under /run/lvsd)
        #[arg(long, value_name = "FILE")]
        record: Option<PathBuf>,
    },
    /// Take the tunnel headers (IPIP, GRE) off packets to an interface's addresses, by an XDP program that stays when
    /// lvsctl ends; again after the addresses have changed
    Decap {
        /// The interface at which tunnelled packets arrive
        #[arg(long, value_name = "IF")]
        dev: String,
        /// Take the program away
        #[arg(long)]
        off: bool,
        /// Where the program is held; where that is no BPF file system, the interface itself holds it
        #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_DIR)]
        pin_dir: PathBuf,
    },
}

/// How the director sends packets to this server.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetupMode {
    /// Direct routing (`-g`)
    Dr,
    /// IP in IP (`-i`)
    Ipip,
    /// GRE (`-i --tun-type gre`)
    Gre,
}

/// The same with NAT, which needs no set-up but can be checked.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckMode {
    /// Direct routing (`-g`)
    Dr,
    /// IP in IP (`-i`)
    Ipip,
    /// GRE (`-i --tun-type gre`)
    Gre,
    /// Address translation (`-m`)
    Nat,
}

/// What a server is set up for.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// Virtual addresses, IPv4 or IPv6
    #[arg(long, value_name = "ADDR", required = true, num_args = 1..)]
    pub vip: Vec<IpAddr>,
    /// dr, ipip or gre, as the director is told for this server
    #[arg(long, value_name = "MODE", value_enum, default_value = "dr", hide_possible_values = true)]
    pub mode: SetupMode,
    /// The interface at which the director's packets arrive; without it ARP is kept quiet on all, and tunnels are expected
    /// where the default route leads
    #[arg(long, value_name = "IF")]
    pub dev: Option<String>,
    /// Make the kernel's tunnel devices instead of loading the decapsulator
    #[arg(long)]
    pub kernel_tunnel: bool,
    /// Leave routes as they are: the links to the director have room for the tunnel's header, or ICMP is trusted
    #[arg(long)]
    pub no_advmss: bool,
    /// Where the decapsulator is held
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PIN_DIR)]
    pub pin_dir: PathBuf,
    /// Where to write down what was before (default: /run/lvsd, a file for each network namespace)
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Only print what would be done
    #[arg(long)]
    pub dry_run: bool,
}

/// What a check shall know.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct Check {
    /// Virtual addresses, IPv4 or IPv6
    #[arg(long, value_name = "ADDR", required = true, num_args = 1..)]
    pub vip: Vec<IpAddr>,
    /// dr, ipip, gre or nat, as the director is told for this server
    #[arg(long, value_name = "MODE", value_enum, default_value = "dr", hide_possible_values = true)]
    pub mode: CheckMode,
    /// The interface at which the director's packets arrive; without it that of the way to the director, of the default route,
    /// or the only one
    #[arg(long, value_name = "IF")]
    pub dev: Option<String>,
    /// The director's own addresses on this side; with nat they must be known
    #[arg(long, value_name = "ADDR", num_args = 1..)]
    pub director: Vec<IpAddr>,
    /// Clients to which the ways are checked, instead of the default route
    #[arg(long, value_name = "ADDR", num_args = 1..)]
    pub client: Vec<IpAddr>,
    /// Ports of the services, on which somebody must listen
    #[arg(long, value_name = "PORT", num_args = 1.., value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Vec<u16>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A command line, taken apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Invocation {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// Whether listings are to be JSON.
    pub json: bool,
    /// A subcommand, or else...
    pub sub: Option<Sub>,
    /// ...words of ipvsadm's grammar.
    pub words: Vec<String>,
}

/// clap's answer where it is not a command line: an error, or help that was asked for.
#[derive(Debug)]
pub struct ClapAnswer(Box<clap::Error>);

impl fmt::Display for ClapAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.use_stderr() {
            true => writeln!(f, "{}", one_line(&self.0.to_string())),
            false => self.0.fmt(f),
        }
    }
}

impl std::error::Error for ClapAnswer {}

/// The sentence of one of clap's errors with its tip, without the usage.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let sentence = lines.clone().take_while(|l| !l.is_empty()).collect::<Vec<_>>().join(" ");
    let sentence = sentence.strip_prefix("error: ").unwrap_or(&sentence);
    match lines.clone().find_map(|l| l.strip_prefix("tip: ")) {
        Some(tip) => format!("{sentence}; {tip}"),
        None => sentence.to_owned(),
    }
}

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
    /// Words of ipvsadm's grammar and nothing else; the daemon's socket is the environment's, or the usual one.
    pub fn of_ipvsadm(words: Vec<String>) -> Invocation {
        let socket = std::env::var_os("LVSD_SOCKET").filter(|s| !s.is_empty());
        Invocation {
            socket: socket.map_or_else(|| DEFAULT_SOCKET.into(), PathBuf::from),
            json: false,
            sub: None,
            words,
        }
    }

    /// Takes the words after the program's name apart: leading `--socket`, then a subcommand or ipvsadm's grammar.
    ///
    /// # Errors
    /// What clap says of its part.
    pub fn parse(args: &[String]) -> Result<Invocation, ClapAnswer> {
        let mut own = 0;
        while let Some(word) = args.get(own) {
            match word.as_str() {
                "--socket" => own = (own + 2).min(args.len()),
                "--json" => own += 1,
                word if word.starts_with("--socket=") => own += 1,
                _ => break,
            }
        }
        let (globals, rest) = args.split_at(own);
        let ours = rest.first().is_some_and(|word| Cli::command().find_subcommand(word).is_some());
        let (clap, words) = if ours { (args, &[][..]) } else { (globals, rest) };
        let words_of_clap = std::iter::once("lvsctl").chain(clap.iter().map(String::as_str));
        let cli = Cli::try_parse_from(words_of_clap).map_err(|e| ClapAnswer(Box::new(e)))?;
        Ok(Invocation { socket: cli.socket, json: cli.json, sub: cli.sub, words: words.to_vec() })
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
    let options = cli.get_arguments().filter(|arg| arg.get_id() != "help").filter_map(|arg| {
        let (long, help) = (arg.get_long()?, arg.get_help()?);
        let value = arg.get_value_names().and_then(|names| names.first());
        Some(match value.filter(|_| arg.get_action().takes_values()) {
            Some(value) => OwnWord {
                usage: format!("--{long} {value}"),
                doc: format!("{help}. Default: the environment's LVSD_SOCKET, else {DEFAULT_SOCKET}."),
            },
            None => OwnWord { usage: format!("--{long}"), doc: format!("{help}.") },
        })
    });
    options.collect()
}

/// Subcommands.
pub fn own_subcommands() -> Vec<OwnWord> {
    let cli = Cli::command();
    let mut words = Vec::new();
    for sub in cli.get_subcommands() {
        match sub.has_subcommands() {
            true => words.extend(sub.get_subcommands().map(|s| own_word(&format!("{} ", sub.get_name()), s))),
            false => words.push(own_word("", sub)),
        }
    }
    words
}

/// A subcommand with its arguments; what an option is good for and what it is without one follows the sentence.
fn own_word(parent: &str, sub: &Command) -> OwnWord {
    let mut usage = format!("{parent}{}", sub.get_name());
    let mut doc = sub.get_about().map(|about| format!("{about}.")).unwrap_or_default();
    for arg in sub.get_arguments().filter(|a| a.get_id() != "help") {
        let value = arg.get_value_names().and_then(|names| names.first());
        let Some(long) = arg.get_long() else {
            let more = if matches!(arg.get_action(), ArgAction::Append) { "..." } else { "" };
            usage.extend(value.map(|v| {
                if arg.is_required_set() { format!(" {v}{more}") } else { format!(" [{v}]{more}") }
            }));
            continue;
        };
        let several = if arg.get_num_args().is_some_and(|n| n.max_values() > 1) { "..." } else { "" };
        let value = value
            .filter(|_| arg.get_action().takes_values())
            .map(|v| format!(" {v}{several}"))
            .unwrap_or_default();
        let word = format!("--{long}{value}");
        usage.push_str(&if arg.is_required_set() { format!(" {word}") } else { format!(" [{word}]") });
        doc.push_str(&format!(" --{long}: {}", arg.get_help().map(ToString::to_string).unwrap_or_default()));
        if let Some(default) = arg.get_default_values().first().filter(|_| arg.get_action().takes_values()) {
            doc.push_str(&format!(" (default {})", default.to_string_lossy()));
        }
        doc.push('.');
    }
    OwnWord { usage, doc }
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
        assert_eq!((i.socket.to_str(), i.sub), (Some("/b"), Some(Sub::Status { nonzero: false })));
        assert_eq!(parse("status --nonzero").unwrap().sub, Some(Sub::Status { nonzero: true }));
        let i = parse("sysctl drop_entry=1 conntrack").unwrap();
        assert_eq!(i.sub, Some(Sub::Sysctl { settings: vec!["drop_entry=1".into(), "conntrack".into()] }));
        let decap = |off, dir: &str| {
            Some(Sub::Realserver(RealServer::Decap { dev: "eth0".into(), off, pin_dir: dir.into() }))
        };
        assert_eq!(parse("realserver decap --dev eth0").unwrap().sub, decap(false, DEFAULT_PIN_DIR));
        assert_eq!(parse("realserver decap --off --pin-dir /x --dev eth0").unwrap().sub, decap(true, "/x"));
        let two = ["192.0.2.10".parse().unwrap(), "2001:db8::10".parse().unwrap()];
        let Some(Sub::Realserver(RealServer::Check(c))) =
            parse("realserver check --vip 192.0.2.10 2001:db8::10 --mode nat --port 80 443 --port 53")
                .unwrap()
                .sub
        else {
            panic!()
        };
        assert_eq!(
            (c.vip.as_slice(), c.mode, c.port.as_slice()),
            (&two[..], CheckMode::Nat, &[80, 443, 53][..])
        );
        let Some(Sub::Realserver(RealServer::Setup(s))) =
            parse("realserver setup --vip 192.0.2.10 --vip 2001:db8::10 --mode gre --dry-run").unwrap().sub
        else {
            panic!()
        };
        assert_eq!((s.vip.as_slice(), s.mode, s.dry_run, s.dev), (&two[..], SetupMode::Gre, true, None));
        assert_eq!(
            parse("realserver undo").unwrap().sub,
            Some(Sub::Realserver(RealServer::Undo { record: None }))
        );
        // Not a subcommand: ipvsadm's grammar judges.
        assert_eq!(parse("statu").unwrap().words, ["statu"]);
        assert_eq!(parse("-A -s status").unwrap().sub, None);
    }

    #[test]
    fn errors() {
        assert_eq!(parse("--socket").unwrap_err().exit_code(), EXIT_USAGE);
        assert_eq!(parse("status --bogus").unwrap_err().exit_code(), EXIT_USAGE);
        assert_eq!(parse("realserver").unwrap_err().exit_code(), EXIT_USAGE);
        assert_eq!(parse("realserver decap").unwrap_err().exit_code(), EXIT_USAGE);
        for wrong in [
            "setup",
            "setup --vip",
            "setup --vip 192.0.2.256",
            "setup --vip 192.0.2.10 --mode nat",
            "check --vip 192.0.2.10 --mode gue",
            "check --vip 192.0.2.10 --port 0",
            "check --port 80",
            "undo --vip 192.0.2.10",
        ] {
            let e = parse(&format!("realserver {wrong}")).unwrap_err();
            assert_eq!((e.exit_code(), e.use_stderr()), (EXIT_USAGE, true), "{wrong}");
        }
        for (line, says) in [
            (
                "status --nonzer",
                "unexpected argument '--nonzer' found; a similar argument exists: '--nonzero'",
            ),
            ("--socket", "a value is required for '--socket <PATH>' but none was supplied"),
            ("realserver decap", "the following required arguments were not provided: --dev <IF>"),
            (
                "realserver decapp --dev x",
                "unrecognized subcommand 'decapp'; a similar subcommand exists: 'decap'",
            ),
        ] {
            assert_eq!(parse(line).unwrap_err().to_string(), format!("{says}\n"), "{line}");
        }
        let help = parse("status --help").unwrap_err();
        assert_eq!((help.exit_code(), help.use_stderr()), (EXIT_OK, false));
    }

    #[test]
    fn own_words_are_told() {
        assert_eq!(own_options().len(), 2);
        assert_eq!(own_options()[1].usage, "--json");
        assert_eq!(own_options()[0].usage, "--socket PATH");
        let subs = own_subcommands();
        let usages: Vec<&str> = subs.iter().map(|s| s.usage.as_str()).collect();
        assert_eq!(
            usages,
            [
                "status [--nonzero]",
                "schedulers",
                "sysctl [NAME[=VALUE]]...",
                "exec PROGRAM...",
                "restore [--keep-going]",
                "datapath off [--pin-dir DIR]",
                "realserver setup --vip ADDR... [--mode MODE] [--dev IF] [--kernel-tunnel] [--no-advmss] [--pin-dir DIR] \
                 [--record FILE] [--dry-run]",
                "realserver check --vip ADDR... [--mode MODE] [--dev IF] [--director ADDR...] [--client ADDR...] \
                 [--port PORT...] [--json]",
                "realserver undo [--record FILE]",
                "realserver decap --dev IF [--off] [--pin-dir DIR]",
                "completions SHELL",
            ]
        );
        assert!(subs[9].doc.contains(DEFAULT_PIN_DIR), "{}", subs[7].doc);
        assert!(subs.iter().all(|s| s.doc.len() > 5));
    }
}
