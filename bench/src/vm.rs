//! `vm.*`: instructions a packet by lvsd's tier and by the kernel's IPVS, in a VM whose processor is emulated and whose clock counts
//! instructions (`bench/vm/run`). A comparison of work, never of speed.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::Failure;
use crate::all::store;
use crate::report::{Bar, Row};

/// Share of the packets that must have arrived.
const ARRIVED: f64 = 0.999;
const METHODS: [&str; 3] = ["nat", "dr", "tun"];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// What the VM printed
    #[arg(long)]
    counts: PathBuf,
    /// Results that the rows are put into
    #[arg(long, default_value = "bench/results/latest.json")]
    output: PathBuf,
}

/// Whether a row is one of these.
pub(crate) fn is_of_vm(id: &str) -> bool {
    id.starts_with("vm.")
}

pub(crate) fn run(o: &Options) -> Result<Value, Failure> {
    let text = std::fs::read_to_string(&o.counts)?;
    let rows = rows(&text)?;
    rows.iter().for_each(|r| println!("{}", r.line()));
    let mut all: Vec<Value> = match std::fs::read_to_string(&o.output) {
        Ok(text) => serde_json::from_str(&text)?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(format!("{}: {e}", o.output.display()).into()),
    };
    all.retain(|r| !r["id"].as_str().is_some_and(is_of_vm));
    for row in &rows {
        all.push(serde_json::to_value(row)?);
    }
    store(&o.output, &all)?;
    Ok(json!({ "output": o.output, "rows": rows.len() }))
}

/// Rows of the lines of JSON in a text.
fn rows(text: &str) -> Result<Vec<Row>, Failure> {
    let lines: Vec<Value> = text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
    let count = |method: &str, by: &str| -> Result<(f64, &Value), Failure> {
        let line = lines.iter().find(|l| l["method"] == method && l["by"] == by);
        let line = line.ok_or_else(|| format!("the VM did not count {method} by {by}"))?;
        let number = |key: &str| line[key].as_f64().ok_or_else(|| format!("{method} by {by}: no {key}"));
        let (packets, arrived, ns) = (number("packets")?, number("arrived")?, number("ns")?);
        if arrived < packets * ARRIVED || ns <= 0.0 {
            return Err(
                format!("{method} by {by}: {arrived} of {packets} packets arrived, in {ns} ns").into()
            );
        }
        Ok((ns / packets, line))
    };
    let routed = count("routed", "ip_forward")?;
    let mut rows = Vec::new();
    for method in METHODS {
        let (lvsd, ipvs) = (count(method, "lvsd")?, count(method, "ipvs")?);
        let raw = json!({
            "formula": "ipvs_per_packet / lvsd_per_packet: packets for the same number of instructions, lvsd : IPVS",
            "what": "instructions of an emulated processor, of all that runs: generator, director and sink; not a speed",
            "kernel": "Linux 6.1", "datapath": "tc", "frame_bytes": 60,
            "lvsd_per_packet": lvsd.0.round(), "ipvs_per_packet": ipvs.0.round(), "ip_forward_per_packet": routed.0.round(),
            "lvsd": lvsd.1, "ipvs": ipvs.1, "ip_forward": routed.1,
        });
        rows.push(Row::new(format!("vm.{method}/ipvs"), ipvs.0 / lvsd.0, "ratio", Bar::AtLeast(1.0), raw));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(arrived: u32) -> String {
        let line = |method: &str, by: &str, ns: u32| {
            json!({"method": method, "by": by, "packets": 1000, "arrived": arrived, "ns": ns}).to_string()
        };
        let mut all = vec!["noise".to_owned(), line("routed", "ip_forward", 4_000_000)];
        for method in METHODS {
            all.extend([line(method, "lvsd", 5_000_000), line(method, "ipvs", 6_000_000)]);
        }
        all.join("\n")
    }

    #[test]
    fn ratios_of_what_was_counted() {
        let rows = rows(&text(1000)).unwrap();
        assert_eq!(rows.len(), 3);
        assert_eq!((rows[0].id.as_str(), rows[0].value, rows[0].met), ("vm.nat/ipvs", Some(1.2), Some(true)));
    }

    #[test]
    fn packets_that_did_not_arrive_are_no_measurement() {
        assert!(rows(&text(998)).is_err());
        assert!(rows("").is_err());
    }
}
