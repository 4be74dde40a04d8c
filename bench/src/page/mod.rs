//! `page`: tables and plots of the results, into the page of figures. What stands around them is written by hand.

mod svg;
mod tables;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::Failure;
use svg::{Plot, Series};

const BEGIN: &str = "<!-- begin: made by bench/run --page -->";
const END: &str = "<!-- end -->";

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Results to show
    #[arg(long, default_value = "bench/results/latest.json")]
    results: PathBuf,
    /// Page whose marked part is written anew
    #[arg(long, default_value = "docs/performance.md")]
    page: PathBuf,
    /// Where the plots, and the results they were made of, go
    #[arg(long, default_value = "docs/plots")]
    plots: PathBuf,
}

/// Rows by name.
pub(super) struct Results(Vec<Value>);

impl Results {
    fn row(&self, id: &str) -> Option<&Value> {
        self.0.iter().find(|r| r["id"] == id)
    }

    fn value(&self, id: &str) -> Option<f64> {
        self.row(id)?["value"].as_f64()
    }

    fn some_value(&self, ids: &[String]) -> bool {
        ids.iter().any(|id| self.value(id).is_some())
    }
}

pub(crate) fn run(o: &Options) -> Result<Value, Failure> {
    let named = |path: &Path, e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let text = std::fs::read_to_string(&o.results).map_err(|e| named(&o.results, &e))?;
    let results = Results(serde_json::from_str(&text).map_err(|e| named(&o.results, &e))?);
    std::fs::create_dir_all(&o.plots)?;
    let made = plots(&results);
    let folder = o.plots.file_name().and_then(|n| n.to_str()).ok_or("--plots without a name")?;
    for (name, _, text) in &made {
        std::fs::write(o.plots.join(name), text)?;
    }
    let lines: Vec<String> = results.0.iter().map(Value::to_string).collect();
    std::fs::write(o.plots.join("results.json"), format!("[\n{}\n]\n", lines.join(",\n")))?;
    let mut part = tables::all(&results);
    for (name, title, _) in &made {
        part += &format!("\n![{title}]({folder}/{name})\n");
    }
    let page = std::fs::read_to_string(&o.page).map_err(|e| named(&o.page, &e))?;
    let page = replaced(&page, &part).ok_or_else(|| named(&o.page, &format!("no '{BEGIN}' … '{END}'")))?;
    std::fs::write(&o.page, page)?;
    let names: Vec<&str> = made.iter().map(|m| m.0).collect();
    Ok(serde_json::json!({ "page": o.page, "rows": results.0.len(), "plots": names }))
}

/// The page with another marked part.
fn replaced(page: &str, part: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{}\n\n{END}{after}", part.trim()))
}

/// Who is compared by `pps.*`, and what the page calls them.
pub(super) const FORWARDERS: [(&str, &str); 4] = [
    ("xdp", "lvsd, tier at XDP"),
    ("tc", "lvsd, tier at tc"),
    ("afpacket", "lvsd, rings"),
    ("nft", "nftables"),
];

/// A series for each forwarder of `pps.FORWARDER.REST`, for each of the rests.
fn by_forwarder(results: &Results, rests: &[&str]) -> Vec<Series> {
    let one = |(key, name): &(&str, &str)| Series {
        name: (*name).to_owned(),
        values: rests.iter().map(|rest| results.value(&format!("pps.{key}.{rest}"))).collect(),
    };
    FORWARDERS.iter().map(one).collect()
}

type Made = (&'static str, &'static str, String);

fn plots(results: &Results) -> Vec<Made> {
    let mut made = Vec::new();
    let mut add = |name: &'static str, lines: bool, plot: Plot<'static>| {
        if plot.series.iter().any(|s| s.values.iter().any(Option::is_some)) {
            made.push((name, plot.title, if lines { plot.lines() } else { plot.bars() }));
        }
    };
    let words = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    let unit = "packets a second at the sink, at saturation, one generator";
    let flows = ["nat.v4.60b.1", "nat.v4.60b.30k", "nat.v4.60b.1m", "nat.v4.60b.10m"];
    add(
        "flows.svg",
        true,
        Plot {
            title: "NAT of 60-byte frames, by flows",
            unit,
            places: words(&["1", "30,000", "1 M", "10 M"]),
            series: by_forwarder(results, &flows),
        },
    );
    add(
        "sizes.svg",
        true,
        Plot {
            title: "NAT of 30,000 flows, by bytes of a frame",
            unit,
            places: words(&["60", "512", "1514"]),
            series: by_forwarder(results, &["nat.v4.60b.30k", "nat.v4.512b.30k", "nat.v4.1514b.30k"]),
        },
    );
    let methods = ["nat.v4.60b.30k", "nat.v6.64b.30k", "dr.v4.60b.30k", "ipip.v4.60b.30k"];
    add(
        "methods.svg",
        false,
        Plot {
            title: "30,000 flows of the shortest frames, by method and family",
            unit,
            places: words(&["NAT, IPv4", "NAT, IPv6", "direct routing", "IPIP"]),
            series: by_forwarder(results, &methods),
        },
    );
    add(
        "cost.svg",
        true,
        Plot {
            title: "What grows with the configuration",
            unit: "nanoseconds of processor time, the core alone",
            places: words(&["× 1", "× 10", "× 100", "× 1000"]),
            series: tables::COSTS
                .iter()
                .map(|c| Series { name: c.name.into(), values: c.values(results) })
                .collect(),
        },
    );
    let betweens =
        tables::BETWEEN.iter().filter(|(key, _)| results.value(&format!("connrate.{key}")).is_some());
    let (places, values) =
        betweens.map(|(key, name)| ((*name).to_owned(), results.value(&format!("connrate.{key}")))).unzip();
    add(
        "connrate.svg",
        false,
        Plot {
            title: "TCP connections through it",
            unit: "connections a second; clients, server and what is between share two processors",
            places,
            series: vec![Series { name: "connections a second".into(), values }],
        },
    );
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_the_marked_part_changes() {
        let page = format!("# A\n\n{BEGIN}\nold\n{END}\n\n## B\n");
        let new = replaced(&page, "| new |\n").unwrap();
        assert_eq!(new, format!("# A\n\n{BEGIN}\n\n| new |\n\n{END}\n\n## B\n"));
        assert_eq!(replaced(&new, "| new |\n").as_ref(), Some(&new));
        assert_eq!(replaced("# A\n", "x"), None);
    }

    #[test]
    fn plots_are_made_of_what_was_measured() {
        let row = |id: &str| json!({"id": id, "value": 5.0});
        let some = Results(vec![row("pps.tc.nat.v4.60b.1"), row("connrate.nft")]);
        let names: Vec<_> = plots(&some).iter().map(|m| m.0).collect();
        assert_eq!(names, ["flows.svg", "connrate.svg"]);
        assert!(plots(&Results(vec![row("core.nat.hit.1m")])).is_empty());
    }
}
