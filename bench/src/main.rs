//! `lvsd-bench`: the pieces that benchmarks are put together from. Each runs in the network namespace it is started in
//! and prints one line of JSON.
#![forbid(unsafe_code)]

mod bare;
mod generate;
mod rate;

use std::process::ExitCode;

use clap::Parser;

/// Pieces of benchmarks.
#[derive(Parser)]
#[command(name = "lvsd-bench")]
enum Command {
    /// Sends 60-byte UDP frames of many flows out of an interface, as fast as one processor can or at a given rate.
    Generate(generate::Options),
    /// Forwards frames from one interface to another by the same rings and the same classifier as lvsd's, with no logic.
    Bare(bare::Options),
    /// Counts the frames that an interface receives.
    Rate(rate::Options),
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Generate(options) => generate::run(&options),
        Command::Bare(options) => bare::run(&options),
        Command::Rate(options) => rate::run(&options),
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
