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

/// What is in a record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Recorded {
    /// The interfaces that steps name, by the name and index that they had: an interface that is renamed keeps its settings.
    pub(crate) interfaces: Vec<(String, u32)>,
    pub(crate) steps: Vec<Step>,
}

impl Recorded {
    /// Steps, with the indices of their interfaces among `now`.
    pub(crate) fn new(steps: Vec<Step>, now: &[(String, u32)]) -> Recorded {
        let named = |name: &str| steps.iter().any(|s| s.interface() == Some(name));
        let interfaces = now.iter().filter(|(name, _)| named(name)).cloned().collect();
        Recorded { interfaces, steps }
    }

    /// The same with the names that interfaces have now, which `now` tells with their indices. An index that nobody has is one whose
    /// interface is gone; another may have been made in its name.
    pub(crate) fn named_as(self, now: &[(String, u32)]) -> Vec<Step> {
        let new_name = |old: &str| {
            let (_, index) = self.interfaces.iter().find(|(name, _)| name == old)?;
            now.iter().find(|(_, i)| i == index).map(|(name, _)| name)
        };
        let follow = |step: Step| match step.interface().and_then(new_name) {
            Some(name) => step.renamed(name),
            None => step,
        };
        self.steps.into_iter().map(follow).collect()
    }
}

/// A line of the record about an interface.
fn interface(line: &str) -> Option<(String, u32)> {
    let (name, index) = line.strip_prefix("interface ")?.split_once(' ')?;
    Some((name.into(), index.parse().ok()?))
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    }
}

/// A record that nobody else changes meanwhile.
pub(crate) struct Record {
    path: PathBuf,
    _lock: OwnedFd,
}

impl Record {
    /// Makes its directory, for a record that is to be written.
    pub(crate) fn make(path: &Path) -> Result<Record, Error> {
        let dir = directory(path);
        fs::create_dir_all(dir).map_err(|e| Error::os(dir.display().to_string(), e))?;
        Record::open(path)
    }

    /// Waits for nobody: two at once are refused.
    pub(crate) fn open(path: &Path) -> Result<Record, Error> {
        let dir = directory(path);
        let failed = |e| Error::os(dir.display().to_string(), e);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let lock = rustix::fs::open(dir, flags, Mode::empty()).map_err(failed)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|e| match e {
            rustix::io::Errno::WOULDBLOCK => Error::Busy(dir.into()),
            e => failed(e),
        })?;
        Ok(Record { path: path.into(), _lock: lock })
    }

    /// What is in it; nothing where there is no record.
    pub(crate) fn read(&self) -> Result<Recorded, Error> {
        let failed = |e: io::Error| Error::os(self.path.display().to_string(), e);
        let mut bytes = Vec::new();
        match fs::File::open(&self.path) {
            Ok(file) => file.take(LIMIT).read_to_end(&mut bytes).map_err(failed)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Recorded::default()),
            Err(e) => return Err(failed(e)),
        };
        let text = String::from_utf8(bytes)
            .map_err(|e| Error::NotText { path: self.path.clone(), offset: e.utf8_error().valid_up_to() })?;
        let bad = |line: usize| Error::BadRecord { path: self.path.clone(), line };
        let mut lines = text.lines().enumerate();
        if lines.next().is_none_or(|(_, first)| first != HEADER) {
            return Err(bad(1));
        }
        let mut found = Recorded::default();
        for (at, line) in lines {
            match interface(line) {
                Some(of) => found.interfaces.push(of),
                None => found.steps.push(Step::parse(line).ok_or_else(|| bad(at + 1))?),
            }
        }
        Ok(found)
    }

    /// Puts this in the place of what is in it, all or nothing; without any steps there is no record.
    pub(crate) fn write(&self, all: &Recorded) -> Result<(), Error> {
        let failed = |e: io::Error| Error::os(self.path.display().to_string(), e);
        if all.steps.is_empty() {
            return match fs::remove_file(&self.path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed(e)),
                _ => Ok(()),
            };
        }
        let mut text = format!("{HEADER}\n");
        let interfaces = all.interfaces.iter().map(|(name, index)| format!("interface {name} {index}"));
        for line in interfaces.chain(all.steps.iter().map(Step::line)) {
            text.push_str(&line);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[(&str, u32)]) -> Vec<(String, u32)> {
        list.iter().map(|(name, index)| ((*name).to_owned(), *index)).collect()
    }

    fn steps(list: &[&str]) -> Vec<Step> {
        list.iter().map(|line| Step::parse(line).unwrap()).collect()
    }

    #[test]
    fn interfaces_are_recognised_by_their_index() {
        let before =
            ["sysctl net/ipv4/conf/eth0/arp_ignore 0 1", "decap eth1 fresh /x", "address lo 192.0.2.1"];
        let recorded =
            Recorded::new(steps(&before), &names(&[("lo", 1), ("eth0", 2), ("eth1", 3), ("eth2", 4)]));
        assert_eq!(recorded.interfaces, names(&[("lo", 1), ("eth0", 2), ("eth1", 3)]));
        for (now, want) in [
            (names(&[("lo", 1), ("eth0", 2), ("eth1", 3)]), before),
            // two have changed their names
            (
                names(&[("lo", 1), ("eth1", 2), ("eth0", 3)]),
                ["sysctl net/ipv4/conf/eth1/arp_ignore 0 1", "decap eth0 fresh /x", "address lo 192.0.2.1"],
            ),
            // one is gone, another was made in the name of one that is gone
            (names(&[("lo", 1), ("eth1", 9)]), before),
        ] {
            assert_eq!(recorded.clone().named_as(&now), steps(&want), "{now:?}");
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let dir = std::env::temp_dir().join(format!("lvsd-record-{}", std::process::id()));
        let path = dir.join("deep/record");
        let record = Record::make(&path).unwrap();
        assert_eq!(record.read().unwrap(), Recorded::default());
        let all = Recorded::new(steps(&["address lo 192.0.2.1"]), &names(&[("lo", 1)]));
        record.write(&all).unwrap();
        assert_eq!(record.read().unwrap(), all);
        fs::write(&path, b"lvsd-realserver 1\nsysctl \xe4 0 1\n").unwrap();
        let says = "/deep/record: byte 25 (from 0) is no UTF-8 text, so this is no record of lvsctl; nothing was taken back";
        assert!(record.read().unwrap_err().to_string().contains(says));
        record.write(&Recorded::default()).unwrap();
        assert!(!path.exists());
        fs::remove_dir_all(&dir).unwrap();
    }
}
