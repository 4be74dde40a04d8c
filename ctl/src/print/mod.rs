//! Output as ipvsadm 1.31 prints it, to any [`Write`].
//!
//! Everything here is a pure function of what the daemon told; widths and wording are those of the transcript in
//! `tests/golden/a-cli.txt`. Trailing blanks are part of the format.

mod conns;
pub mod json;
mod rules;
mod services;
mod sort;
pub mod status;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::net::IpAddr;

use ipvs_netlink::{
    Daemon, DaemonState, Info, SVC_F_SCHED1, SVC_F_SCHED2, SVC_F_SCHED3, ServiceKey, Timeouts,
};

pub use conns::{print_conn_into, print_conn_titles_into};
pub use rules::{print_dest_rule_into, print_service_rule_into};
pub use services::{print_dest_into, print_service_into, print_titles_into};
pub use sort::{sort_dests, sort_services};

use crate::lowargs::SCHED_FLAGS;
use crate::names::{Names, SCTP, TCP, UDP};

/// Variants of a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum View {
    /// Method, weight, connections.
    Plain,
    /// `--stats`.
    Stats,
    /// `--rate`.
    Rate,
    /// `--thresholds`.
    Thresholds,
    /// `--persistent-conn`.
    PersistentConn,
    /// `--tun-info`.
    TunInfo,
}

/// How to print.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Format {
    /// Which columns.
    pub view: View,
    /// `-n`: no names.
    pub numeric: bool,
    /// `--exact`: no K, M, G, T.
    pub exact: bool,
    /// Not `--nosort`.
    pub sort: bool,
}

/// A protocol's name in listings.
pub fn protocol_name(protocol: u8) -> &'static str {
    match protocol {
        0 => "IP",
        1 => "ICMP",
        TCP => "TCP",
        UDP => "UDP",
        58 => "ICMPv6",
        SCTP => "SCTP",
        _ => "?",
    }
}

/// `address:port`, with names unless `numeric`; IPv6 addresses (and their names, as ipvsadm does) in brackets.
pub fn endpoint(addr: IpAddr, port: u16, protocol: u8, numeric: bool, names: &dyn Names) -> String {
    let host = if numeric { None } else { names.name_of_addr(addr) };
    let host = host.unwrap_or_else(|| addr.to_string());
    let port_name = if numeric { None } else { names.name_of_port(port, protocol) };
    let port = port_name.unwrap_or_else(|| port.to_string());
    match addr {
        IpAddr::V4(_) => format!("{host}:{port}"),
        IpAddr::V6(_) => format!("[{host}]:{port}"),
    }
}

/// The scheduler flags of a service by name, separated by commas.
fn flag_names(scheduler: &str, flags: u32) -> String {
    let own = |bit: u32| {
        SCHED_FLAGS
            .iter()
            .find(|f| f.bit == bit && f.scheduler == Some(scheduler))
            .or_else(|| SCHED_FLAGS.iter().find(|f| f.bit == bit && f.scheduler.is_none()))
            .map(|f| f.name)
    };
    let set = [SVC_F_SCHED1, SVC_F_SCHED2, SVC_F_SCHED3].into_iter().filter(|bit| flags & bit != 0);
    set.filter_map(own).collect::<Vec<_>>().join(",")
}

/// The protocol whose port names a service's servers have.
fn protocol_of(key: &ServiceKey) -> u8 {
    match key {
        ServiceKey::Addr { protocol, .. } => *protocol,
        ServiceKey::Fwmark { .. } => TCP,
    }
}

/// First line of a listing of all services.
///
/// # Errors
/// Those of `w`.
pub fn print_version_into(w: &mut dyn Write, info: &Info) -> io::Result<()> {
    let [_, major, minor, patch] = info.version.to_be_bytes();
    writeln!(w, "IP Virtual Server version {major}.{minor}.{patch} (size={})", info.conn_tab_size)
}

/// `-L --timeout`.
///
/// # Errors
/// Those of `w`.
pub fn print_timeouts_into(w: &mut dyn Write, t: &Timeouts) -> io::Result<()> {
    writeln!(w, "Timeout (tcp tcpfin udp): {} {} {}", t.tcp, t.tcp_fin, t.udp)
}

/// A line of `-L --daemon`.
///
/// # Errors
/// Those of `w`.
pub fn print_daemon_into(w: &mut dyn Write, d: &Daemon) -> io::Result<()> {
    let role = match d.state {
        DaemonState::Master => "master",
        DaemonState::Backup => "backup",
    };
    write!(w, "{role} sync daemon (mcast={}, syncid={}", d.interface, d.sync_id)?;
    if d.maxlen != 0 {
        write!(w, ", maxlen={}", d.maxlen)?;
    }
    if let Some(group) = d.group {
        write!(w, ", group={group}")?;
    }
    if d.port != 0 {
        write!(w, ", port={}", d.port)?;
    }
    if d.ttl != 0 {
        write!(w, ", ttl={}", d.ttl)?;
    }
    writeln!(w, ")")
}
