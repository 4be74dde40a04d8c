//! `lvsd`: the director's daemon.
#![forbid(unsafe_code)]

mod logging;
mod options;

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use ipvs_netlink::Backend;
use lvsd::control::state::StateFile;
use lvsd::control::{self, Control, ControlSocket, EverySecond, Prepared, Stop, systemd};
use lvsd::datapath::{self, Core, CoreConfig, Datapath};
use lvsd::engine::{Director, MAX_WORKERS};
use lvsd::handover::{self, ATTEMPT, Predecessor, Successor};
use lvsd::status::Status;
use lvsd::watch::Watch;
use tracing::{error, info};

use options::{Cli, Command, Options, OptionsError, Replay};

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) if !e.use_stderr() => {
            // Help or version; a closed pipe is no failure.
            let _ = e.print();
            return ExitCode::SUCCESS;
        }
        Err(e) => {
            eprintln!("lvsd: {}", options::one_line(&e));
            return ExitCode::from(2);
        }
    };
    logging::init();
    let done = match &cli.command {
        Some(Command::Replay(replay)) => run_replay(replay),
        Some(Command::Upgrade(upgrade)) => run_upgrade(&upgrade.socket),
        None => run_daemon(&cli.options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("lvsd: {e}");
            ExitCode::from(status(&*e))
        }
    }
}

/// Exit status of a failure: 2 where the command line contradicts itself on any machine, as for what clap finds, else 1.
fn status(e: &(dyn Error + Send + Sync + 'static)) -> u8 {
    if e.downcast_ref::<OptionsError>().is_some_and(OptionsError::is_usage) { 2 } else { 1 }
}

/// `lvsd replay`: pcap in, pcap out; what happened to the frames on standard output.
fn run_replay(replay: &Replay) -> Result<(), Failure> {
    let done = control::replay::run(&replay.config, &replay.input, &replay.output)?;
    let s = done.summary;
    let mut out = std::io::stdout().lock();
    writeln!(out, "read {} written {} passed {} dropped {}", s.read, s.written, s.passed, s.dropped)?;
    for counter in Backend::counters(&*done.director).iter().filter(|c| c.value != 0) {
        writeln!(out, "{} {}", counter.name, counter.value)?;
    }
    Ok(())
}

/// `lvsd upgrade`.
fn run_upgrade(socket: &Path) -> Result<(), Failure> {
    let pid = handover::request(socket)?;
    writeln!(std::io::stdout(), "lvsd is process {pid} now")?;
    Ok(())
}

/// From the checks, which change nothing, to the orderly stop.
fn run_daemon(options: &Options) -> Result<(), Failure> {
    // before anybody replaces the file
    let program = std::env::current_exe();
    let predecessor = Predecessor::of_this_process()?;
    options.check()?;
    if predecessor.is_none() {
        ControlSocket::check(&options.socket)?;
    }
    let prepared = Prepared::new()?;
    let config = core_config(options)?;
    let (served, workers) = (config.interfaces.clone(), config.workers);
    let core = Core::new(config, predecessor.is_some())?;
    let mut state = None;
    // The data path first: who finds the socket there finds a director at work.
    let mut datapath = start(options, &core, predecessor, &mut state)?;
    let director = core.director()?;
    let socket = ControlSocket::bind(&options.socket, options.socket_group.as_deref())?;
    let (every_second, status) = watch(workers, &director, datapath.as_ref());
    let control = Control::start(prepared, socket, director, state, every_second)?;
    let serving = match &datapath {
        None if options.interfaces.is_empty() => "control socket only".to_owned(),
        None => format!("control socket only, nothing on {}", options.interfaces.join(" ")),
        Some(d) => {
            format!("{} ({}) on {}, {}", d.summary(), d.kind().1, served.join(" "), threads(workers))
        }
    };
    info!("lvsd {} ready: {serving}; socket {}", env!("CARGO_PKG_VERSION"), options.socket.display());
    systemd::notify("READY=1");
    let mut attempts = 0;
    loop {
        match control.wait(|| datapath.as_ref().is_none_or(|d| d.healthy())) {
            Stop::Upgrade => {
                attempts += 1;
                match (successor(&program, datapath.as_ref()), datapath) {
                    (Ok(successor), Some(datapath)) => return hand_over(successor, datapath, control),
                    (done, d) => {
                        let why = done.err().map(|e| e.to_string()).unwrap_or_default();
                        error!("upgrade: {why}; going on");
                        status.complain(format!("{ATTEMPT}{attempts} failed: {why}"));
                        datapath = d;
                    }
                }
            }
            why => return end(why, datapath, control),
        }
    }
}

/// Starts the data path, if there is to be one, and reads the state file: of a daemon that is still at work when that has ended.
fn start(
    options: &Options,
    core: &Core,
    predecessor: Option<Predecessor>,
    state: &mut Option<StateFile>,
) -> Result<Option<Datapath>, Failure> {
    let mut load = || -> Result<(), Failure> {
        let director = core.director()?;
        *state = options.state_file().map(|path| StateFile::load(path, &*director)).transpose()?;
        Ok(())
    };
    let Some(predecessor) = predecessor else {
        load()?;
        return Ok(if options.control_only { None } else { Some(core.start(&mut || Ok(()))?) });
    };
    let mut predecessor = Some(predecessor);
    let mut take_over = || -> Result<(), Failure> {
        if let Some(predecessor) = predecessor.take() {
            predecessor.take_over(|| -> Result<(), Failure> { Ok(core.take_turn()?) })?;
            core.alone()?;
            load()?;
        }
        Ok(())
    };
    Ok(Some(core.start(&mut take_over)?))
}

/// The next daemon, ready to take over.
fn successor(program: &std::io::Result<PathBuf>, datapath: Option<&Datapath>) -> Result<Successor, Failure> {
    if datapath.and_then(Datapath::pinned).is_none() {
        return Err("no data plane is pinned, which another lvsd could take over; restart it instead".into());
    }
    let program = program.as_ref().map_err(|e| format!("the program's file is not known: {e}"))?;
    let successor = Successor::start(program.clone(), std::env::args_os().skip(1).collect())?;
    info!("upgrade: process {} is getting ready", successor.pid());
    Ok(successor.wait_ready()?)
}

/// Ends for another daemon to go on.
fn hand_over(mut successor: Successor, datapath: Datapath, control: Control) -> Result<(), Failure> {
    systemd::notify(&format!("MAINPID={}", successor.pid()));
    if let Err(e) = control.stop() {
        // there is no way back; the other one will read what there is
        error!("upgrade: {e}");
    }
    successor.go()?;
    datapath.stop();
    info!("upgrade: handing over to process {}", successor.pid());
    successor.done()?;
    Ok(())
}

fn end(why: Stop, datapath: Option<Datapath>, control: Control) -> Result<(), Failure> {
    systemd::notify("STOPPING=1");
    if let Stop::Signal(name) = &why {
        info!("{name}: stopping");
    }
    if let Some(datapath) = datapath {
        if let Some(dir) = datapath.pinned() {
            info!("the data plane pinned at {} goes on; 'lvsctl datapath off' removes it", dir.display());
        }
        datapath.stop();
    }
    let stopped = control.stop();
    match why {
        Stop::Failed(why) => {
            if let Err(e) = stopped {
                error!("{e}");
            }
            Err(why.into())
        }
        Stop::Signal(_) | Stop::Upgrade => Ok(stopped?),
    }
}

fn threads(workers: usize) -> String {
    if workers == 1 { "1 worker".to_owned() } else { format!("{workers} workers") }
}

/// What the control thread does each second: it looks at what the log should be told of.
fn watch(
    workers: usize,
    director: &Arc<Director>,
    datapath: Option<&Datapath>,
) -> (EverySecond, Arc<Status>) {
    let (kind, why) = datapath.map_or(("none", "--control-only"), Datapath::kind);
    let workers = if datapath.is_some() { workers } else { 0 };
    let status = Arc::new(Status::new(kind, why, workers, datapath.map(Datapath::queues)));
    director.surround(Box::new(Arc::clone(&status)));
    let mut watch = Watch::new(Arc::clone(director), Arc::clone(&status));
    (Box::new(move || watch.look(Instant::now())), status)
}

fn core_config(options: &Options) -> Result<CoreConfig, Failure> {
    let interfaces = match (&options.interfaces[..], options.control_only) {
        (_, true) => Vec::new(),
        ([], false) => datapath::default_interfaces()?,
        (named, false) => named.to_vec(),
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = options.workers.map_or(processors, |n| usize::from(n.get())).min(MAX_WORKERS);
    Ok(CoreConfig {
        interfaces,
        max_v4: options.max_connections,
        max_v6: options.max_connections_ipv6(),
        workers,
        rings: options.rings(),
        pins: options.pins(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_worker_is_no_plural() {
        assert_eq!((threads(1), threads(2)), ("1 worker".to_owned(), "2 workers".to_owned()));
    }
}
