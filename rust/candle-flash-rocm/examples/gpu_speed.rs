//! Times this crate's functions on a GPU: tensors in GPU memory, and host tensors that are copied
//! for each call.
//!
//! `cargo run --release --example gpu_speed -- hip:0` (or `cuda:0`); prints a table in Markdown. A
//! time is that of consecutive calls, from the first call until the stream has completed the last.
use candle::{DType, Result, Tensor};
use candle_flash_rocm::{on_device, RocmAttention, RocmTensor};
use rocflash::{gpu::Device, Platform};
use std::time::Instant;

const HEADS: usize = 32;
const KEY_HEADS: usize = 8;
const SIZE: usize = 128;

/// Microseconds per call, the median of five repetitions.
fn measured(gpu: &RocmAttention, calls: usize, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    call()?;
    let mut times = Vec::new();
    for _ in 0..5 {
        gpu.stream().synchronize().map_err(candle::Error::wrap)?;
        let start = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        gpu.stream().synchronize().map_err(candle::Error::wrap)?;
        times.push(start.elapsed().as_secs_f64() * 1e6 / calls as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[2])
}

fn random(rows: usize, heads: usize) -> Result<Tensor> {
    Tensor::randn(0f32, 1., (1, rows, heads, SIZE), &candle::Device::Cpu)?.to_dtype(DType::BF16)
}

fn main() -> Result<()> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "hip:0".into());
    let (kind, number) = name.split_once(':').unwrap_or((&name, "0"));
    let platform = match kind {
        "hip" => Platform::Hip,
        "cuda" => Platform::Cuda,
        _ => candle::bail!("device is {name}; it must be hip:N or cuda:N"),
    };
    let Ok(number) = number.parse() else { candle::bail!("device is {name}; {number} is not a number") };
    let device = Device::open(platform, number).map_err(candle::Error::wrap)?;
    let gpu = RocmAttention::on(device.stream().map_err(candle::Error::wrap)?)?;
    println!(
        "{}: bf16, {HEADS} query heads, {KEY_HEADS} KV heads, head dim {SIZE}, causal\n",
        device.name().map_err(candle::Error::wrap)?
    );
    println!("| case | tensors stay [µs] | TFLOP/s | copied for each call [µs] |\n|---|---|---|---|");
    let scale = 1.0 / (SIZE as f32).sqrt();
    for keys in [1024, 4096, 16384] {
        let [q, k, v] = [random(keys, HEADS)?, random(keys, KEY_HEADS)?, random(keys, KEY_HEADS)?];
        let device: Vec<RocmTensor> =
            [&q, &k, &v].into_iter().map(|x| gpu.upload(x)).collect::<Result<_>>()?;
        let stays = measured(&gpu, 10, || {
            on_device::flash_attn(&device[0], &device[1], &device[2], scale, true).map(|_| ())
        })?;
        let copied = measured(&gpu, 1, || gpu.flash_attn(&q, &k, &v, scale, true).map(|_| ()))?;
        let operations = 2.0 * (keys * keys * HEADS * SIZE) as f64;
        println!("| prefill {keys} | {stays:.0} | {:.0} | {copied:.0} |", operations / stays / 1e6);
    }
    for keys in [1024, 16384] {
        let mut cache = gpu.kv_cache(DType::BF16, 1, keys + 128, KEY_HEADS, SIZE)?;
        let first = random(keys, KEY_HEADS)?;
        cache.flash_attn(&random(keys, HEADS)?, &first, &first, scale, true)?;
        let (q, k) = (random(1, HEADS)?, random(1, KEY_HEADS)?);
        let (q_device, k_device) = (gpu.upload(&q)?, gpu.upload(&k)?);
        let stays = measured(&gpu, 8, || {
            cache.on_device()?.flash_attn(&q_device, &k_device, &k_device, scale, true).map(|_| ())
        })?;
        let copied = measured(&gpu, 8, || cache.flash_attn(&q, &k, &k, scale, true).map(|_| ()))?;
        println!("| decode over {keys}, appending | {stays:.0} | – | {copied:.0} |");
    }
    Ok(())
}
