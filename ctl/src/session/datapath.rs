//! The data plane that a daemon has left: it is removed without one.

use std::io::Write;
use std::path::Path;

use pinned::PinDir;

use super::Failure;
use crate::error::CliError;

/// Removes what is pinned.
pub(super) fn off(socket: &Path, pin_dir: Option<&Path>, out: &mut dyn Write) -> Result<(), Failure> {
    let dir = pin_dir.map_or_else(|| pinned::default_dir(socket), Path::to_owned);
    let refused = |e: pinned::PinError| CliError::usage(e.to_string());
    match PinDir::find(&dir).map_err(refused)? {
        Some(found) => {
            let done = found.take_down().map_err(refused)?;
            let on = match (&done.interfaces[..], done.elsewhere) {
                (_, true) => "interfaces of another network namespace".to_owned(),
                ([], false) => "no interface".to_owned(),
                (names, false) => names.join(" "),
            };
            writeln!(out, "removed the data plane pinned at {} ({on})", dir.display())?;
        }
        None => writeln!(out, "nothing is pinned at {}", dir.display())?,
    }
    Ok(())
}
