//! The data plane that outlives the daemon: which maps are pinned, and what they were made with, so that the next daemon can take them
//! over (`docs/survival.md`).

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use aya::EbpfLoader;
use aya::maps::{MapData, MapInfo};
use aya::programs::links::{FdLink, PinnedLink};
use pinned::{PinDir, PinError};

use super::{TableShape, chain};
use crate::engine::MAX_DESTS;
use crate::io::SetupError;
use crate::mem::Region;
use crate::route::Routes;
use crate::service::Dests;

/// Says that a plane is whole, and of which layout: the last digits change with whatever another version would read wrongly (the table's
/// layout, the lines of destinations, what is kept of them, a processor's line with its plan, the words below).
const WHOLE: u64 = u64::from_be_bytes(*b"lvsd\0\0\0\x01");
/// Words of the map `plane`.
const WORDS: usize = 16;
/// Where next hops' lines are pinned while they are made.
const HOPS_NEW: &str = "hops_new";

/// What a plane was made with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Make {
    pub(super) shape: TableShape,
    pub(super) magic: u32,
    pub(super) processors: u32,
    pub(super) workers: u32,
    /// Inode of the network namespace: interface numbers mean nothing in another one.
    pub(super) netns: u64,
}

impl Make {
    /// In our network namespace.
    pub(super) fn new(shape: TableShape, magic: u32, workers: usize, processors: usize) -> Make {
        let number = |n| u32::try_from(n).unwrap_or(u32::MAX);
        Make {
            shape,
            magic,
            processors: number(processors),
            workers: number(workers),
            netns: pinned::own_netns(),
        }
    }

    fn words(&self) -> [u64; WORDS] {
        let s = &self.shape;
        let two = |a: u32, b: u32| u64::from(a) << 32 | u64::from(b);
        let mut words = [0; WORDS];
        words[1] = two(s.slots_v4, s.buckets_v4);
        words[2] = two(s.slots_v6, s.buckets_v6);
        words[3] = s.hash_key[0];
        words[4] = s.hash_key[1];
        words[5] = two(self.magic, self.processors);
        words[6] = two(MAX_DESTS, self.workers);
        words[7] = self.netns;
        words
    }

    fn read(words: &[AtomicU64]) -> Result<Make, &'static str> {
        let word = |i: usize| words.get(i).map_or(0, |w| w.load(Ordering::Acquire));
        let half = |i| ((word(i) >> 32) as u32, word(i) as u32);
        match word(0) {
            WHOLE => {}
            0 => return Err("was not finished"),
            w if w >> 32 == WHOLE >> 32 => return Err("has another version's layout"),
            _ => return Err("is not ours to read"),
        }
        let ((slots_v4, buckets_v4), (slots_v6, buckets_v6)) = (half(1), half(2));
        let ((magic, processors), (dests, workers)) = (half(5), half(6));
        if dests != MAX_DESTS {
            return Err("has room for another number of servers");
        }
        let shape = TableShape { buckets_v4, slots_v4, buckets_v6, slots_v6, hash_key: [word(3), word(4)] };
        Ok(Make { shape, magic, processors, workers, netns: word(7) })
    }

    /// What keeps a plane that was made as `self` from serving as one like `wanted`; keys and marks may differ.
    fn differs(&self, wanted: &Make) -> Option<&'static str> {
        let same = |s: &TableShape| TableShape { hash_key: [0; 2], ..*s };
        if self.netns != wanted.netns {
            Some("belongs to another network namespace")
        } else if same(&self.shape) != same(&wanted.shape) {
            Some("was made for another --max-connections")
        } else if self.processors != wanted.processors {
            Some("was made for another number of processors")
        } else {
            None
        }
    }
}

/// The word of the map `plane` that says whose turn it is; as in `modes/bpf/tier.h`.
const TURN: usize = 8;

/// A pinned map, and what it must be like.
struct Kept {
    name: &'static str,
    elements: u32,
    bytes: u32,
}

/// All pinned maps but the lines of next hops, which each daemon makes anew.
fn kept(m: &Make) -> [Kept; 13] {
    let s = &m.shape;
    let map = |name, elements: u32, bytes| Kept { name, elements: elements.max(1), bytes };
    [
        map("index_v4", s.buckets_v4, 64),
        map("entries_v4", s.slots_v4, 64),
        map("index_v6", s.buckets_v6, 64),
        map("entries_v6", s.slots_v6, 128),
        map("dests", MAX_DESTS, 128),
        map("dest_counts", MAX_DESTS.saturating_mul(m.processors), 32),
        map("dest_stats", MAX_DESTS.saturating_mul(m.workers), 64),
        map("dest_keys", MAX_DESTS, 64),
        map("tier_cpus", m.processors, 256),
        map("tier_conf", 1, 64),
        map("plane", 2, 64),
        map("services", 65_536, 4),
        map("macs", 4096, 4),
    ]
}

/// A directory with a plane in it, or for one.
#[derive(Debug)]
pub(crate) struct Plane {
    dir: PinDir,
    /// Its connections are another daemon's.
    adopted: bool,
    /// It goes on when we end.
    kept: AtomicBool,
    /// What another daemon's workers counted, where there were more or fewer of them.
    counts: Option<Region>,
    /// Which daemon we are, counted from the first.
    pub(super) generation: u64,
    /// Whether the daemon before us is still at work.
    successor: AtomicBool,
}

impl From<PinError> for SetupError {
    fn from(e: PinError) -> SetupError {
        SetupError::Pins(e)
    }
}

impl Plane {
    /// Opens the directory `path`. What is in it is taken over, or removed if it cannot serve as what is wanted.
    /// A `successor` takes over from a daemon that is still at work, or not at all.
    pub(super) fn open(path: &Path, wanted: &mut Make, successor: bool) -> Result<Plane, SetupError> {
        let dir = if successor { PinDir::join(path)? } else { PinDir::open(path)? };
        let kept = AtomicBool::new(false);
        let mut plane = Plane {
            dir,
            adopted: false,
            kept,
            counts: None,
            generation: 1,
            successor: AtomicBool::new(successor),
        };
        if successor {
            let fits = plane.look(wanted).and_then(|found| match found.workers == wanted.workers {
                true => Ok(found),
                false => Err("was made for another number of workers".to_owned()),
            });
            let found = fits.map_err(|why| SetupError::Bpf {
                what: format!("the data plane pinned at {}", path.display()),
                reason: format!("{why}; only a restart can change that"),
            })?;
            (wanted.shape, wanted.magic) = (found.shape, found.magic);
            plane.adopted = true;
            return Ok(plane);
        }
        if plane.dir.is_empty() {
            return Ok(plane);
        }
        match plane.look(wanted) {
            Ok(found) => {
                if found.workers != wanted.workers {
                    plane.counts = plane.others_counts(&found)?;
                }
                (wanted.shape, wanted.magic) = (found.shape, found.magic);
                plane.adopted = true;
            }
            Err(why) => {
                tracing::warn!(
                    "the data plane pinned at {} {why}: it begins anew, and its connections are lost",
                    path.display()
                );
                plane.dir.clear()?;
            }
        }
        Ok(plane)
    }

    /// What was found, if it can serve.
    fn look(&mut self, wanted: &Make) -> Result<Make, String> {
        let gone = |e: &dyn std::error::Error| format!("is damaged ({})", chain(e));
        let map = MapData::from_pin(self.dir.map("plane")).map_err(|e| gone(&e))?;
        let region = Region::map_fd(map.fd().as_fd(), WORDS * 8).map_err(|e| gone(&e))?;
        let found = Make::read(region.words())?;
        if let Some(why) = found.differs(wanted) {
            return Err(why.to_owned());
        }
        for Kept { name, elements, bytes } in kept(&found) {
            let info = MapInfo::from_pin(self.dir.map(name)).map_err(|e| gone(&e))?;
            if info.max_entries() != elements || info.value_size() != bytes {
                return Err(format!("is damaged (map {name} has another size)"));
            }
        }
        self.generation = region.words()[TURN].load(Ordering::Acquire).wrapping_add(1);
        Ok(found)
    }

    /// Takes what the workers of a daemon with another number of them counted, and makes room for ours.
    fn others_counts(&self, found: &Make) -> Result<Option<Region>, SetupError> {
        let path = self.dir.map("dest_stats");
        let bytes = Dests::stat_bytes(MAX_DESTS, found.workers as usize);
        let old = MapData::from_pin(&path)
            .map_err(io::Error::other)
            .and_then(|map| Region::map_fd(map.fd().as_fd(), bytes))
            .and_then(|old| std::fs::remove_file(&path).map(|()| old))
            .map_err(|e| SetupError::os(format!("taking over {}", path.display()), "", e))?;
        Ok(Some(old))
    }

    /// Tells the loader where maps are, or are to be, pinned.
    pub(super) fn pin_maps(&self, loader: &mut EbpfLoader<'_>, make: &Make) {
        for Kept { name, .. } in kept(make) {
            loader.map_pin_path(name, self.dir.map(name));
        }
    }

    /// The maps are there: notes what they were made with, and takes over what cannot be pinned as it is.
    pub(super) fn made(
        &self,
        make: &Make,
        plane: &MapData,
        stats: &MapData,
        hops: &MapData,
    ) -> Result<(), SetupError> {
        let failed = |e| SetupError::os(format!("pinning maps at {}", self.dir.path().display()), "", e);
        let bytes = Dests::stat_bytes(MAX_DESTS, make.workers as usize);
        if let Some(old) = &self.counts {
            let stats = Region::map_fd(stats.fd().as_fd(), bytes).map_err(failed)?;
            Dests::fold_stats(MAX_DESTS, old, &stats);
        }
        self.begin_hops(hops).map_err(failed)?;
        if self.is_successor() {
            return Ok(());
        }
        let region = Region::map_fd(plane.fd().as_fd(), WORDS * 8).map_err(failed)?;
        for (to, word) in region.words().iter().zip(make.words()).skip(1).take(TURN - 1) {
            to.store(word, Ordering::Relaxed);
        }
        region.words()[0].store(WHOLE, Ordering::Release);
        self.take_turn(plane).map_err(failed)
    }

    /// From now on what goes up the rings is ours.
    pub(super) fn take_turn(&self, plane: &MapData) -> io::Result<()> {
        let region = Region::map_fd(plane.fd().as_fd(), WORDS * 8)?;
        region.words()[TURN].store(self.generation, Ordering::Release);
        Ok(())
    }

    /// Whether the daemon before us is still at work.
    pub(crate) fn is_successor(&self) -> bool {
        self.successor.load(Ordering::Acquire)
    }

    /// The daemon before us has ended.
    pub(super) fn lock(&self) -> Result<(), SetupError> {
        self.dir.lock()?;
        self.successor.store(false, Ordering::Release);
        Ok(())
    }

    /// Next hops are each daemon's own, but what was cached of another's must not seem to be of ours: the routes' epoch goes on.
    fn begin_hops(&self, hops: &MapData) -> io::Result<()> {
        let path = self.dir.map("hops");
        if self.adopted {
            let old = MapData::from_pin(&path).map_err(io::Error::other)?;
            let epoch = Region::map_fd(old.fd().as_fd(), Routes::MEMORY)?;
            let new = Region::map_fd(hops.fd().as_fd(), Routes::MEMORY)?;
            Routes::continue_epoch(&epoch, &new);
        }
        let new = self.dir.map(HOPS_NEW);
        match std::fs::remove_file(&new) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        hops.pin(&new).map_err(io::Error::other)?;
        std::fs::rename(&new, &path)
    }

    /// Whether connections of another daemon are in it.
    pub(crate) fn is_adopted(&self) -> bool {
        self.adopted
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// From now on it goes on when we end.
    pub(crate) fn keep(&self) {
        self.kept.store(true, Ordering::Release);
    }

    /// Whether it will go on.
    pub(crate) fn is_kept(&self) -> bool {
        self.adopted || self.kept.load(Ordering::Acquire)
    }

    /// The link that is pinned for an interface's hook.
    pub(crate) fn link(&self, index: u32, hook: &str) -> Option<FdLink> {
        PinnedLink::from_pin(self.dir.link(index, hook)).ok().map(FdLink::from)
    }

    /// The place of a link, where nothing is pinned any more.
    pub(crate) fn free_link(&self, index: u32, hook: &str) -> io::Result<PathBuf> {
        let path = self.dir.link(index, hook);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(path),
        }
    }

    /// Pins a new link in the place of any that was there.
    pub(crate) fn pin_link(&self, link: FdLink, index: u32, hook: &str) -> io::Result<FdLink> {
        let path = self.free_link(index, hook)?;
        link.pin(path).map(FdLink::from).map_err(io::Error::other)
    }

    /// The link of a hook goes with its last owner.
    pub(crate) fn unpin_link(&self, index: u32, hook: &str) {
        if let Err(e) = std::fs::remove_file(self.dir.link(index, hook))
            && e.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("{}: {e}", self.dir.link(index, hook).display());
        }
    }

    /// Removes the links of all interfaces but these, and of hooks that are not ours any more.
    pub(crate) fn retain(&self, wanted: impl Fn(u32, &str) -> bool) {
        for (index, hook) in self.dir.links() {
            if !wanted(index, &hook) {
                self.unpin_link(index, &hook);
            }
        }
    }

    /// Removes the links of interfaces that are gone.
    pub(crate) fn sweep(&self) {
        self.retain(|index, _| pinned::interface(index).is_some());
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        if self.is_kept() || self.is_successor() {
            return;
        }
        // links detach when their last owner is gone, who may be dropped after us
        if let Err(e) = self.dir.clear().and_then(|()| self.dir.remove_empty()) {
            tracing::warn!("{e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: TableShape =
        TableShape { buckets_v4: 5, slots_v4: 6, buckets_v6: 7, slots_v6: 8, hash_key: [9, 10] };
    const MAKE: Make = Make { shape: SHAPE, magic: 11, processors: 2, workers: 3, netns: 12 };

    fn written(words: [u64; WORDS]) -> Vec<AtomicU64> {
        words.into_iter().map(AtomicU64::new).collect()
    }

    #[test]
    fn what_a_plane_was_made_with_is_read_as_it_was_written() {
        let mut words = MAKE.words();
        assert_eq!(Make::read(&written(words)), Err("was not finished"));
        words[0] = WHOLE;
        assert_eq!(Make::read(&written(words)), Ok(MAKE));
        words[0] = WHOLE + 1;
        assert_eq!(Make::read(&written(words)), Err("has another version's layout"));
        words[0] = 77;
        assert!(Make::read(&written(words)).is_err());
        assert!(Make::read(&[]).is_err());
    }

    #[test]
    fn only_what_fits_is_taken_over() {
        let key = Make { magic: 1, workers: 9, shape: TableShape { hash_key: [0, 0], ..SHAPE }, ..MAKE };
        assert_eq!(MAKE.differs(&key), None);
        for other in [
            Make { netns: 1, ..MAKE },
            Make { processors: 4, ..MAKE },
            Make { shape: TableShape { slots_v4: 7, ..SHAPE }, ..MAKE },
            Make { shape: TableShape { buckets_v6: 1, ..SHAPE }, ..MAKE },
        ] {
            assert!(MAKE.differs(&other).is_some(), "{other:?}");
        }
    }
}
