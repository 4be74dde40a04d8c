//! `rings.*nat.30k/bare`: the daemon on its rings beside a forwarder on the same rings that has no logic; and beside both, for
//! orientation, what the kernel does in the same place. `tier.*`: the daemon with its tier beside nftables, beside a bare redirect,
//! and with more flows.

use serde_json::{Map, Value, json};

use super::forwarder::{Forwarder, Traffic};
use super::lab::{Lab, Method, processors};
use super::saturate::saturate;
use crate::report::{Bar, Row, median};
use crate::{Datapath, Failure, Plan};

const FLOWS: u32 = 30_000;

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

/// The same with the tier at XDP.
pub(crate) fn xdp(plan: &Plan) -> Result<Vec<Row>, Failure> {
    tier(plan, "tier.nat.30k/nft", Bar::AtLeast(2.5), Datapath::Xdp)
}

/// Direct routing by the tier at XDP : a program that redirects and does nothing else, each in the better of its places.
pub(crate) fn redirect(plan: &Plan) -> Result<Vec<Row>, Failure> {
    let places = Places::new()?;
    let traffic = Traffic { method: Method::Dr, ..Traffic::of(FLOWS) };
    let (lvsd, bare) = (Forwarder::Lvsd(Datapath::Xdp), Forwarder::Bare(Datapath::Xdp));
    let mut series = in_kernel(&places, &[lvsd, bare], traffic);
    take_turns(plan, &mut series, |_| false)?;
    let ratio = best(&series, lvsd) / best(&series, bare);
    let raw = json!({
        "formula": "median pps of lvsd's runs / median pps of the bare redirect's runs, each in the better of its two places",
        "places": KERNEL_PLACES,
        "offloads": places.lab.offloads()?,
    });
    let raw = with_runs(raw, Datapath::Xdp, series);
    Ok(vec![Row::new("tier.dr.30k/redirect", ratio, "ratio", Bar::AtLeast(0.5), raw)])
}

/// More flows : 30,000, by the tier at XDP, all in the generator's soft interrupt.
pub(crate) fn million(plan: &Plan) -> Result<Vec<Row>, Failure> {
    flows(plan, 1_000_000, "tier.nat.1m/30k", Bar::AtLeast(0.65))
}

pub(crate) fn ten_million(plan: &Plan) -> Result<Vec<Row>, Failure> {
    flows(plan, 10_000_000, "tier.nat.10m/30k", Bar::AtLeast(0.5))
}

fn flows(plan: &Plan, many: u32, id: &'static str, bar: Bar) -> Result<Vec<Row>, Failure> {
    let lab = Lab::for_frames()?;
    let lvsd = Forwarder::Lvsd(Datapath::Xdp);
    let mut series = [FLOWS, many].map(|n| Series::new(&lab, lvsd, &format!("_{n}"), Traffic::of(n)));
    for _ in 0..if many > 1_000_000 { 1 } else { plan.pick(1, 3) } {
        series.iter_mut().try_for_each(|s| s.run(plan))?;
    }
    let ratio = median(&series[1].pps) / median(&series[0].pps);
    let raw = json!({
        "formula": format!("median pps with {many} flows / median pps with {FLOWS}"),
        "places": "all in the generator's soft interrupt",
        "offloads": lab.offloads()?,
    });
    let raw = with_runs(raw, Datapath::Xdp, series.into());
    Ok(vec![Row::new(id, ratio, "ratio", bar, raw)])
}

const KERNEL_PLACES: &str =
    "all forward either in the generator's soft interrupt, or on the other processor by threaded NAPI";

/// Runs of one forwarder in one place.
struct Series<'l> {
    name: String,
    lab: &'l Lab,
    forwarder: Forwarder,
    traffic: Traffic,
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
    fn new(lab: &'l Lab, forwarder: Forwarder, suffix: &str, traffic: Traffic) -> Series<'l> {
        let name = format!("{}{suffix}", forwarder.name());
        Series { name, lab, forwarder, traffic, pps: Vec::new(), runs: Vec::new() }
    }

    fn run(&mut self, plan: &Plan) -> Result<(), Failure> {
        let run = saturate(self.lab, self.forwarder, &self.traffic, plan.pick(1, 4));
        let run = run.map_err(|e| format!("{}: {e}", self.name))?;
        self.pps.push(run["pps"].as_f64().ok_or("a run without a rate")?);
        self.runs.push(run);
        Ok(())
    }
}

/// Forwarders in the kernel, each in both places.
fn in_kernel<'l>(places: &'l Places, forwarders: &[Forwarder], traffic: Traffic) -> Vec<Series<'l>> {
    let mut all = Vec::new();
    for forwarder in forwarders {
        all.push(Series::new(&places.lab, *forwarder, "_with_generator", traffic));
        if places.alone.is_some() {
            all.push(Series::new(&places.threaded, *forwarder, "_on_own_processor", traffic));
        }
    }
    all
}

/// A forwarder's packets a second in the better of its places.
fn best(series: &[Series<'_>], forwarder: Forwarder) -> f64 {
    let of_it = series.iter().filter(|s| s.forwarder == forwarder);
    of_it.map(|s| median(&s.pps)).fold(0.0, f64::max)
}

/// Has all series take turns; those that `beside` names need fewer rounds.
fn take_turns(
    plan: &Plan,
    series: &mut [Series<'_>],
    beside: impl Fn(Forwarder) -> bool,
) -> Result<(), Failure> {
    for round in 0..plan.pick(2, 5) {
        for s in series.iter_mut().filter(|s| round % 2 == 0 || !beside(s.forwarder)) {
            s.run(plan)?;
        }
    }
    Ok(())
}

/// Adds to a row's raw data what all comparisons have: the series' medians and runs, and how they came about.
fn with_runs(mut raw: Value, datapath: Datapath, series: Vec<Series<'_>>) -> Value {
    let medians: Map<String, Value> =
        series.iter().map(|s| (s.name.clone(), median(&s.pps).round().into())).collect();
    let traffic: Map<String, Value> = series.iter().map(|s| (s.name.clone(), s.traffic.json())).collect();
    let runs: Map<String, Value> = series.into_iter().map(|s| (s.name, s.runs.into())).collect();
    let shared = json!({
        "datapath": datapath.to_string(),
        "pps": medians,
        "traffic": traffic,
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
    let mut series = in_kernel(&places, &[lvsd, Forwarder::Nft, Forwarder::Routed], Traffic::of(FLOWS));
    take_turns(plan, &mut series, |f| f == Forwarder::Routed)?;
    let ratio = best(&series, lvsd) / best(&series, Forwarder::Nft);
    let raw = json!({
        "formula": "median pps of lvsd's runs / median pps of nftables' runs, each in the better of its two places",
        "places": KERNEL_PLACES,
        "offloads": places.lab.offloads()?,
    });
    let raw = with_runs(raw, datapath, series);
    Ok(vec![Row::new(id, ratio, "ratio", bar, raw)])
}

fn rings(plan: &Plan, id: &'static str, datapath: Datapath) -> Result<Vec<Row>, Failure> {
    let places = Places::new()?;
    let lab = &places.lab;
    let traffic = Traffic::of(FLOWS);
    let mut series = vec![
        Series::new(lab, Forwarder::Lvsd(datapath), "", traffic),
        Series::new(lab, Forwarder::Bare(datapath), "", traffic),
    ];
    series.extend(in_kernel(&places, &[Forwarder::Nft, Forwarder::Routed], traffic));
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
