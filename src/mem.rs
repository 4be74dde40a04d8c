//! Memory of the tables. With the rings and the BPF loader the only place for `unsafe`.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A mapping of whole 64-bit words, unmapped when dropped. It may be shared with BPF programs, so all access is atomic.
#[derive(Debug)]
pub struct Region {
    words: NonNull<AtomicU64>,
    len: usize,
    /// Length of the mapping in bytes; 0 where nothing is mapped.
    mapped: usize,
}

// SAFETY: a Region owns its mapping, and hands out shared references to atomics only.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// `bytes` (rounded up to words) of zeros. The kernel gives pages as they are first written, so what is not used costs
    /// nothing. `huge` asks for huge pages, which may or may not be given.
    pub fn anonymous(bytes: usize, huge: bool) -> io::Result<Region> {
        let bytes = bytes.next_multiple_of(8);
        if bytes == 0 {
            return Ok(Region::empty());
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice touches no other memory.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), bytes, prot, MapFlags::PRIVATE | MapFlags::NORESERVE)
        }?;
        let region = Region::mapped(start.cast(), bytes)?;
        if huge {
            // SAFETY: the range is the mapping just made; this advice changes no content.
            let advised = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
            // a kernel without huge pages says EINVAL: then small ones do
            if let Err(e) = advised
                && e != rustix::io::Errno::INVAL
            {
                return Err(e.into());
            }
        }
        Ok(region)
    }

    /// The first `bytes` of a BPF array map that was created with `BPF_F_MMAPABLE`, shared with the kernel.
    pub fn map_fd(fd: impl AsFd, bytes: usize) -> io::Result<Region> {
        let bytes = bytes.next_multiple_of(8);
        if bytes == 0 {
            return Ok(Region::empty());
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new shared mapping at an address of the kernel's choice; a BPF map can't shrink under it.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, prot, MapFlags::SHARED, fd, 0) }?;
        Region::mapped(start.cast(), bytes)
    }

    fn empty() -> Region {
        Region { words: NonNull::dangling(), len: 0, mapped: 0 }
    }

    fn mapped(start: *mut AtomicU64, bytes: usize) -> io::Result<Region> {
        let words = NonNull::new(start).ok_or_else(|| io::Error::other("mmap gave address 0"))?;
        Ok(Region { words, len: bytes / 8, mapped: bytes })
    }

    /// The region's words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `words` is page-aligned (or dangling with `len` 0) and valid for `len` words until drop; the memory is
        // initialised by the kernel, and accessed as atomics only.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.mapped != 0 {
            // SAFETY: the mapping is this Region's own, and no reference into it outlives the Region.
            let unmapped = unsafe { munmap(self.words.as_ptr().cast(), self.mapped) };
            debug_assert_eq!(unmapped, Ok(()));
        }
    }
}

/// Fetches the cache line of `word`, without waiting for it. A hint: where the machine has no such instruction, nothing.
#[inline(always)]
pub fn prefetch(word: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: prefetching has no effect on the program's state; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(word.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}

/// Fetches the cache lines of the first 64 of some bytes, as [`prefetch`] does.
#[inline(always)]
pub fn prefetch_head(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let head = bytes.as_ptr().cast::<i8>();
        // SAFETY: prefetching has no effect on the program's state, whatever the address; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(head) };
        // SAFETY: as above, and `wrapping_add` may leave the slice.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(head.wrapping_add(63)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn anonymous_is_zero_and_writable() {
        for huge in [false, true] {
            let r = Region::anonymous(3 << 20, huge).unwrap();
            assert_eq!(r.words().len(), 3 << 17);
            assert!(r.words().iter().step_by(511).all(|w| w.load(Relaxed) == 0));
            for (i, w) in r.words().iter().enumerate() {
                w.store(i as u64, Relaxed);
            }
            prefetch(&r.words()[5]);
            assert_eq!(r.words()[(3 << 17) - 1].load(Relaxed), (3 << 17) - 1);
        }
    }

    #[test]
    fn sizes_are_rounded_up_to_words() {
        assert_eq!(Region::anonymous(0, false).unwrap().words().len(), 0);
        assert_eq!(Region::anonymous(1, false).unwrap().words().len(), 1);
    }

    #[test]
    fn a_shared_file_is_seen_by_both_mappings() {
        let fd = rustix::fs::memfd_create("lvsd-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        let a = Region::map_fd(&fd, 4096).unwrap();
        let b = Region::map_fd(&fd, 4096).unwrap();
        a.words()[7].store(42, Relaxed);
        assert_eq!(b.words()[7].load(Relaxed), 42);
    }

    #[test]
    fn what_cannot_be_mapped_is_an_error() {
        let (pipe, _writer) = io::pipe().unwrap();
        assert!(Region::map_fd(&pipe, 4096).is_err());
    }
}
