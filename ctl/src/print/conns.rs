//! `-L -c`: connections.

use std::io::{self, Write};

use ipvs_netlink::ConnEntry;

use super::{endpoint, protocol_name};
use crate::names::{Names, TCP};

/// The two lines above the connections.
///
/// # Errors
/// Those of `w`.
pub fn print_conn_titles_into(w: &mut dyn Write, pe: bool) -> io::Result<()> {
    let columns = if pe { "        pe name          pe_data" } else { "" };
    writeln!(w, "IPVS connection entries")?;
    writeln!(w, "pro expire state       source             virtual            destination{columns}")
}

/// A connection's line.
///
/// # Errors
/// Those of `w`.
pub fn print_conn_into(w: &mut dyn Write, c: &ConnEntry, numeric: bool, names: &dyn Names) -> io::Result<()> {
    // Templates of services by firewall mark have no protocol; their ports are named as TCP's.
    let ports_of = if c.protocol == 0 { TCP } else { c.protocol };
    let at = |(addr, port)| endpoint(addr, port, ports_of, numeric, names);
    let expire = format!("{:02}:{:02}", c.expires / 60, c.expires % 60);
    writeln!(
        w,
        "{:<3} {expire:<6} {:<11} {:<18} {:<18} {}",
        protocol_name(c.protocol),
        c.state,
        at(c.client),
        at(c.virt),
        at(c.dest)
    )
}
