//! The record of what set-up has changed, from which it is taken back: a text file, a step a line.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use crate::error::Error;
use crate::step::Step;

/// The first line.
const HEADER: &str = "lvsd-realserver 1";
/// Where records are kept unless told otherwise; empty again after a reboot, as the changes are gone.
const DIR: &str = "/run/lvsd";
/// No record is larger, bytes.
const LIMIT: u64 = 1 << 20;

/// The record of the calling thread's network namespace.
///
/// # Errors
/// [`Error::Os`] without /proc.
pub fn default_record() -> Result<PathBuf, Error> {
    let of = "/proc/thread-self/ns/net";
    let namespace = rustix::fs::stat(of).map_err(|e| Error::os(of, e))?.st_ino;
    Ok(Path::new(DIR).join(format!("realserver-{namespace}")))
}

/// A record that nobody else changes meanwhile.
pub(crate) struct Record {
    path: PathBuf,
    _lock: OwnedFd,
}

impl Record {
    /// Makes the directory, and waits for nobody: two at once are refused.
    pub(crate) fn open(path: &Path) -> Result<Record, Error> {
        let dir = match path.parent() {
            Some(dir) if dir != Path::new("") => dir,
            _ => Path::new("."),
        };
        fs::create_dir_all(dir).map_err(|e| Error::os(dir.display().to_string(), e))?;
        let failed = |e| Error::os(dir.display().to_string(), e);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let lock = rustix::fs::open(dir, flags, Mode::empty()).map_err(failed)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|e| match e {
            rustix::io::Errno::WOULDBLOCK => Error::Busy(dir.into()),
            e => failed(e),
        })?;
        Ok(Record { path: path.into(), _lock: lock })
    }

    /// The steps in it; none where there is no record.
    pub(crate) fn read(&self) -> Result<Vec<Step>, Error> {
        let failed = |e: io::Error| Error::os(self.path.display().to_string(), e);
        let mut text = String::new();
        match fs::File::open(&self.path) {
            Ok(file) => file.take(LIMIT).read_to_string(&mut text).map_err(failed)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(failed(e)),
        };
        let bad = |line: usize| Error::BadRecord { path: self.path.clone(), line };
        let mut lines = text.lines().enumerate();
        if lines.next().is_none_or(|(_, first)| first != HEADER) {
            return Err(bad(1));
        }
        lines.map(|(at, line)| Step::parse(line).ok_or_else(|| bad(at + 1))).collect()
    }

    /// Puts these steps in the place of what is in it, all or nothing; without any there is no record.
    pub(crate) fn write(&self, steps: &[Step]) -> Result<(), Error> {
        let failed = |e: io::Error| Error::os(self.path.display().to_string(), e);
        if steps.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed(e)),
                _ => Ok(()),
            };
        }
        let mut text = format!("{HEADER}\n");
        for step in steps {
            text.push_str(&step.line());
            text.push('\n');
        }
        let mut new = self.path.clone().into_os_string();
        new.push(".new");
        let open = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new);
        let written = open.and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        written.and_then(|()| fs::rename(&new, &self.path)).map_err(|e| {
            // It is of no use to anybody.
            let _ = fs::remove_file(&new);
            failed(e)
        })
    }
}
