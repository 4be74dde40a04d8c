//! `mem.v4.1m`: what a connection costs in memory, all told. Each side of the difference is a process of its own.

use std::process::Command;

use lvsd::datapath::{Core, CoreConfig, Pins, Rings};
use lvsd::engine::{FrameHandler, Worker};
use serde_json::{Value, json};

use super::frames::{establish, flows_from};
use super::{now, rig};
use crate::report::{Bar, Row};
use crate::{Failure, Plan};

const CONNECTIONS: u32 = 1_000_000;
const FEW: u32 = 1000;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Limit of IPv4 connections
    #[arg(long)]
    max: u32,
    /// Limit of IPv6 connections
    #[arg(long)]
    max_ipv6: u32,
    /// IPv4 connections to make, each by NAT
    #[arg(long)]
    connections: u32,
    /// With the table in BPF maps, as the daemon has it
    #[arg(long)]
    bpf: bool,
}

/// Makes a director, fills it, and says what memory this process uses.
pub(crate) fn run(o: &Options) -> Result<Value, Failure> {
    let names = |yes: bool| if yes { rig::PORT_NAMES.map(str::to_owned).to_vec() } else { Vec::new() };
    let config = CoreConfig {
        interfaces: names(o.bpf),
        max_v4: o.max,
        max_v6: o.max_ipv6,
        workers: 1,
        rings: Rings::AfPacket,
        pins: Pins::Nowhere,
    };
    let core = Core::new(config, false)?;
    let director = &core.director()?;
    for (port, name) in [rig::CLIENTS, rig::SERVERS].into_iter().zip(rig::PORT_NAMES) {
        director.routes.add_port(port, name)?;
    }
    rig::furnish(director, now())?;
    // each part is half-open at first, which is all of a small table
    director.sysctls.set("half_open_percent", "0").map_err(|e| format!("half_open_percent: {e:?}"))?;
    let mut worker = Worker::new(director.clone(), 0);
    worker.tick(now());
    // a part at a time, so that this list is no larger with many connections than with few
    let mut made = 0;
    while made < o.connections {
        let part = (o.connections - made).min(FEW);
        establish(&mut worker, &director.table, &mut flows_from(made, part), now())?;
        made += part;
    }
    let held = director.table.len(modes::Family::V4);
    if held != o.connections as usize {
        return Err(format!("holds {held} connections, not {}", o.connections).into());
    }
    memory_of_this_process(held)
}

/// Resident memory, and that of BPF maps, which the kernel accounts apart; pages of maps that this process has mapped
/// are resident too, and must not count twice.
fn memory_of_this_process(held: usize) -> Result<Value, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let rss = field(&status, "VmRSS:").ok_or("no VmRSS in /proc/self/status")? * 1024;
    let mapped = mapped_maps(&std::fs::read_to_string("/proc/self/smaps")?) * 1024;
    let mut maps = 0;
    let mut count = 0;
    for entry in std::fs::read_dir("/proc/self/fdinfo")? {
        // the descriptor that lists the directory is gone when it is looked at
        let Ok(info) = std::fs::read_to_string(entry?.path()) else { continue };
        if info.contains("map_type:") {
            maps += field(&info, "memlock:").ok_or("a BPF map without memlock in its fdinfo")?;
            count += 1;
        }
    }
    Ok(json!({
        "connections": held, "rss": rss, "rss_of_mapped_bpf_maps": mapped, "bpf_maps": count, "bpf_map_bytes": maps,
        "total": rss - mapped + maps,
    }))
}

/// The number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Kilobytes of BPF maps in the resident set, from `/proc/PID/smaps`.
fn mapped_maps(smaps: &str) -> u64 {
    let mut is_map = false;
    let mut sum = 0;
    for line in smaps.lines() {
        let first = line.split(' ').next().unwrap_or_default();
        if first.contains('-') {
            is_map = line.ends_with("bpf-map");
        } else if is_map && first == "Rss:" {
            sum += field(line, "Rss:").unwrap_or(0);
        }
    }
    sum
}

fn child(max: u32, max_ipv6: u32, bpf: bool) -> Result<Value, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["hold", "--max", &max.to_string(), "--max-ipv6", &max_ipv6.to_string()]);
    command.args(["--connections", &max.to_string()]);
    if bpf {
        command.arg("--bpf");
    }
    let out = command.output()?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).trim().to_owned().into());
    }
    Ok(serde_json::from_slice(&out.stdout)?)
}

pub(crate) fn memory(_: &Plan) -> Result<Vec<Row>, Failure> {
    let bpf = rustix::process::geteuid().is_root();
    let total = |v: &Value| v["total"].as_f64().ok_or("a process that holds connections gave no total");
    // as the daemon has it by default: an eighth as many for IPv6, at least 1024
    let (full, few) = (child(CONNECTIONS, CONNECTIONS / 8, bpf)?, child(FEW, 1024, bpf)?);
    let v4_only = child(CONNECTIONS, 1024, bpf)?;
    let by = |a: &Value| Ok::<_, Failure>((total(a)? - total(&few)?) / f64::from(CONNECTIONS));
    let raw = json!({
        "formula": "(full.total - few.total) / 1000000; total = rss - rss_of_mapped_bpf_maps + bpf_map_bytes",
        "table": if bpf { "BPF maps, as in the daemon" } else { "plain memory (not root)" },
        "full": full,
        "few": few,
        "full_with_1024_ipv6": v4_only,
        "bytes_with_1024_ipv6": by(&v4_only)?,
        "note": "by default the daemon keeps room for an eighth as many IPv6 connections; that is in the value",
    });
    Ok(vec![Row::new("mem.v4.1m", by(&full)?, "bytes", Bar::AtMost(128.0), raw)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_maps_count() {
        let smaps = "7f00-7f10 rw-s 00000000 00:0e 1 anon_inode:bpf-map\nSize: 8 kB\nRss:  4 kB\n\
                     7f10-7f20 rw-p 00000000 00:00 0 \nRss: 100 kB\n\
                     7f20-7f30 rw-s 00000000 00:0e 1 anon_inode:bpf-map\nRss:  12 kB\n";
        assert_eq!(mapped_maps(smaps), 16);
        assert_eq!(field("VmHWM: 1 kB\nVmRSS:\t  123 kB\n", "VmRSS:"), Some(123));
    }
}
