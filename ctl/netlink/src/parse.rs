//! Reads the lines that `ipvsadm -S -n` writes, with numbers only, and what [`crate::save_line`] and its kin add to them.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::str::SplitWhitespace;

use crate::types::*;
use crate::wire::host_mask;

/// What one line says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Saved {
    /// An empty line or a comment.
    Nothing,
    /// `-A`
    Service(Service),
    /// `-a`
    Dest(ServiceKey, Dest),
    /// `--set`
    Timeouts(Timeouts),
    /// `--start-daemon`
    Daemon(Daemon),
    /// `#sysctl`, a comment to ipvsadm
    Sysctl(Sysctl),
}

/// What is wrong with a line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SavedError {
    /// It starts with another word than a command that is saved.
    #[error("'{0}' is no command of a saved state (-A, -a, --set, --start-daemon)")]
    Command(String),
    /// The command has no such option.
    #[error("the option '{0}' does not belong here")]
    Option(String),
    /// An option's value is missing.
    #[error("the option '{0}' needs a value")]
    NoValue(&'static str),
    /// An option's value is not possible.
    #[error("'{value}' is no value for '{option}'")]
    Value {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
    },
    /// A value is an address alone.
    #[error("'{value}' is no value for '{option}': its port is missing ({value}:PORT)")]
    NoPort {
        /// The option.
        option: &'static str,
        /// The address, one of IPv6 in brackets.
        value: String,
    },
    /// A part that the command needs is missing.
    #[error("'{0}' is missing")]
    Missing(&'static str),
}

/// Words of a line, with the errors of reading them.
struct Words<'a>(SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn value(&mut self, option: &'static str) -> Result<&'a str, SavedError> {
        self.0.next().ok_or(SavedError::NoValue(option))
    }

    fn parse<T: std::str::FromStr>(&mut self, option: &'static str) -> Result<T, SavedError> {
        let value = self.value(option)?;
        value.parse().map_err(|_| bad(option, value))
    }

    /// `ADDR:PORT` with an IPv6 address in brackets.
    fn endpoint(&mut self, option: &'static str) -> Result<(IpAddr, u16), SavedError> {
        let value = self.value(option)?;
        match value.parse::<SocketAddr>() {
            Ok(end) => Ok((end.ip(), end.port())),
            Err(_) => Err(without_port(option, value).unwrap_or_else(|| bad(option, value))),
        }
    }
}

fn bad(option: &'static str, value: &str) -> SavedError {
    SavedError::Value { option, value: value.to_owned() }
}

/// Where only the port is missing, that.
fn without_port(option: &'static str, value: &str) -> Option<SavedError> {
    let inner = value.strip_prefix('[').and_then(|v| v.strip_suffix(']')).unwrap_or(value);
    let addr: IpAddr = inner.parse().ok()?;
    let value = if addr.is_ipv6() { format!("[{addr}]") } else { addr.to_string() };
    Some(SavedError::NoPort { option, value })
}

/// Reads one line.
///
/// # Errors
/// [`SavedError`].
pub fn parse_line(line: &str) -> Result<Saved, SavedError> {
    if let Some(rest) = line.strip_prefix("#sysctl ") {
        let (name, value) =
            rest.trim().split_once(char::is_whitespace).ok_or(SavedError::NoValue("#sysctl"))?;
        return Ok(Saved::Sysctl(Sysctl { name: name.to_owned(), value: value.trim().to_owned() }));
    }
    if line.trim_start().starts_with('#') {
        return Ok(Saved::Nothing);
    }
    let mut words = Words(line.split_whitespace());
    match words.0.next() {
        None => Ok(Saved::Nothing),
        Some("-A") => service(words).map(Saved::Service),
        Some("-a") => dest(words).map(|(key, dest)| Saved::Dest(key, dest)),
        Some("--set") => {
            let t = Timeouts {
                tcp: words.parse("--set")?,
                tcp_fin: words.parse("--set")?,
                udp: words.parse("--set")?,
            };
            match words.0.next() {
                None => Ok(Saved::Timeouts(t)),
                Some(word) => Err(SavedError::Option(word.to_owned())),
            }
        }
        Some("--start-daemon") => daemon(words).map(Saved::Daemon),
        Some(word) => Err(SavedError::Command(word.to_owned())),
    }
}

/// The service of a line, collected word by word.
#[derive(Default)]
struct Key {
    addr: Option<(u8, IpAddr, u16)>,
    mark: Option<NonZeroU32>,
    six: bool,
}

impl Key {
    /// Takes `word` if it names the service.
    fn take(&mut self, word: &str, words: &mut Words<'_>) -> Result<bool, SavedError> {
        let (protocol, option) = match word {
            "-t" => (6, "-t"),
            "-u" => (17, "-u"),
            "--sctp-service" => (132, "--sctp-service"),
            "-6" => {
                self.six = true;
                return Ok(true);
            }
            "-f" => {
                let value = words.value("-f")?;
                // ipvsadm prints large marks as negative numbers.
                let mark = value.parse::<i32>().map(|n| n as u32).or_else(|_| value.parse::<u32>());
                self.mark = Some(mark.ok().and_then(NonZeroU32::new).ok_or_else(|| bad("-f", value))?);
                return Ok(true);
            }
            _ => return Ok(false),
        };
        let (addr, port) = words.endpoint(option)?;
        self.addr = Some((protocol, addr, port));
        Ok(true)
    }

    fn done(self) -> Result<ServiceKey, SavedError> {
        match (self.addr, self.mark) {
            (Some((protocol, addr, port)), None) if !self.six => {
                Ok(ServiceKey::Addr { protocol, addr, port })
            }
            (None, Some(mark)) => Ok(ServiceKey::Fwmark { mark, af: if self.six { Af::V6 } else { Af::V4 } }),
            (None, None) => Err(SavedError::Missing("service")),
            _ => Err(SavedError::Option(if self.six { "-6" } else { "-f" }.to_owned())),
        }
    }
}

fn service(mut words: Words<'_>) -> Result<Service, SavedError> {
    let mut key = Key::default();
    let mut scheduler = None;
    let (mut flags, mut timeout, mut pe_name, mut mask) = (0, 0, None, None);
    while let Some(word) = words.0.next() {
        if key.take(word, &mut words)? {
            continue;
        }
        match word {
            "-s" => scheduler = Some(words.value("-s")?.to_owned()),
            "-p" => {
                flags |= SVC_F_PERSISTENT;
                timeout = words.parse("-p")?;
            }
            "-M" => mask = Some(words.value("-M")?),
            "--pe" => pe_name = Some(words.value("--pe")?.to_owned()),
            "-o" => flags |= SVC_F_ONEPACKET,
            "-b" => {
                for name in words.value("-b")?.split(',') {
                    flags |= match name {
                        "flag-1" | "sh-fallback" | "mh-fallback" => SVC_F_SCHED1,
                        "flag-2" | "sh-port" | "mh-port" => SVC_F_SCHED2,
                        "flag-3" => SVC_F_SCHED3,
                        _ => return Err(bad("-b", name)),
                    };
                }
            }
            _ => return Err(SavedError::Option(word.to_owned())),
        }
    }
    let key = key.done()?;
    let netmask = match (mask, key.af()) {
        (None, af) => host_mask(af),
        (Some(m), Af::V4) => Netmask::V4(m.parse().map_err(|_| bad("-M", m))?),
        (Some(m), Af::V6) => Netmask::V6(m.parse().map_err(|_| bad("-M", m))?),
    };
    let scheduler = scheduler.ok_or(SavedError::Missing("-s"))?;
    Ok(Service { key, scheduler, flags, flags_mask: !0, timeout, netmask, pe_name })
}

fn dest(mut words: Words<'_>) -> Result<(ServiceKey, Dest), SavedError> {
    let mut key = Key::default();
    let mut end = None;
    let mut method = FwdMethod::Droute;
    let mut tunnel = Tunnel::default();
    let (mut weight, mut upper, mut lower) = (1, 0, 0);
    while let Some(word) = words.0.next() {
        if key.take(word, &mut words)? {
            continue;
        }
        match word {
            "-r" => end = Some(words.endpoint("-r")?),
            "-m" => method = FwdMethod::Masq,
            "-i" => method = FwdMethod::Tunnel,
            "-g" => method = FwdMethod::Droute,
            "-w" => weight = words.parse("-w")?,
            "-x" => upper = words.parse("-x")?,
            "-y" => lower = words.parse("-y")?,
            "--tun-type" => {
                tunnel.kind = match words.value("--tun-type")? {
                    "ipip" => 0,
                    "gue" => 1,
                    "gre" => 2,
                    other => return Err(bad("--tun-type", other)),
                }
            }
            "--tun-port" => tunnel.port = words.parse("--tun-port")?,
            "--tun-nocsum" => tunnel.flags = 0,
            "--tun-csum" => tunnel.flags = 1,
            "--tun-remcsum" => tunnel.flags = 2,
            _ => return Err(SavedError::Option(word.to_owned())),
        }
    }
    let (addr, port) = end.ok_or(SavedError::Missing("-r"))?;
    Ok((key.done()?, Dest { addr, port, method, weight, upper, lower, tunnel }))
}

fn daemon(mut words: Words<'_>) -> Result<Daemon, SavedError> {
    let state = match words.value("--start-daemon")? {
        "master" => DaemonState::Master,
        "backup" => DaemonState::Backup,
        other => return Err(bad("--start-daemon", other)),
    };
    let mut d =
        Daemon { state, interface: String::new(), sync_id: 0, maxlen: 0, group: None, port: 0, ttl: 0 };
    while let Some(word) = words.0.next() {
        match word {
            "--mcast-interface" => words.value("--mcast-interface")?.clone_into(&mut d.interface),
            "--syncid" => d.sync_id = words.parse("--syncid")?,
            "--sync-maxlen" => d.maxlen = words.parse("--sync-maxlen")?,
            "--mcast-group" => d.group = Some(words.parse("--mcast-group")?),
            "--mcast-port" => d.port = words.parse("--mcast-port")?,
            "--mcast-ttl" => d.ttl = words.parse("--mcast-ttl")?,
            _ => return Err(SavedError::Option(word.to_owned())),
        }
    }
    if d.interface.is_empty() {
        return Err(SavedError::Missing("--mcast-interface"));
    }
    Ok(d)
}
