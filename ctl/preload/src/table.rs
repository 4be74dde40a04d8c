//! Which descriptors are ours, and what they stand for.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

/// A netlink socket as the program sees it. Copies of its descriptor share it.
pub(crate) struct Netlink {
    /// Its port, which it was bound to or was given; 0 before.
    pub(crate) port: AtomicU32,
    /// `SOCK_RAW` or `SOCK_DGRAM`.
    pub(crate) kind: AtomicI32,
    /// Whether its Unix socket is connected, to the daemon or to nobody.
    pub(crate) connected: AtomicBool,
}

/// What a descriptor stands for.
#[derive(Clone)]
pub(crate) enum What {
    Netlink(Arc<Netlink>),
    /// The file of a setting (`net.ipv4.vs.` and its name), open for writing.
    Setting(Arc<str>),
}

/// Descriptors from here on are not kept track of.
const MOST: usize = 65_536;

/// One bit for each descriptor: whether it is in the table. It is looked at without a lock, since programs write to their own
/// pipes in signal handlers.
static OURS: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

/// The table under a lock that a fork can take and give back ([`before_fork`]).
struct Locked {
    taken: AtomicBool,
    table: UnsafeCell<BTreeMap<c_int, What>>,
}

// SAFETY: the table is reached by `with` only, which holds the lock.
unsafe impl Sync for Locked {}

static TABLE: Locked = Locked { taken: AtomicBool::new(false), table: UnsafeCell::new(BTreeMap::new()) };

impl Locked {
    fn take(&self) {
        while self.taken.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            std::thread::yield_now();
        }
    }

    fn give_back(&self) {
        self.taken.store(false, Ordering::Release);
    }

    fn with<R>(&self, f: impl FnOnce(&mut BTreeMap<c_int, What>) -> R) -> R {
        self.take();
        // SAFETY: the lock is held, so this is the only reference.
        let result = f(unsafe { &mut *self.table.get() });
        self.give_back();
        result
    }
}

fn bit(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let at = usize::try_from(fd).ok()?;
    Some((OURS.get(at / 64)?, 1 << (at % 64)))
}

/// What a descriptor stands for, if it is one of ours.
pub(crate) fn look_up(fd: c_int) -> Option<What> {
    let (word, mask) = bit(fd)?;
    if word.load(Ordering::Relaxed) & mask == 0 {
        return None;
    }
    TABLE.with(|t| t.get(&fd).cloned())
}

/// Keeps track of a descriptor. `false` where its number is too high for that.
pub(crate) fn add(fd: c_int, what: What) -> bool {
    let Some((word, mask)) = bit(fd) else { return false };
    TABLE.with(|t| {
        t.insert(fd, what);
        word.fetch_or(mask, Ordering::Relaxed);
    });
    true
}

/// A descriptor is closed, or becomes something else.
pub(crate) fn remove(fd: c_int) {
    let Some((word, mask)) = bit(fd) else { return };
    if word.load(Ordering::Relaxed) & mask == 0 {
        return;
    }
    TABLE.with(|t| {
        word.fetch_and(!mask, Ordering::Relaxed);
        t.remove(&fd);
    });
}

/// All descriptors from `first` to `last` are closed.
pub(crate) fn remove_range(first: u32, last: u32) {
    let gone: Vec<c_int> = TABLE.with(|t| {
        t.keys().copied().filter(|fd| u32::try_from(*fd).is_ok_and(|n| (first..=last).contains(&n))).collect()
    });
    gone.into_iter().for_each(remove);
}

/// All descriptors of a socket.
pub(crate) fn copies(socket: &Arc<Netlink>) -> Vec<c_int> {
    let same = |what: &What| matches!(what, What::Netlink(s) if Arc::ptr_eq(s, socket));
    TABLE.with(|t| t.iter().filter(|(_, what)| same(what)).map(|(fd, _)| *fd).collect())
}

/// Before a fork: no other thread is within the table while memory is copied.
pub(crate) extern "C" fn before_fork() {
    TABLE.take();
}

/// After it, in both processes.
pub(crate) extern "C" fn after_fork() {
    TABLE.give_back();
}
