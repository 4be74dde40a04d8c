//! The rings that an AF_XDP socket shares with the kernel (if_xdp.h): one side writes descriptors and the producer's count, the
//! other reads them and writes the consumer's.

use std::io;
use std::marker::PhantomData;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::io::rings::Level;

/// A mapped ring of descriptors `T` (plain data).
#[derive(Debug)]
pub(super) struct Ring<T> {
    base: NonNull<u8>,
    length: usize,
    producer: usize,
    consumer: usize,
    flags: usize,
    descriptors: usize,
    size: u32,
    /// The count that is ours, as far as we are; what the kernel knows of it is in the ring.
    ours: u32,
    kind: PhantomData<T>,
}

// SAFETY: the mapping belongs to this value alone; nothing in it is bound to a thread.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps a ring of `size` (a power of two) descriptors that has been made on a socket.
    pub(super) fn map(
        fd: BorrowedFd<'_>,
        page: libc::off_t,
        offsets: &libc::xdp_ring_offset,
        size: u32,
    ) -> io::Result<Ring<T>> {
        let length = offsets.desc as usize + size as usize * size_of::<T>();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping, wherever the kernel likes.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd.as_raw_fd(), page) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(at.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let (producer, consumer) = (offsets.producer as usize, offsets.consumer as usize);
        let (flags, descriptors) = (offsets.flags as usize, offsets.desc as usize);
        Ok(Ring { base, length, producer, consumer, flags, descriptors, size, ours: 0, kind: PhantomData })
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= self.length && offset.is_multiple_of(4));
        // SAFETY: an aligned word of the mapping, by the offsets that the kernel gave; it changes there, too.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().wrapping_add(offset).cast()) }
    }

    fn descriptor(&self, count: u32) -> *mut T {
        let place = (count & (self.size - 1)) as usize;
        self.base.as_ptr().wrapping_add(self.descriptors).cast::<T>().wrapping_add(place)
    }

    /// Descriptors in the ring, and how many it can hold.
    pub(super) fn level(&self) -> Level {
        let (p, c) = (self.word(self.producer), self.word(self.consumer));
        let used = p.load(Ordering::Relaxed).wrapping_sub(c.load(Ordering::Relaxed));
        Level { used: used.min(self.size), size: self.size }
    }

    /// Whether the kernel wants a system call to go on with this ring.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.word(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// Of a ring that we fill.
impl<T: Copy> Ring<T> {
    /// Descriptors that find room.
    pub(super) fn room(&self) -> u32 {
        let taken = self.ours.wrapping_sub(self.word(self.consumer).load(Ordering::Acquire));
        self.size - taken.min(self.size)
    }

    /// Writes a descriptor, for which there must be room; [`Ring::publish`] shows it to the kernel.
    pub(super) fn push(&mut self, descriptor: T) {
        let at = self.descriptor(self.ours);
        // SAFETY: a place of the ring that the kernel does not read before it is published.
        unsafe { at.write(descriptor) };
        self.ours = self.ours.wrapping_add(1);
    }

    /// Shows the kernel all that was pushed.
    pub(super) fn publish(&self) {
        self.word(self.producer).store(self.ours, Ordering::Release);
    }
}

/// Of a ring that the kernel fills.
impl<T: Copy> Ring<T> {
    /// Descriptors that wait.
    pub(super) fn waiting(&self) -> u32 {
        let there = self.word(self.producer).load(Ordering::Acquire).wrapping_sub(self.ours);
        there.min(self.size)
    }

    /// Reads the next descriptor, which must be waiting; [`Ring::release`] gives its place back.
    pub(super) fn pop(&mut self) -> T {
        // SAFETY: a place of the ring that the kernel has filled and leaves alone until it is released.
        let descriptor = unsafe { self.descriptor(self.ours).read() };
        self.ours = self.ours.wrapping_add(1);
        descriptor
    }

    /// Gives the places of all that was popped back to the kernel.
    pub(super) fn release(&self) {
        self.word(self.consumer).store(self.ours, Ordering::Release);
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `map`; nothing borrowed from it outlives the ring.
        let r = unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
        debug_assert_eq!(r, 0);
    }
}
