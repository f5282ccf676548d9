//! Ranges of keys that attend to each other regardless of the window, such as images in multimodal
//! prompts. The library has windows and masks, so window and ranges are converted into one mask.
use crate::stage::zeros;
use candle::{bail, Result};

/// (b, 1, max_q, max_k), 1 where the query attends to the key: within the window, or both positions
/// in one range.
///
/// `cu_seqlens_q` and `cu_seqlens_k` have the row where each sequence starts. `ranges` has (start,
/// end) pairs, the same number for each sequence; an empty range is ignored.
pub(crate) fn mask(
    [cu_seqlens_q, cu_seqlens_k]: [&[i32]; 2],
    [max_q, max_k]: [usize; 2],
    window: [Option<usize>; 2],
    ranges: &[i32],
) -> Result<Vec<u8>> {
    // cu_seqlens are 32-bit, so no sequence is longer, and no sum below overflows.
    for (name, longest) in [("max_seqlen_q", max_q), ("max_seqlen_k", max_k)] {
        if i32::try_from(longest).is_err() {
            bail!("{name} is {longest}; with mm_prefix_ranges it must be at most {}", i32::MAX)
        }
    }
    let batch = cu_seqlens_q.len() - 1;
    let per_sequence = ranges.len() / batch;
    let mut mask = zeros::<u8>(&[batch, max_q, max_k])?;
    for n in 0..batch {
        let length = |cu_seqlens: &[i32]| i64::from(cu_seqlens[n + 1]) - i64::from(cu_seqlens[n]);
        let (queries, keys) = (length(cu_seqlens_q), length(cu_seqlens_k));
        let ranges = &ranges[n * per_sequence..][..per_sequence];
        // The library rejects lengths above the maxima or below zero.
        for i in 0..queries.min(max_q as i64) {
            let position = i + keys - queries;
            let row = &mut mask[(n * max_q + i as usize) * max_k..][..max_k];
            let mut attend = |from: i64, to: i64| {
                let (from, to) = (from.clamp(0, max_k as i64), to.clamp(0, keys.clamp(0, max_k as i64)));
                if from < to {
                    row[from as usize..to as usize].fill(1);
                }
            };
            let [left, right] = window.map(|size| size.map(|size| size as i64));
            attend(
                left.map_or(0, |left| position - left),
                right.map_or(i64::MAX, |right| position + right + 1),
            );
            for range in ranges.chunks_exact(2) {
                let (start, end) = (i64::from(range[0]), i64::from(range[1]));
                if (start..end).contains(&position) {
                    attend(start, end);
                }
            }
        }
    }
    Ok(mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, for one query and one key.
    fn attends(position: i64, key: i64, window: [Option<usize>; 2], ranges: &[i32]) -> bool {
        let after = window[0].is_none_or(|left| position - left as i64 <= key);
        let before = window[1].is_none_or(|right| key <= position + right as i64);
        let together = ranges.chunks(2).any(|r| {
            let range = i64::from(r[0])..i64::from(r[1]);
            range.contains(&position) && range.contains(&key)
        });
        after && before || together
    }

    #[test]
    fn matches_the_definition() {
        let (cu_seqlens_q, cu_seqlens_k) = ([0, 4, 4, 12], [0, 9, 11, 16]);
        let ranges = [2, 6, 5, 5, 8, 9, 0, 0, 1, 3, 2, 100];
        let (max_q, max_k) = (8, 10);
        for window in [[None, Some(0)], [Some(2), Some(0)], [Some(1), Some(1)], [Some(0), None]] {
            let mask = mask([&cu_seqlens_q, &cu_seqlens_k], [max_q, max_k], window, &ranges).unwrap();
            for n in 0..3 {
                let queries = i64::from(cu_seqlens_q[n + 1] - cu_seqlens_q[n]);
                let keys = i64::from(cu_seqlens_k[n + 1] - cu_seqlens_k[n]);
                for i in 0..max_q as i64 {
                    for j in 0..max_k as i64 {
                        let expected = i < queries
                            && j < keys
                            && attends(i + keys - queries, j, window, &ranges[n * 4..][..4]);
                        let found = mask[(n * max_q + i as usize) * max_k + j as usize];
                        assert_eq!(found == 1, expected, "sequence {n}, query {i}, key {j}, {window:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn oversized_lengths_are_rejected() {
        let message =
            |longest| mask([&[0, 1], &[0, 1]], longest, [None, Some(0)], &[]).unwrap_err().to_string();
        let text = message([1, usize::MAX]);
        assert!(text.starts_with("max_seqlen_k is 18446744073709551615; "), "{text}");
        let text = message([1 << 31, 0]);
        assert!(text.starts_with("max_seqlen_q is 2147483648; "), "{text}");
        let text = message([i32::MAX as usize; 2]);
        assert!(text.contains("[1, 2147483647, 2147483647]"), "{text}");
    }
}
