//! `lvsctl status`: the daemon in a few lines, then a table of its ports' queues. The counters that follow are lines of a name
//! and a number; no line here looks like one.

use std::io::{self, Write};

use ipvs_netlink::{Overview, QueueStatus};

/// The first lines.
///
/// # Errors
/// Those of `w`.
pub fn print_overview_into(w: &mut dyn Write, o: &Overview) -> io::Result<()> {
    writeln!(w, "lvsd {}, process {}, up {}", o.version, o.pid, duration(o.uptime))?;
    let workers = if o.workers == 1 { "worker" } else { "workers" };
    writeln!(w, "datapath {} ({}), {} {workers}", o.datapath, o.reason, o.workers)?;
    let ((used_v4, max_v4), (used_v6, max_v6)) = (o.conns_v4, o.conns_v6);
    writeln!(w, "connections: IPv4 {used_v4} of {max_v4}, IPv6 {used_v6} of {max_v6}")
}

fn duration(seconds: u64) -> String {
    let (days, rest) = (seconds / 86400, seconds % 86400);
    let clock = format!("{:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60);
    match days {
        0 => clock,
        1 => format!("1 day {clock}"),
        _ => format!("{days} days {clock}"),
    }
}

const TITLES: [&str; 10] = [
    "Port",
    "Queue",
    "Datapath",
    "Mode",
    "InPkts",
    "OutPkts",
    "InPkts/s",
    "OutPkts/s",
    "InBit/s",
    "OutBit/s",
];

/// A row for each queue, and below it what it dropped, if anything.
///
/// # Errors
/// Those of `w`.
pub fn print_queues_into(w: &mut dyn Write, queues: &[QueueStatus]) -> io::Result<()> {
    if queues.is_empty() {
        return Ok(());
    }
    let rows: Vec<[String; 10]> = queues.iter().map(cells).collect();
    let titles = TITLES.map(str::to_owned);
    let width = |column: usize| {
        let cells = std::iter::once(&titles).chain(&rows).map(|r| r[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: [usize; 10] = std::array::from_fn(width);
    print_row(w, &titles, &widths, "Rings (used/size)")?;
    for (row, q) in rows.iter().zip(queues) {
        let rings: Vec<String> =
            q.rings.iter().map(|r| format!("{} {}/{}", r.name, r.used, r.size)).collect();
        print_row(w, row, &widths, &rings.join(", "))?;
        let drops = q.drops.iter().filter(|d| d.value != 0);
        let drops: Vec<String> = drops.map(|d| format!("{} {}", d.name, d.value)).collect();
        if !drops.is_empty() {
            writeln!(w, "  dropped: {}", drops.join(", "))?;
        }
    }
    Ok(())
}

fn cells(q: &QueueStatus) -> [String; 10] {
    let t = &q.traffic;
    let mode = match (q.attached, q.mode.is_empty()) {
        (false, _) => "absent".to_owned(),
        (true, true) => "-".to_owned(),
        // A column is one word.
        (true, false) => q.mode.replace(char::is_whitespace, ","),
    };
    let numbers = [t.rx_packets, t.tx_packets, t.rx_pps, t.tx_pps, t.rx_bps, t.tx_bps];
    let [a, b, c, d, e, f] = numbers.map(|n| n.to_string());
    [q.interface.clone(), q.queue.to_string(), q.datapath.clone(), mode, a, b, c, d, e, f]
}

/// Words on the left of their columns, numbers on the right.
fn print_row(w: &mut dyn Write, cells: &[String; 10], widths: &[usize; 10], last: &str) -> io::Result<()> {
    let mut line = String::new();
    for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let cell = if column < 4 { format!("{cell:<width$} ") } else { format!("{cell:>width$} ") };
        line.push_str(&cell);
    }
    line.push_str(last);
    writeln!(w, "{}", line.trim_end())
}

#[cfg(test)]
mod tests {
    use ipvs_netlink::{Counter, RingLevel, Traffic};

    use super::*;

    #[test]
    fn an_overview() {
        let o = Overview {
            version: "1.2.3".into(),
            pid: 77,
            uptime: 3 * 86400 + 3661,
            datapath: "afpacket".into(),
            reason: "auto: eth0 is a veth".into(),
            workers: 1,
            conns_v4: (5, 1048576),
            conns_v6: (0, 131072),
        };
        let mut text = Vec::new();
        print_overview_into(&mut text, &o).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(
            text,
            "lvsd 1.2.3, process 77, up 3 days 01:01:01\n\
             datapath afpacket (auto: eth0 is a veth), 1 worker\n\
             connections: IPv4 5 of 1048576, IPv6 0 of 131072\n"
        );
        assert_eq!((duration(59), duration(86400)), ("00:00:59".to_owned(), "1 day 00:00:00".to_owned()));
    }

    #[test]
    fn queues_in_columns_with_their_drops_below() {
        let mut a = QueueStatus {
            interface: "eth0".into(),
            attached: true,
            datapath: "afxdp".into(),
            mode: "native zero-copy".into(),
            traffic: Traffic {
                rx_packets: 123456,
                tx_packets: 7,
                rx_pps: 1000,
                tx_bps: 8_000_000,
                ..Traffic::default()
            },
            drops: [("rx_ring_full", 3), ("tx_full", 0), ("tx_down", 1)]
                .map(|(name, value)| Counter { name: name.into(), value })
                .into(),
            rings: vec![
                RingLevel { name: "fill".into(), used: 4000, size: 4096 },
                RingLevel { name: "rx".into(), used: 5, size: 4096 },
            ],
            ..QueueStatus::default()
        };
        let b = QueueStatus { attached: false, queue: 1, drops: vec![], rings: vec![], ..a.clone() };
        let mut text = Vec::new();
        print_queues_into(&mut text, &[a.clone(), b]).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(
            text,
            "Port Queue Datapath Mode             InPkts OutPkts InPkts/s OutPkts/s InBit/s OutBit/s Rings (used/size)\n\
             eth0 0     afxdp    native,zero-copy 123456       7     1000         0       0  8000000 fill 4000/4096, rx 5/4096\n  \
             dropped: rx_ring_full 3, tx_down 1\n\
             eth0 1     afxdp    absent           123456       7     1000         0       0  8000000\n"
        );
        a.mode.clear();
        assert_eq!(cells(&a)[3], "-");
        let mut nothing = Vec::new();
        print_queues_into(&mut nothing, &[]).unwrap();
        assert!(nothing.is_empty());
    }
}
