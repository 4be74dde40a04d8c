use std::fmt::Write;
use std::net::IpAddr;

use crate::types::*;
use crate::wire::host_mask;

/// A service in the words of `ipvsadm -S -n`, without a newline. Like ipvsadm's, it prints a mark above `i32::MAX` as a
/// negative number.
pub fn save_line(s: &Service) -> String {
    let mut line = format!("-A {} -s {}", service_words(&s.key), s.scheduler);
    // Writing to a String can't fail.
    if s.flags & SVC_F_PERSISTENT != 0 {
        let _ = write!(line, " -p {}", s.timeout);
        if s.netmask != host_mask(s.key.af()) {
            let _ = match s.netmask {
                Netmask::V4(m) => write!(line, " -M {m}"),
                Netmask::V6(len) => write!(line, " -M {len}"),
            };
        }
    }
    if let Some(pe) = &s.pe_name {
        let _ = write!(line, " --pe {pe}");
    }
    if s.flags & SVC_F_ONEPACKET != 0 {
        line.push_str(" -o");
    }
    let flags = sched_flag_names(&s.scheduler, s.flags);
    if !flags.is_empty() {
        let _ = write!(line, " -b {flags}");
    }
    line
}

/// A destination in the words of `ipvsadm -S -n`, without a newline.
///
/// Those words lack the thresholds, which [`save_line_dest`] leaves out as well, and know no local or bypassing
/// destination: these become `-m` as with ipvsadm, which never sees them from a kernel.
pub fn save_line_dest(key: &ServiceKey, d: &Dest) -> String {
    let method = match d.method {
        FwdMethod::Tunnel => "-i",
        FwdMethod::Droute => "-g",
        FwdMethod::Masq | FwdMethod::Local | FwdMethod::Bypass => "-m",
    };
    let mut line =
        format!("-a {} -r {} {method} -w {}", service_words(key), endpoint(d.addr, d.port), d.weight);
    if d.method == FwdMethod::Tunnel {
        let t = &d.tunnel;
        let _ = match t.kind {
            1 => write!(line, " --tun-type gue --tun-port {} {}", t.port, tun_csum(t.flags)),
            2 => write!(line, " --tun-type gre {}", tun_csum(t.flags)),
            _ => write!(line, " --tun-type ipip"),
        };
    }
    line
}

/// The thresholds that [`save_line_dest`] leaves out, with a blank before them, or nothing if there are none.
pub fn save_thresholds(d: &Dest) -> String {
    let mut words = String::new();
    if d.upper != 0 {
        let _ = write!(words, " -x {}", d.upper);
    }
    if d.lower != 0 {
        let _ = write!(words, " -y {}", d.lower);
    }
    words
}

/// The timeouts as the command that sets them.
pub fn save_line_timeouts(t: &Timeouts) -> String {
    format!("--set {} {} {}", t.tcp, t.tcp_fin, t.udp)
}

/// A synchronisation daemon as the command that starts it.
pub fn save_line_daemon(d: &Daemon) -> String {
    let state = match d.state {
        DaemonState::Master => "master",
        DaemonState::Backup => "backup",
    };
    let mut line = format!("--start-daemon {state} --mcast-interface {} --syncid {}", d.interface, d.sync_id);
    if d.maxlen != 0 {
        let _ = write!(line, " --sync-maxlen {}", d.maxlen);
    }
    if let Some(group) = d.group {
        let _ = write!(line, " --mcast-group {group}");
    }
    if d.port != 0 {
        let _ = write!(line, " --mcast-port {}", d.port);
    }
    if d.ttl != 0 {
        let _ = write!(line, " --mcast-ttl {}", d.ttl);
    }
    line
}

/// A setting, as a comment to ipvsadm.
pub fn save_line_sysctl(s: &Sysctl) -> String {
    format!("#sysctl {} {}", s.name, s.value)
}

/// `-t ADDR:PORT`, `-u`, `--sctp-service`, `-f MARK [-6]`.
fn service_words(key: &ServiceKey) -> String {
    match *key {
        ServiceKey::Addr { protocol, addr, port } => {
            let option = match protocol {
                6 => "-t",
                132 => "--sctp-service",
                _ => "-u",
            };
            format!("{option} {}", endpoint(addr, port))
        }
        ServiceKey::Fwmark { mark, af } => {
            let family = if af == Af::V6 { " -6" } else { "" };
            format!("-f {}{family}", mark.get() as i32)
        }
    }
}

fn endpoint(addr: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(addr, port).to_string()
}

fn tun_csum(flags: u16) -> &'static str {
    match flags {
        f if f & 1 != 0 => "--tun-csum",
        f if f & 2 != 0 => "--tun-remcsum",
        _ => "--tun-nocsum",
    }
}

/// A scheduler's flags by name, separated by commas, as ipvsadm prints them.
pub(crate) fn sched_flag_names(scheduler: &str, flags: u32) -> String {
    let (first, second) = match scheduler {
        "sh" => ("sh-fallback", "sh-port"),
        "mh" => ("mh-fallback", "mh-port"),
        _ => ("flag-1", "flag-2"),
    };
    let names = [(SVC_F_SCHED1, first), (SVC_F_SCHED2, second), (SVC_F_SCHED3, "flag-3")];
    let set: Vec<&str> = names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
    set.join(",")
}
