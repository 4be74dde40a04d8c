//! `rtt.*.added`: what the daemon adds to a round trip, beside the kernel's own forwarding; and what nftables adds.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use super::forwarder::{nft_dnat, remove_nft};
use super::lab::{Lab, Lvsd, SERVER, Serve, VIP};
use super::process::Net;
use crate::report::{Bar, Row, median, percentile};
use crate::{Datapath, Failure, Plan};

const PORT: u16 = 7;
/// Round trips that are not counted: neighbours are found, caches filled.
const WARM_UP: usize = 200;
/// How long an answer may take before it counts as lost.
const LOST: Duration = Duration::from_secs(1);
/// Most losses in one round.
const LOSSES: usize = 10;

pub(crate) fn afpacket(plan: &Plan) -> Result<Vec<Row>, Failure> {
    rtt(plan, "rtt.rings.added", Bar::AtMost(30.0), Datapath::Afpacket)
}

pub(crate) fn afxdp(plan: &Plan) -> Result<Vec<Row>, Failure> {
    rtt(plan, "rtt.afxdp.added", Bar::AtMost(30.0), Datapath::Afxdp)
}

pub(crate) fn tc(plan: &Plan) -> Result<Vec<Row>, Failure> {
    rtt(plan, "rtt.tier.added", Bar::AtMost(5.0), Datapath::Tc)
}

fn rtt(plan: &Plan, id: &'static str, bar: Bar, datapath: Datapath) -> Result<Vec<Row>, Failure> {
    let lab = Lab::new()?;
    let trips = plan.pick(3000, 10_000);
    let (mut lvsd, mut plain, mut nft) = (Vec::new(), Vec::new(), Vec::new());
    with_echo(&lab.server, || {
        for _ in 0..plan.pick(4, 9) {
            plain.push(round(&lab.client, SERVER, trips)?);
            lab.nothing_attached()?;
            let daemon = Lvsd::start(&lab, &Serve::by(datapath, ("-u", PORT)))?;
            lvsd.push(round(&lab.client, VIP, trips)?);
            daemon.process.terminate()?;
            nft_dnat(&lab, "udp", PORT, false)?;
            nft.push(round(&lab.client, VIP, trips)?);
            remove_nft(&lab)?;
        }
        Ok(())
    })?;
    let p = |rounds: &[Vec<f64>], percent| -> Vec<f64> {
        rounds.iter().map(|r| percentile(r, percent)).collect()
    };
    let (with, without, by_nft) = (p(&lvsd, 50), p(&plain, 50), p(&nft, 50));
    let added = median(&with) - median(&without);
    let raw = json!({
        "formula": "median of the rounds' p50 by lvsd - median of the rounds' p50 by ip_forward",
        "datapath": datapath.to_string(),
        "lvsd_p50_us": median(&with),
        "nft_p50_us": median(&by_nft),
        "nft_added_us": median(&by_nft) - median(&without),
        "nft_p99_us": median(&p(&nft, 99)),
        "ip_forward_p50_us": median(&without),
        "lvsd_p99_us": median(&p(&lvsd, 99)),
        "ip_forward_p99_us": median(&p(&plain, 99)),
        "rounds": {"lvsd_p50": with, "ip_forward_p50": without, "nft_p50": by_nft},
        "offloads": lab.offloads()?,
        "trips_a_round": trips,
        "what": "UDP, 16 bytes, one at a time, both directions through the director",
    });
    Ok(vec![Row::new(id, added, "us", bar, raw)])
}

/// Runs `f` while the server answers what it gets.
fn with_echo(server: &Net, f: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let (ready, bound) = std::sync::mpsc::channel();
        let stop = &stop;
        s.spawn(move || {
            let socket = echo_socket(server);
            let sent = socket.as_ref().map(|_| ()).map_err(|e| e.to_string());
            // The other end waits for just this message.
            let _ = ready.send(sent);
            let Ok(socket) = socket else { return };
            let mut buf = [0; 2048];
            while !stop.load(Ordering::Relaxed) {
                // A time-out is only there to look at `stop`; an answer that is lost is counted by the client.
                if let Ok((n, from)) = socket.recv_from(&mut buf) {
                    let _ = socket.send_to(&buf[..n], from);
                }
            }
        });
        let done = match bound.recv() {
            Ok(Ok(())) => f(),
            Ok(Err(e)) => Err(format!("the echo server: {e}").into()),
            Err(e) => Err(e.into()),
        };
        stop.store(true, Ordering::Relaxed);
        done
    })
}

fn echo_socket(server: &Net) -> Result<UdpSocket, Failure> {
    server.enter()?;
    let socket = UdpSocket::bind((SERVER, PORT))?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    Ok(socket)
}

/// Round-trip times in microseconds.
fn round(client: &Net, to: &str, trips: usize) -> Result<Vec<f64>, Failure> {
    let inside = || -> Result<Vec<f64>, Failure> {
        client.enter()?;
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(LOST))?;
        socket.connect((to, PORT))?;
        let mut times = Vec::with_capacity(trips);
        let (mut losses, mut buf) = (0, [0; 64]);
        for n in 0..WARM_UP + trips {
            let message = (n as u128).to_be_bytes();
            let begin = Instant::now();
            socket.send(&message)?;
            loop {
                match socket.recv(&mut buf) {
                    Ok(len) if buf[..len] == message => {
                        if n >= WARM_UP {
                            times.push(begin.elapsed().as_nanos() as f64 / 1000.0);
                        }
                        break;
                    }
                    // an answer that came too late
                    Ok(_) => {}
                    Err(_) if losses < LOSSES => {
                        losses += 1;
                        break;
                    }
                    Err(e) => return Err(format!("{LOSSES} answers of {to} were lost: {e}").into()),
                }
            }
        }
        Ok(times)
    };
    // An error travels as text: the other kind can't leave its thread.
    let joined = std::thread::scope(|s| s.spawn(|| inside().map_err(|e| e.to_string())).join());
    match joined {
        Ok(times) => Ok(times?),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
