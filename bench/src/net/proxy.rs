//! `connrate.*`, `bulk.haproxy`, `bulk.nginx`: TCP connections a second, and one bulk stream, through the daemon, nftables and two
//! proxies that end the client's connection and make another. No bars: they do different work.
//!
//! Clients and server are threads of this process, on the same processors as what is between them.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::flood::{exchange, with_server};
use super::forwarder::{nft_dnat, remove_nft};
use super::lab::{Lab, Lvsd, SERVER, Serve, VIP, is_there};
use super::process::Running;
use super::{bulk, until};
use crate::report::{Bar, Row, median, spread};
use crate::{Datapath, Failure, Plan};

const PORT: u16 = 80;
const CLIENTS: usize = 8;

/// Who is between clients and server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Between {
    Lvsd(Datapath),
    Nft,
    Haproxy,
    Nginx,
    /// Nobody: the kernel's `ip_forward` to the server's own address.
    Routed,
}

impl Between {
    fn name(self) -> String {
        match self {
            Between::Lvsd(datapath) => datapath.to_string(),
            Between::Nft => "nft".into(),
            Between::Haproxy => "haproxy".into(),
            Between::Nginx => "nginx".into(),
            Between::Routed => "ip_forward".into(),
        }
    }

    fn target(self) -> &'static str {
        if self == Between::Routed { SERVER } else { VIP }
    }

    /// Runs `f` while it is at work.
    fn during<T>(self, lab: &Lab, port: u16, f: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        lab.nothing_attached()?;
        match self {
            Between::Lvsd(datapath) => {
                let daemon = Lvsd::start(lab, &Serve::by(datapath, ("-t", port)))?;
                let result = f()?;
                daemon.process.terminate()?;
                Ok(result)
            }
            Between::Nft => {
                nft_dnat(lab, "tcp", port, false)?;
                let result = f();
                remove_nft(lab)?;
                result
            }
            Between::Haproxy | Between::Nginx => {
                let _proxy = proxy(lab, self, port)?;
                f()
            }
            Between::Routed => f(),
        }
    }
}

/// Starts a proxy of TCP, with as many threads or processes as there are processors; it ends when it is dropped.
fn proxy(lab: &Lab, which: Between, port: u16) -> Result<Running, Failure> {
    let config = lab.directory.join(&format!("{}.conf", which.name()));
    let processors = std::thread::available_parallelism()?;
    let (text, program, words): (String, _, &[&str]) = if which == Between::Haproxy {
        let text = format!(
            "global\n  maxconn 2000\n  nbthread {processors}\ndefaults\n  mode tcp\n  timeout connect 5s\n  \
             timeout client 30s\n  timeout server 30s\n  option splice-auto\n\
             frontend f\n  bind {VIP}:{port}\n  default_backend b\nbackend b\n  server s {SERVER}:{port}\n"
        );
        (text, "haproxy", &["-db", "-f"])
    } else {
        let module = "/usr/lib/nginx/modules/ngx_stream_module.so";
        let text = format!(
            "load_module {module};\ndaemon off;\nmaster_process on;\nworker_processes {processors};\n\
             error_log stderr;\npid {};\nevents {{ worker_connections 4000; }}\n\
             stream {{ server {{ listen {VIP}:{port} reuseport backlog=4096; proxy_pass {SERVER}:{port}; }} }}\n",
            lab.directory.join("nginx.pid").display(),
        );
        (text, "nginx", &["-c"])
    };
    std::fs::write(&config, text)?;
    let mut command = lab.director.command(program);
    command.args(words).arg(&config);
    let mut running = Running::start(&mut command, &which.name(), &lab.directory)?;
    until("the proxy's port", || {
        running.must_run()?;
        let listening = lab.director.run(&format!("ss -Hltn sport = :{port}"))?;
        Ok((!listening.trim().is_empty()).then_some(()))
    })?;
    Ok(running)
}

fn who() -> Result<Vec<Between>, Failure> {
    let mut all = Vec::new();
    for datapath in [Datapath::Afpacket, Datapath::Tc, Datapath::Xdp] {
        if is_there(datapath)? {
            all.push(Between::Lvsd(datapath));
        }
    }
    all.extend([Between::Nft, Between::Haproxy, Between::Nginx, Between::Routed]);
    Ok(all)
}

/// A lab whose client and director, where proxies connect from, do not run out of ports.
fn lab() -> Result<Lab, Failure> {
    let lab = Lab::new()?;
    for net in [&lab.client, &lab.director] {
        net.set("net.ipv4.ip_local_port_range", "1024 65535")?;
        net.set("net.ipv4.tcp_tw_reuse", "1")?;
    }
    Ok(lab)
}

pub(crate) fn connections(plan: &Plan) -> Result<Vec<Row>, Failure> {
    let lab = lab()?;
    let all = who()?;
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); all.len()];
    let time = Duration::from_secs(plan.pick(1, 2));
    with_server(&lab.server, || {
        for _ in 0..plan.pick(1, 3) {
            for (between, rates) in all.iter().zip(&mut rates) {
                let rate = between.during(&lab, PORT, || rate(&lab, between.target(), time));
                rates.push(rate.map_err(|e| format!("{}: {e}", between.name()))?);
            }
        }
        Ok(())
    })?;
    let row = |(between, rates): (&Between, &Vec<f64>)| {
        let raw = json!({
            "formula": "median of the rounds' connections a second", "rounds": rates, "spread": spread(rates),
            "clients": CLIENTS, "seconds_a_round": time.as_secs(),
            "what": "TCP: connect, 16 bytes there and back, close; clients, server and what is between share two processors",
        });
        Row::new(
            format!("connrate.{}", between.name()),
            median(rates).round(),
            "connections/s",
            Bar::Nothing,
            raw,
        )
    };
    Ok(all.iter().zip(&rates).map(row).collect())
}

/// Connections a second that some clients make, one after the other each. One that fails is an error.
fn rate(lab: &Lab, to: &str, time: Duration) -> Result<f64, Failure> {
    let to: SocketAddr = format!("{to}:{PORT}").parse()?;
    let stop = AtomicBool::new(false);
    let begin = Instant::now();
    let work = |number: usize| -> Result<u64, String> {
        lab.client.enter().map_err(|e| e.to_string())?;
        let mut made = 0;
        while !stop.load(Ordering::Relaxed) {
            exchange(to, (number as u128) << 64 | u128::from(made)).map_err(|e| e.to_string())?;
            made += 1;
        }
        Ok(made)
    };
    let counts: Vec<_> = std::thread::scope(|s| {
        let threads: Vec<_> = (0..CLIENTS).map(|n| s.spawn(move || work(n))).collect();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|t| t.join()).collect()
    });
    let mut made = 0;
    for count in counts {
        made += count.map_err(|_| "a client panicked")??;
    }
    Ok(made as f64 / begin.elapsed().as_secs_f64())
}

pub(crate) fn streams(plan: &Plan) -> Result<Vec<Row>, Failure> {
    let lab = lab()?;
    let _server = bulk::server(&lab)?;
    let mut rows = Vec::new();
    for between in [Between::Haproxy, Between::Nginx, Between::Routed] {
        let mut rounds = Vec::new();
        for _ in 0..plan.pick(1, 3) {
            let gbit = between
                .during(&lab, bulk::PORT, || bulk::stream(&lab, between.target(), plan.pick(2, 4)))
                .map_err(|e| format!("{}: {e}", between.name()))?;
            rounds.push(gbit);
        }
        let raw: Value = json!({
            "formula": "median of the rounds", "rounds": rounds, "spread": spread(&rounds),
            "what": "one iperf3 TCP stream, veth with default offloads",
        });
        rows.push(Row::new(format!("bulk.{}", between.name()), median(&rounds), "Gbit/s", Bar::Nothing, raw));
    }
    Ok(rows)
}
