//! Causal attention of 8 query heads and 2 KV heads, with gradients.
use candle::{Device, Result, Var};
use candle_flash_rocm::flash_attn;

fn main() -> Result<()> {
    let device = Device::Cpu;
    let q = Var::randn(0f32, 1., (1, 128, 8, 64), &device)?; // batch, queries, heads, head dim
    let k = Var::randn(0f32, 1., (1, 128, 2, 64), &device)?;
    let v = Var::randn(0f32, 1., (1, 128, 2, 64), &device)?;

    let out = flash_attn(&q, &k, &v, 1.0 / 8.0, true)?;
    println!("out: {:?}", out.shape());

    let gradients = out.sqr()?.sum_all()?.backward()?;
    for (name, var) in [("q", &q), ("k", &k), ("v", &v)] {
        println!("gradient of {name}: {:?}", gradients.get(var).expect("a gradient").shape());
    }
    Ok(())
}
