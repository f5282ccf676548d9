//! Random numbers and naive attention in f64, for the tests.
#![allow(dead_code)] // each test program uses some of them

pub mod processes;

/// Reproducible numbers around zero.
pub fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..len).map(|_| next() + next() + next() - 1.5).collect()
}

pub fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// softmax(q kᵀ / √d) v in f64, optionally causal: q (b, sq, h, d), k and v (b, sk, hk, d), all
/// contiguous.
pub fn attention(q: &[f32], k: &[f32], v: &[f32], dims: [usize; 6], causal: bool) -> Vec<f32> {
    let [b, sq, sk, h, hk, d] = dims;
    let mut out = vec![0.0; b * sq * h * d];
    let scale = 1.0 / (d as f64).sqrt();
    for n in 0..b {
        for a in 0..h {
            let ak = a / (h / hk);
            for i in 0..sq {
                let row = |s: usize, heads: usize, r: usize, head: usize| ((n * s + r) * heads + head) * d;
                let keys = if causal { (i + 1 + sk).saturating_sub(sq) } else { sk };
                let scores: Vec<f64> = (0..keys)
                    .map(|j| {
                        let (q, k) = (&q[row(sq, h, i, a)..][..d], &k[row(sk, hk, j, ak)..][..d]);
                        scale * q.iter().zip(k).map(|(q, k)| *q as f64 * *k as f64).sum::<f64>()
                    })
                    .collect();
                let row_max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|s| (s - row_max).exp()).sum();
                for c in 0..d {
                    let weighted =
                        |(j, s): (usize, &f64)| (s - row_max).exp() / sum * v[row(sk, hk, j, ak) + c] as f64;
                    out[row(sq, h, i, a) + c] = scores.iter().enumerate().map(weighted).sum::<f64>() as f32;
                }
            }
        }
    }
    out
}
