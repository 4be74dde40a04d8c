//! What the user typed: typed, each value within its range, the combination legal. What it means is [`crate::command`]'s.

use std::net::IpAddr;
use std::num::NonZeroU32;

use ipvs_netlink::{DaemonState, FwdMethod, SVC_F_SCHED1, SVC_F_SCHED2, SVC_F_SCHED3, Timeouts};

use crate::error::CliError;
use crate::grammar::{self, Cmd, Legal, OPTIONS, Opt, Row};
use crate::names::{SCTP, TCP, UDP};
use crate::popt::{SyntaxError, Walker, Word};
use crate::value::{Endpoint, number};

/// Persistence timeout of `-p` without a value, in seconds.
pub const DEFAULT_PERSISTENCE: u32 = 360;
/// Longest timeout of `-p` and `--set`, in seconds: 31 days.
pub const MAX_TIMEOUT: u32 = 31 * 24 * 60 * 60;
/// Largest weight and threshold.
pub const MAX_COUNT: u32 = i32::MAX as u32;

/// An endpoint and how it was given, for messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndpointArg {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Option and value as typed.
    pub typed: String,
}

/// A virtual service as typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServiceArg {
    /// `-t`, `-u`, `--sctp-service`.
    Addr {
        /// IANA protocol number.
        protocol: u8,
        /// Address and port.
        at: EndpointArg,
    },
    /// `-f`.
    Fwmark {
        /// The mark.
        mark: NonZeroU32,
        /// `-6` followed.
        v6: bool,
    },
}

/// A scheduler flag as typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SchedFlag {
    /// `SVC_F_SCHED*`.
    pub bit: u32,
    /// The scheduler that it belongs to, if it is of one only.
    pub scheduler: Option<&'static str>,
    /// Its name.
    pub name: &'static str,
}

/// Names of the scheduler flags.
pub const SCHED_FLAGS: [SchedFlag; 7] = [
    SchedFlag { bit: SVC_F_SCHED1, scheduler: None, name: "flag-1" },
    SchedFlag { bit: SVC_F_SCHED2, scheduler: None, name: "flag-2" },
    SchedFlag { bit: SVC_F_SCHED3, scheduler: None, name: "flag-3" },
    SchedFlag { bit: SVC_F_SCHED1, scheduler: Some("sh"), name: "sh-fallback" },
    SchedFlag { bit: SVC_F_SCHED2, scheduler: Some("sh"), name: "sh-port" },
    SchedFlag { bit: SVC_F_SCHED1, scheduler: Some("mh"), name: "mh-fallback" },
    SchedFlag { bit: SVC_F_SCHED2, scheduler: Some("mh"), name: "mh-port" },
];

/// Encapsulation of `--tun-type`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TunType {
    /// IP in IP.
    Ipip,
    /// Generic UDP encapsulation.
    Gue,
    /// Generic routing encapsulation.
    Gre,
}

/// A command line, valid in itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LowArgs {
    /// The command.
    pub cmd: Cmd,
    /// Options given, in the order of [`OPTIONS`].
    pub given: Vec<Opt>,
    /// Argument of `--start-daemon` and `--stop-daemon`.
    pub role: Option<DaemonState>,
    /// Arguments of `--set`.
    pub timeouts: Option<Timeouts>,
    /// Virtual service.
    pub service: Option<ServiceArg>,
    /// `-s`.
    pub scheduler: Option<String>,
    /// `-b`.
    pub sched_flags: Vec<SchedFlag>,
    /// `-p`, in seconds.
    pub persistent: Option<u32>,
    /// `-M` as typed: what it means depends on the service's family.
    pub netmask: Option<String>,
    /// `--pe`.
    pub pe: Option<String>,
    /// `-r`.
    pub server: Option<EndpointArg>,
    /// `-g`, `-i`, `-m`.
    pub method: Option<FwdMethod>,
    /// `-w`.
    pub weight: Option<i32>,
    /// `-x`.
    pub upper: Option<u32>,
    /// `-y`.
    pub lower: Option<u32>,
    /// `--tun-type`.
    pub tun_type: Option<TunType>,
    /// `--tun-port`.
    pub tun_port: Option<u16>,
    /// `--mcast-interface`.
    pub interface: Option<String>,
    /// `--syncid`.
    pub sync_id: Option<u8>,
    /// `--sync-maxlen`.
    pub sync_maxlen: Option<u16>,
    /// `--mcast-group`.
    pub group: Option<IpAddr>,
    /// `--mcast-port`.
    pub group_port: Option<u16>,
    /// `--mcast-ttl`.
    pub ttl: Option<u8>,
}

impl LowArgs {
    fn new(cmd: Cmd) -> LowArgs {
        LowArgs {
            cmd,
            given: Vec::new(),
            role: None,
            timeouts: None,
            service: None,
            scheduler: None,
            sched_flags: Vec::new(),
            persistent: None,
            netmask: None,
            pe: None,
            server: None,
            method: None,
            weight: None,
            upper: None,
            lower: None,
            tun_type: None,
            tun_port: None,
            interface: None,
            sync_id: None,
            sync_maxlen: None,
            group: None,
            group_port: None,
            ttl: None,
        }
    }

    /// Reads the words after the program's name.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn parse(args: &[String]) -> Result<LowArgs, CliError> {
        if args.is_empty() {
            return Ok(LowArgs::new(Cmd::List));
        }
        let mut walker = Walker::new(args);
        let (command, value) = match walker.next_option() {
            Ok(Some(Word { row: Row::Cmd(command), value, .. })) => (command, value),
            Ok(Some(Word { row: Row::Opt(_), spelled, .. })) => return Err(not_first(&spelled)),
            Ok(None) => return Err(no_command(&walker.positional())),
            Err(e) => return Err(CliError::try_help_after(&format!("{}: {}", e.word, e.reason))),
        };
        let mut low = LowArgs::new(command.cmd);
        if matches!(command.cmd, Cmd::Help | Cmd::Version) {
            return Ok(low);
        }
        low.role = role(command.cmd, value.as_deref())?;
        while let Some(word) = walker.next_option().map_err(unreadable)? {
            let Row::Opt(option) = word.row else {
                return Err(CliError::usage(format!(
                    "multiple commands: invalid option `{}': --{} is the command already",
                    word.spelled, command.long
                )));
            };
            low.note(option)?;
            low.set(option.opt, &word)?;
        }
        low.given.sort_by_key(|&o| OPTIONS.iter().position(|row| row.opt == o));
        low.take_positional(&walker.positional())?;
        low.check_legal()?;
        Ok(low)
    }

    /// Whether an option was given.
    pub fn has(&self, opt: Opt) -> bool {
        self.given.contains(&opt)
    }

    fn note(&mut self, option: &'static grammar::OptSpec) -> Result<(), CliError> {
        let Some(legal) = option.legal else { return Ok(()) };
        if self.given.iter().any(|&o| legal_of(o) == Some(legal)) {
            return Err(CliError::usage(format!("multiple '{}' options specified", legal.name)));
        }
        self.given.push(option.opt);
        Ok(())
    }

    fn set(&mut self, opt: Opt, word: &Word) -> Result<(), CliError> {
        let value = word.value.as_deref();
        let text = value.unwrap_or_default();
        match opt {
            Opt::TcpService | Opt::UdpService | Opt::SctpService => {
                let protocol = match opt {
                    Opt::TcpService => TCP,
                    Opt::UdpService => UDP,
                    _ => SCTP,
                };
                let at = endpoint(word, "illegal virtual server address[:port] specified")?;
                self.service = Some(ServiceArg::Addr { protocol, at });
            }
            Opt::FwmarkService => self.service = Some(ServiceArg::Fwmark { mark: mark(text)?, v6: false }),
            Opt::Ipv6 => match &mut self.service {
                Some(ServiceArg::Fwmark { v6, .. }) => *v6 = true,
                _ => return Err(CliError::usage("-6 used before -f")),
            },
            // ipvsadm takes an empty name for the default.
            Opt::Scheduler => self.scheduler = Some(text.to_owned()).filter(|s| !s.is_empty()),
            Opt::SchedFlags => self.sched_flags = sched_flags(text)?,
            Opt::Persistent => {
                self.persistent = Some(match value {
                    Some(text) => timeout(text, 1)?,
                    None => DEFAULT_PERSISTENCE,
                });
            }
            Opt::Netmask => self.netmask = Some(text.to_owned()),
            Opt::Pe => self.pe = Some(text.to_owned()).filter(|s| !s.is_empty()),
            Opt::RealServer => {
                self.server = Some(endpoint(word, "illegal real server address[:port] specified")?);
            }
            Opt::Gatewaying => self.method = Some(FwdMethod::Droute),
            Opt::Ipip => self.method = Some(FwdMethod::Tunnel),
            Opt::Masquerading => self.method = Some(FwdMethod::Masq),
            Opt::Weight => self.weight = Some(ranged(word, "weight", 0, MAX_COUNT)? as i32),
            Opt::UThreshold => self.upper = Some(ranged(word, "u_threshold", 0, MAX_COUNT)?),
            Opt::LThreshold => self.lower = Some(ranged(word, "l_threshold", 0, MAX_COUNT)?),
            Opt::TunType => self.tun_type = Some(tun_type(text)?),
            Opt::TunPort => self.tun_port = Some(ranged(word, "tunnel port", 1, 65535)? as u16),
            Opt::McastInterface => self.interface = Some(text.to_owned()),
            Opt::SyncId => self.sync_id = Some(ranged(word, "syncid", 0, 255)? as u8),
            Opt::SyncMaxlen => self.sync_maxlen = Some(ranged(word, "sync-maxlen", 1, 65507)? as u16),
            Opt::McastGroup => self.group = Some(group(text)?),
            Opt::McastPort => self.group_port = Some(ranged(word, "mcast-port", 1, 65535)? as u16),
            Opt::McastTtl => self.ttl = Some(ranged(word, "mcast-ttl", 1, 255)? as u8),
            // These say all by being given.
            Opt::Numeric
            | Opt::Connection
            | Opt::Ops
            | Opt::TunNocsum
            | Opt::TunCsum
            | Opt::TunRemcsum
            | Opt::Timeout
            | Opt::Daemon
            | Opt::Stats
            | Opt::Rate
            | Opt::Thresholds
            | Opt::PersistentConn
            | Opt::TunInfo
            | Opt::Exact
            | Opt::Sort
            | Opt::Nosort => {}
        }
        Ok(())
    }

    fn take_positional(&mut self, words: &[&str]) -> Result<(), CliError> {
        let rest = match (self.cmd, words) {
            (Cmd::Set, [tcp, tcp_fin, udp, rest @ ..]) => {
                self.timeouts = Some(Timeouts {
                    tcp: timeout(tcp, 0)?,
                    tcp_fin: timeout(tcp_fin, 0)?,
                    udp: timeout(udp, 0)?,
                });
                rest
            }
            (Cmd::Set, few) => {
                return Err(CliError::usage(format!(
                    "--set option requires 3 timeout values (tcp, tcpfin, udp in seconds), not {}",
                    few.len()
                )));
            }
            (_, rest) => rest,
        };
        match rest {
            [] => Ok(()),
            [word, ..] => Err(CliError::usage(format!("unexpected argument {word}"))),
        }
    }

    /// The legality matrix.
    fn check_legal(&self) -> Result<(), CliError> {
        let name = grammar::spec(self.cmd).name;
        for row in OPTIONS {
            let Some(legal) = row.legal else { continue };
            let given = self.given.iter().any(|&o| legal_of(o) == Some(legal));
            if legal.required.contains(&self.cmd) && !given {
                return Err(CliError::usage(format!(
                    "You need to supply the '{}' option for the '{name}' command",
                    legal.name
                )));
            }
        }
        let mut first: Option<&Legal> = None;
        for legal in self.given.iter().filter_map(|&o| legal_of(o)) {
            if legal.exclusive.contains(&self.cmd) {
                if let Some(first) = first {
                    return Err(CliError::usage(format!(
                        "The option '{}' conflicts with the '{}' option in the '{name}' command",
                        legal.name, first.name
                    )));
                }
                first = Some(legal);
            } else if !legal.required.contains(&self.cmd) && !legal.allowed.contains(&self.cmd) {
                return Err(CliError::usage(format!(
                    "Illegal '{}' option with the '{name}' command",
                    legal.name
                )));
            }
        }
        self.check_list()
    }

    /// Variants of a listing that ipvsadm's matrix leaves to a rule of its own.
    fn check_list(&self) -> Result<(), CliError> {
        let table_only = [Opt::Stats, Opt::Rate, Opt::Thresholds];
        let other = [Opt::Connection, Opt::Timeout, Opt::Daemon].into_iter().find(|&o| self.has(o));
        let Some(other) = other else { return Ok(()) };
        let variant = table_only.into_iter().find(|&o| self.has(o)).or_else(|| {
            (other != Opt::Connection && self.has(Opt::PersistentConn)).then_some(Opt::PersistentConn)
        });
        match variant {
            None => Ok(()),
            Some(variant) => Err(CliError::usage(format!(
                "options conflicts in the list command: --{} is not for --{}",
                long(variant),
                long(other)
            ))),
        }
    }
}

fn legal_of(opt: Opt) -> Option<&'static Legal> {
    OPTIONS.iter().find(|row| row.opt == opt).and_then(|row| row.legal)
}

fn long(opt: Opt) -> &'static str {
    OPTIONS.iter().find(|row| row.opt == opt).map_or("", |row| row.long)
}

/// An unknown option and the like: ipvsadm's -1, after which `--restore` goes on.
fn unreadable(e: SyntaxError) -> CliError {
    let place = if e.word.starts_with("--socket") { " here: it comes before the command" } else { "" };
    CliError { carries_on: true, ..CliError::syntax(format!("{}: {}{place}", e.word, e.reason)) }
}

/// An option where the command must be.
fn not_first(spelled: &str) -> CliError {
    CliError::try_help_after(&format!(
        "{spelled}: an option before the command; the command (such as -A, -a, -L) comes first"
    ))
}

/// Words, but no command; one that lacks its dashes is recognised.
fn no_command(words: &[&str]) -> CliError {
    let Some(word) = words.first() else { return CliError::try_help() };
    let meant = match grammar::by_long(word) {
        Some(Row::Cmd(command)) => format!("; is --{} meant?", command.long),
        _ => String::new(),
    };
    CliError::try_help_after(&format!("{word}: unknown command{meant}"))
}

fn role(cmd: Cmd, value: Option<&str>) -> Result<Option<DaemonState>, CliError> {
    let phrase = match cmd {
        Cmd::StartDaemon => "illegal start-daemon parameter specified",
        Cmd::StopDaemon => "illegal stop-daemon parameter specified",
        _ => return Ok(None),
    };
    match value {
        Some("master") => Ok(Some(DaemonState::Master)),
        Some("backup") => Ok(Some(DaemonState::Backup)),
        other => Err(CliError::usage(format!(
            "{phrase}: `{}' is neither master nor backup",
            other.unwrap_or_default()
        ))),
    }
}

fn endpoint(word: &Word, phrase: &str) -> Result<EndpointArg, CliError> {
    let text = word.value.as_deref().unwrap_or_default();
    let typed = format!("{} {text}", word.spelled);
    match Endpoint::parse(text) {
        Ok(endpoint) => Ok(EndpointArg { endpoint, typed }),
        Err(e) => Err(CliError::usage(format!("{phrase}: {typed}: {e}"))),
    }
}

fn mark(text: &str) -> Result<NonZeroU32, CliError> {
    number(text, 1, i64::from(u32::MAX))
        .and_then(|n| u32::try_from(n).ok())
        .and_then(NonZeroU32::new)
        .ok_or_else(|| {
            CliError::usage(format!("invalid fwmark value `{text}' specified: not within 1 to 4294967295"))
        })
}

fn timeout(text: &str, min: u32) -> Result<u32, CliError> {
    number(text, i64::from(min), i64::from(MAX_TIMEOUT)).and_then(|n| u32::try_from(n).ok()).ok_or_else(
        || {
            CliError::usage(format!(
                "invalid timeout value `{text}' specified: not within {min} to {MAX_TIMEOUT} seconds"
            ))
        },
    )
}

fn ranged(word: &Word, name: &str, min: u32, max: u32) -> Result<u32, CliError> {
    let text = word.value.as_deref().unwrap_or_default();
    number(text, i64::from(min), i64::from(max)).and_then(|n| u32::try_from(n).ok()).ok_or_else(|| {
        CliError::usage(format!(
            "illegal {name} specified: {} {text} is not within {min} to {max}",
            word.spelled
        ))
    })
}

fn sched_flags(text: &str) -> Result<Vec<SchedFlag>, CliError> {
    text.split(',')
        .filter(|name| !name.is_empty())
        .map(|name| {
            SCHED_FLAGS.iter().find(|f| f.name == name).cloned().ok_or_else(|| {
                let known: Vec<_> = SCHED_FLAGS.iter().map(|f| f.name).collect();
                CliError::usage(format!("invalid scheduler flag `{name}': not one of {}", known.join(" ")))
            })
        })
        .collect()
}

fn tun_type(text: &str) -> Result<TunType, CliError> {
    match text {
        "ipip" => Ok(TunType::Ipip),
        "gue" => Ok(TunType::Gue),
        "gre" => Ok(TunType::Gre),
        _ => Err(CliError::usage(format!("illegal tunnel type specified: `{text}' is not ipip, gue or gre"))),
    }
}

fn group(text: &str) -> Result<IpAddr, CliError> {
    let addr = text.parse::<IpAddr>();
    match addr {
        Ok(addr) if addr.is_multicast() => Ok(addr),
        Ok(IpAddr::V6(_)) => Err(CliError::usage(format!("invalid IPv6 mcast-group `{text}'"))),
        _ => Err(CliError::usage(format!("invalid IPv4 mcast-group `{text}'"))),
    }
}
