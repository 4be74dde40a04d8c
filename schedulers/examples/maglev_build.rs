//! Prints how long it takes to build `maglev`'s table for 1000 servers of equal weight, for both sizes of the paper:
//! the median, the fastest and the slowest of several builds, in milliseconds, allocation and hashing of the servers included.
//!
//! `cargo run --release -p schedulers --example maglev_build [BUILDS]`
#![forbid(unsafe_code)]

use schedulers::{Load, Options, Servers, create};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const SERVERS: usize = 1000;
/// (M, the paper's time in ms).
const SIZES: [(u32, f64); 2] = [(65_537, 1.8), (655_373, 22.9)];

struct Pool;

impl Servers for Pool {
    fn len(&self) -> usize {
        SERVERS
    }

    fn load(&self, _index: usize) -> Load {
        Load { weight: 1, active: 0, inactive: 0, overloaded: false }
    }

    fn identity(&self, index: usize) -> (IpAddr, u16) {
        (IpAddr::V4(Ipv4Addr::from_bits(0x0a01_0000 + index as u32)), 80)
    }
}

fn main() -> ExitCode {
    let builds = match std::env::args().nth(1).map(|word| word.parse::<usize>()) {
        None => 41,
        Some(Ok(builds @ 1..=100_000)) => builds,
        Some(_) => {
            eprintln!("maglev_build: BUILDS must be a number from 1 to 100000");
            return ExitCode::from(2);
        }
    };
    for (size, paper) in SIZES {
        let options = Options { table_size: Some(size), ..Options::default() };
        let mut times = Vec::with_capacity(builds);
        for _ in 0..builds {
            let start = Instant::now();
            let scheduler = create("maglev", &options, black_box(&Pool));
            times.push(start.elapsed());
            if let Err(error) = black_box(scheduler) {
                eprintln!("maglev_build: {error}");
                return ExitCode::FAILURE;
            }
        }
        times.sort();
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "maglev.{size} servers={SERVERS} builds={builds} median_ms={:.3} min_ms={:.3} max_ms={:.3} paper_ms={paper}",
            ms(times[builds / 2]),
            ms(times[0]),
            ms(times[builds - 1])
        );
    }
    ExitCode::SUCCESS
}
