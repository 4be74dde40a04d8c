//! Where lvsd's data plane is pinned: the maps and links that go on without the daemon, and that the next one takes over.
//!
//! A pin directory lies on a BPF file system and has two directories, `maps` and `links`. Removing a link's file detaches its
//! program, once no process has it open. An advisory lock on the directory (`flock(2)`) says that a daemon works on it; the kernel gives
//! it up with the process.
#![forbid(unsafe_code)]

mod filters;

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use aya::maps::{Array, Map, MapData};
use aya::programs::links::PinnedLink;
use aya::util::KernelVersion;
use rustix::fs::{FlockOperation, flock, statfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

pub use filters::detach_filters;

/// The BPF file system's usual place.
const BPFFS: &str = "/sys/fs/bpf";
/// Its magic number (`linux/magic.h`).
const BPFFS_MAGIC: u64 = 0xcafe_4a11;
/// How long a directory's owner may take to end: a killed process needs a moment.
const PATIENCE: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(10);

/// Why a pin directory cannot be used: one line that names it.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// Another process has its lock.
    #[error("{}: another lvsd works on it; stop that one first", .0.display())]
    InUse(PathBuf),
    /// There is no BPF file system, and none can be mounted.
    #[error("{}: there is no BPF file system, and mounting one failed: {source}", .at.display())]
    Mount {
        /// Where it would be mounted.
        at: PathBuf,
        /// What came back.
        source: io::Error,
    },
    /// What is attached is no link, and its interfaces are not here.
    #[error("{}: its interfaces are in another network namespace; run this there", .0.display())]
    Elsewhere(PathBuf),
    /// A system call failed.
    #[error("{}: {what}: {source}", .path.display())]
    Io {
        /// The directory, or something in it.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What came back.
        source: io::Error,
    },
}

fn failed(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> PinError {
    let path = path.to_owned();
    move |source| PinError::Io { path, what, source }
}

/// The pin directory of the daemon with this control socket, unless it is told another: `/sys/fs/bpf/lvsd/` and the socket's path. (The
/// BPF file system takes no names with dots.)
pub fn default_dir(socket: &Path) -> PathBuf {
    let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
    let name: String = socket
        .to_string_lossy()
        .trim_start_matches('/')
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' })
        .collect();
    Path::new(BPFFS).join("lvsd").join(name)
}

/// What was taken down.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TakenDown {
    /// The interfaces that it was attached to, where they are of this network namespace.
    pub interfaces: Vec<String>,
    /// Whether they are of another one.
    pub elsewhere: bool,
}

/// A pin directory, locked as a rule.
#[derive(Debug)]
pub struct PinDir {
    path: PathBuf,
    lock: OnceLock<File>,
}

impl PinDir {
    /// Makes the directory where it is missing, mounts a BPF file system where there is none, and locks it.
    ///
    /// # Errors
    /// [`PinError`].
    pub fn open(path: &Path) -> Result<PinDir, PinError> {
        ensure_bpffs(path)?;
        for dir in [path.to_owned(), path.join("maps"), path.join("links")] {
            fs::create_dir_all(&dir).map_err(failed(&dir, "making the directory"))?;
        }
        let dir = PinDir { path: path.to_owned(), lock: OnceLock::new() };
        dir.lock()?;
        Ok(dir)
    }

    /// The directory that another daemon has, which is about to give it up. Nobody locks it before [`PinDir::lock`].
    ///
    /// # Errors
    /// [`PinError::Io`] where it is not there.
    pub fn join(path: &Path) -> Result<PinDir, PinError> {
        if !is_bpffs(path).map_err(failed(path, "asking for its file system"))? {
            let source = io::Error::other("not on a BPF file system");
            return Err(failed(path, "joining another lvsd")(source));
        }
        Ok(PinDir { path: path.to_owned(), lock: OnceLock::new() })
    }

    /// Locks it, if it is not.
    ///
    /// # Errors
    /// [`PinError::InUse`], [`PinError::Io`].
    pub fn lock(&self) -> Result<(), PinError> {
        if self.lock.get().is_none() {
            // of two threads that lock it at the same time one keeps the other's; both are locks of this process
            let _ = self.lock.set(lock(&self.path)?);
        }
        Ok(())
    }

    /// The directory if it is there, locked.
    ///
    /// # Errors
    /// [`PinError::InUse`], [`PinError::Io`].
    pub fn find(path: &Path) -> Result<Option<PinDir>, PinError> {
        if !is_bpffs(path).unwrap_or(false) {
            return Ok(None);
        }
        let dir = PinDir { path: path.to_owned(), lock: OnceLock::new() };
        dir.lock()?;
        Ok(Some(dir))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where a map is pinned.
    pub fn map(&self, name: &str) -> PathBuf {
        self.path.join("maps").join(name)
    }

    /// Where the link of an interface (by its index) and hook is pinned.
    pub fn link(&self, index: u32, hook: &str) -> PathBuf {
        self.path.join("links").join(format!("{index}-{hook}"))
    }

    /// All pinned links: interface index and hook.
    pub fn links(&self) -> Vec<(u32, String)> {
        let names = names(&self.path.join("links"));
        let parse = |name: &String| {
            let (index, hook) = name.split_once('-')?;
            Some((index.parse().ok()?, hook.to_owned()))
        };
        names.iter().filter_map(parse).collect()
    }

    /// Whether nothing is pinned.
    pub fn is_empty(&self) -> bool {
        names(&self.path.join("links")).is_empty() && names(&self.path.join("maps")).is_empty()
    }

    /// Removes all links, and then all maps.
    ///
    /// # Errors
    /// The first that could not be removed.
    pub fn clear(&self) -> Result<(), PinError> {
        // who closes a link's last descriptor waits until it is detached; who removes its file does not
        let links = self.path.join("links");
        let _open: Vec<PinnedLink> =
            names(&links).iter().filter_map(|name| PinnedLink::from_pin(links.join(name)).ok()).collect();
        for dir in ["links", "maps"] {
            let dir = self.path.join(dir);
            for name in names(&dir) {
                let path = dir.join(name);
                fs::remove_file(&path).map_err(failed(&path, "removing it"))?;
            }
        }
        Ok(())
    }

    /// Detaches what is attached, also what needs no link to stay, clears it and removes the directory.
    ///
    /// # Errors
    /// The first thing that could not be removed; [`PinError::Elsewhere`] where that can be done in another network namespace only.
    pub fn take_down(self) -> Result<TakenDown, PinError> {
        let indexes: BTreeSet<u32> = self.links().into_iter().map(|(index, _)| index).collect();
        let elsewhere = self.netns().is_some_and(|there| there != own_netns());
        if elsewhere && !indexes.is_empty() && !has_links() {
            return Err(PinError::Elsewhere(self.path.clone()));
        }
        let here = indexes.into_iter().filter(|_| !elsewhere);
        let interfaces: Vec<String> = here.filter_map(interface).collect();
        for name in &interfaces {
            detach_filters(name).map_err(failed(&self.path, "detaching filters"))?;
        }
        self.remove()?;
        Ok(TakenDown { interfaces, elsewhere })
    }

    /// Inode of the network namespace that it was made in (word 7 of the map `plane`).
    fn netns(&self) -> Option<u64> {
        let map = Map::from_map_data(MapData::from_pin(self.map("plane")).ok()?).ok()?;
        let plane = Array::<_, [u8; 64]>::try_from(map).ok()?;
        let words = plane.get(&0, 0).ok()?;
        Some(u64::from_ne_bytes(std::array::from_fn(|i| words[56 + i]))).filter(|inode| *inode != 0)
    }

    /// Clears it and removes the directory.
    ///
    /// # Errors
    /// As [`PinDir::clear`].
    pub fn remove(self) -> Result<(), PinError> {
        self.clear()?;
        self.remove_empty()
    }

    /// Removes the directory, which is empty.
    ///
    /// # Errors
    /// [`PinError::Io`] where it is not.
    pub fn remove_empty(&self) -> Result<(), PinError> {
        for dir in [self.path.join("links"), self.path.join("maps"), self.path.clone()] {
            match fs::remove_dir(&dir) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(failed(&dir, "removing the directory")(e));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether the kernel has tcx links (6.6).
fn has_links() -> bool {
    KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 6, 0))
}

/// Inode of the network namespace that the calling thread is in; 0 where that is not told.
pub fn own_netns() -> u64 {
    fs::metadata("/proc/thread-self/ns/net").map_or(0, |m| m.ino())
}

/// The name of an interface of this network namespace.
pub fn interface(index: u32) -> Option<String> {
    // a socket of any kind serves to ask by
    let socket = UnixDatagram::unbound().ok()?;
    rustix::net::netdevice::index_to_name(&socket, index).ok()
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().into_string().ok()).collect()
}

fn lock(path: &Path) -> Result<File, PinError> {
    let file = File::open(path).map_err(failed(path, "opening it"))?;
    let since = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if since.elapsed() < PATIENCE => std::thread::sleep(STEP),
            Err(Errno::WOULDBLOCK) => return Err(PinError::InUse(path.to_owned())),
            Err(e) => return Err(failed(path, "locking it")(e.into())),
        }
    }
}

fn is_bpffs(path: &Path) -> io::Result<bool> {
    Ok(statfs(path)?.f_type as u64 == BPFFS_MAGIC)
}

/// Sees to a BPF file system at `path` or above it.
fn ensure_bpffs(path: &Path) -> Result<(), PinError> {
    let there = path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
    if is_bpffs(there).map_err(failed(there, "asking for its file system"))? {
        return Ok(());
    }
    let at = if path.starts_with(BPFFS) { Path::new(BPFFS) } else { path };
    fs::create_dir_all(at).map_err(failed(at, "making the directory"))?;
    let mounting = |source: io::Error| PinError::Mount { at: at.to_owned(), source };
    let target = CString::new(at.as_os_str().as_bytes()).map_err(|e| mounting(e.into()))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount(c"bpf", target.as_c_str(), c"bpf", flags, None::<&CStr>).map_err(|e| mounting(e.into()))
}

#[cfg(test)]
mod tests;
