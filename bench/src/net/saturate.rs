//! One run: a forwarder, the generator as fast as it goes, and what arrives.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::forwarder::{Active, Forwarder, Traffic};
use super::lab::{Lab, sibling};
use super::process::{Running, output};
use super::{until, until_within};
use crate::Failure;
use crate::machine::Usage;

/// Flows up to here are all made within a moment, even at saturation.
const FEW: u32 = 100_000;
/// New flows a second that everybody can take, and how often all are offered until they are there.
const CALM: u32 = 250_000;
const PASSES: u32 = 6;
/// Share of the flows that must be there; the rest were lost on their way.
const THERE: f64 = 0.999;
/// How long a tier may take to have nearly all packets, and what nearly is.
const SETTLED: Duration = Duration::from_secs(30);
const NEARLY: f64 = 0.99;
const WINDOW: Duration = Duration::from_millis(500);

/// Packets that the tier has forwarded, of all that arrived.
#[derive(Clone, Copy)]
struct Seen {
    tier: Option<u64>,
    sink: u64,
}

impl Seen {
    fn now(lab: &Lab, active: &Active<'_>) -> Result<Seen, Failure> {
        Ok(Seen { tier: active.tier()?, sink: received(lab)? })
    }

    /// Share of the tier since an earlier look; none where there is none.
    fn share(&self, earlier: &Seen) -> Option<f64> {
        let (tier, before) = self.tier.zip(earlier.tier)?;
        Some(((tier - before) as f64 / (self.sink - earlier.sink).max(1) as f64).min(1.0))
    }
}

/// Starts a forwarder and the generator, waits until all flows have passed (with a tier: by it), and counts for some seconds.
pub(super) fn saturate(
    lab: &Lab,
    forwarder: Forwarder,
    traffic: &Traffic,
    seconds: u64,
) -> Result<Value, Failure> {
    let mut active = Active::start(lab, forwarder, traffic, None)?;
    if traffic.flows > FEW {
        acquaint(lab, forwarder, traffic, &mut active)?;
    }
    let mut c = lab.generator(forwarder.target(traffic.v6), traffic)?;
    let mut generator = Running::start(c.args(["--seconds", "3600"]), "generator", &lab.directory)?;
    let before = received(lab)?;
    until("frames of all flows at the sink", || {
        active.must_run()?;
        generator.must_run()?;
        Ok((received(lab)? > before + 10 * u64::from(traffic.flows.min(FEW))).then_some(()))
    })?;
    settle(lab, traffic, &active)?;
    let (usage, cpu, seen) = (Usage::now()?, active.cpu()?, Seen::now(lab, &active)?);
    let begin = Instant::now();
    let mut c = lab.server.command(&sibling("lvsd-bench")?);
    c.args(["rate", "--interface", "s0", "--seconds", &seconds.to_string()]);
    if active.sink.is_some() {
        c.arg("--dropped-at-xdp");
    }
    let text = output(&mut c)?;
    let (wall, used) = (begin.elapsed().as_secs_f64(), Usage::now()?.since(&usage));
    let cpu = active.cpu()?.zip(cpu).map(|(after, before)| (after - before).as_secs_f64());
    let tier_share = Seen::now(lab, &active)?.share(&seen);
    let counted: Value = serde_json::from_str(&text)?;
    let pps = counted["pps"].as_f64().filter(|n| *n > 0.0).ok_or("no frame arrived while it was counted")?;
    active.must_run()?;
    generator.must_run()?;
    drop(generator);
    let connections = known(&active, forwarder, traffic)?;
    let run = json!({
        "pps": pps, "frames": counted["frames"], "seconds": counted["seconds"], "connections": connections,
        "tier_share": tier_share,
        "process_cpu_share": cpu.map(|c| c / wall),
        "packets_per_cpu_second_of_process": cpu.map(|c| pps * wall / c.max(1e-9)),
        "packets_per_cpu_second_of_machine_with_generator": pps * wall / used.busy.max(1e-9),
        "machine": used.json(),
        "losses": active.losses()?,
    });
    active.stop()?;
    Ok(run)
}

/// Connections at the end: each flow is one, and the daemon's table holds nothing else.
fn known(active: &Active<'_>, forwarder: Forwarder, traffic: &Traffic) -> Result<Option<u64>, Failure> {
    let connections = active.connections()?;
    let (flows, least) = (u64::from(traffic.flows), enough(traffic));
    if let Some(n) = connections
        && (n < least || active.lvsd.is_some() && n > flows)
    {
        return Err(format!("{} holds {n} connections, not {flows}", forwarder.name()).into());
    }
    Ok(connections)
}

fn enough(traffic: &Traffic) -> u64 {
    (f64::from(traffic.flows) * THERE) as u64
}

/// Offers one packet of each flow, slowly, until they are known.
fn acquaint(
    lab: &Lab,
    forwarder: Forwarder,
    traffic: &Traffic,
    active: &mut Active<'_>,
) -> Result<(), Failure> {
    for _ in 0..PASSES {
        let mut c = lab.generator(forwarder.target(traffic.v6), traffic)?;
        c.args(["--count", &traffic.flows.to_string(), "--rate", &CALM.to_string(), "--seconds", "600"]);
        let mut generator = Running::start(&mut c, "generator", &lab.directory)?;
        until_within(Duration::from_secs(600), "a packet of each flow", || {
            active.must_run()?;
            generator.ended()
        })?;
        generator.finish()?;
        if active.connections()?.is_none_or(|n| n >= enough(traffic)) {
            return Ok(());
        }
    }
    Err(format!("{} did not make {} connections in {PASSES} passes", forwarder.name(), traffic.flows).into())
}

/// Waits until the tier, if there is one, has nearly all packets; if that takes too long it is measured as it is, and the run's
/// `tier_share` says so.
fn settle(lab: &Lab, traffic: &Traffic, active: &Active<'_>) -> Result<(), Failure> {
    let end = Instant::now() + SETTLED;
    // many flows take a while to come round
    let least = Duration::from_secs(u64::from(traffic.flows) / 1_000_000);
    let begin = Instant::now();
    let mut seen = Seen::now(lab, active)?;
    while seen.tier.is_some() && Instant::now() < end {
        let next = Instant::now() + WINDOW;
        until("the next look", || Ok((Instant::now() >= next).then_some(())))?;
        let now = Seen::now(lab, active)?;
        if now.share(&seen).is_some_and(|s| s >= NEARLY) && begin.elapsed() >= least {
            break;
        }
        seen = now;
    }
    Ok(())
}

/// Frames that the sink's interface has received.
fn received(lab: &Lab) -> Result<u64, Failure> {
    let text = lab.server.run("cat /proc/net/dev")?;
    crate::rate::frames_of(&text, "s0").ok_or_else(|| "interface s0 is gone".into())
}
