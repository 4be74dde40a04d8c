//! `-L`: services and their servers.

use std::io::{self, Write};

use ipvs_netlink::{
    Af, Dest, DestEntry, FwdMethod, Netmask, SVC_F_ONEPACKET, SVC_F_PERSISTENT, Service, ServiceEntry,
    ServiceKey, Stats,
};

use super::{Format, View, endpoint, flag_names, protocol_name, protocol_of};
use crate::names::Names;

/// Widths of the first column.
const SERVICE_WIDTH: usize = 33;
const DEST_WIDTH: usize = 28;

/// The two lines above the services.
///
/// # Errors
/// Those of `w`.
pub fn print_titles_into(w: &mut dyn Write, view: View) -> io::Result<()> {
    w.write_all(match view {
        View::Plain => {
            b"Prot LocalAddress:Port Scheduler Flags\n  \
              -> RemoteAddress:Port           Forward Weight ActiveConn InActConn\n"
        }
        View::TunInfo => {
            b"Prot LocalAddress:Port Scheduler Flags\n  \
              -> RemoteAddress:Port           Forward TunnelInfo    Weight ActiveConn InActConn\n"
        }
        View::Stats => {
            b"Prot LocalAddress:Port               Conns   InPkts  OutPkts  InBytes OutBytes\n  \
              -> RemoteAddress:Port\n"
        }
        View::Rate => {
            b"Prot LocalAddress:Port                 CPS    InPPS   OutPPS    InBPS   OutBPS\n  \
              -> RemoteAddress:Port\n"
        }
        View::Thresholds => {
            b"Prot LocalAddress:Port            Uthreshold Lthreshold ActiveConn InActConn \n  \
              -> RemoteAddress:Port\n"
        }
        View::PersistentConn => {
            b"Prot LocalAddress:Port            Weight    PersistConn ActiveConn InActConn \n  \
              -> RemoteAddress:Port\n"
        }
    })
}

/// A service's line.
///
/// # Errors
/// Those of `w`.
pub fn print_service_into(
    w: &mut dyn Write,
    entry: &ServiceEntry,
    format: Format,
    names: &dyn Names,
) -> io::Result<()> {
    let name = service_name(&entry.service.key, format.numeric, names);
    match format.view {
        View::Stats | View::Rate => {
            write!(w, "{name:<SERVICE_WIDTH$}")?;
            print_numbers_into(w, &entry.stats, format)
        }
        View::Plain | View::Thresholds | View::PersistentConn | View::TunInfo => {
            writeln!(w, "{name} {}", properties(&entry.service))
        }
    }
}

/// A server's line.
///
/// # Errors
/// Those of `w`.
pub fn print_dest_into(
    w: &mut dyn Write,
    key: &ServiceKey,
    entry: &DestEntry,
    format: Format,
    names: &dyn Names,
) -> io::Result<()> {
    let dest = &entry.dest;
    let name = endpoint(dest.addr, dest.port, protocol_of(key), format.numeric, names);
    let name = clip(name, dest.addr.into(), DEST_WIDTH);
    write!(w, "  -> {name:<DEST_WIDTH$}")?;
    let (active, inactive) = (entry.active, entry.inactive);
    match format.view {
        View::Stats | View::Rate => print_numbers_into(w, &entry.stats, format),
        View::Thresholds => {
            writeln!(w, " {:<10} {:<10} {active:<10} {inactive:<10}", dest.upper, dest.lower)
        }
        View::PersistentConn => {
            writeln!(w, " {:<9} {:<11} {active:<10} {inactive:<10}", dest.weight, entry.persistent)
        }
        View::TunInfo => writeln!(
            w,
            " {:<7} {:<13} {:<6} {active:<10} {inactive:<10}",
            method_name(dest.method),
            tunnel_info(dest),
            dest.weight
        ),
        View::Plain => {
            writeln!(w, " {:<7} {:<6} {active:<10} {inactive:<10}", method_name(dest.method), dest.weight)
        }
    }
}

/// Protocol and address, or the mark (which ipvsadm prints as a signed number).
fn service_name(key: &ServiceKey, numeric: bool, names: &dyn Names) -> String {
    match *key {
        ServiceKey::Addr { protocol, addr, port } => {
            let at = endpoint(addr, port, protocol, numeric, names);
            clip(format!("{:<4} {at}", protocol_name(protocol)), addr.into(), SERVICE_WIDTH)
        }
        ServiceKey::Fwmark { mark, af } => {
            let family = if af == Af::V6 { " IPv6" } else { "" };
            format!("FWM  {}{family}", mark.get() as i32)
        }
    }
}

/// IPv4 names are cut to their column, IPv6 ones are not.
fn clip(name: String, af: Af, width: usize) -> String {
    match af {
        Af::V4 => name.chars().take(width).collect(),
        Af::V6 => name,
    }
}

/// Scheduler, flags and persistence.
fn properties(s: &Service) -> String {
    let mut text = s.scheduler.clone();
    let flags = flag_names(&s.scheduler, s.flags);
    if !flags.is_empty() {
        text.push_str(&format!(" ({flags})"));
    }
    if s.flags & SVC_F_PERSISTENT != 0 {
        text.push_str(&format!(" persistent {}", s.timeout));
        if let Some(mask) = mask(s.netmask) {
            text.push_str(&format!(" mask {mask}"));
        }
        if let Some(pe) = s.pe_name.as_deref().filter(|pe| !pe.is_empty()) {
            text.push_str(&format!(" pe {pe}"));
        }
    }
    if s.flags & SVC_F_ONEPACKET != 0 {
        text.push_str(" ops");
    }
    text
}

/// A mask, unless it is that of a single address.
pub(super) fn mask(mask: Netmask) -> Option<String> {
    match mask {
        Netmask::V4(mask) => (!mask.is_broadcast()).then(|| mask.to_string()),
        Netmask::V6(prefix) => (prefix != 128).then(|| prefix.to_string()),
    }
}

fn method_name(method: FwdMethod) -> &'static str {
    match method {
        FwdMethod::Masq => "Masq",
        FwdMethod::Local => "Local",
        FwdMethod::Tunnel => "Tunnel",
        FwdMethod::Droute => "Route",
        FwdMethod::Bypass => "Bypass",
    }
}

fn tunnel_info(d: &Dest) -> String {
    if d.method != FwdMethod::Tunnel {
        return "n/a".to_owned();
    }
    let csum = match d.tunnel.flags {
        flags if flags & 1 != 0 => "+c",
        flags if flags & 2 != 0 => "r+c",
        _ => "-c",
    };
    match d.tunnel.kind {
        0 => "ipip".to_owned(),
        1 => format!("gue:{}:{csum}", d.tunnel.port),
        2 => format!("gre:{csum}"),
        _ => "?".to_owned(),
    }
}

/// Five columns of counters or rates.
fn print_numbers_into(w: &mut dyn Write, s: &Stats, format: Format) -> io::Result<()> {
    let numbers = match format.view {
        View::Rate => [s.cps, s.in_pps, s.out_pps, s.in_bps, s.out_bps],
        _ => [s.conns, s.in_pkts, s.out_pkts, s.in_bytes, s.out_bytes],
    };
    for n in numbers {
        write!(w, " {}", if format.exact { format!("{n:>8}") } else { large_number(n) })?;
    }
    writeln!(w)
}

/// Eight characters, with a decimal unit from 10^8 on; rounded down.
fn large_number(n: u64) -> String {
    match n {
        0..100_000_000 => format!("{n:>8}"),
        100_000_000..1_000_000_000 => format!("{:>7}K", n / 1_000),
        1_000_000_000..100_000_000_000 => format!("{:>7}M", n / 1_000_000),
        100_000_000_000..100_000_000_000_000 => format!("{:>7}G", n / 1_000_000_000),
        _ => format!("{:>7}T", n / 1_000_000_000_000),
    }
}
