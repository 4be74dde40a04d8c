//! A worker's frames: one memory for all its sockets, and who has which chunk of it.

use std::io;
use std::sync::Arc;

use crate::mem::Region;

/// Bytes that the kernel leaves free before a received frame.
pub(super) const HEAD_ROOM: usize = 256;
/// Chunks for frames of an MTU of 1500 with two tags; larger ones for others.
const SMALL: u32 = 2048;
const LARGE: u32 = 4096;
/// Ethernet header and two VLAN tags.
pub(super) const LINK_HEADERS: u32 = 22;

/// The memory itself; sockets register it, so it lives as long as any of them.
#[derive(Debug)]
pub(super) struct Area {
    region: Region,
    /// Bytes of a chunk, a power of two.
    pub(super) chunk: u32,
    /// Their number.
    pub(super) chunks: u32,
}

/// The smallest chunk that holds frames of an MTU; longer ones come in pieces.
pub(super) fn chunk_for(mtu: u32) -> u32 {
    if mtu + LINK_HEADERS + HEAD_ROOM as u32 <= SMALL { SMALL } else { LARGE }
}

impl Area {
    pub(super) fn new(chunk: u32, chunks: u32) -> io::Result<Area> {
        let region = Region::anonymous(chunk as usize * chunks as usize, true)?;
        Ok(Area { region, chunk, chunks })
    }

    pub(super) fn base(&self) -> *mut u8 {
        // the words are atomics: memory that may be written by whoever has it
        self.region.words().as_ptr().cast_mut().cast()
    }

    pub(super) fn bytes(&self) -> usize {
        self.chunk as usize * self.chunks as usize
    }

    /// Bytes of a frame that fit a chunk behind the head room.
    pub(super) fn room(&self) -> usize {
        self.chunk as usize - HEAD_ROOM
    }
}

/// Who has a chunk: nobody, the worker, or a socket (its number, from 2).
type Owner = u32;
const FREE: Owner = 0;
const WORKER: Owner = 1;
/// Number of the first socket.
pub(super) const FIRST_SOCKET: Owner = 2;
/// How long chunks of a closed socket rest: a device may still write to them.
const REST_NS: u64 = 1_000_000_000;

/// The worker's book of its chunks. A chunk is always with exactly one owner, whatever the kernel says.
#[derive(Debug)]
pub(super) struct Frames {
    area: Arc<Area>,
    free: Vec<u32>,
    owners: Vec<Owner>,
    resting: Vec<(u64, u32)>,
}

impl Frames {
    pub(super) fn new(area: Arc<Area>) -> Frames {
        let free = (0..area.chunks).rev().collect();
        let owners = vec![FREE; area.chunks as usize];
        Frames { area, free, owners, resting: Vec::new() }
    }

    pub(super) fn area(&self) -> &Area {
        &self.area
    }

    /// A free chunk for a socket's fill ring: its address.
    pub(super) fn lend(&mut self, socket: Owner) -> Option<u64> {
        let chunk = self.free.pop()?;
        self.owners[chunk as usize] = socket;
        Some(u64::from(chunk) * u64::from(self.area.chunk))
    }

    /// A free chunk for the worker.
    pub(super) fn take(&mut self) -> Option<u32> {
        let chunk = self.free.pop()?;
        self.owners[chunk as usize] = WORKER;
        Some(chunk)
    }

    /// The worker hands a chunk to a socket, to be sent.
    pub(super) fn pass_on(&mut self, chunk: u32, socket: Owner) {
        debug_assert_eq!(self.owners[chunk as usize], WORKER);
        self.owners[chunk as usize] = socket;
    }

    /// The worker has done with a chunk.
    pub(super) fn give_back(&mut self, chunk: u32) {
        debug_assert_eq!(self.owners[chunk as usize], WORKER);
        self.owners[chunk as usize] = FREE;
        self.free.push(chunk);
    }

    /// A socket names an address that it has done with: the chunk, now the worker's, and the offset in it. `None` where the
    /// socket does not have that chunk.
    pub(super) fn back_from(&mut self, socket: Owner, address: u64) -> Option<(u32, usize)> {
        let chunk = u32::try_from(address / u64::from(self.area.chunk)).ok()?;
        let owner = self.owners.get_mut(chunk as usize).filter(|o| **o == socket)?;
        *owner = WORKER;
        Some((chunk, (address % u64::from(self.area.chunk)) as usize))
    }

    /// A socket has been closed: its chunks rest for a while, then they are free.
    pub(super) fn recover(&mut self, socket: Owner, now: u64) {
        for (chunk, owner) in self.owners.iter().enumerate() {
            if *owner == socket {
                self.resting.push((now + REST_NS, chunk as u32));
            }
        }
        for &(_, chunk) in &self.resting {
            self.owners[chunk as usize] = WORKER;
        }
    }

    /// Frees the chunks that have rested.
    pub(super) fn wake(&mut self, now: u64) {
        let mut resting = std::mem::take(&mut self.resting);
        resting.retain(|&(until, chunk)| {
            if until <= now {
                self.give_back(chunk);
            }
            until > now
        });
        self.resting = resting;
    }

    /// Where a chunk begins.
    pub(super) fn at(&self, chunk: u32) -> *mut u8 {
        debug_assert!(chunk < self.area.chunks);
        self.area.base().wrapping_add(chunk as usize * self.area.chunk as usize)
    }

    /// Free chunks.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_has_one_owner() {
        let mut f = Frames::new(Arc::new(Area::new(2048, 4).unwrap()));
        let (a, b) = (2, 3);
        let address = f.lend(a).unwrap();
        assert_eq!(f.back_from(b, address + 256), None, "not that socket's");
        assert_eq!(f.back_from(a, address + 256), Some((0, 256)));
        assert_eq!(f.back_from(a, address + 256), None, "a second time");
        assert_eq!(f.back_from(a, u64::MAX), None);
        assert_eq!(f.back_from(a, 4 * 2048), None);
        f.pass_on(0, b);
        let taken = f.take().unwrap();
        f.give_back(taken);
        f.recover(b, 5);
        assert_eq!(f.free(), 3);
        f.wake(5);
        assert_eq!(f.free(), 3, "it rests");
        f.wake(5 + REST_NS);
        assert_eq!(f.free(), 4);
        assert_eq!((0..5).filter_map(|_| f.take()).count(), 4);
    }

    #[test]
    fn chunks_hold_a_frame_of_their_mtu() {
        assert_eq!(
            (chunk_for(1500), chunk_for(1770), chunk_for(1771), chunk_for(9000)),
            (2048, 2048, 4096, 4096)
        );
    }
}
