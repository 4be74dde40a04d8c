//! A queue of numbered items, the oldest first, from whose middle items can be taken: the half-open connections of a shard.

/// Marks the end of the queue.
const END: u32 = u32::MAX;
const NEXT: usize = 0;
const PREV: usize = 1;

/// Items that wait, in the order in which they came.
#[derive(Debug)]
pub(super) struct Queue {
    /// The neighbours of each item, as item + 1, so that untouched memory is valid: 0 where it does not wait, [`END`] where there is
    /// no neighbour.
    links: Vec<[u32; 2]>,
    /// First and last item + 1; [`END`] where the queue is empty.
    ends: [u32; 2],
    len: u32,
}

impl Queue {
    /// For items 0..`items` (at most 2^31 - 1). Their memory is touched only as they wait.
    pub(super) fn new(items: u32) -> Queue {
        Queue { links: vec![[0; 2]; items as usize], ends: [END; 2], len: 0 }
    }

    /// Items that wait.
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// The item that has waited longest.
    pub(super) fn first(&self) -> Option<u32> {
        (self.ends[0] != END).then(|| self.ends[0] - 1)
    }

    /// Puts an item at the end, if it does not wait already.
    pub(super) fn push(&mut self, item: u32) {
        let last = self.ends[1];
        match self.links.get_mut(item as usize) {
            Some(link) if *link == [0; 2] => *link = [END, last],
            _ => return,
        }
        *self.place(last, NEXT) = item + 1;
        self.ends[1] = item + 1;
        self.len += 1;
    }

    /// Takes an item out, wherever it is; false if it does not wait.
    pub(super) fn remove(&mut self, item: u32) -> bool {
        let Some(link) = self.links.get_mut(item as usize) else { return false };
        let [next, prev] = std::mem::take(link);
        if next == 0 {
            return false;
        }
        *self.place(prev, NEXT) = next;
        *self.place(next, PREV) = prev;
        self.len -= 1;
        true
    }

    /// Where a neighbour, or else an end of the queue, names the next or previous item.
    fn place(&mut self, neighbour: u32, which: usize) -> &mut u32 {
        let end = &mut self.ends[which];
        match neighbour {
            END => end,
            _ => self.links.get_mut(neighbour as usize - 1).map_or(end, |link| &mut link[which]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn agrees_with_a_list(steps in prop::collection::vec((0..20u32, any::<bool>()), 0..300)) {
            let (mut queue, mut list) = (Queue::new(20), VecDeque::new());
            for (item, come) in steps {
                if come {
                    queue.push(item);
                    if !list.contains(&item) {
                        list.push_back(item);
                    }
                } else {
                    let at = list.iter().position(|i| *i == item);
                    prop_assert_eq!(queue.remove(item), at.is_some());
                    at.and_then(|at| list.remove(at));
                }
                prop_assert_eq!((queue.first(), queue.len()), (list.front().copied(), list.len() as u32));
            }
            while let Some(item) = queue.first() {
                prop_assert_eq!(Some(item), list.pop_front());
                prop_assert!(queue.remove(item) && !queue.remove(item));
            }
            prop_assert!(list.is_empty());
            queue.push(20);
            prop_assert_eq!((queue.first(), queue.len()), (None, 0));
        }
    }
}
