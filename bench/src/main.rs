//! `lvsd-bench`: `all` makes the measurements of `make bench`. The other commands are the pieces that these are put together
//! from: each runs in the network namespace it is started in and prints one line of JSON.
#![forbid(unsafe_code)]

mod all;
mod attached;
mod bare;
mod generate;
mod inproc;
mod machine;
mod net;
mod page;
mod rate;
mod report;
mod sink;
mod vm;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

/// Measurements, and the pieces of them.
#[derive(Parser)]
#[command(name = "lvsd-bench")]
enum Command {
    /// Sends UDP frames of many flows out of an interface, as fast as one processor can or at a given rate.
    Generate(generate::Options),
    /// Forwards frames from one interface to another by the same rings and the same classifier as lvsd's, with no logic.
    Bare(bare::Options),
    /// Drops all frames that an interface receives, at XDP.
    Sink(sink::Options),
    /// Counts the frames that an interface receives.
    Rate(rate::Options),
    /// Says whether programs are attached to interfaces, which would spoil a measurement
    Attached(attached::Options),
    /// Holds NAT connections and says what memory that takes.
    Hold(inproc::HoldOptions),
    /// Writes tables and plots of the results into the page of figures
    Page(page::Options),
    /// Puts what was counted in a VM among the results
    Vm(vm::Options),
    /// Makes all measurements, or those named, into a file of results.
    All(all::Options),
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Generate(options) => generate::run(&options),
        Command::Bare(options) => bare::run(&options),
        Command::Sink(options) => sink::run(&options),
        Command::Rate(options) => rate::run(&options),
        Command::Attached(options) => attached::run(&options),
        Command::Hold(options) => inproc::hold(&options),
        Command::Page(options) => page::run(&options),
        Command::Vm(options) => vm::run(&options),
        Command::All(options) => return all::run(&options),
    };
    match done {
        Ok(result) => {
            println!("{result}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("lvsd-bench: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Why a measurement could not be made.
type Failure = Box<dyn std::error::Error>;

/// A data path that the daemon can serve by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Datapath {
    Afpacket,
    Afxdp,
    Tc,
    Xdp,
}

impl std::fmt::Display for Datapath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Datapath::Afpacket => "afpacket",
            Datapath::Afxdp => "afxdp",
            Datapath::Tc => "tc",
            Datapath::Xdp => "xdp",
        })
    }
}

/// How much time measurements may take.
#[derive(Clone, Debug)]
struct Plan {
    quick: bool,
    begin: Instant,
    /// What rows' names are to begin with; nothing: all rows.
    only: Vec<String>,
}

/// After this long nothing is begun that can be left out, so that all stays within 40 minutes.
const LATE: Duration = Duration::from_secs(33 * 60);

impl Plan {
    /// The first number in a hurry, else the second.
    fn pick<T>(&self, quick: T, thorough: T) -> T {
        if self.quick { quick } else { thorough }
    }

    fn wants(&self, id: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|o| id.starts_with(o.as_str()))
    }

    fn is_late(&self) -> bool {
        self.begin.elapsed() > LATE
    }
}

/// A MAC address as it is written.
#[derive(Clone, Copy, Debug)]
struct Mac([u8; 6]);

impl std::str::FromStr for Mac {
    type Err = String;
    fn from_str(text: &str) -> Result<Mac, String> {
        let mut mac = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut mac {
            let part = parts.next().unwrap_or_default();
            *byte = u8::from_str_radix(part, 16).map_err(|_| format!("{text}: not a MAC address"))?;
        }
        if parts.next().is_some() { Err(format!("{text}: not a MAC address")) } else { Ok(Mac(mac)) }
    }
}
