//! `--json`: what listings tell, as JSON. Addresses and names are text, everything else that is a number is one, exact and in the unit that
//! the name says. Nothing is rounded and no name is looked up.

use std::io::{self, Write};
use std::net::IpAddr;

use ipvs_netlink::{
    Af, ConnEntry, Counter, Daemon, DaemonState, DestEntry, FwdMethod, Netmask, Notice, Overview,
    QueueStatus, SVC_F_ONEPACKET, SVC_F_PERSISTENT, SchedulerInfo, ServiceEntry, ServiceKey, Stats, Sysctl,
    Timeouts,
};
use serde_json::{Map, Value, json};

use super::{flag_names, protocol_name};

/// A list that is written as its items come, since there may be millions: `{"NAME":[` … `]}`, an item a line.
pub struct List<'w> {
    w: &'w mut dyn Write,
    any: bool,
}

impl<'w> List<'w> {
    /// Begins a list called `name`, with other members of the object before it.
    ///
    /// # Errors
    /// Those of `w`.
    pub fn begin(w: &'w mut dyn Write, before: &Value, name: &str) -> io::Result<List<'w>> {
        w.write_all(b"{")?;
        for (key, value) in before.as_object().into_iter().flatten() {
            write!(w, "{}:{value},", Value::from(key.as_str()))?;
        }
        write!(w, "{}:[", Value::from(name))?;
        Ok(List { w, any: false })
    }

    /// Adds an item.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn item(&mut self, item: &Value) -> io::Result<()> {
        let between = if std::mem::replace(&mut self.any, true) { ",\n" } else { "\n" };
        write!(self.w, "{between}{item}")
    }

    /// Ends it.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn end(self) -> io::Result<()> {
        writeln!(self.w, "{}]}}", if self.any { "\n" } else { "" })
    }
}

fn stats(s: &Stats) -> Value {
    json!({
        "connections": s.conns, "in_packets": s.in_pkts, "out_packets": s.out_pkts, "in_bytes": s.in_bytes,
        "out_bytes": s.out_bytes, "connections_per_second": s.cps, "in_packets_per_second": s.in_pps,
        "out_packets_per_second": s.out_pps, "in_bytes_per_second": s.in_bps, "out_bytes_per_second": s.out_bps,
    })
}

/// A service and its servers.
pub fn service(entry: &ServiceEntry, dests: &[DestEntry]) -> Value {
    let s = &entry.service;
    let mut o = Map::new();
    match s.key {
        ServiceKey::Addr { protocol, addr, port } => {
            o.insert("protocol".into(), protocol_name(protocol).into());
            o.insert("address".into(), addr.to_string().into());
            o.insert("port".into(), port.into());
        }
        ServiceKey::Fwmark { mark, af } => {
            o.insert("fwmark".into(), mark.get().into());
            o.insert("family".into(), if af == Af::V6 { "ipv6" } else { "ipv4" }.into());
        }
    }
    o.insert("scheduler".into(), s.scheduler.as_str().into());
    let flags = flag_names(&s.scheduler, s.flags);
    o.insert("scheduler_flags".into(), flags.split(',').filter(|f| !f.is_empty()).collect());
    o.insert("one_packet".into(), (s.flags & SVC_F_ONEPACKET != 0).into());
    if s.flags & SVC_F_PERSISTENT != 0 {
        let mask = match s.netmask {
            Netmask::V4(mask) => mask.to_string().into(),
            Netmask::V6(length) => Value::from(length),
        };
        o.insert(
            "persistence".into(),
            json!({ "timeout_seconds": s.timeout, "netmask": mask, "engine": s.pe_name }),
        );
    }
    o.insert("stats".into(), stats(&entry.stats));
    o.insert("destinations".into(), dests.iter().map(dest).collect());
    o.into()
}

fn dest(d: &DestEntry) -> Value {
    let method = match d.dest.method {
        FwdMethod::Masq => "masq",
        FwdMethod::Local => "local",
        FwdMethod::Tunnel => "tunnel",
        FwdMethod::Droute => "route",
        FwdMethod::Bypass => "bypass",
    };
    let mut o = json!({
        "address": d.dest.addr.to_string(), "port": d.dest.port, "method": method, "weight": d.dest.weight,
        "upper_threshold": d.dest.upper, "lower_threshold": d.dest.lower, "active_connections": d.active,
        "inactive_connections": d.inactive, "persistent_connections": d.persistent, "stats": stats(&d.stats),
    });
    if d.dest.method == FwdMethod::Tunnel {
        let kind = match d.dest.tunnel.kind {
            0 => "ipip",
            1 => "gue",
            2 => "gre",
            _ => "unknown",
        };
        let flags = d.dest.tunnel.flags;
        o["tunnel"] = json!({
            "type": kind, "port": d.dest.tunnel.port, "checksum": flags & 1 != 0, "remote_checksum": flags & 2 != 0,
        });
    }
    o
}

fn end(at: (IpAddr, u16)) -> Value {
    json!({ "address": at.0.to_string(), "port": at.1 })
}

/// A connection.
pub fn conn(c: &ConnEntry) -> Value {
    json!({
        "protocol": protocol_name(c.protocol), "state": c.state, "expires_seconds": c.expires, "client": end(c.client),
        "virtual": end(c.virt), "destination": end(c.dest), "flags": c.flags,
    })
}

/// The timeouts that can be set.
pub fn timeouts(t: &Timeouts) -> Value {
    json!({ "tcp_seconds": t.tcp, "tcp_fin_seconds": t.tcp_fin, "udp_seconds": t.udp })
}

/// A synchronisation daemon.
pub fn daemon(d: &Daemon) -> Value {
    let role = if d.state == DaemonState::Master { "master" } else { "backup" };
    json!({
        "role": role, "interface": d.interface, "sync_id": d.sync_id, "max_length": d.maxlen,
        "group": d.group.map(|g| g.to_string()), "port": d.port, "ttl": d.ttl,
    })
}

/// Settings, by their names.
pub fn sysctls(all: &[Sysctl]) -> Value {
    let number = |s: &Sysctl| s.value.parse::<i64>().map_or_else(|_| s.value.as_str().into(), Value::from);
    Value::Object(all.iter().map(|s| (s.name.clone(), number(s))).collect())
}

/// A scheduler.
pub fn scheduler(s: &SchedulerInfo) -> Value {
    json!({ "name": s.name, "description": s.description })
}

fn counters<'c>(all: impl IntoIterator<Item = &'c Counter>) -> Value {
    Value::Object(all.into_iter().map(|c| (c.name.clone(), c.value.into())).collect())
}

/// All that `status` tells.
pub fn status<'c>(
    overview: Option<&Overview>,
    notices: &[Notice],
    queues: &[QueueStatus],
    all: impl IntoIterator<Item = &'c Counter>,
) -> Value {
    let used = |(now, most): (u64, u64)| json!({ "now": now, "most": most });
    json!({
        "daemon": overview.map(|o| json!({
            "version": o.version, "pid": o.pid, "uptime_seconds": o.uptime, "datapath": o.datapath, "reason": o.reason,
            "workers": o.workers, "connections_ipv4": used(o.conns_v4), "connections_ipv6": used(o.conns_v6),
        })),
        "notices": notices.iter().map(|n| n.text.as_str()).collect::<Vec<_>>(),
        "queues": queues.iter().map(queue).collect::<Vec<_>>(),
        "counters": counters(all),
    })
}

fn queue(q: &QueueStatus) -> Value {
    let t = &q.traffic;
    let rings: Map<String, Value> =
        q.rings.iter().map(|r| (r.name.clone(), json!({ "used": r.used, "size": r.size }))).collect();
    json!({
        "interface": q.interface, "queue": q.queue, "attached": q.attached, "datapath": q.datapath, "mode": q.mode,
        "rx_packets": t.rx_packets, "rx_bytes": t.rx_bytes, "tx_packets": t.tx_packets, "tx_bytes": t.tx_bytes,
        "rx_packets_per_second": t.rx_pps, "rx_bits_per_second": t.rx_bps,
        "tx_packets_per_second": t.tx_pps, "tx_bits_per_second": t.tx_bps,
        "drops": counters(&q.drops), "rings": rings,
    })
}

/// One object, on a line.
///
/// # Errors
/// Those of `w`.
pub fn print_into(w: &mut dyn Write, value: &Value) -> io::Result<()> {
    writeln!(w, "{value}")
}
