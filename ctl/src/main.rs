//! `lvsctl`: administers lvsd with ipvsadm's grammar.
#![forbid(unsafe_code)]

use std::io::{BufWriter, stderr, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use lvsctl::error::EXIT_USAGE;
use lvsctl::names::SystemNames;
use lvsctl::{Client, Io, run_as};

/// How long an answer may take before it is given up.
const TIMEOUT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let mut args = Vec::new();
    let mut all = std::env::args_os();
    let name = all.next().map(PathBuf::from).unwrap_or_default();
    let name = name.file_name().and_then(|n| n.to_str()).unwrap_or("lvsctl").to_owned();
    for arg in all {
        match arg.into_string() {
            Ok(arg) => args.push(arg),
            Err(arg) => {
                eprintln!("argument {arg:?} is not UTF-8");
                return status(EXIT_USAGE);
            }
        }
    }
    let mut stdin = stdin().lock();
    let mut stdout = BufWriter::new(stdout().lock());
    let mut stderr = stderr().lock();
    let mut io = Io { stdin: &mut stdin, stdout: &mut stdout, stderr: &mut stderr };
    let code = run_as(&name, &args, &mut io, &SystemNames::default(), &mut |path| {
        Ok(Box::new(ipvs_netlink::Client::connect(path, TIMEOUT)?) as Box<dyn Client>)
    });
    status(code)
}

fn status(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
