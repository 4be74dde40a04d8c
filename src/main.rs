//! `lvsd`: the director's daemon.
#![forbid(unsafe_code)]

mod logging;
mod options;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use ipvs_netlink::Backend;
use ipvs_netlink::memory::Memory;
use lvsd::control::state::StateFile;
use lvsd::control::{Control, ControlSocket, Stop, Stopper, systemd};
use tracing::{error, info};

use options::{Cli, Command, Options, Replay};

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
        None => run_daemon(&cli.options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("lvsd: {e}");
            ExitCode::from(1)
        }
    }
}

/// `lvsd replay`: pcap in, pcap out.
fn run_replay(replay: &Replay) -> Result<(), Failure> {
    // Call point of `lvsd::engine::replay`.
    Err(format!("replay --in {}: not available in this version", replay.input.display()).into())
}

/// From the checks, which change nothing, to the orderly stop.
fn run_daemon(options: &Options) -> Result<(), Failure> {
    options.check()?;
    let socket = ControlSocket::bind(&options.socket, options.socket_group.as_deref())?;
    let director = director(options)?;
    let state = match options.state_file() {
        Some(path) => Some(StateFile::load(path, &*director)?),
        None => None,
    };
    let control = Control::start(socket, director.clone(), state)?;
    let datapath = if options.control_only {
        Ok(None)
    } else {
        Datapath::start(options, &director, control.stopper()).map(Some)
    };
    let datapath = match datapath {
        Ok(datapath) => datapath,
        Err(e) => {
            if let Err(stop) = control.stop() {
                error!("{stop}");
            }
            return Err(e);
        }
    };
    info!(socket = %options.socket.display(), control_only = options.control_only, "ready");
    systemd::notify("READY=1");
    let why = control.wait();
    systemd::notify("STOPPING=1");
    if let Stop::Signal(name) = &why {
        info!("{name}: stopping");
    }
    if let Some(datapath) = datapath {
        datapath.stop();
    }
    let stopped = control.stop();
    match why {
        Stop::Signal(_) => Ok(stopped?),
        Stop::Failed(why) => {
            if let Err(e) = stopped {
                error!("{e}");
            }
            Err(why.into())
        }
    }
}

/// What the control socket administers.
fn director(_options: &Options) -> Result<Arc<dyn Backend>, Failure> {
    Ok(Arc::new(Memory::default()))
}

/// The running data path.
struct Datapath;

impl Datapath {
    fn start(options: &Options, _director: &Arc<dyn Backend>, _stopper: Stopper) -> Result<Self, Failure> {
        Err(format!("--datapath {}: not available in this version; use --control-only", options.datapath)
            .into())
    }

    fn stop(self) {}
}
