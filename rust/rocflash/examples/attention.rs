//! Causal attention of 8 query heads and 2 KV heads, forward and backward.
use rocflash::{backward, forward, Gradients, Options, Outputs, View, ViewMut};

fn main() -> rocflash::Result<()> {
    let (q_shape, k_shape, lse_shape) = ([1, 128, 8, 64], [1, 128, 2, 64], [1, 8, 128]);
    let q: Vec<f32> = (0..128 * 8 * 64).map(|n| (n % 7) as f32 - 3.0).collect();
    let k: Vec<f32> = (0..128 * 2 * 64).map(|n| (n % 5) as f32 - 2.0).collect();
    let v: Vec<f32> = (0..128 * 2 * 64).map(|n| (n / 64) as f32).collect();
    let (mut out, mut lse) = (vec![0.0f32; q.len()], vec![0.0f32; 8 * 128]);

    let (q, k, v) = (View::new(&q, &q_shape)?, View::new(&k, &k_shape)?, View::new(&v, &k_shape)?);
    let options = Options::new().causal();
    let outputs = Outputs::new(ViewMut::new(&mut out, &q_shape)?).lse(ViewMut::new(&mut lse, &lse_shape)?);
    forward(&q, &k, &v, &options, outputs)?;

    // The first query attends to the first key only; the last one attends to all keys.
    println!("rocflash {}", rocflash::version());
    println!("first query: {:.3}", out[0]);
    println!("last query:  {:.3}", out[127 * 8 * 64]);

    let dout = vec![1.0f32; out.len()];
    let mut dv = vec![0.0f32; 128 * 2 * 64];
    let gradients =
        Gradients::new(View::new(&dout, &q_shape)?, View::new(&out, &q_shape)?, View::new(&lse, &lse_shape)?);
    backward(&q, &k, &v, &options, gradients.dv(ViewMut::new(&mut dv, &k_shape)?))?;
    // Only the last query attends to the last key, so this is its weight, summed over the 4 query
    // heads that share the KV head.
    println!("gradient of the last value: {:.6}", dv[dv.len() - 1]);
    Ok(())
}
