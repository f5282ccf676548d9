//! A free list of device memory: an allocation by the driver costs more than most kernels take.
use super::stream::Memory;
use std::collections::BTreeMap;

/// Free blocks of one stream, by size. The stream orders all work, so a block may be reused before
/// its last use has completed.
#[derive(Default)]
pub(super) struct Pool {
    blocks: BTreeMap<usize, Vec<u64>>,
}

impl Pool {
    /// The block size for an allocation of `bytes`. Few distinct sizes make reuse likely.
    pub(super) fn block_size(bytes: usize) -> usize {
        let step = if bytes < 1 << 20 { 512 } else { 2 << 20 };
        bytes.max(1).checked_next_multiple_of(step).unwrap_or(bytes)
    }

    /// Returns the smallest free block for `bytes`, if it is at most twice as large.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Memory> {
        let wanted = Self::block_size(bytes);
        let (&size, addresses) = self.blocks.range_mut(wanted..=wanted.saturating_mul(2)).next()?;
        let address = addresses.pop().expect("sizes without blocks are removed");
        if addresses.is_empty() {
            self.blocks.remove(&size);
        }
        Some(Memory { address, bytes: size })
    }

    pub(super) fn put(&mut self, memory: Memory) {
        self.blocks.entry(memory.bytes).or_default().push(memory.address);
    }

    pub(super) fn take_all(&mut self) -> Vec<Memory> {
        let all = std::mem::take(&mut self.blocks);
        all.into_iter()
            .flat_map(|(bytes, at)| at.into_iter().map(move |address| Memory { address, bytes }))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded() {
        assert_eq!([0, 1, 512, 513].map(Pool::block_size), [512, 512, 512, 1024]);
        assert_eq!([1 << 20, (2 << 20) + 1].map(Pool::block_size), [2 << 20, 4 << 20]);
        assert_eq!(Pool::block_size(usize::MAX), usize::MAX);
    }

    #[test]
    fn the_smallest_fitting_block_is_reused() {
        let mut pool = Pool::default();
        for (address, bytes) in [(1, 4096), (2, 1024), (3, 1024)] {
            pool.put(Memory { address, bytes });
        }
        assert!(pool.take(512).is_some_and(|m| m.bytes == 1024));
        assert!(pool.take(600).is_some_and(|m| m.bytes == 1024));
        assert!(pool.take(600).is_none(), "a block more than twice as large is not used");
        assert!(pool.take(2049).is_some_and(|m| m.address == 1 && m.bytes == 4096));
        assert!(pool.take_all().is_empty());
    }
}
