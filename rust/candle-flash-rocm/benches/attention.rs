//! Attention on the CPU with three methods in one run: this crate, candle-nn's flash attention, and
//! naive attention (matrix product, softmax, matrix product). `cargo bench -p candle-flash-rocm`
//! prints criterion's results and a table of medians.
use candle::{DType, Device, Result, Tensor, D};
use candle_flash_rocm::flash_attn;
use candle_nn::attention::AttnMask;
use criterion::{BenchmarkId, Criterion};
use half::{bf16, f16};
use std::time::Duration;

const HEADS: usize = 16;
const KEY_HEADS: usize = 4;
const HEAD: usize = 64;
const SCALE: f32 = 0.125;

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Queries and keys. In f16 and bf16 candle-nn takes many seconds for longer prompts, so those are
/// f32 only.
fn cases(dtype: DType) -> Vec<(&'static str, usize, usize)> {
    let longer = [("prefill", 1024, 1024), ("prefill", 2048, 2048)];
    let mut all = vec![("prefill", 256, 256)];
    all.extend(longer.into_iter().filter(|_| dtype == DType::F32));
    all.extend([("decode", 1, 1024), ("decode", 1, 8192)]);
    all
}
const METHODS: [&str; 3] = ["this crate", "candle-nn flash", "matmul-softmax-matmul"];

/// Naive attention. The mask is an argument, because models compute it once.
fn naive(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let (b, s, _, d) = k.dims4()?;
    let repeat = |x: &Tensor| -> Result<Tensor> {
        let x = x.transpose(1, 2)?.unsqueeze(2)?;
        x.broadcast_as((b, KEY_HEADS, HEADS / KEY_HEADS, s, d))?.contiguous()?.reshape((b, HEADS, s, d))
    };
    let q = q.transpose(1, 2)?.contiguous()?;
    let mut scores = (q.matmul(&repeat(k)?.t()?)? * f64::from(SCALE))?;
    if let Some(mask) = mask {
        scores = scores.broadcast_add(mask)?;
    }
    candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&repeat(v)?)?.transpose(1, 2)
}

fn candle_nn_flash(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let mask = AttnMask::causal_with_offset(k.dim(1)? - q.dim(1)?);
    match q.dtype() {
        DType::F16 => candle_nn::attention::flash_attn::<f16>(q, k, v, SCALE, mask, None, None),
        DType::BF16 => candle_nn::attention::flash_attn::<bf16>(q, k, v, SCALE, mask, None, None),
        _ => candle_nn::attention::flash_attn::<f32>(q, k, v, SCALE, mask, None, None),
    }
}

fn name(kind: &str, keys: usize, dtype: DType) -> String {
    format!("{kind} {keys} {}", dtype.as_str())
}

fn run(criterion: &mut Criterion) -> Result<()> {
    let device = Device::Cpu;
    for dtype in DTYPES {
        for (kind, queries, keys) in cases(dtype) {
            let random = |s, h| Tensor::randn(0f32, 1., (1, s, h, HEAD), &device)?.to_dtype(dtype);
            let (q, k, v) = (random(queries, HEADS)?, random(keys, KEY_HEADS)?, random(keys, KEY_HEADS)?);
            let mask: Vec<f32> = (0..queries * keys)
                .map(|n| if n % keys > n / keys + keys - queries { f32::NEG_INFINITY } else { 0.0 })
                .collect();
            let mask = Tensor::from_vec(mask, (1, 1, queries, keys), &device)?.to_dtype(dtype)?;
            let mask = (queries > 1).then_some(&mask);
            let mut group = criterion.benchmark_group(name(kind, keys, dtype));
            group.bench_function(METHODS[0], |b| b.iter(|| flash_attn(&q, &k, &v, SCALE, true).unwrap()));
            group.bench_function(METHODS[1], |b| b.iter(|| candle_nn_flash(&q, &k, &v).unwrap()));
            group.bench_with_input(BenchmarkId::from_parameter(METHODS[2]), &mask, |b, mask| {
                b.iter(|| naive(&q, &k, &v, *mask).unwrap());
            });
            group.finish();
        }
    }
    Ok(())
}

/// The medians that criterion wrote, in milliseconds, as a Markdown table.
fn table() -> Option<String> {
    let directory = std::env::var_os("CRITERION_HOME").map(Into::into).or_else(|| {
        Some(std::path::PathBuf::from(std::env::var_os("CARGO_TARGET_DIR")?).join("criterion"))
    })?;
    let mut text = String::from("| case | this crate [ms] | candle-nn flash [ms] | matmul-softmax-matmul [ms] | speedup |\n|---|---|---|---|---|\n");
    for dtype in DTYPES {
        for (kind, _, keys) in cases(dtype) {
            let median = |method: &str| -> Option<f64> {
                let path = directory.join(name(kind, keys, dtype)).join(method).join("new/estimates.json");
                let json = std::fs::read_to_string(path).ok()?;
                let after = json.split_once("\"median\":")?.1.split_once("\"point_estimate\":")?.1;
                let number =
                    after.split(|c: char| c != '.' && c != 'e' && c != '-' && !c.is_ascii_digit()).next()?;
                Some(number.parse::<f64>().ok()? / 1e6)
            };
            let [ours, theirs, naive] = METHODS.map(median);
            let (ours, theirs, naive) = (ours?, theirs?, naive?);
            text += &format!(
                "| {} | {ours:.2} | {theirs:.2} | {naive:.2} | {:.1}, {:.1} |\n",
                name(kind, keys, dtype),
                theirs / ours,
                naive / ours
            );
        }
    }
    Some(text)
}

fn main() -> Result<()> {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    run(&mut criterion)?;
    criterion.final_summary();
    match table() {
        Some(table) => println!("{table}"),
        None => println!(
            "no table: set CARGO_TARGET_DIR or CRITERION_HOME to the directory of criterion's results"
        ),
    }
    Ok(())
}
