//! `-S`: services and servers as commands.

use std::io::{self, Write};

use ipvs_netlink::{Af, Dest, FwdMethod, SVC_F_ONEPACKET, SVC_F_PERSISTENT, Service, ServiceKey};

use super::services::mask;
use super::{endpoint, flag_names, protocol_of};
use crate::names::{Names, SCTP, TCP};

/// A service as the command that adds it.
///
/// # Errors
/// Those of `w`.
pub fn print_service_rule_into(
    w: &mut dyn Write,
    s: &Service,
    numeric: bool,
    names: &dyn Names,
) -> io::Result<()> {
    write!(w, "-A {} -s {}", service_option(&s.key, numeric, names), s.scheduler)?;
    if s.flags & SVC_F_PERSISTENT != 0 {
        write!(w, " -p {}", s.timeout)?;
        if let Some(mask) = mask(s.netmask) {
            write!(w, " -M {mask}")?;
        }
    }
    if let Some(pe) = s.pe_name.as_deref().filter(|pe| !pe.is_empty()) {
        write!(w, " --pe {pe}")?;
    }
    if s.flags & SVC_F_ONEPACKET != 0 {
        write!(w, " -o")?;
    }
    let flags = flag_names(&s.scheduler, s.flags);
    if !flags.is_empty() {
        write!(w, " -b {flags}")?;
    }
    writeln!(w)
}

/// A server as the command that adds it; as in ipvsadm without its thresholds.
///
/// # Errors
/// Those of `w`.
pub fn print_dest_rule_into(
    w: &mut dyn Write,
    key: &ServiceKey,
    d: &Dest,
    numeric: bool,
    names: &dyn Names,
) -> io::Result<()> {
    let service = service_option(key, numeric, names);
    let server = endpoint(d.addr, d.port, protocol_of(key), numeric, names);
    let method = match d.method {
        FwdMethod::Tunnel => "-i",
        FwdMethod::Droute => "-g",
        FwdMethod::Masq | FwdMethod::Local | FwdMethod::Bypass => "-m",
    };
    write!(w, "-a {service} -r {server} {method} -w {}", d.weight)?;
    if d.method == FwdMethod::Tunnel {
        let csum = match d.tunnel.flags {
            flags if flags & 1 != 0 => "--tun-csum",
            flags if flags & 2 != 0 => "--tun-remcsum",
            _ => "--tun-nocsum",
        };
        match d.tunnel.kind {
            1 => write!(w, " --tun-type gue --tun-port {} {csum}", d.tunnel.port)?,
            2 => write!(w, " --tun-type gre {csum}")?,
            _ => write!(w, " --tun-type ipip")?,
        }
    }
    writeln!(w)
}

fn service_option(key: &ServiceKey, numeric: bool, names: &dyn Names) -> String {
    match *key {
        ServiceKey::Addr { protocol, addr, port } => {
            let option = match protocol {
                TCP => "-t",
                SCTP => "--sctp-service",
                _ => "-u",
            };
            format!("{option} {}", endpoint(addr, port, protocol, numeric, names))
        }
        ServiceKey::Fwmark { mark, af } => {
            let family = if af == Af::V6 { " -6" } else { "" };
            format!("-f {}{family}", mark.get() as i32)
        }
    }
}
