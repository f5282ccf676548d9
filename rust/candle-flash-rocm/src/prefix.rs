//! Ranges of keys that see each other whatever the window says, as images do in multimodal prompts. The library knows
//! windows and masks, so window and ranges together become one mask.
use crate::stage::zeros;
use candle::{bail, Result};

/// (b, 1, max_q, max_k), 1 where the query sees the key: within the window, or both places in one range.
///
/// `begins_q` and `begins_k` say where sequences begin; `ranges` has (start, end) pairs, the same number for each
/// sequence, and an empty range is none.
pub(crate) fn mask(
    [begins_q, begins_k]: [&[i32]; 2],
    [max_q, max_k]: [usize; 2],
    window: [Option<usize>; 2],
    ranges: &[i32],
) -> Result<Vec<u8>> {
    // Sequences begin at rows that 32 bits count, so none is longer, and no sum below overflows.
    for (name, most) in [("max_seqlen_q", max_q), ("max_seqlen_k", max_k)] {
        if i32::try_from(most).is_err() {
            bail!("{name} is {most}; with mm_prefix_ranges at most {}", i32::MAX)
        }
    }
    let batch = begins_q.len() - 1;
    let per_sequence = ranges.len() / batch;
    let mut mask = zeros::<u8>(&[batch, max_q, max_k])?;
    for n in 0..batch {
        let length = |begins: &[i32]| i64::from(begins[n + 1]) - i64::from(begins[n]);
        let (queries, keys) = (length(begins_q), length(begins_k));
        let ranges = &ranges[n * per_sequence..][..per_sequence];
        // Lengths beyond the maxima or below zero are the library's to refuse.
        for i in 0..queries.min(max_q as i64) {
            let place = i + keys - queries;
            let row = &mut mask[(n * max_q + i as usize) * max_k..][..max_k];
            let mut see = |from: i64, to: i64| {
                let (from, to) = (from.clamp(0, max_k as i64), to.clamp(0, keys.clamp(0, max_k as i64)));
                if from < to {
                    row[from as usize..to as usize].fill(1);
                }
            };
            let [left, right] = window.map(|size| size.map(|size| size as i64));
            see(left.map_or(0, |left| place - left), right.map_or(i64::MAX, |right| place + right + 1));
            for range in ranges.chunks_exact(2) {
                let (start, end) = (i64::from(range[0]), i64::from(range[1]));
                if (start..end).contains(&place) {
                    see(start, end);
                }
            }
        }
    }
    Ok(mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule, pair by pair.
    fn sees(place: i64, key: i64, window: [Option<usize>; 2], ranges: &[i32]) -> bool {
        let after = window[0].is_none_or(|left| place - left as i64 <= key);
        let before = window[1].is_none_or(|right| key <= place + right as i64);
        let together = ranges.chunks(2).any(|r| {
            let range = i64::from(r[0])..i64::from(r[1]);
            range.contains(&place) && range.contains(&key)
        });
        after && before || together
    }

    #[test]
    fn agrees_with_the_rule() {
        let (begins_q, begins_k) = ([0, 4, 4, 12], [0, 9, 11, 16]);
        let ranges = [2, 6, 5, 5, 8, 9, 0, 0, 1, 3, 2, 100];
        let (max_q, max_k) = (8, 10);
        for window in [[None, Some(0)], [Some(2), Some(0)], [Some(1), Some(1)], [Some(0), None]] {
            let mask = mask([&begins_q, &begins_k], [max_q, max_k], window, &ranges).unwrap();
            for n in 0..3 {
                let queries = i64::from(begins_q[n + 1] - begins_q[n]);
                let keys = i64::from(begins_k[n + 1] - begins_k[n]);
                for i in 0..max_q as i64 {
                    for j in 0..max_k as i64 {
                        let expected = i < queries
                            && j < keys
                            && sees(i + keys - queries, j, window, &ranges[n * 4..][..4]);
                        let found = mask[(n * max_q + i as usize) * max_k + j as usize];
                        assert_eq!(found == 1, expected, "sequence {n}, query {i}, key {j}, {window:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn lengths_that_no_mask_can_have_are_refused() {
        let message =
            |longest| mask([&[0, 1], &[0, 1]], longest, [None, Some(0)], &[]).unwrap_err().to_string();
        let words = message([1, usize::MAX]);
        assert!(words.starts_with("max_seqlen_k is 18446744073709551615; "), "{words}");
        let words = message([1 << 31, 0]);
        assert!(words.starts_with("max_seqlen_q is 2147483648; "), "{words}");
        let words = message([i32::MAX as usize; 2]);
        assert!(words.contains("[1, 2147483647, 2147483647]"), "{words}");
    }
}
