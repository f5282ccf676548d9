//! Trains a toy model with gradients through this crate: one attention layer learns to copy the
//! token a few positions earlier. Naive attention gives the same losses.
use candle::{DType, Device, Result, Tensor, D};
use candle_flash_rocm::flash_attn;
use candle_nn::{embedding, linear, AdamW, Embedding, Init, Linear, Module, Optimizer, VarBuilder, VarMap};

const TOKENS: usize = 12;
const WIDTH: usize = 48;
const HEADS: usize = 2;
const HEAD: usize = WIDTH / HEADS;
const LENGTH: usize = 24;
const BATCH: usize = 8;
const BACK: usize = 3;
const STEPS: usize = 120;

type AttentionFn = fn(&Tensor, &Tensor, &Tensor, f32) -> Result<Tensor>;

fn naive(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
    let (q, k, v) = (q.transpose(1, 2)?.contiguous()?, k.transpose(1, 2)?, v.transpose(1, 2)?.contiguous()?);
    let s = q.dim(2)?;
    let mask: Vec<f32> = (0..s * s).map(|n| if n % s > n / s { f32::NEG_INFINITY } else { 0.0 }).collect();
    let mask = Tensor::from_vec(mask, (1, 1, s, s), q.device())?;
    let scores = (q.matmul(&k.t()?.contiguous()?)? * f64::from(scale))?.broadcast_add(&mask)?;
    candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&v)?.transpose(1, 2)
}

struct Model {
    tokens: Embedding,
    positions: Tensor,
    qkv: Linear,
    head: Linear,
}

impl Model {
    fn new(vb: VarBuilder) -> Result<Self> {
        let positions =
            vb.get_with_hints((LENGTH, WIDTH), "positions", Init::Randn { mean: 0., stdev: 1. })?;
        Ok(Self {
            tokens: embedding(TOKENS, WIDTH, vb.pp("tokens"))?,
            positions,
            qkv: linear(WIDTH, 3 * WIDTH, vb.pp("qkv"))?,
            head: linear(WIDTH, TOKENS, vb.pp("head"))?,
        })
    }

    fn loss(&self, tokens: &Tensor, attention: AttentionFn) -> Result<Tensor> {
        let x = self.tokens.forward(tokens)?.broadcast_add(&self.positions)?;
        let qkv = self.qkv.forward(&x)?.reshape((BATCH, LENGTH, 3, HEADS, HEAD))?;
        // Views into the projection: no copies.
        let part = |n| qkv.narrow(2, n, 1)?.squeeze(2);
        let y = attention(&part(0)?, &part(1)?, &part(2)?, 1.0 / (HEAD as f32).sqrt())?;
        let logits = self.head.forward(&y.reshape((BATCH, LENGTH, WIDTH))?)?;
        let logits = logits.narrow(1, BACK, LENGTH - BACK)?.reshape(((), TOKENS))?;
        let wanted = tokens.narrow(1, 0, LENGTH - BACK)?.flatten_all()?;
        candle_nn::loss::cross_entropy(&logits, &wanted)
    }
}

/// The loss of every step, starting from `weights`.
fn train(weights: &VarMap, attention: AttentionFn) -> Result<Vec<f32>> {
    let device = Device::Cpu;
    let varmap = VarMap::new();
    let model = Model::new(VarBuilder::from_varmap(&varmap, DType::F32, &device))?;
    for (name, var) in varmap.data().lock().unwrap().iter() {
        var.set(weights.data().lock().unwrap()[name].as_tensor())?;
    }
    let mut optimizer = AdamW::new_lr(varmap.all_vars(), 0.01)?;
    let mut state = 1u64;
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let tokens: Vec<u32> = (0..BATCH * LENGTH)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) as u32 % TOKENS as u32
            })
            .collect();
        let loss = model.loss(&Tensor::from_vec(tokens, (BATCH, LENGTH), &device)?, attention)?;
        optimizer.backward_step(&loss)?;
        losses.push(loss.to_scalar()?);
    }
    Ok(losses)
}

fn main() -> Result<()> {
    let weights = VarMap::new();
    Model::new(VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu))?;
    let flash = train(&weights, |q, k, v, scale| flash_attn(q, k, v, scale, true))?;
    let naive = train(&weights, naive)?;
    println!("step   with this crate   naive");
    for step in (0..STEPS).step_by(20).chain([STEPS - 1]) {
        println!("{step:4}   {:15.4}   {:.4}", flash[step], naive[step]);
    }
    assert!(flash[STEPS - 1] < 0.2 * flash[0], "the loss did not decrease");
    assert!((flash[20] - naive[20]).abs() < 1e-2, "the losses differ");
    Ok(())
}
