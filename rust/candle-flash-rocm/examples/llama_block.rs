//! A small Llama in Candle, with naive attention, with this crate, and with its KV cache token by
//! token: the logits are equal.
use candle::{DType, Device, IndexOp, Result, Tensor, D};
use candle_flash_rocm::{flash_attn, KvCache};
use candle_nn::{
    embedding, linear_no_bias, rms_norm, Embedding, Linear, Module, RmsNorm, VarBuilder, VarMap,
};

const VOCABULARY: usize = 96;
const WIDTH: usize = 128;
const HEADS: usize = 8;
const KEY_HEADS: usize = 2;
const HEAD: usize = WIDTH / HEADS;
const LAYERS: usize = 3;
const LONGEST: usize = 64;

/// The implementation of attention.
enum Attention<'a> {
    /// Matrix product, softmax, matrix product, with all scores materialized.
    Naive,
    /// One call of this crate.
    Flash,
    /// One call of this crate with a KV cache per layer.
    Cached(&'a mut [KvCache]),
}

impl Attention<'_> {
    /// q (b, s, heads, head), k and v (b, s, KV heads, head).
    fn run(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        let scale = 1.0 / (HEAD as f32).sqrt();
        match self {
            Attention::Naive => naive(q, k, v, scale),
            Attention::Flash => flash_attn(q, k, v, scale, true),
            Attention::Cached(caches) => caches[layer].flash_attn(q, k, v, scale, true),
        }
    }
}

fn naive(q: &Tensor, k: &Tensor, v: &Tensor, scale: f32) -> Result<Tensor> {
    let (b, s, _, _) = q.dims4()?;
    let repeat = |x: &Tensor| -> Result<Tensor> {
        let x = x.transpose(1, 2)?.unsqueeze(2)?;
        x.broadcast_as((b, KEY_HEADS, HEADS / KEY_HEADS, s, HEAD))?.contiguous()?.reshape((b, HEADS, s, HEAD))
    };
    let q = q.transpose(1, 2)?.contiguous()?;
    let scores = (q.matmul(&repeat(k)?.t()?)? * f64::from(scale))?;
    let mask: Vec<f32> = (0..s * s).map(|n| if n % s > n / s { f32::NEG_INFINITY } else { 0.0 }).collect();
    let scores = scores.broadcast_add(&Tensor::from_vec(mask, (1, 1, s, s), q.device())?)?;
    candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&repeat(v)?)?.transpose(1, 2)
}

struct Block {
    attention_norm: RmsNorm,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    feed_norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            attention_norm: rms_norm(WIDTH, 1e-5, vb.pp("attention_norm"))?,
            q: linear_no_bias(WIDTH, HEADS * HEAD, vb.pp("q"))?,
            k: linear_no_bias(WIDTH, KEY_HEADS * HEAD, vb.pp("k"))?,
            v: linear_no_bias(WIDTH, KEY_HEADS * HEAD, vb.pp("v"))?,
            o: linear_no_bias(HEADS * HEAD, WIDTH, vb.pp("o"))?,
            feed_norm: rms_norm(WIDTH, 1e-5, vb.pp("feed_norm"))?,
            gate: linear_no_bias(WIDTH, 2 * WIDTH, vb.pp("gate"))?,
            up: linear_no_bias(WIDTH, 2 * WIDTH, vb.pp("up"))?,
            down: linear_no_bias(2 * WIDTH, WIDTH, vb.pp("down"))?,
        })
    }

    /// `rotation`: cosines and sines of the tokens' positions.
    fn forward(
        &self,
        layer: usize,
        x: &Tensor,
        rotation: &(Tensor, Tensor),
        attention: &mut Attention,
    ) -> Result<Tensor> {
        let (b, s, _) = x.dims3()?;
        let y = self.attention_norm.forward(x)?;
        let rotate = |x: Tensor| -> Result<Tensor> {
            let x = x.transpose(1, 2)?.contiguous()?;
            candle_nn::rotary_emb::rope(&x, &rotation.0, &rotation.1)?.transpose(1, 2)
        };
        let q = rotate(self.q.forward(&y)?.reshape((b, s, HEADS, HEAD))?)?;
        let k = rotate(self.k.forward(&y)?.reshape((b, s, KEY_HEADS, HEAD))?)?;
        let v = self.v.forward(&y)?.reshape((b, s, KEY_HEADS, HEAD))?;
        let y = attention.run(layer, &q, &k, &v)?.reshape((b, s, HEADS * HEAD))?;
        let x = (x + self.o.forward(&y)?)?;
        let y = self.feed_norm.forward(&x)?;
        let y = (self.gate.forward(&y)?.silu()? * self.up.forward(&y)?)?;
        x + self.down.forward(&y)?
    }
}

struct Model {
    embedding: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: Linear,
    rotation: (Tensor, Tensor),
}

impl Model {
    fn new(vb: VarBuilder) -> Result<Self> {
        let angles: Vec<f32> = (0..LONGEST * HEAD / 2)
            .map(|n| {
                let (position, pair) = (n / (HEAD / 2), n % (HEAD / 2));
                position as f32 * 10000f32.powf(-2.0 * pair as f32 / HEAD as f32)
            })
            .collect();
        let angles = Tensor::from_vec(angles, (LONGEST, HEAD / 2), vb.device())?;
        Ok(Self {
            embedding: embedding(VOCABULARY, WIDTH, vb.pp("embedding"))?,
            blocks: (0..LAYERS).map(|n| Block::new(vb.pp(format!("block{n}")))).collect::<Result<_>>()?,
            norm: rms_norm(WIDTH, 1e-5, vb.pp("norm"))?,
            head: linear_no_bias(WIDTH, VOCABULARY, vb.pp("head"))?,
            rotation: (angles.cos()?, angles.sin()?),
        })
    }

    /// The logits of all tokens; the first one is at `position`.
    fn forward(&self, tokens: &Tensor, position: usize, attention: &mut Attention) -> Result<Tensor> {
        let s = tokens.dim(1)?;
        let rotation = (self.rotation.0.narrow(0, position, s)?, self.rotation.1.narrow(0, position, s)?);
        let mut x = self.embedding.forward(tokens)?;
        for (layer, block) in self.blocks.iter().enumerate() {
            x = block.forward(layer, &x, &rotation, attention)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }
}

fn main() -> Result<()> {
    let device = Device::Cpu;
    let model = Model::new(VarBuilder::from_varmap(&VarMap::new(), DType::F32, &device))?;
    let tokens: Vec<u32> = (0..48).map(|n| (n * 37 + 11) % VOCABULARY as u32).collect();
    let tokens = Tensor::from_vec(tokens, (1, 48), &device)?;

    let naive = model.forward(&tokens, 0, &mut Attention::Naive)?;
    let flash = model.forward(&tokens, 0, &mut Attention::Flash)?;
    let mut caches: Vec<KvCache> =
        (0..LAYERS).map(|_| KvCache::new(DType::F32, 1, LONGEST, KEY_HEADS, HEAD)).collect::<Result<_>>()?;
    let mut steps = vec![model.forward(&tokens.i((.., ..32))?, 0, &mut Attention::Cached(&mut caches))?];
    for position in 32..48 {
        steps.push(model.forward(
            &tokens.narrow(1, position, 1)?,
            position,
            &mut Attention::Cached(&mut caches),
        )?);
    }
    let cached = Tensor::cat(&steps, 1)?;

    let difference = |x: &Tensor| (x - &naive)?.abs()?.max_all()?.to_scalar::<f32>();
    let largest = naive.abs()?.max_all()?.to_scalar::<f32>()?;
    println!("logits: {:?}, the largest {largest:.3}", naive.shape());
    println!("flash_attn: differs from naive attention by at most {:.1e}", difference(&flash)?);
    println!("KV cache, token by token: differs by at most {:.1e}", difference(&cached)?);
    assert!(difference(&flash)? < 1e-5 * largest && difference(&cached)? < 1e-5 * largest);
    Ok(())
}
