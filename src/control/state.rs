//! The configuration on disk: lines of `ipvsadm -S -n` with thresholds, timeouts, daemons, and settings as comments.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipvs_netlink::{
    Backend, Errno, Saved, Sysctl, parse_line, save_line, save_line_daemon, save_line_dest, save_line_sysctl,
    save_line_timeouts, save_thresholds,
};
use tracing::warn;

use super::error::refusal;
use super::lock::Lock;
use super::{ControlError, Recorder, parent};

/// From a change to the writing of all changes so far: well within the second that is promised.
const DELAY: Duration = Duration::from_millis(500);
/// After a failure.
const RETRY: Duration = Duration::from_secs(10);

/// The file, and what it need not hold.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    /// Keeps other daemons off the file; a lock of the file itself would be lost when it is replaced.
    _lock: Lock,
    /// Settings before the file was read: those that still have these values are not written.
    defaults: Vec<Sysctl>,
    /// Number of the [`Recorder`]'s changes when it was last written.
    saved: Mutex<u64>,
}

impl StateFile {
    /// Reads the file into a back-end that is as it comes up. A missing file is an empty one; its directory is made.
    ///
    /// Until it is dropped, no other daemon can load the same file.
    ///
    /// # Errors
    /// [`ControlError::State`], [`ControlError::StateInUse`], [`ControlError::NotText`], and for the first bad line [`ControlError::Line`] (nothing
    /// is applied) or [`ControlError::Refused`].
    pub fn load(path: &Path, backend: &dyn Backend) -> Result<Self, ControlError> {
        // The file itself, where the path is a link: the lock, and the file that takes its place, are to be beside that.
        let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let path = real.as_path();
        let fail = |what| move |source| ControlError::State { path: path.to_owned(), what, source };
        // A device would be replaced by a file, and a pipe never end.
        if fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir()) {
            let source = io::Error::other("neither a regular file nor missing");
            return Err(fail("can't keep the state there")(source));
        }
        let dir = parent(path);
        if !dir.exists() {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(dir)
                .map_err(fail("can't make its directory"))?;
        }
        let lock = Lock::take(path)?;
        let defaults = backend.sysctls();
        let text = match fs::read(path).map(String::from_utf8) {
            Ok(Ok(text)) => text,
            Ok(Err(e)) => {
                let offset = e.utf8_error().valid_up_to();
                return Err(ControlError::NotText { path: path.to_owned(), offset });
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => String::new(),
            Err(e) => return Err(fail("can't be read")(e)),
        };
        let lines: Vec<(usize, &str, Saved)> = (1..)
            .zip(text.lines())
            .map(|(line, text)| match parse_line(text) {
                Ok(saved) => Ok((line, text, saved)),
                Err(source) => Err(ControlError::Line { path: path.to_owned(), line, source }),
            })
            .collect::<Result<_, _>>()?;
        for (line, text, saved) in lines {
            let applied = match &saved {
                Saved::Nothing => Ok(()),
                Saved::Service(s) => backend.add_service(s),
                Saved::Dest(key, d) => backend.add_dest(key, d),
                Saved::Timeouts(t) => backend.set_timeouts(*t),
                Saved::Daemon(d) => match backend.start_daemon(d) {
                    // it may come later than we do; the services must not wait for it
                    Err(Errno::ENODEV) => {
                        warn!("{}: line {line}: {text}: no such interface, not started", path.display());
                        Ok(())
                    }
                    done => done,
                },
                Saved::Sysctl(s) => backend.set_sysctl(&s.name, &s.value),
            };
            applied.map_err(|errno| ControlError::Refused {
                path: path.to_owned(),
                line,
                text: text.to_owned(),
                why: refusal(backend, &saved, errno),
            })?;
        }
        Ok(Self { path: path.to_owned(), _lock: lock, defaults, saved: Mutex::new(0) })
    }

    /// Writes the file if there were changes since it was last written.
    ///
    /// # Errors
    /// [`ControlError::State`].
    pub fn save_if_changed(&self, recorder: &Recorder) -> Result<(), ControlError> {
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = recorder.changes();
        if *saved != changes {
            self.write(render(recorder, &self.defaults).as_bytes())?;
            *saved = changes;
        }
        Ok(())
    }

    /// Replaces the file, so that at any moment the old or the new one is whole on disk.
    fn write(&self, text: &[u8]) -> Result<(), ControlError> {
        let fail = |what| move |source| ControlError::State { path: self.path.clone(), what, source };
        let mut name = self.path.clone().into_os_string();
        name.push(".new");
        let new = PathBuf::from(name);
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&new)
            .map_err(fail("can't make a new file beside it"))?;
        let written = file.write_all(text).and_then(|()| file.sync_all());
        drop(file);
        let replaced = written.and_then(|()| fs::rename(&new, &self.path));
        if let Err(e) = replaced {
            let _ = fs::remove_file(&new);
            return Err(fail("can't be replaced")(e));
        }
        File::open(parent(&self.path)).and_then(|d| d.sync_all()).map_err(fail("can't sync its directory"))
    }
}

/// Writes changes, many at a time, as long as it is polled.
pub(super) async fn keep_saved(file: &Arc<StateFile>, recorder: &Arc<Recorder>) {
    loop {
        recorder.changed().await;
        tokio::time::sleep(DELAY).await;
        loop {
            // The disk may be slow; clients need not wait for it.
            let (file, recorder) = (file.clone(), recorder.clone());
            match tokio::task::spawn_blocking(move || file.save_if_changed(&recorder)).await {
                Ok(Ok(())) => break,
                Ok(Err(e)) => warn!("{e}; next attempt in {} s", RETRY.as_secs()),
                Err(e) => warn!("saving the state: {e}; next attempt in {} s", RETRY.as_secs()),
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// The whole configuration as text. Destinations come in the order in which they must be added.
fn render(backend: &dyn Backend, defaults: &[Sysctl]) -> String {
    let mut text =
        String::from("# State of lvsd: ipvsadm-restore reads it, too. #sysctl lines are lvsd's own.\n");
    let mut line = |l: String| {
        // Writing to a String can't fail.
        let _ = writeln!(text, "{l}");
    };
    for s in backend.sysctls().iter().filter(|s| !defaults.contains(s)) {
        line(save_line_sysctl(s));
    }
    line(save_line_timeouts(&backend.timeouts()));
    let mut services = backend.services();
    services.sort_by_key(|e| e.service.key);
    for entry in &services {
        let key = &entry.service.key;
        line(save_line(&entry.service));
        // A service that is gone meanwhile has none.
        for e in backend.dests(key).unwrap_or_default().iter().rev() {
            line(save_line_dest(key, &e.dest) + &save_thresholds(&e.dest));
        }
    }
    for d in backend.daemons() {
        line(save_line_daemon(&d));
    }
    text
}
