//! The lock that keeps two daemons off one state file.
//!
//! It is an advisory lock (`flock(2)`) on `PATH.lock` beside the file: the state is replaced by rename, which would leave a
//! lock of the file itself on what was replaced. The kernel gives it up with the process, so a killed daemon's left-over
//! stops nobody.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::ControlError;

/// How often we try again when a daemon that is stopping takes the file away between our opening and locking it.
const TRIES: usize = 16;
/// How long we wait for an owner that is just ending: a killed process needs a moment.
const PATIENCE: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(20);

/// Held as long as it lives; its file goes with it.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Locks the state file `state`, whose directory must exist.
    ///
    /// # Errors
    /// [`ControlError::StateInUse`], [`ControlError::State`].
    pub(super) fn take(state: &Path) -> Result<Lock, ControlError> {
        let fail = |source| ControlError::State {
            path: state.to_owned(),
            what: "can't lock it by a file beside it (PATH.lock)",
            source,
        };
        let mut name = state.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        let since = Instant::now();
        let mut tries = 0;
        while tries < TRIES {
            tries += 1;
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)
                .map_err(fail)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) if since.elapsed() < PATIENCE => {
                    tries -= 1;
                    std::thread::sleep(STEP);
                    continue;
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(ControlError::StateInUse { path: state.to_owned(), pid: owner(&mut file) });
                }
                Err(e) => return Err(fail(e.into())),
            }
            if is_at(&file, &path) {
                // The number is for messages alone: without it the lock holds as well.
                let _ = note_owner(&mut file);
                return Ok(Lock { path, _file: file });
            }
        }
        Err(fail(io::ErrorKind::ResourceBusy.into()))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is still locked: whoever opened it before finds it gone from its place and opens anew.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether the path still names the file.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(own), Ok(there)) => (own.dev(), own.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

fn note_owner(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn owner(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
