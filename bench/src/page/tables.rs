//! The page's tables.

use std::fmt::Write;

use serde_json::Value;

use super::{FORWARDERS, Results};

/// Who is between clients and server in `connrate.*` and `bulk.*`.
pub(super) const BETWEEN: [(&str, &str); 7] = [
    ("xdp", "lvsd, XDP"),
    ("tc", "lvsd, tc"),
    ("afpacket", "lvsd, rings"),
    ("nft", "nftables"),
    ("haproxy", "HAProxy"),
    ("nginx", "nginx"),
    ("ip_forward", "ip_forward"),
];

/// A cost that may grow.
pub(super) struct Cost {
    pub(super) name: &'static str,
    prefix: &'static str,
    first: u32,
}

pub(super) const COSTS: [Cost; 6] = [
    Cost { name: "known, connections", prefix: "cost.packet.connections", first: 1000 },
    Cost { name: "new, connections", prefix: "cost.new.connections", first: 1000 },
    Cost { name: "new, services", prefix: "cost.new.services", first: 1 },
    Cost { name: "new, rr servers", prefix: "cost.new.servers.rr", first: 1 },
    Cost { name: "wlc servers", prefix: "cost.new.servers.wlc", first: 1 },
    Cost { name: "maglev servers", prefix: "cost.new.servers.maglev", first: 1 },
];

impl Cost {
    /// At once, ten, a hundred and a thousand times as many.
    pub(super) fn values(&self, results: &Results) -> Vec<Option<f64>> {
        let at = |times: u32| results.value(&format!("{}.{}", self.prefix, self.first * times));
        [1, 10, 100, 1000].map(at).to_vec()
    }
}

pub(super) fn all(results: &Results) -> String {
    [bars(results), pps(results), costs(results), proxies(results)].concat()
}

/// With about three significant figures, and commas.
fn number(n: f64) -> String {
    if n.abs() >= 1000.0 {
        let digits = format!("{:.0}", n);
        let mut out = String::new();
        for (i, c) in digits.chars().enumerate() {
            if i > 0 && c != '-' && (digits.len() - i).is_multiple_of(3) && out != "-" {
                out.push(',');
            }
            out.push(c);
        }
        return out;
    }
    let places = match n.abs() {
        100.0.. => 0,
        10.0.. => 1,
        2.0.. => 2,
        _ => 3,
    };
    format!("{n:.places$}")
}

fn cell(value: Option<f64>) -> String {
    value.map_or("–".into(), number)
}

/// Figures that a row's value was computed from, said shortly.
fn beside(raw: &Value) -> String {
    let mut said = Vec::new();
    if let Some(pps) = raw["pps"].as_object() {
        let each = pps.iter().filter_map(|(name, n)| {
            Some(format!("{} {}", name.replace('_', " "), number(n.as_f64()? / 1000.0)))
        });
        said.push(format!("thousand packets a second: {}", each.collect::<Vec<_>>().join("; ")));
    }
    for (key, name, unit) in [
        ("lvsd_saturated_pps", "lvsd", "new connections a second"),
        ("nft_saturated_pps", "nftables", "new connections a second"),
        ("lvsd_gbit_s", "lvsd", "Gbit/s"),
        ("nft_gbit_s", "nftables", "Gbit/s"),
        ("routed_gbit_s", "ip_forward", "Gbit/s"),
        ("lvsd_p50_us", "lvsd", "µs"),
        ("nft_p50_us", "nftables", "µs"),
        ("ip_forward_p50_us", "ip_forward", "µs"),
        ("asked_flood_pps", "flood asked for", "SYN/s"),
        ("reached_flood_pps", "flood that came", "SYN/s"),
        ("longest_lock_us", "longest lock", "µs"),
        ("lvsd_per_packet", "lvsd", "instructions a packet"),
        ("ipvs_per_packet", "IPVS", "instructions a packet"),
    ] {
        if let Some(n) = raw[key].as_f64() {
            said.push(format!("{name} {} {unit}", number(n)));
        }
    }
    for (key, name) in [("not_met_because", "not met because"), ("error", "failed")] {
        if let Some(why) = raw[key].as_str() {
            said.push(format!("{name}: {}", why.lines().next().unwrap_or_default().replace('|', "/")));
        }
    }
    said.join("; ")
}

/// All rows that have a bar.
fn bars(results: &Results) -> String {
    let mut out = String::new();
    let mut machines: Vec<&str> = results.0.iter().filter_map(|r| r["raw"]["machine"].as_str()).collect();
    machines.dedup();
    if let Some(machine) = machines.first() {
        let _ = writeln!(out, "Machine: {machine}.\n");
    }
    out += "| row | value | bar | met | load before | beside |\n| --- | --- | --- | --- | --- | --- |\n";
    for row in results.0.iter().filter(|r| !r["bar"].is_null()) {
        let (id, unit) = (row["id"].as_str().unwrap_or_default(), row["unit"].as_str().unwrap_or_default());
        let sense = if row["sense"] == "<=" { "≤" } else { "≥" };
        let met = if row["met"] == true { "yes" } else { "**no**" };
        let load = row["raw"]["load_before"].as_str().and_then(|l| l.split(' ').next()).unwrap_or("–");
        let value = row["value"].as_f64().map_or("failed".into(), number);
        let _ = writeln!(
            out,
            "| `{id}` | {value} {unit} | {sense} {} | {met} | {load} | {} |",
            row["bar"].as_f64().unwrap_or_default(),
            beside(&row["raw"])
        );
    }
    out
}

fn pps(results: &Results) -> String {
    let ids: Vec<String> = results
        .0
        .iter()
        .filter_map(|r| r["id"].as_str())
        .filter(|id| id.starts_with("pps."))
        .map(Into::into)
        .collect();
    if !results.some_value(&ids) {
        return String::new();
    }
    let mut rests: Vec<&str> = ids.iter().filter_map(|id| id.splitn(3, '.').nth(2)).collect();
    let mut seen = std::collections::HashSet::new();
    rests.retain(|r| seen.insert(*r));
    let mut out = String::from(
        "\nThousand packets a second (`pps.*`; one run each):\n\n| method, family, bytes, flows |",
    );
    FORWARDERS.iter().for_each(|(_, name)| out += &format!(" {name} |"));
    out += "\n| --- | --- | --- | --- | --- |\n";
    for rest in rests {
        let _ = write!(out, "| {} |", rest.split('.').collect::<Vec<_>>().join(", "));
        for (key, _) in FORWARDERS {
            let value = results.value(&format!("pps.{key}.{rest}")).map(|n| n / 1000.0);
            let _ = write!(out, " {} |", cell(value));
        }
        out += "\n";
    }
    out
}

fn costs(results: &Results) -> String {
    if COSTS.iter().all(|c| c.values(results).iter().all(Option::is_none)) {
        return String::new();
    }
    let mut out = String::from(
        "\nNanoseconds of processor time, the core alone (`cost.*`): a packet of a known connection, or the first of a new one, with so \
         many times as many of what is named (connections from 1,000, services and servers from 1):\n\n\
         | | × 1 | × 10 | × 100 | × 1000 |\n| --- | --- | --- | --- | --- |\n",
    );
    for cost in COSTS {
        let values: Vec<String> = cost.values(results).into_iter().map(cell).collect();
        let _ = writeln!(out, "| {} | {} |", cost.name, values.join(" | "));
    }
    out
}

fn proxies(results: &Results) -> String {
    let rate = |key: &str| results.value(&format!("connrate.{key}"));
    if BETWEEN.iter().all(|(key, _)| rate(key).is_none()) {
        return String::new();
    }
    let bulk = |key: &str| {
        let of = |id: &str, key: &str| results.row(id)?["raw"][key].as_f64();
        match key {
            "xdp" => None,
            "tc" => of("bulk.tier/nft", "lvsd_gbit_s"),
            "afpacket" => of("bulk.rings/nft", "lvsd_gbit_s"),
            "nft" => of("bulk.tier/nft", "nft_gbit_s"),
            other => results.value(&format!("bulk.{other}")),
        }
    };
    let mut out = String::from(
        "\nTCP connections a second (`connrate.*`), and one bulk stream (`bulk.*`, Gbit/s). HAProxy (TCP mode) and nginx (`stream`) end the \
         client's connection and make another, which is more work, and other work:\n\n\
         | | connections a second | Gbit/s |\n| --- | --- | --- |\n",
    );
    for (key, name) in BETWEEN {
        let _ = writeln!(out, "| {name} | {} | {} |", cell(rate(key)), cell(bulk(key)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_as_they_are_read() {
        let cases = [
            (0.5, "0.500"),
            (12.34, "12.3"),
            (999.4, "999"),
            (1234.0, "1,234"),
            (1_234_567.0, "1,234,567"),
            (-1234.0, "-1,234"),
        ];
        for (n, text) in cases {
            assert_eq!(number(n), text);
        }
    }

    #[test]
    fn a_bar_that_is_not_met_shows() {
        let rows = vec![
            json!({"id": "a/b", "value": 0.75, "unit": "ratio", "bar": 0.8, "sense": ">=", "met": false,
                   "raw": {"load_before": "2.5 1 1", "pps": {"lvsd": 750_000, "bare": 1e6}}}),
            json!({"id": "pps.tc.nat.v4.60b.1", "value": 5e5, "unit": "packets/s", "bar": null, "met": null, "raw": {}}),
        ];
        let text = all(&Results(rows));
        let row = "| `a/b` | 0.750 ratio | ≥ 0.8 | **no** | 2.5 | thousand packets a second: bare 1,000; lvsd 750 |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("| nat, v4, 60b, 1 | – | 500 | – | – |"), "{text}");
    }
}
