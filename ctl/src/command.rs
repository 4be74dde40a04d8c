//! What a command line means: names looked up, defaults filled in, rules across options applied.

use std::net::{IpAddr, Ipv4Addr};

use ipvs_netlink::{
    Af, Daemon, DaemonState, Dest, FwdMethod, Netmask, SVC_F_ONEPACKET, SVC_F_PERSISTENT, Service,
    ServiceKey, Timeouts, Tunnel,
};

use crate::error::{CliError, EXIT_REFUSED};
use crate::grammar::{Cmd, Opt};
use crate::lowargs::{EndpointArg, LowArgs, ServiceArg, TunType};
use crate::names::{Names, TCP, UDP};
use crate::print::{Format, View};
use crate::value::{inet_aton, number};

/// Scheduler of a service that names none.
pub const DEFAULT_SCHEDULER: &str = "wlc";
/// Interface of a synchronisation daemon that names none.
pub const DEFAULT_MCAST_INTERFACE: &str = "eth0";
/// Most bytes in a scheduler's and an interface's name.
const NAME_MAX: usize = 15;
/// Most bytes in a persistence engine's name.
const PE_NAME_MAX: usize = 16;

/// A command to carry out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// `-A`.
    AddService(Service),
    /// `-E`.
    EditService(Service),
    /// `-D`.
    DeleteService(ServiceKey),
    /// `-C`.
    Clear,
    /// `-a`.
    AddServer(ServiceKey, Dest),
    /// `-e`.
    EditServer(ServiceKey, Dest),
    /// `-d`.
    DeleteServer(ServiceKey, IpAddr, u16),
    /// `-L` of all services or one.
    List(Option<ServiceKey>, Format),
    /// `-L -c`; `pe` asks for the columns of persistence engines.
    ListConns {
        /// How.
        format: Format,
        /// `--persistent-conn`.
        pe: bool,
    },
    /// `-L --timeout`.
    ListTimeouts,
    /// `-L --daemon`.
    ListDaemons,
    /// `-Z`.
    Zero(Option<ServiceKey>),
    /// `--set`.
    SetTimeouts(Timeouts),
    /// `--start-daemon`.
    StartDaemon(Daemon),
    /// `--stop-daemon`.
    StopDaemon(DaemonState),
    /// `-R`.
    Restore,
    /// `-S`.
    Save(Format),
    /// `-h`.
    Help,
    /// `-v`.
    Version,
}

impl Command {
    /// Whether it prints a listing, and changes nothing.
    pub fn lists(&self) -> bool {
        matches!(
            self,
            Command::List(..) | Command::ListConns { .. } | Command::ListTimeouts | Command::ListDaemons
        )
    }

    /// What the command line means.
    ///
    /// # Errors
    /// An unknown name, or a rule that the values break.
    pub fn from_low(low: &LowArgs, names: &dyn Names) -> Result<Command, CliError> {
        Ok(match low.cmd {
            Cmd::AddService => Command::AddService(service(low, names)?),
            Cmd::EditService => Command::EditService(service(low, names)?),
            Cmd::DeleteService => Command::DeleteService(key(low, names)?),
            Cmd::Clear => Command::Clear,
            Cmd::AddServer => {
                let (key, dest) = dest(low, names)?;
                Command::AddServer(key, dest)
            }
            Cmd::EditServer => {
                let (key, dest) = dest(low, names)?;
                Command::EditServer(key, dest)
            }
            Cmd::DeleteServer => {
                let key = key(low, names)?;
                let (addr, port) = server(low, &key, names)?;
                Command::DeleteServer(key, addr, port)
            }
            Cmd::List => list(low, names)?,
            Cmd::Zero => Command::Zero(optional_key(low, names)?),
            Cmd::Set => match low.timeouts {
                Some(timeouts) => Command::SetTimeouts(timeouts),
                None => return Err(CliError::try_help()),
            },
            Cmd::StartDaemon => Command::StartDaemon(daemon(low)?),
            Cmd::StopDaemon => Command::StopDaemon(low.role.ok_or_else(CliError::try_help)?),
            Cmd::Restore => Command::Restore,
            Cmd::Save => Command::Save(format(low)),
            Cmd::Help => Command::Help,
            Cmd::Version => Command::Version,
        })
    }
}

/// A remark on a command line that is legal and hardly meant.
pub fn note(low: &LowArgs, command: &Command) -> Option<String> {
    let (Command::AddService(s) | Command::EditService(s)) = command else { return None };
    let typed = low.netmask.as_deref()?;
    let (Netmask::V4(mask), Ok(length @ 1..=32)) = (s.netmask, typed.parse::<u32>()) else { return None };
    let meant = Ipv4Addr::from(u32::MAX << (32 - length));
    Some(format!("note: -M {typed} is the mask {mask}; for the networks of a /{length} it is -M {meant}"))
}

fn optional_key(low: &LowArgs, names: &dyn Names) -> Result<Option<ServiceKey>, CliError> {
    low.service.as_ref().map(|service| service_key(service, names)).transpose()
}

fn key(low: &LowArgs, names: &dyn Names) -> Result<ServiceKey, CliError> {
    // The legality matrix asks for the service before this does.
    optional_key(low, names)?.ok_or_else(CliError::try_help)
}

fn service_key(service: &ServiceArg, names: &dyn Names) -> Result<ServiceKey, CliError> {
    match service {
        ServiceArg::Fwmark { mark, v6 } => {
            Ok(ServiceKey::Fwmark { mark: *mark, af: if *v6 { Af::V6 } else { Af::V4 } })
        }
        ServiceArg::Addr { protocol, at } => {
            let (addr, port) =
                resolve(at, *protocol, None, names, "illegal virtual server address[:port] specified")?;
            Ok(ServiceKey::Addr { protocol: *protocol, addr, port: port.unwrap_or(0) })
        }
    }
}

fn resolve(
    at: &EndpointArg,
    protocol: u8,
    prefer: Option<Af>,
    names: &dyn Names,
    phrase: &str,
) -> Result<(IpAddr, Option<u16>), CliError> {
    at.endpoint
        .resolve(protocol, prefer, names)
        .map_err(|e| CliError::usage(format!("{phrase}: {}: {e}", at.typed)))
}

fn service(low: &LowArgs, names: &dyn Names) -> Result<Service, CliError> {
    let key = key(low, names)?;
    let mut flags = 0;
    if low.persistent.is_some() {
        flags |= SVC_F_PERSISTENT;
    } else if let ServiceKey::Addr { port: 0, .. } = key {
        return Err(CliError::usage(
            "Zero port specified for non-persistent service: give a port, or -p for all ports",
        ));
    }
    if low.has(Opt::Ops) {
        if let ServiceKey::Addr { protocol, .. } = key
            && protocol != UDP
        {
            return Err(CliError::usage("One-Packet Scheduling is only for UDP virtual services: -o"));
        }
        flags |= SVC_F_ONEPACKET;
    }
    let scheduler = low.scheduler.as_deref().unwrap_or(DEFAULT_SCHEDULER);
    for flag in &low.sched_flags {
        if flag.scheduler.is_some_and(|only| only != scheduler) {
            return Err(CliError::usage(format!(
                "incompatible scheduler flag `{}': the scheduler is {scheduler}",
                flag.name
            )));
        }
        flags |= flag.bit;
    }
    name_fits("scheduler", scheduler, NAME_MAX)?;
    if let Some(pe) = &low.pe {
        name_fits("persistence engine", pe, PE_NAME_MAX)?;
    }
    Ok(Service {
        key,
        scheduler: scheduler.to_owned(),
        flags,
        flags_mask: !0,
        timeout: low.persistent.unwrap_or(0),
        netmask: netmask(low.netmask.as_deref(), key.af())?,
        pe_name: low.pe.clone(),
    })
}

/// A longer name than any can be cannot be known: the daemon's answer, given here because the message has no room.
fn name_fits(what: &str, name: &str, max: usize) -> Result<(), CliError> {
    if name.len() <= max && !name.contains('\0') {
        return Ok(());
    }
    Err(CliError {
        code: EXIT_REFUSED,
        message: format!("Scheduler or persistence engine not found: {what} `{name}' (at most {max} bytes)"),
        carries_on: true,
    })
}

fn netmask(text: Option<&str>, af: Af) -> Result<Netmask, CliError> {
    match (af, text) {
        (Af::V4, None) => Ok(Netmask::V4(Ipv4Addr::BROADCAST)),
        (Af::V6, None) => Ok(Netmask::V6(128)),
        // Any bits are a mask to IPVS, whether they make a prefix or not.
        (Af::V4, Some(text)) => inet_aton(text).map(Netmask::V4).ok_or_else(|| {
            CliError::usage(format!(
                "illegal virtual server persistent mask specified: -M {text} is no IPv4 mask such as 255.255.255.0"
            ))
        }),
        (Af::V6, Some(text)) => {
            number(text, 1, 128).and_then(|n| u8::try_from(n).ok()).map(Netmask::V6).ok_or_else(|| {
                CliError::usage(format!(
                    "illegal ipv6 netmask specified: -M {text} is no prefix length from 1 to 128"
                ))
            })
        }
    }
}

fn server(low: &LowArgs, key: &ServiceKey, names: &dyn Names) -> Result<(IpAddr, u16), CliError> {
    let at = low.server.as_ref().ok_or_else(CliError::try_help)?;
    let (protocol, service_port) = match *key {
        ServiceKey::Addr { protocol, port, .. } => (protocol, port),
        ServiceKey::Fwmark { .. } => (TCP, 0),
    };
    let (addr, port) =
        resolve(at, protocol, Some(key.af()), names, "illegal real server address[:port] specified")?;
    Ok((addr, port.unwrap_or(service_port)))
}

fn dest(low: &LowArgs, names: &dyn Names) -> Result<(ServiceKey, Dest), CliError> {
    let key = key(low, names)?;
    let (addr, mut port) = server(low, &key, names)?;
    let method = low.method.unwrap_or(FwdMethod::Droute);
    if let (ServiceKey::Addr { port: service_port, .. }, FwdMethod::Droute | FwdMethod::Tunnel) =
        (key, method)
    {
        // The packet keeps its destination, so the server is reached at the service's port whatever was given.
        port = service_port;
    }
    let tunnel = tunnel(low, method)?;
    if key.af() != addr.into() && method != FwdMethod::Tunnel {
        return Err(CliError::usage(format!(
            "Different address family is allowed only for tunneling servers: {addr} needs -i"
        )));
    }
    let dest = Dest {
        addr,
        port,
        method,
        weight: low.weight.unwrap_or(1),
        upper: low.upper.unwrap_or(0),
        lower: low.lower.unwrap_or(0),
        tunnel,
    };
    Ok((key, dest))
}

const CSUM: [(Opt, &str, u16); 3] =
    [(Opt::TunNocsum, "tun-nocsum", 0), (Opt::TunCsum, "tun-csum", 1), (Opt::TunRemcsum, "tun-remcsum", 2)];

fn tunnel(low: &LowArgs, method: FwdMethod) -> Result<Tunnel, CliError> {
    let csum: Vec<_> = CSUM.iter().filter(|(opt, ..)| low.has(*opt)).collect();
    let given = low.tun_type.is_some() || low.tun_port.is_some() || !csum.is_empty();
    if method != FwdMethod::Tunnel {
        return match given {
            true => Err(CliError::usage("Tunnel options conflict with forward method: --tun-* need -i")),
            false => Ok(Tunnel::default()),
        };
    }
    let (kind, name) = match low.tun_type.unwrap_or(TunType::Ipip) {
        TunType::Ipip => (0, "ipip"),
        TunType::Gue => (1, "gue"),
        TunType::Gre => (2, "gre"),
    };
    let illegal = |option: &str| {
        Err(CliError::usage(format!("Illegal '{option}' option with the '{name}' tunnel type")))
    };
    if name == "gue" && low.tun_port.is_none() {
        return Err(CliError::usage(
            "You need to supply the 'tun-port' option for the 'gue' tunnel type: 1 to 65535",
        ));
    }
    if name != "gue" && low.tun_port.is_some() {
        return illegal("tun-port");
    }
    for (opt, option, _) in &csum {
        if name == "ipip" || (name == "gre" && *opt == Opt::TunRemcsum) {
            return illegal(option);
        }
    }
    if let [(_, first, _), (_, second, _), ..] = csum[..] {
        return Err(CliError::usage(format!(
            "The option '{second}' conflicts with the '{first}' option in the '{name}' tunnel type"
        )));
    }
    Ok(Tunnel { kind, port: low.tun_port.unwrap_or(0), flags: csum.first().map_or(0, |(.., flags)| *flags) })
}

fn format(low: &LowArgs) -> Format {
    let views = [
        (Opt::Stats, View::Stats),
        (Opt::Rate, View::Rate),
        (Opt::Thresholds, View::Thresholds),
        (Opt::PersistentConn, View::PersistentConn),
        (Opt::TunInfo, View::TunInfo),
    ];
    let view = views.into_iter().find(|(opt, _)| low.has(*opt)).map_or(View::Plain, |(_, view)| view);
    Format { view, numeric: low.has(Opt::Numeric), exact: low.has(Opt::Exact), sort: !low.has(Opt::Nosort) }
}

fn list(low: &LowArgs, names: &dyn Names) -> Result<Command, CliError> {
    Ok(if low.has(Opt::Connection) {
        Command::ListConns { format: format(low), pe: low.has(Opt::PersistentConn) }
    } else if low.has(Opt::Timeout) {
        Command::ListTimeouts
    } else if low.has(Opt::Daemon) {
        Command::ListDaemons
    } else {
        Command::List(optional_key(low, names)?, format(low))
    })
}

fn daemon(low: &LowArgs) -> Result<Daemon, CliError> {
    let interface = low.interface.as_deref().unwrap_or(DEFAULT_MCAST_INTERFACE);
    if interface.len() > NAME_MAX || interface.contains('\0') {
        return Err(CliError {
            code: EXIT_REFUSED,
            message: format!("No such device: `{interface}' (at most {NAME_MAX} bytes)"),
            carries_on: true,
        });
    }
    Ok(Daemon {
        state: low.role.ok_or_else(CliError::try_help)?,
        interface: interface.to_owned(),
        sync_id: low.sync_id.unwrap_or(0).into(),
        maxlen: low.sync_maxlen.unwrap_or(0),
        group: low.group,
        port: low.group_port.unwrap_or(0),
        ttl: low.ttl.unwrap_or(0),
    })
}
