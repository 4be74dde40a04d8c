//! `newconn*/nft`: how many new connections a second, beside nftables. Each run offers exactly one million packets, each of a
//! flow of its own, at even distances, to a director that has just been made.
//!
//! Two figures each: the most that came out at any rate, which the row compares; and the highest rate at which at most one packet in
//! a thousand is lost, which a busy machine may not have.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::forwarder::{Active, Forwarder, Traffic};
use super::lab::{Lab, processors};
use super::process::{Net, Running};
use super::until_within;
use crate::machine::Usage;
use crate::report::{Bar, Row, median};
use crate::{Datapath, Failure, Plan};

const PACKETS: u32 = 1_000_000;
/// What both tables can hold.
const ROOM: u32 = 1 << 21;
/// Loss that still counts as none.
const LOSS: f64 = 0.001;
/// The first rate that is offered, packets a second.
const FIRST: f64 = 500_000.0;
/// The lowest: whoever loses packets at this rate is kept from working by something else.
const LEAST: f64 = 150_000.0;
/// From one rate to the next, until both a good and a bad one are known.
const STEP: f64 = 1.4;
/// How close the highest good and the lowest bad rate must come.
const CLOSE: f64 = 1.06;
/// Rates tried in one search, in a hurry and else.
const TRIES: [usize; 2] = [4, 7];
/// How often the sink is looked at.
const LOOK: Duration = Duration::from_millis(4);
/// How long the sink must stand still to have had everything.
const STILL: Duration = Duration::from_millis(150);
const LONGEST: Duration = Duration::from_secs(60);

pub(crate) fn afpacket(plan: &Plan) -> Result<Vec<Row>, Failure> {
    newconn(plan, "newconn/nft", Datapath::Afpacket)
}

pub(crate) fn afxdp(plan: &Plan) -> Result<Vec<Row>, Failure> {
    newconn(plan, "newconn.afxdp/nft", Datapath::Afxdp)
}

/// One offered rate, and what came of it.
#[derive(Clone, Debug)]
struct Run {
    offered: f64,
    delivered: f64,
    loss: f64,
    all: Value,
}

/// Searches with one forwarder in one place.
#[derive(Default)]
struct Series {
    lossless: Vec<f64>,
    saturated: Vec<f64>,
    runs: Vec<Value>,
}

fn newconn(plan: &Plan, id: &'static str, datapath: Datapath) -> Result<Vec<Row>, Failure> {
    let _room = ConntrackRoom::make(ROOM)?;
    let alone = processors()?.1;
    let mut kinds = vec![
        ("lvsd", Forwarder::Lvsd(datapath), None),
        ("nft_with_generator", Forwarder::Nft, None),
        ("nft_on_own_processor", Forwarder::Nft, alone),
    ];
    kinds.truncate(if alone.is_some() { 3 } else { 2 });
    let mut series: Vec<Series> = kinds.iter().map(|_| Series::default()).collect();
    for _ in 0..if datapath == Datapath::Afpacket { plan.pick(1, 2) } else { 1 } {
        for ((name, forwarder, own), series) in kinds.iter().zip(&mut series) {
            let patience = Duration::from_secs(plan.pick(20, 60));
            search(*forwarder, *own, plan.pick(TRIES[0], TRIES[1]), patience, series)
                .map_err(|e| format!("{name}: {e}"))?;
        }
    }
    let best = |of: fn(&Series) -> &Vec<f64>| series[1..].iter().map(|s| median(of(s))).fold(0.0, f64::max);
    let (lvsd, nft) = (median(&series[0].saturated), best(|s| &s.saturated));
    let each: serde_json::Map<_, _> = kinds
        .iter()
        .zip(&series)
        .map(|((name, ..), s)| {
            let of = json!({"lossless_pps": s.lossless, "saturated_pps": s.saturated, "runs": s.runs});
            ((*name).to_owned(), of)
        })
        .collect();
    let raw = json!({
        "formula": "lvsd_saturated_pps / nft_saturated_pps: medians of the searches, nft's in its better place",
        "datapath": datapath.to_string(),
        "lvsd_saturated_pps": lvsd.round(),
        "nft_saturated_pps": nft.round(),
        "lvsd_lossless_pps": median(&series[0].lossless).round(),
        "nft_lossless_pps": best(|s| &s.lossless).round(),
        "packets_a_run": PACKETS,
        "flows_a_run": PACKETS,
        "lossless": "highest rate with at most 0.1 % of the packets lost; 0: none was found",
        "saturated": "most packets a second at the sink, at whatever rate was offered",
        "table": {"lvsd_max_connections": ROOM, "nf_conntrack_max": ROOM, "nf_conntrack_buckets": ROOM},
        "workers": 1,
        "frame_bytes": 60,
        "series": each,
    });
    Ok(vec![Row::new(id, lvsd / nft, "ratio", Bar::AtLeast(1.0), raw)])
}

/// Offers rates, nearer and nearer to the highest one without loss.
fn search(
    forwarder: Forwarder,
    own: Option<usize>,
    tries: usize,
    patience: Duration,
    series: &mut Series,
) -> Result<(), Failure> {
    let end = Instant::now() + patience;
    let (mut good, mut bad): (Option<f64>, Option<f64>) = (None, None);
    let mut most = 0.0f64;
    let mut rate = FIRST;
    for _ in 0..tries {
        if Instant::now() > end + patience {
            break;
        }
        let mut run = one(forwarder, own, rate)?;
        most = most.max(run.delivered);
        if run.loss > LOSS && Instant::now() < end {
            // something else may have had the processor just then
            series.runs.push(run.all);
            run = one(forwarder, own, rate)?;
        }
        most = most.max(run.delivered);
        series.runs.push(run.all);
        if run.loss <= LOSS {
            // what was really offered: who was kept from sending does not make up for it
            good = Some(good.map_or(run.offered, |g| g.max(run.offered)));
            // at a rate that the generator can't reach there is nothing more to find
            if run.offered < rate * 0.9 {
                break;
            }
        } else {
            bad = Some(bad.map_or(rate, |b| b.min(rate)));
        }
        if Instant::now() >= end {
            break;
        }
        rate = match (good, bad) {
            (Some(g), Some(b)) if b <= g * CLOSE => break,
            (Some(g), Some(b)) => (g * b).sqrt(),
            (Some(g), None) => g.max(rate) * STEP,
            (None, _) if rate > LEAST => rate / STEP,
            (None, _) => break,
        };
    }
    series.lossless.extend(good);
    series.saturated.push(most);
    Ok(())
}

/// One million packets at a rate, through a director and a network of their own.
fn one(forwarder: Forwarder, own: Option<usize>, rate: f64) -> Result<Run, Failure> {
    let lab = Lab::for_frames()?;
    if let Some(cpu) = own {
        lab.receive_on(cpu)?;
    }
    let mut active = Active::start(&lab, forwarder, &Traffic::of(PACKETS), Some(ROOM))?;
    let before = Usage::now()?;
    let mut c = lab.generator(forwarder.target(false), &Traffic::of(PACKETS))?;
    c.args(["--count", &PACKETS.to_string(), "--rate", &(rate as u64).to_string(), "--seconds", "60"]);
    let (sent, frames, end) = watched(&lab.server, || {
        let mut generator = Running::start(&mut c, "generator", &lab.directory)?;
        until_within(LONGEST, "the generator", || {
            active.must_run()?;
            generator.ended()
        })?;
        generator.finish()
    })?;
    let sent: Value = serde_json::from_str(&sent)?;
    let number = |name: &str| sent[name].as_f64().ok_or_else(|| format!("the generator gave no {name}"));
    if number("sent")? != f64::from(PACKETS) {
        return Err(format!("the generator sent {} packets, not {PACKETS}", sent["sent"]).into());
    }
    let usage = Usage::now()?.since(&before);
    let (offered, seconds) = (number("pps")?, number("seconds")?);
    let received = end.saturating_sub(number("first_ns")? as u64) as f64 / 1e9;
    let delivered = frames as f64 / received.max(seconds);
    let loss = 1.0 - frames as f64 / f64::from(PACKETS);
    let all = json!({
        "asked_pps": rate.round(), "offered_pps": offered.round(), "delivered_pps": delivered.round(), "loss": loss,
        "sent": PACKETS, "received": frames, "seconds_of_sending": seconds, "seconds_until_the_last": received,
        "connections": active.connections()?, "losses": active.losses()?, "machine": usage.json(),
    });
    active.stop()?;
    Ok(Run { offered, delivered, loss, all })
}

/// Runs `f` while the sink's interface is watched: what `f` gives, the frames that arrived, and when the last did (nanoseconds
/// of the monotonic clock).
fn watched<T>(server: &Net, f: impl FnOnce() -> Result<T, Failure>) -> Result<(T, u64, u64), Failure> {
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        let (ready, begun) = std::sync::mpsc::channel();
        let watcher = s.spawn(|| watch(server, &done, ready).map_err(|e| e.to_string()));
        // an error of the watcher hangs up, and is met below
        let result = begun.recv().map_err(Failure::from).and_then(|()| f());
        done.store(true, Ordering::Release);
        let (frames, end) = match watcher.join() {
            Ok(seen) => seen?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        Ok((result?, frames, end))
    })
}

fn watch(server: &Net, done: &AtomicBool, ready: std::sync::mpsc::Sender<()>) -> Result<(u64, u64), Failure> {
    server.enter()?;
    let first = crate::rate::received("s0")?;
    ready.send(())?;
    let (mut last, mut changed, mut at) = (first, Instant::now(), monotonic_ns());
    let limit = Instant::now() + 2 * LONGEST;
    while Instant::now() < limit {
        let frames = crate::rate::received("s0")?;
        if frames != last {
            (last, changed, at) = (frames, Instant::now(), monotonic_ns());
        } else if done.load(Ordering::Acquire) && changed.elapsed() >= STILL {
            return Ok((last - first, at));
        }
        std::thread::sleep(LOOK);
    }
    Err("the sink does not come to rest".into())
}

fn monotonic_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Room in the kernel's connection tracking, which only the first network namespace can make; taken back on drop.
pub(super) struct ConntrackRoom {
    before: [(&'static str, String); 2],
}

impl ConntrackRoom {
    const FILES: [&'static str; 2] =
        ["/proc/sys/net/netfilter/nf_conntrack_buckets", "/proc/sys/net/netfilter/nf_conntrack_max"];

    pub(super) fn make(room: u32) -> Result<ConntrackRoom, Failure> {
        let read = |file: &'static str| std::fs::read_to_string(file).map(|text| (file, text));
        let failed = |e: std::io::Error| {
            format!(
                "{}: {e}; run the bench in the machine's first network namespace",
                ConntrackRoom::FILES[1]
            )
        };
        let before =
            [read(ConntrackRoom::FILES[0]).map_err(failed)?, read(ConntrackRoom::FILES[1]).map_err(failed)?];
        let kept = ConntrackRoom { before };
        for (file, text) in &kept.before {
            let now: u64 = text.trim().parse()?;
            if now < u64::from(room) {
                std::fs::write(file, room.to_string()).map_err(failed)?;
            }
        }
        Ok(kept)
    }
}

impl Drop for ConntrackRoom {
    fn drop(&mut self) {
        for (file, text) in &self.before {
            if let Err(e) = std::fs::write(file, text) {
                eprintln!("lvsd-bench: {file} could not be set back to {}: {e}", text.trim());
            }
        }
    }
}
