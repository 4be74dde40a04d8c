//! The files of a kernel's IPVS below `/proc/net`, as text.

use std::io::{self, Write};
use std::net::IpAddr;

use crate::{
    ConnEntry, DestEntry, FwdMethod, Info, Netmask, SVC_F_ONEPACKET, SVC_F_PERSISTENT, ServiceEntry,
    ServiceKey, Stats,
};

/// The first line of `ip_vs_conn`.
pub const CONN_TITLE: &str =
    "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData";
/// The first line of `ip_vs_conn_sync`.
pub const SYNC_TITLE: &str = "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Origin Expires";

/// Timeouts of services are told in the ticks of a kernel with so many a second.
const HZ: u32 = 250;

const fn protocol(number: u8) -> &'static str {
    match number {
        6 => "TCP",
        17 => "UDP",
        132 => "SCTP",
        0 => "IP",
        _ => "-",
    }
}

/// Hexadecimal: IPv4 as a number, IPv6 in full.
fn address(addr: IpAddr) -> String {
    match addr {
        IpAddr::V4(a) => format!("{:08X}", u32::from(a)),
        IpAddr::V6(a) => {
            let parts: Vec<String> = a.segments().iter().map(|s| format!("{s:04x}")).collect();
            parts.join(":")
        }
    }
}

fn bracketed(addr: IpAddr) -> String {
    if addr.is_ipv6() { format!("[{}]", address(addr)) } else { address(addr) }
}

/// The lines above the services of `ip_vs`.
///
/// # Errors
/// Those of `w`.
pub fn table_title(w: &mut dyn Write, info: &Info) -> io::Result<()> {
    let [_, major, minor, patch] = info.version.to_be_bytes();
    writeln!(w, "IP Virtual Server version {major}.{minor}.{patch} (size={})", info.conn_tab_size)?;
    writeln!(w, "Prot LocalAddress:Port Scheduler Flags")?;
    writeln!(w, "  -> RemoteAddress:Port Forward Weight ActiveConn InActConn")
}

/// A service of `ip_vs`, and its servers.
///
/// # Errors
/// Those of `w`.
pub fn service(
    w: &mut dyn Write,
    entry: &ServiceEntry,
    dests: impl IntoIterator<Item = DestEntry>,
) -> io::Result<()> {
    let s = &entry.service;
    let ops = if s.flags & SVC_F_ONEPACKET == 0 { "" } else { "ops " };
    match s.key {
        // the kernel names no one-packet scheduling here, and one blank less
        ServiceKey::Addr { protocol: p, addr: addr @ IpAddr::V6(_), port } => {
            write!(w, "{}  {}:{port:04X} {} ", protocol(p), bracketed(addr), s.scheduler)?;
        }
        ServiceKey::Addr { protocol: p, addr, port } => {
            write!(w, "{}  {}:{port:04X} {} {ops} ", protocol(p), address(addr), s.scheduler)?;
        }
        ServiceKey::Fwmark { mark, .. } => write!(w, "FWM  {mark:08X} {} {ops}", s.scheduler)?,
    }
    if s.flags & SVC_F_PERSISTENT == 0 {
        writeln!(w)?;
    } else {
        let mask = match s.netmask {
            Netmask::V4(mask) => u32::from(mask),
            // a number in the machine's order, read as if it were in the network's
            Netmask::V6(length) => u32::from(length).to_be(),
        };
        writeln!(w, "persistent {} {mask:08X}", s.timeout.saturating_mul(HZ))?;
    }
    for d in dests {
        let method = match d.dest.method {
            FwdMethod::Masq => "Masq",
            FwdMethod::Local => "Local",
            FwdMethod::Tunnel => "Tunnel",
            FwdMethod::Droute | FwdMethod::Bypass => "Route",
        };
        writeln!(
            w,
            "  -> {}:{:04X}      {method:<7} {:<6} {:<10} {:<10}",
            bracketed(d.dest.addr),
            d.dest.port,
            d.dest.weight,
            d.active,
            d.inactive
        )?;
    }
    Ok(())
}

fn conn_begin(w: &mut dyn Write, c: &ConnEntry) -> io::Result<()> {
    write!(w, "{:<3}", protocol(c.protocol))?;
    for (addr, port) in [c.client, c.virt, c.dest] {
        write!(w, " {} {port:04X}", address(addr))?;
    }
    write!(w, " {:<11}", c.state)
}

/// A line of `ip_vs_conn`.
///
/// # Errors
/// Those of `w`.
pub fn conn(w: &mut dyn Write, c: &ConnEntry) -> io::Result<()> {
    conn_begin(w, c)?;
    writeln!(w, " {:>7}", c.expires)
}

/// A line of `ip_vs_conn_sync`.
///
/// # Errors
/// Those of `w`.
pub fn conn_sync(w: &mut dyn Write, c: &ConnEntry) -> io::Result<()> {
    /// Made by another director's synchronisation.
    const SYNC: u32 = 0x20;
    conn_begin(w, c)?;
    writeln!(w, " {:<6} {:>7}", if c.flags & SYNC == 0 { "LOCAL" } else { "SYNC" }, c.expires)
}

fn counts(w: &mut dyn Write, s: [u64; 5]) -> io::Result<()> {
    let [conns, in_pkts, out_pkts, in_bytes, out_bytes] = s;
    writeln!(w, "{conns:>8X} {in_pkts:>8X} {out_pkts:>8X} {in_bytes:>16X} {out_bytes:>16X}")
}

const fn totals(s: &Stats) -> [u64; 5] {
    [s.conns, s.in_pkts, s.out_pkts, s.in_bytes, s.out_bytes]
}

const fn rates(s: &Stats) -> [u64; 5] {
    [s.cps, s.in_pps, s.out_pps, s.in_bps, s.out_bps]
}

/// `ip_vs_stats`, whole.
///
/// # Errors
/// Those of `w`.
pub fn stats(w: &mut dyn Write, s: &Stats) -> io::Result<()> {
    writeln!(w, "   Total Incoming Outgoing         Incoming         Outgoing")?;
    writeln!(w, "   Conns  Packets  Packets            Bytes            Bytes")?;
    counts(w, totals(s))?;
    writeln!(w, "\n Conns/s   Pkts/s   Pkts/s          Bytes/s          Bytes/s")?;
    counts(w, rates(s))
}

/// `ip_vs_stats_percpu`, whole; everything is told of the first processor.
///
/// # Errors
/// Those of `w`.
pub fn stats_percpu(w: &mut dyn Write, s: &Stats) -> io::Result<()> {
    writeln!(w, "       Total Incoming Outgoing         Incoming         Outgoing")?;
    writeln!(w, "CPU    Conns  Packets  Packets            Bytes            Bytes")?;
    for name in ["  0 ", "  ~ "] {
        write!(w, "{name}")?;
        counts(w, totals(s))?;
    }
    writeln!(w, "\n     Conns/s   Pkts/s   Pkts/s          Bytes/s          Bytes/s")?;
    write!(w, "    ")?;
    counts(w, rates(s))
}

/// `ip_vs_app`, whole: there are no helpers for applications.
///
/// # Errors
/// Those of `w`.
pub fn app(w: &mut dyn Write) -> io::Result<()> {
    writeln!(w, "prot port    usecnt name")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Af, Dest, Service, Tunnel};

    fn text(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn entry(key: ServiceKey, flags: u32, timeout: u32, netmask: Netmask) -> ServiceEntry {
        let scheduler = "rr".to_owned();
        let service = Service { key, scheduler, flags, flags_mask: !0, timeout, netmask, pe_name: None };
        ServiceEntry { service, stats: Stats::default() }
    }

    fn addr(protocol: u8, addr: &str, port: u16) -> ServiceKey {
        ServiceKey::Addr { protocol, addr: addr.parse().unwrap(), port }
    }

    /// Lines that a kernel 6.1 has shown.
    #[test]
    fn services_as_recorded() {
        let all = Netmask::V4([255; 4].into());
        let class_c = Netmask::V4([255, 255, 255, 0].into());
        let mark = 7.try_into().unwrap();
        for (key, flags, timeout, mask, line) in [
            (addr(6, "10.0.0.1", 443), 1, 300, class_c, "TCP  0A000001:01BB rr  persistent 75000 FFFFFF00"),
            (addr(17, "10.0.0.1", 5060), 5, 60, all, "UDP  0A000001:13C4 rr ops  persistent 15000 FFFFFFFF"),
            (addr(132, "10.0.0.1", 2905), 0, 0, all, "SCTP  0A000001:0B59 rr  "),
            (
                addr(6, "2001:db8::1", 80),
                1,
                100,
                Netmask::V6(64),
                "TCP  [2001:0db8:0000:0000:0000:0000:0000:0001]:0050 rr persistent 25000 40000000",
            ),
            (
                ServiceKey::Fwmark { mark, af: Af::V4 },
                1,
                60,
                all,
                "FWM  00000007 rr persistent 15000 FFFFFFFF",
            ),
        ] {
            assert_eq!(text(|w| service(w, &entry(key, flags, timeout, mask), [])), format!("{line}\n"));
        }
        let dest = |at: &str, port, method| DestEntry {
            dest: Dest {
                addr: at.parse().unwrap(),
                port,
                method,
                weight: 3,
                upper: 0,
                lower: 0,
                tunnel: Tunnel::default(),
            },
            active: 1,
            inactive: 0,
            persistent: 0,
            stats: Stats::default(),
        };
        let dests = [dest("10.1.0.1", 8080, FwdMethod::Masq), dest("2001:db8:1::6", 80, FwdMethod::Tunnel)];
        let shown = text(|w| service(w, &entry(addr(6, "10.0.0.1", 80), 0, 0, all), dests));
        assert_eq!(
            shown,
            "TCP  0A000001:0050 rr  \n  -> 0A010001:1F90      Masq    3      1          0         \n  \
             -> [2001:0db8:0001:0000:0000:0000:0000:0006]:0050      Tunnel  3      1          0         \n"
        );
    }

    #[test]
    fn connections_as_recorded() {
        let at = |a: &str, port| (a.parse().unwrap(), port);
        let mut c = ConnEntry {
            protocol: 6,
            client: at("10.2.0.9", 0),
            virt: at("10.0.0.1", 0),
            dest: at("10.1.0.9", 0),
            state: "NONE".into(),
            expires: 43,
            flags: 0,
        };
        let line = "TCP 0A020009 0000 0A000001 0000 0A010009 0000 NONE             43\n";
        assert_eq!(text(|w| conn(w, &c)), line);
        let line = "TCP 0A020009 0000 0A000001 0000 0A010009 0000 NONE        LOCAL       43\n";
        assert_eq!(text(|w| conn_sync(w, &c)), line);
        c.protocol = 132;
        c.client.1 = 2905;
        c.state = "INIT1".into();
        assert!(text(|w| conn(w, &c)).starts_with("SCTP 0A020009 0B59 0A000001 0000 0A010009 0000 INIT1 "));
    }

    #[test]
    fn totals_as_recorded() {
        let s = Stats {
            conns: 10,
            in_pkts: 12,
            out_pkts: 1,
            in_bytes: 0x25b,
            out_bytes: 0x28,
            ..Stats::default()
        };
        let shown = text(|w| stats_percpu(w, &s));
        assert!(
            shown.contains("\n  0        A        C        1              25B               28\n"),
            "{shown}"
        );
        assert!(shown.ends_with(
            "     Conns/s   Pkts/s   Pkts/s          Bytes/s          Bytes/s\n           0        0        0                0                0\n"
        ));
        let shown = text(|w| stats(w, &Stats::default()));
        assert!(
            shown.starts_with("   Total Incoming Outgoing         Incoming         Outgoing\n"),
            "{shown}"
        );
        assert_eq!(shown.lines().count(), 6);
    }
}
