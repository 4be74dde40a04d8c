//! All measurements, one after the other, into a file of results.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use serde_json::Value;

use crate::machine::{self, Usage};
use crate::report::{Bar, Row};
use crate::{Datapath, Failure, Plan, inproc, net, vm};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Where the results go
    #[arg(long, default_value = "bench/results/latest.json")]
    output: PathBuf,
    /// At most 6 minutes: fewer and shorter rounds
    #[arg(long)]
    quick: bool,
    /// Only measurements whose row's name begins so (may be repeated)
    #[arg(long, value_name = "ROW")]
    only: Vec<String>,
}

/// Rows that are measured together: name, unit and bar of each, for the case that they can't be. A name that ends in a dot stands for
/// all that begin so.
struct Measurement {
    rows: &'static [(&'static str, &'static str, Bar)],
    run: fn(&Plan) -> Result<Vec<Row>, Failure>,
    /// Made only where the daemon has these rings.
    needs: Option<Datapath>,
    /// Too long for a hurry.
    long: bool,
}

const AFXDP: Option<Datapath> = Some(Datapath::Afxdp);
const TC: Option<Datapath> = Some(Datapath::Tc);
const XDP: Option<Datapath> = Some(Datapath::Xdp);

#[rustfmt::skip]
const MEASUREMENTS: &[Measurement] = &[
    Measurement { rows: &[("core.nat.hit.1m", "ns/packet", Bar::AtMost(120.0))], run: inproc::hit, needs: None, long: false },
    Measurement { rows: &[("table.structured/random", "ratio", Bar::AtMost(1.2))], run: inproc::lookups, needs: None, long: false },
    Measurement { rows: &[("mem.v4.1m", "bytes", Bar::AtMost(128.0))], run: inproc::memory, needs: None, long: false },
    Measurement {
        rows: &[("maglev.65537", "ms", Bar::AtMost(1.8)), ("maglev.655373", "ms", Bar::AtMost(22.9))],
        run: inproc::maglev, needs: None, long: false,
    },
    Measurement {
        rows: &[("tick.max", "us", Bar::AtMost(200.0)), ("expire.batch.p999", "ratio", Bar::AtMost(1.5))],
        run: inproc::scale, needs: None, long: false,
    },
    Measurement { rows: &[("rings.nat.30k/bare", "ratio", Bar::AtLeast(0.8))], run: net::rings::afpacket, needs: None, long: false },
    Measurement { rows: &[("rings.afxdp.nat.30k/bare", "ratio", Bar::AtLeast(0.8))], run: net::rings::afxdp, needs: AFXDP, long: true },
    Measurement { rows: &[("tier.tc.nat.30k/nft", "ratio", Bar::AtLeast(1.3))], run: net::rings::tc, needs: TC, long: false },
    Measurement { rows: &[("tier.nat.30k/nft", "ratio", Bar::AtLeast(2.5))], run: net::rings::xdp, needs: XDP, long: false },
    Measurement { rows: &[("tier.dr.30k/redirect", "ratio", Bar::AtLeast(0.5))], run: net::rings::redirect, needs: XDP, long: false },
    Measurement { rows: &[("tier.nat.1m/30k", "ratio", Bar::AtLeast(0.65))], run: net::rings::million, needs: XDP, long: false },
    Measurement { rows: &[("tier.nat.10m/30k", "ratio", Bar::AtLeast(0.5))], run: net::rings::ten_million, needs: XDP, long: true },
    Measurement { rows: &[("newconn/nft", "ratio", Bar::AtLeast(1.0))], run: net::newconn::afpacket, needs: None, long: false },
    Measurement { rows: &[("newconn.afxdp/nft", "ratio", Bar::AtLeast(1.0))], run: net::newconn::afxdp, needs: AFXDP, long: true },
    Measurement { rows: &[("flood.good", "share", Bar::AtLeast(0.999))], run: net::flood::afpacket, needs: None, long: false },
    Measurement { rows: &[("bulk.rings/nft", "ratio", Bar::AtLeast(0.5))], run: net::bulk::afpacket, needs: None, long: false },
    Measurement { rows: &[("bulk.afxdp/nft", "ratio", Bar::AtLeast(0.1))], run: net::bulk::afxdp, needs: AFXDP, long: true },
    Measurement { rows: &[("bulk.tier/nft", "ratio", Bar::AtLeast(0.9))], run: net::bulk::tc, needs: TC, long: false },
    Measurement { rows: &[("rtt.rings.added", "us", Bar::AtMost(30.0))], run: net::rtt::afpacket, needs: None, long: false },
    Measurement { rows: &[("rtt.afxdp.added", "us", Bar::AtMost(30.0))], run: net::rtt::afxdp, needs: AFXDP, long: true },
    Measurement { rows: &[("rtt.tier.added", "us", Bar::AtMost(5.0))], run: net::rtt::tc, needs: TC, long: false },
    Measurement { rows: &[("cost.", "ns", Bar::Nothing)], run: inproc::cost, needs: None, long: true },
    Measurement { rows: &[("connrate.", "connections/s", Bar::Nothing)], run: net::proxy::connections, needs: None, long: true },
    Measurement {
        rows: &[("bulk.haproxy", "Gbit/s", Bar::Nothing), ("bulk.nginx", "Gbit/s", Bar::Nothing), ("bulk.ip_forward", "Gbit/s", Bar::Nothing)],
        run: net::proxy::streams, needs: None, long: true,
    },
    Measurement { rows: &[("pps.", "packets/s", Bar::Nothing)], run: net::breadth::breadth, needs: None, long: true },
];

impl Measurement {
    fn wanted(&self, only: &[String], quick: bool) -> bool {
        only.is_empty() && !(self.long && quick)
            || self.rows.iter().any(|(id, ..)| only.iter().any(|o| names(o, id)))
    }

    /// Why it is left out, if it is.
    fn missing(&self) -> Result<Option<String>, Failure> {
        let Some(datapath) = self.needs else { return Ok(None) };
        let missing = format!("--datapath {datapath} is not in this version of lvsd");
        Ok((!net::is_there(datapath)?).then_some(missing))
    }

    /// Its rows, in any case.
    fn make(&self, plan: &Plan) -> Vec<Row> {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let (begin, before) = (Instant::now(), Usage::now());
        let mut rows = match (self.run)(plan) {
            Ok(rows) => rows,
            Err(e) => {
                let e = e.to_string();
                self.rows.iter().map(|(id, unit, bar)| Row::failed(*id, unit, *bar, &e)).collect()
            }
        };
        let usage = before.and_then(|b| Ok(Usage::now()?.since(&b).json())).unwrap_or_default();
        for row in &mut rows {
            if let Some(raw) = row.raw.as_object_mut() {
                raw.insert("load_before".into(), load.trim().into());
                raw.insert("machine_meanwhile".into(), usage.clone());
                raw.insert("machine".into(), machine::description().into());
                raw.insert("seconds_to_measure".into(), begin.elapsed().as_secs().into());
            }
        }
        rows
    }
}

/// Whether what was asked for names a measurement's row.
fn names(asked: &str, id: &str) -> bool {
    id.starts_with(asked) || id.ends_with('.') && asked.starts_with(id)
}

pub(crate) fn run(o: &Options) -> ExitCode {
    let plan = Plan { quick: o.quick, begin: Instant::now(), only: o.only.clone() };
    let mut all = Vec::new();
    let mut wanted = 0;
    for m in MEASUREMENTS.iter().filter(|m| m.wanted(&o.only, o.quick)) {
        wanted += 1;
        match m.missing() {
            Ok(None) => {}
            Ok(Some(why)) => {
                m.rows.iter().for_each(|(id, ..)| println!("{id:<24} left out: {why}"));
                continue;
            }
            Err(e) => {
                eprintln!("lvsd-bench: {e}");
                return ExitCode::FAILURE;
            }
        }
        for row in m.make(&plan) {
            println!("{}", row.line());
            if let Some(error) = row.raw.get("error") {
                println!("    {error}");
            }
            all.push(row);
        }
    }
    if wanted == 0 {
        eprintln!("lvsd-bench: --only {}: there is no such row", o.only.join(" --only "));
        return ExitCode::FAILURE;
    }
    if let Err(e) = write(o, &all) {
        eprintln!("lvsd-bench: --output {}: {e}", o.output.display());
        return ExitCode::FAILURE;
    }
    // a bar that is not met is a result, a measurement that could not be made is an error
    if all.iter().any(|r| r.value.is_none()) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Writes the results. What was counted in a VM stays, unless only some rows were asked for.
fn write(o: &Options, rows: &[Row]) -> Result<(), Failure> {
    let mut all = Vec::new();
    for row in rows {
        all.push(serde_json::to_value(row)?);
    }
    if o.only.is_empty() && o.output.exists() {
        let before: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&o.output)?)?;
        all.extend(before.into_iter().filter(|r| r["id"].as_str().is_some_and(vm::is_of_vm)));
    }
    store(&o.output, &all)
}

/// Writes rows into a file; the old one stays whole until the new one is.
pub(crate) fn store(output: &Path, rows: &[Value]) -> Result<(), Failure> {
    if let Some(directory) = output.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let unfinished = output.with_extension("tmp");
    std::fs::write(&unfinished, serde_json::to_string_pretty(rows)? + "\n")?;
    std::fs::rename(&unfinished, output)?;
    Ok(())
}
