//! `rings.*nat.30k/bare`: the daemon on its rings beside a forwarder on the same rings that has no logic; and beside both, for
//! orientation, what the kernel does in the same place.

use std::time::Instant;

use serde_json::{Map, Value, json};

use super::forwarder::{Active, Forwarder};
use super::lab::{Lab, processors, sibling};
use super::process::{Running, output};
use super::until;
use crate::machine::Usage;
use crate::report::{Bar, Row, median};
use crate::{Datapath, Failure, Plan};

const FLOWS: u32 = 30_000;
const PORT: u16 = 53;

pub(crate) fn afpacket(plan: &Plan) -> Result<Vec<Row>, Failure> {
    rings(plan, "rings.nat.30k/bare", Datapath::Afpacket)
}

pub(crate) fn afxdp(plan: &Plan) -> Result<Vec<Row>, Failure> {
    rings(plan, "rings.afxdp.nat.30k/bare", Datapath::Afxdp)
}

/// The daemon with the tier at tc ingress : nftables, each in the better of its places.
pub(crate) fn tc(plan: &Plan) -> Result<Vec<Row>, Failure> {
    tier(plan, "tier.tc.nat.30k/nft", Bar::AtLeast(1.3), Datapath::Tc)
}

/// Runs of one forwarder in one place.
struct Series<'l> {
    name: String,
    lab: &'l Lab,
    forwarder: Forwarder,
    pps: Vec<f64>,
    runs: Vec<Value>,
}

/// The labs of a comparison: where all that the kernel does is done in the generator's soft interrupt, and where it is done on the
/// other processor (named) by threaded NAPI.
struct Places {
    lab: Lab,
    threaded: Lab,
    alone: Option<usize>,
}

impl Places {
    fn new() -> Result<Places, Failure> {
        let places = Places { lab: Lab::for_frames()?, threaded: Lab::for_frames()?, alone: processors()?.1 };
        if let Some(cpu) = places.alone {
            places.threaded.receive_on(cpu)?;
        }
        Ok(places)
    }
}

impl<'l> Series<'l> {
    fn new(lab: &'l Lab, forwarder: Forwarder, suffix: &str) -> Series<'l> {
        let name = format!("{}{suffix}", forwarder.name());
        Series { name, lab, forwarder, pps: Vec::new(), runs: Vec::new() }
    }

    /// Of a forwarder in the kernel, in both places.
    fn in_kernel(places: &'l Places, forwarder: Forwarder) -> Vec<Series<'l>> {
        let mut both = vec![Series::new(&places.lab, forwarder, "_with_generator")];
        if places.alone.is_some() {
            both.push(Series::new(&places.threaded, forwarder, "_on_own_processor"));
        }
        both
    }
}

/// Has all series take turns; those that `beside` names need fewer rounds.
fn take_turns(
    plan: &Plan,
    series: &mut [Series<'_>],
    beside: impl Fn(Forwarder) -> bool,
) -> Result<(), Failure> {
    for round in 0..plan.pick(4, 10) {
        for s in series.iter_mut() {
            if beside(s.forwarder) && round % 2 != 0 {
                continue;
            }
            let run = one(s.lab, s.forwarder, plan.pick(3, 5)).map_err(|e| format!("{}: {e}", s.name))?;
            s.pps.push(run["pps"].as_f64().ok_or("a run without a rate")?);
            s.runs.push(run);
        }
    }
    Ok(())
}

/// Adds to a row's raw data what all comparisons have: the series' medians and runs, and how they came about.
fn with_runs(mut raw: Value, datapath: Datapath, series: Vec<Series<'_>>) -> Value {
    let medians: Map<String, Value> =
        series.iter().map(|s| (s.name.clone(), median(&s.pps).round().into())).collect();
    let runs: Map<String, Value> = series.into_iter().map(|s| (s.name, s.runs.into())).collect();
    let shared = json!({
        "datapath": datapath.to_string(),
        "pps": medians,
        "flows": FLOWS,
        "frame_bytes": 60,
        "counted_at": "the sink's interface (veth), at saturation",
        "workers": 1,
        "runs": runs,
    });
    if let (Value::Object(raw), Value::Object(shared)) = (&mut raw, shared) {
        raw.extend(shared);
    }
    raw
}

fn tier(plan: &Plan, id: &'static str, bar: Bar, datapath: Datapath) -> Result<Vec<Row>, Failure> {
    let places = Places::new()?;
    let lvsd = Forwarder::Lvsd(datapath);
    let mut series: Vec<Series<'_>> = [lvsd, Forwarder::Nft, Forwarder::Routed]
        .into_iter()
        .flat_map(|forwarder| Series::in_kernel(&places, forwarder))
        .collect();
    take_turns(plan, &mut series, |f| f == Forwarder::Routed)?;
    let best = |forwarder| {
        let of_it = series.iter().filter(|s| s.forwarder == forwarder);
        of_it.map(|s| median(&s.pps)).fold(0.0, f64::max)
    };
    let ratio = best(lvsd) / best(Forwarder::Nft);
    let raw = json!({
        "formula": "median pps of lvsd's runs / median pps of nftables' runs, each in the better of its two places",
        "places": "all forward either in the generator's soft interrupt, or on the other processor by threaded NAPI",
        "offloads": places.lab.offloads()?,
    });
    let raw = with_runs(raw, datapath, series);
    Ok(vec![Row::new(id, ratio, "ratio", bar, raw)])
}

fn rings(plan: &Plan, id: &'static str, datapath: Datapath) -> Result<Vec<Row>, Failure> {
    let places = Places::new()?;
    let lab = &places.lab;
    let mut series = vec![
        Series::new(lab, Forwarder::Lvsd(datapath), ""),
        Series::new(lab, Forwarder::Bare(datapath), ""),
    ];
    for forwarder in [Forwarder::Nft, Forwarder::Routed] {
        series.extend(Series::in_kernel(&places, forwarder));
    }
    take_turns(plan, &mut series, |f| matches!(f, Forwarder::Nft | Forwarder::Routed))?;
    let (lvsd, bare) = (median(&series[0].pps), median(&series[1].pps));
    let raw = json!({
        "formula": "median pps of lvsd's runs / median pps of the bare forwarder's runs",
        "places": "the generator has one processor; lvsd's and the bare forwarder's worker the other one. nft and ip_forward \
                   either in the generator's soft interrupt, or on the other processor by threaded NAPI",
        "offloads": lab.offloads()?,
    });
    let raw = with_runs(raw, datapath, series);
    Ok(vec![Row::new(id, lvsd / bare, "ratio", Bar::AtLeast(0.8), raw)])
}

/// Starts a forwarder and the generator, waits until all flows have passed, and counts for some seconds.
fn one(lab: &Lab, forwarder: Forwarder, seconds: u64) -> Result<Value, Failure> {
    let mut active = Active::start(lab, forwarder, PORT, None)?;
    let mut c = lab.generator(forwarder.target(), PORT, FLOWS)?;
    let mut generator = Running::start(c.args(["--seconds", "3600"]), "generator", &lab.directory)?;
    let before = received(lab)?;
    until("frames of all flows at the sink", || {
        active.must_run()?;
        generator.must_run()?;
        Ok((received(lab)? > before + 10 * u64::from(FLOWS)).then_some(()))
    })?;
    let (usage, cpu, begin) = (Usage::now()?, active.cpu()?, Instant::now());
    let mut c = lab.server.command(&sibling("lvsd-bench")?);
    let text = output(c.args(["rate", "--interface", "s0", "--seconds", &seconds.to_string()]))?;
    let (wall, used) = (begin.elapsed().as_secs_f64(), Usage::now()?.since(&usage));
    let cpu = active.cpu()?.zip(cpu).map(|(after, before)| (after - before).as_secs_f64());
    let counted: Value = serde_json::from_str(&text)?;
    let pps = counted["pps"].as_f64().ok_or("a count without a rate")?;
    active.must_run()?;
    generator.must_run()?;
    drop(generator);
    let connections = active.connections()?;
    // each flow is a connection; the daemon's table holds nothing else
    if let Some(n) = connections
        && (n < u64::from(FLOWS) || active.lvsd.is_some() && n > u64::from(FLOWS))
    {
        return Err(format!("{} holds {n} connections, not {FLOWS}", forwarder.name()).into());
    }
    let run = json!({
        "pps": pps, "frames": counted["frames"], "seconds": counted["seconds"], "connections": connections,
        "process_cpu_share": cpu.map(|c| c / wall),
        "packets_per_cpu_second_of_process": cpu.map(|c| pps * wall / c.max(1e-9)),
        "packets_per_cpu_second_of_machine_with_generator": pps * wall / used.busy.max(1e-9),
        "machine": used.json(),
        "losses": active.losses()?,
    });
    active.stop()?;
    Ok(run)
}

/// Frames that the sink's interface has received.
fn received(lab: &Lab) -> Result<u64, Failure> {
    let text = lab.server.run("cat /proc/net/dev")?;
    crate::rate::frames_of(&text, "s0").ok_or_else(|| "interface s0 is gone".into())
}
