//! Subcommands for real servers: they act on this machine, and ask no daemon.

use std::io::Write;

use realserver::{Error, Held, Loaded, XdpKind};

use super::Failure;
use crate::cli::RealServer;
use crate::error::{CliError, EXIT_REFUSED};

/// Carries one out.
pub(super) fn realserver(command: &RealServer, out: &mut dyn Write) -> Result<(), Failure> {
    match command {
        RealServer::Decap { dev, off: false, pin_dir } => {
            let loaded = realserver::load(dev, pin_dir).map_err(refused)?;
            writeln!(out, "{}", told(dev, &loaded))?;
        }
        RealServer::Decap { dev, off: true, pin_dir } => {
            let what = match realserver::unload(dev, pin_dir).map_err(refused)? {
                true => "decapsulator removed",
                false => "no decapsulator was there",
            };
            writeln!(out, "{dev}: {what}")?;
        }
    }
    Ok(())
}

fn told(dev: &str, loaded: &Loaded) -> String {
    let what = if loaded.replaced { "replaced" } else { "loaded" };
    let kind = match loaded.kind {
        XdpKind::Native => "native",
        XdpKind::Generic => "generic",
        XdpKind::Offloaded => "offloaded",
    };
    let addresses: Vec<String> = loaded.addresses.iter().map(ToString::to_string).collect();
    let held = match &loaded.held {
        Held::Pin(path) => format!("pinned at {}", path.display()),
        Held::Interface => "held by the interface".to_owned(),
    };
    format!("{dev}: decapsulator {what} ({kind} XDP, {held}) for {}", addresses.join(", "))
}

fn refused(e: Error) -> CliError {
    CliError { code: EXIT_REFUSED, message: e.to_string(), carries_on: false }
}
