//! `rings.nat.30k/bare`: the daemon on its rings beside a forwarder on the same rings that has no logic.

use std::time::Instant;

use serde_json::{Value, json};

use super::lab::{CLIENT_MAC, D0_MAC, D1_MAC, Lab, Lvsd, SERVER, VIP, processors, sibling};
use super::process::{Running, output};
use super::until;
use crate::report::{Bar, Row, median};
use crate::{Failure, Plan};

const FLOWS: u32 = 30_000;
const PORT: u16 = 53;
/// Nobody's address: what the sink receives is counted and goes no further.
const NOBODY: &str = "02:00:00:00:00:99";

/// Which forwarder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Forwarder {
    Lvsd,
    Bare,
}

pub(crate) fn rings(plan: &Plan) -> Result<Vec<Row>, Failure> {
    let lab = Lab::new()?;
    // frames that XDP redirects to a veth are taken only where NAPI is on
    lab.director.run("ethtool -K d0 gro on")?;
    lab.director.ip(&format!(
        "neigh replace {SERVER} lladdr {NOBODY} dev d1 nud permanent
         neigh replace 198.51.100.10 lladdr {CLIENT_MAC} dev d0 nud permanent
         route add 198.18.0.0/15 via 198.51.100.10"
    ))?;
    let mut runs = Vec::new();
    let mut pps = [Vec::new(), Vec::new()];
    for _ in 0..plan.pick(4, 10) {
        for (forwarder, pps) in [Forwarder::Lvsd, Forwarder::Bare].into_iter().zip(&mut pps) {
            let run = one(&lab, forwarder, plan.pick(3, 5))?;
            pps.push(run["pps"].as_f64().ok_or("a run without a rate")?);
            runs.push(run);
        }
    }
    let (lvsd, bare) = (median(&pps[0]), median(&pps[1]));
    let raw = json!({
        "formula": "median pps of lvsd's runs / median pps of the bare forwarder's runs",
        "lvsd_pps": lvsd,
        "bare_pps": bare,
        "flows": FLOWS,
        "frame_bytes": 60,
        "counted_at": "the sink's interface (veth), at saturation",
        "workers": 1,
        "runs": runs,
    });
    Ok(vec![Row::new("rings.nat.30k/bare", lvsd / bare, "ratio", Bar::AtLeast(0.8), raw)])
}

/// Starts a forwarder and the generator, waits until all flows have passed, and counts for some seconds.
fn one(lab: &Lab, forwarder: Forwarder, seconds: u64) -> Result<Value, Failure> {
    let (generator_cpu, director_cpu) = processors()?;
    let me = sibling("lvsd-bench")?;
    let mut lvsd = None;
    let mut bare = None;
    match forwarder {
        Forwarder::Lvsd => lvsd = Some(Lvsd::start(lab, director_cpu, Some(1), ("-u", PORT))?),
        Forwarder::Bare => {
            let mut c = lab.director.command_on(director_cpu, &me);
            c.args(["bare", "--input", "d0", "--output", "d1", "--dst-mac", NOBODY, "--src-mac", D1_MAC]);
            c.args(["--address", VIP, "--port", &PORT.to_string(), "--seconds", "3600"]);
            bare = Some(Running::start(&mut c, "bare", &lab.directory)?);
        }
    }
    let process = match (&mut lvsd, &mut bare) {
        (Some(l), _) => &mut l.process,
        (_, Some(b)) => b,
        _ => return Err("no forwarder".into()),
    };
    let mut c = lab.client.command_on(generator_cpu, &me);
    c.args(["generate", "--interface", "c0", "--dst-mac", D0_MAC, "--src-mac", CLIENT_MAC, "--dst", VIP]);
    c.args(["--port", &PORT.to_string(), "--flows", &FLOWS.to_string(), "--seconds", "3600"]);
    let mut generator = Running::start(&mut c, "generator", &lab.directory)?;
    let before = received(lab)?;
    until("frames of all flows at the sink", || {
        process.must_run()?;
        generator.must_run()?;
        Ok((received(lab)? > before + 10 * u64::from(FLOWS)).then_some(()))
    })?;
    let (cpu, begin) = (process.cpu()?, Instant::now());
    let mut c = lab.server.command(&me);
    let text = output(c.args(["rate", "--interface", "s0", "--seconds", &seconds.to_string()]))?;
    let (cpu, wall) = ((process.cpu()? - cpu).as_secs_f64(), begin.elapsed().as_secs_f64());
    let counted: Value = serde_json::from_str(&text)?;
    let pps = counted["pps"].as_f64().ok_or("a count without a rate")?;
    process.must_run()?;
    generator.must_run()?;
    drop(generator);
    let mut run = json!({
        "forwarder": if lvsd.is_some() { "lvsd" } else { "bare" },
        "pps": pps, "frames": counted["frames"], "seconds": counted["seconds"],
        "cpu_share": cpu / wall, "packets_per_cpu_second": pps * wall / cpu.max(1e-9),
    });
    if let Some(lvsd) = lvsd {
        let held = lvsd.ctl("-L -n -c")?.lines().filter(|l| l.starts_with("UDP")).count();
        if held != FLOWS as usize {
            return Err(format!("lvsd holds {held} connections, not {FLOWS}").into());
        }
        run["connections"] = held.into();
        lvsd.process.terminate()?;
    }
    Ok(run)
}

/// Frames that the sink's interface has received.
fn received(lab: &Lab) -> Result<u64, Failure> {
    let text = lab.server.run("cat /proc/net/dev")?;
    crate::rate::frames_of(&text, "s0").ok_or_else(|| "interface s0 is gone".into())
}
