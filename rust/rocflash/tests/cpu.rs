//! The safe wrapper on the CPU: every option reaches the library and has its effect, compared with
//! naive attention in f64 and with the library's double-precision reference.
mod common;

use common::{attention, largest_difference, random};
use half::{bf16, f16};
use rocflash::{
    combine, decode, forward, Append, Backend, Cpu, Element, ErrorKind, Executor, Gradients, KvCache,
    Options, Outputs, View, ViewMut,
};

const B: usize = 2;
const SQ: usize = 13;
const SK: usize = 37;
const H: usize = 4;
const HK: usize = 2;
const D: usize = 24;

struct Problem {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Problem {
    fn new() -> Self {
        Self { q: random(1, B * SQ * H * D), k: random(2, B * SK * HK * D), v: random(3, B * SK * HK * D) }
    }

    fn views(&self) -> [View<'_>; 3] {
        [
            View::new(&self.q, &[B, SQ, H, D]).unwrap(),
            View::new(&self.k, &[B, SK, HK, D]).unwrap(),
            View::new(&self.v, &[B, SK, HK, D]).unwrap(),
        ]
    }

    /// out, lse and weights.
    fn forward(&self, cpu: &mut Cpu, options: &Options) -> rocflash::Result<[Vec<f32>; 3]> {
        let [q, k, v] = self.views();
        let (mut out, mut lse) = (vec![7.0f32; self.q.len()], vec![7.0f32; B * H * SQ]);
        let mut weights = vec![7.0f32; B * H * SQ * SK];
        let outputs = Outputs::new(ViewMut::new(&mut out, &[B, SQ, H, D])?)
            .lse(ViewMut::new(&mut lse, &[B, H, SQ])?)
            .s_dmask(ViewMut::new(&mut weights, &[B, H, SQ, SK])?);
        cpu.forward(&q, &k, &v, options, outputs)?;
        Ok([out, lse, weights])
    }
}

/// Compares the CPU backend with the reference, and checks that the option changed the result.
fn compare_with_reference(name: &str, options: &Options) {
    let problem = Problem::new();
    let fast = problem.forward(&mut Cpu::new(), options).unwrap();
    let exact = problem.forward(&mut Cpu::new().backend(Backend::Reference), options).unwrap();
    for (fast, exact) in fast.iter().zip(&exact) {
        let finite = |x: &&f32| x.is_finite();
        assert_eq!(fast.iter().filter(finite).count(), exact.iter().filter(finite).count(), "{name}");
        let zipped: (Vec<f32>, Vec<f32>) = fast.iter().zip(exact).filter(|(_, e)| e.is_finite()).unzip();
        assert!(largest_difference(&zipped.0, &zipped.1) < 2e-6, "{name}");
    }
    let dense = problem.forward(&mut Cpu::new(), &Options::new()).unwrap();
    assert!(largest_difference(&dense[0], &fast[0]) > 1e-3, "{name} changed nothing");
}

#[test]
fn dense_and_causal_match_naive_attention() {
    let problem = Problem::new();
    let dims = [B, SQ, SK, H, HK, D];
    for (options, causal) in [(Options::new(), false), (Options::new().causal(), true)] {
        let [out, ..] = problem.forward(&mut Cpu::new(), &options).unwrap();
        let expected = attention(&problem.q, &problem.k, &problem.v, dims, causal);
        assert!(largest_difference(&out, &expected) < 2e-6);
    }
}

#[test]
fn every_option_reaches_the_library() {
    let used = [20, 31];
    let used = View::new(&used, &[B]).unwrap();
    let used_q = [5, 13];
    let pad = [3, 0];
    let mask: Vec<bool> = (0..SQ * SK).map(|n| n % 3 != 0).collect();
    let bias = random(9, H * SK);
    let slopes: Vec<f32> = (1..=H).map(|n| 0.1 * n as f32).collect();
    let sinks = random(10, H);
    let default = Options::new();
    compare_with_reference("causal", &default.causal());
    compare_with_reference("window", &default.window(Some(4), Some(2)));
    compare_with_reference("window with one bound", &default.window(Some(4), None));
    compare_with_reference("chunk", &default.attention_chunk(8));
    compare_with_reference("mask", &default.mask(View::mask(&mask, &[1, 1, SQ, SK]).unwrap()));
    compare_with_reference("bias", &default.bias(View::new(&bias, &[1, H, 1, SK]).unwrap()));
    compare_with_reference("scale", &default.softmax_scale(0.7));
    compare_with_reference("softcap", &default.softmax_scale(1.0).softcap(1.5));
    compare_with_reference("alibi", &default.alibi_slopes(View::new(&slopes, &[H]).unwrap()));
    compare_with_reference("sinks", &default.sinks(View::new(&sinks, &[H]).unwrap()));
    compare_with_reference("dropout", &default.dropout(0.3, 11, 5));
    compare_with_reference("seqused_k", &default.seqused_k(used));
    compare_with_reference("seqused_q", &default.seqused_q(View::new(&used_q, &[B]).unwrap()));
    compare_with_reference("leftpad_k", &default.leftpad_k(View::new(&pad, &[B]).unwrap()));
    compare_with_reference("index", &default.cache_batch_idx(View::new(&[1, 0], &[B]).unwrap()));
    compare_with_reference(
        "many",
        &default
            .causal()
            .deterministic()
            .softcap(3.0)
            .alibi_slopes(View::new(&slopes, &[H]).unwrap())
            .sinks(View::new(&sinks, &[H]).unwrap())
            .seqused_k(used)
            .dropout(0.1, 1, 2),
    );
    // num_splits may change rounding only, so an invalid value shows that it reaches the library.
    let error = Problem::new().forward(&mut Cpu::new(), &default.num_splits(u32::MAX)).unwrap_err();
    assert!(error.message().starts_with("num_splits is "), "{error}");
}

#[test]
fn quantized_values_are_scaled() {
    use rocflash::{E4m3fn, E5m2fnuz};
    // One key: the output is its value. 0x38 is 1 and 0x40 is 2 in e4m3fn.
    let (q, k) = ([0.5f32; 4], [E4m3fn(0x38); 4]);
    let v = [E4m3fn(0x38), E4m3fn(0x40), E4m3fn(0xb8), E4m3fn(0)];
    let scale = [0.25f32];
    let shape = [1, 1, 1, 4];
    let mut out = [9.0f32; 4];
    let scales = || View::new(&scale, &[1]).unwrap();
    let mut call = |k: View, v: View| {
        let outputs = Outputs::new(ViewMut::new(&mut out, &shape).unwrap());
        let options = Options::new().descales(scales(), scales());
        Cpu::new().forward(&View::new(&q, &shape).unwrap(), &k, &v, &options, outputs).unwrap();
        out
    };
    let found = call(View::new(&k, &shape).unwrap(), View::new(&v, &shape).unwrap());
    assert_eq!(found, [0.25, 0.5, -0.25, 0.0]);
    let codes = [4i8, -8, 127, -128];
    let view = || View::new(&codes, &shape).unwrap();
    assert_eq!(call(view(), view()), [1.0, -2.0, 31.75, -32.0]);
    let halves = [E5m2fnuz(0x40), E5m2fnuz(0x44), E5m2fnuz(0xc0), E5m2fnuz(0)];
    let view = || View::new(&halves, &shape).unwrap();
    assert_eq!(call(view(), view()), [0.25, 0.5, -0.25, 0.0]);
}

#[test]
fn varlen_equals_dense() {
    let problem = Problem::new();
    let [dense, ..] = problem.forward(&mut Cpu::new(), &Options::new().causal()).unwrap();
    let cu_seqlens_q: Vec<i32> = (0..=B).map(|n| (n * SQ) as i32).collect();
    let cu_seqlens_k: Vec<i32> = (0..=B).map(|n| (n * SK) as i32).collect();
    let mut out = vec![0.0f32; dense.len()];
    let options = Options::new()
        .causal()
        .packed(View::new(&cu_seqlens_q, &[B + 1]).unwrap(), View::new(&cu_seqlens_k, &[B + 1]).unwrap())
        .max_seqlens(SQ, SK);
    forward(
        &View::new(&problem.q, &[B * SQ, H, D]).unwrap(),
        &View::new(&problem.k, &[B * SK, HK, D]).unwrap(),
        &View::new(&problem.v, &[B * SK, HK, D]).unwrap(),
        &options,
        Outputs::new(ViewMut::new(&mut out, &[B * SQ, H, D]).unwrap()),
    )
    .unwrap();
    assert_eq!(out, dense);
}

#[test]
fn strided_views_need_no_copy() {
    let problem = Problem::new();
    let [expected, ..] = problem.forward(&mut Cpu::new(), &Options::new()).unwrap();
    // k and v in one tensor (b, sk, 2, hk, d), q and out as (b, h, sq, d).
    let mut kv = Vec::new();
    for (k, v) in problem.k.chunks(HK * D).zip(problem.v.chunks(HK * D)) {
        kv.extend_from_slice(k);
        kv.extend_from_slice(v);
    }
    let transpose = |x: &[f32], from: [usize; 4]| -> Vec<f32> {
        let [b, s, h, d] = from;
        let at = |n: usize| {
            let (c, i, a, n) = (n % d, n / d % s, n / d / s % h, n / d / s / h);
            ((n * s + i) * h + a) * d + c
        };
        (0..b * s * h * d).map(|n| x[at(n)]).collect()
    };
    let q = transpose(&problem.q, [B, SQ, H, D]);
    let mut out = vec![0.0f32; q.len()];
    let row = (2 * HK * D) as isize;
    let kv_strides = [row * SK as isize, row, D as isize, 1];
    let q_strides = [(H * SQ * D) as isize, D as isize, (SQ * D) as isize, 1];
    forward(
        &View::strided(&q, 0, &[B, SQ, H, D], &q_strides).unwrap(),
        &View::strided(&kv, 0, &[B, SK, HK, D], &kv_strides).unwrap(),
        &View::strided(&kv, HK * D, &[B, SK, HK, D], &kv_strides).unwrap(),
        &Options::new(),
        Outputs::new(ViewMut::strided(&mut out, 0, &[B, SQ, H, D], &q_strides).unwrap()),
    )
    .unwrap();
    assert_eq!(out, transpose(&expected, [B, SQ, H, D]));
}

#[test]
fn half_precision() {
    fn run<T: Element>(convert: fn(f32) -> T, back: fn(T) -> f32, tolerance: f32) {
        let problem = Problem::new();
        let rounded = |x: &[f32]| -> Vec<f32> { x.iter().map(|x| back(convert(*x))).collect() };
        let halves = |x: &[f32]| -> Vec<T> { x.iter().map(|x| convert(*x)).collect() };
        let expected = attention(
            &rounded(&problem.q),
            &rounded(&problem.k),
            &rounded(&problem.v),
            [B, SQ, SK, H, HK, D],
            false,
        );
        let (q, k, v) = (halves(&problem.q), halves(&problem.k), halves(&problem.v));
        let mut out = vec![convert(0.0); q.len()];
        forward(
            &View::new(&q, &[B, SQ, H, D]).unwrap(),
            &View::new(&k, &[B, SK, HK, D]).unwrap(),
            &View::new(&v, &[B, SK, HK, D]).unwrap(),
            &Options::new(),
            Outputs::new(ViewMut::new(&mut out, &[B, SQ, H, D]).unwrap()),
        )
        .unwrap();
        let out: Vec<f32> = out.into_iter().map(back).collect();
        assert!(largest_difference(&out, &expected) < tolerance);
    }
    run(f16::from_f32, f16::to_f32, 1e-3);
    run(bf16::from_f32, bf16::to_f32, 8e-3);
}

#[test]
fn gradients_match_the_reference_and_finite_differences() {
    let problem = Problem::new();
    let (dout, dlse) = (random(5, problem.q.len()), random(9, B * H * SQ));
    let sinks = random(6, H);
    let (bias, slopes) = (random(7, H * SK), random(8, B * H));
    let options = Options::new()
        .causal()
        .softcap(4.0)
        .sinks(View::new(&sinks, &[H]).unwrap())
        .bias(View::new(&bias, &[1, H, 1, SK]).unwrap())
        .alibi_slopes(View::new(&slopes, &[B, H]).unwrap())
        .dropout(0.2, 3, 4);
    let gradients = |cpu: &mut Cpu| {
        let [out, lse, _] = problem.forward(cpu, &options).unwrap();
        let (mut dq, mut dk) = (vec![0.0f32; problem.q.len()], vec![0.0f32; problem.k.len()]);
        let (mut dv, mut dsinks) = (vec![0.0f32; problem.v.len()], vec![0.0f32; H]);
        let (mut dbias, mut dslopes) = (vec![0.0f32; bias.len()], vec![0.0f32; slopes.len()]);
        let mut delta = vec![0.0f32; B * H * SQ];
        let [q, k, v] = problem.views();
        let gradients = Gradients::new(
            View::new(&dout, &[B, SQ, H, D]).unwrap(),
            View::new(&out, &[B, SQ, H, D]).unwrap(),
            View::new(&lse, &[B, H, SQ]).unwrap(),
        )
        .dq(ViewMut::new(&mut dq, &[B, SQ, H, D]).unwrap())
        .dk(ViewMut::new(&mut dk, &[B, SK, HK, D]).unwrap())
        .dv(ViewMut::new(&mut dv, &[B, SK, HK, D]).unwrap())
        .dsinks(ViewMut::new(&mut dsinks, &[H]).unwrap())
        .dbias(ViewMut::new(&mut dbias, &[1, H, 1, SK]).unwrap())
        .dalibi_slopes(ViewMut::new(&mut dslopes, &[B, H]).unwrap())
        .delta(ViewMut::new(&mut delta, &[B, H, SQ]).unwrap())
        .dlse(View::new(&dlse, &[B, H, SQ]).unwrap());
        cpu.backward(&q, &k, &v, &options, gradients).unwrap();
        [dq, dk, dv, dsinks, dbias, dslopes, delta]
    };
    let fast = gradients(&mut Cpu::new());
    let exact = gradients(&mut Cpu::new().backend(Backend::Reference));
    for (fast, exact) in fast.iter().zip(&exact) {
        assert!(largest_difference(fast, exact) < 2e-5);
        assert!(exact.iter().any(|x| x.abs() > 0.01));
    }
    // The loss is out · dout + lse · dlse; one element of q is perturbed.
    let loss = |q: &[f32]| {
        let perturbed = Problem { q: q.to_vec(), ..Problem::new() };
        let [out, lse, _] = perturbed.forward(&mut Cpu::new(), &options).unwrap();
        let terms = out.iter().zip(&dout).chain(lse.iter().zip(&dlse));
        terms.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
    };
    for at in [0, 77, problem.q.len() - 1] {
        let (mut up, mut down) = (problem.q.clone(), problem.q.clone());
        up[at] += 0.02;
        down[at] -= 0.02;
        let slope = (loss(&up) - loss(&down)) / f64::from(up[at] - down[at]);
        assert!((slope - f64::from(fast[0][at])).abs() < 2e-3, "{slope} {}", fast[0][at]);
    }
}

#[test]
fn only_the_requested_gradients() {
    let problem = Problem::new();
    let [out, lse, _] = problem.forward(&mut Cpu::new(), &Options::new()).unwrap();
    let [q, k, v] = problem.views();
    let mut dv = vec![0.0f32; problem.v.len()];
    let inputs = || {
        Gradients::new(
            View::new(&out, &[B, SQ, H, D]).unwrap(),
            View::new(&out, &[B, SQ, H, D]).unwrap(),
            View::new(&lse, &[B, H, SQ]).unwrap(),
        )
    };
    let gradients = inputs().dv(ViewMut::new(&mut dv, &[B, SK, HK, D]).unwrap());
    rocflash::backward(&q, &k, &v, &Options::new(), gradients).unwrap();
    assert!(dv.iter().any(|x| *x != 0.0));
    let error = rocflash::backward(&q, &k, &v, &Options::new(), inputs()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn decode_with_a_cache_matches_prefill() {
    let (steps, capacity) = (9, 16);
    let (q, k, v) = (random(1, steps * H * D), random(2, steps * HK * D), random(3, steps * HK * D));
    let expected = attention(&q, &k, &v, [1, steps, steps, H, HK, D], true);
    let mut cache = KvCache::new(rocflash::DType::F32, 1, capacity, HK, D).unwrap();
    let mut cpu = Cpu::new();
    let mut step = |cache: &mut KvCache, from: usize, n: usize| {
        let mut out = vec![0.0f32; n * H * D];
        let k_new = View::new(&k[from * HK * D..][..n * HK * D], &[1, n, HK, D]).unwrap();
        let v_new = View::new(&v[from * HK * D..][..n * HK * D], &[1, n, HK, D]).unwrap();
        let q = View::new(&q[from * H * D..][..n * H * D], &[1, n, H, D]).unwrap();
        let outputs = Outputs::new(ViewMut::new(&mut out, &[1, n, H, D]).unwrap());
        cache
            .attend(&mut cpu, &q, &Append::new(k_new, v_new), &Options::new().causal(), outputs)
            .map(|()| out)
    };
    let mut all = step(&mut cache, 0, 4).unwrap();
    for from in 4..steps {
        all.extend(step(&mut cache, from, 1).unwrap());
    }
    assert!(largest_difference(&all, &expected) < 2e-6);
    assert_eq!(cache.lengths(), [steps as i32]);

    // A rejected step changes nothing, and a sequence can be truncated.
    cache.truncate(0, 5).unwrap();
    assert!(cache.truncate(0, 6).is_err());
    assert!(cache.truncate(1, 0).is_err());
    let again = step(&mut cache, 5, 4).unwrap();
    assert!(largest_difference(&again, &expected[5 * H * D..]) < 2e-6);
    let error = step(&mut cache, 0, 9).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(cache.lengths(), [9]);
    cache.clear();
    let whole = step(&mut cache, 0, 9).unwrap();
    assert!(largest_difference(&whole, &expected) < 2e-6);
    assert_eq!(cache.keys().unwrap().shape(), [1, 16, 2, 24]);
}

#[test]
fn paged_cache_and_rotary_embedding() {
    let (page, pages, keys) = (4, 5, 11);
    let (q, new) = (random(1, H * D), random(2, HK * D));
    let (mut k_pages, mut v_pages) = (random(3, pages * page * HK * D), random(4, pages * page * HK * D));
    let table = [3, 0, 4];
    let gather = |pool: &[f32], rows: usize| -> Vec<f32> {
        (0..rows)
            .flat_map(|r| pool[(table[r / page] as usize * page + r % page) * HK * D..][..HK * D].to_vec())
            .collect()
    };
    // Position 0 has cosines of 1 and sines of 0, so it changes nothing; other positions must
    // change the result.
    let positions = 16;
    let angle = |n: usize| (n / (D / 2)) as f32 * 0.3;
    let cos: Vec<f32> = (0..positions * D / 2).map(|n| angle(n).cos()).collect();
    let sin: Vec<f32> = (0..positions * D / 2).map(|n| angle(n).sin()).collect();
    let run = |k_pages: &mut [f32], v_pages: &mut [f32], first: Option<i32>| {
        let mut out = vec![0.0f32; H * D];
        let new = View::new(&new, &[1, 1, HK, D]).unwrap();
        let position = [first.unwrap_or(0)];
        let mut append = Append::new(new, new);
        if first.is_some() {
            append = append
                .rotary(
                    View::new(&cos, &[positions, D / 2]).unwrap(),
                    View::new(&sin, &[positions, D / 2]).unwrap(),
                    true,
                )
                .rotary_seqlens(View::new(&position, &[1]).unwrap());
        }
        decode(
            &View::new(&q, &[1, 1, H, D]).unwrap(),
            &mut ViewMut::new(k_pages, &[pages, page, HK, D]).unwrap(),
            &mut ViewMut::new(v_pages, &[pages, page, HK, D]).unwrap(),
            &append,
            &Options::new()
                .causal()
                .seqused_k(View::new(&[keys], &[1]).unwrap())
                .block_table(View::new(&table, &[1, 3]).unwrap()),
            Outputs::new(ViewMut::new(&mut out, &[1, 1, H, D]).unwrap()),
        )
        .unwrap();
        out
    };
    let out = run(&mut k_pages, &mut v_pages, None);
    let rows = keys as usize + 1;
    let (k, v) = (gather(&k_pages, rows), gather(&v_pages, rows));
    assert_eq!(k[keys as usize * HK * D..], new);
    assert!(largest_difference(&out, &attention(&q, &k, &v, [1, 1, rows, H, HK, D], true)) < 2e-6);
    assert!(largest_difference(&out, &run(&mut k_pages, &mut v_pages, Some(0))) < 1e-6);
    assert!(largest_difference(&out, &run(&mut k_pages, &mut v_pages, Some(7))) > 1e-3);
}

#[test]
fn combine_merges_splits() {
    let problem = Problem::new();
    let [whole, lse, _] = problem.forward(&mut Cpu::new(), &Options::new()).unwrap();
    let (mut outs, mut lses) = (vec![0.0f32; 2 * whole.len()], vec![0.0f32; 2 * lse.len()]);
    let mut start = 0;
    for (split, keys) in [20, SK - 20].into_iter().enumerate() {
        let strides = [SK * HK * D, HK * D, D, 1].map(|s| s as isize);
        let shape = [B, keys, HK, D];
        forward(
            &View::new(&problem.q, &[B, SQ, H, D]).unwrap(),
            &View::strided(&problem.k, start * HK * D, &shape, &strides).unwrap(),
            &View::strided(&problem.v, start * HK * D, &shape, &strides).unwrap(),
            &Options::new(),
            Outputs::new(
                ViewMut::new(&mut outs[split * whole.len()..][..whole.len()], &[B, SQ, H, D]).unwrap(),
            )
            .lse(ViewMut::new(&mut lses[split * lse.len()..][..lse.len()], &[B, H, SQ]).unwrap()),
        )
        .unwrap();
        start += keys;
    }
    let (mut out, mut merged) = (vec![0.0f32; whole.len()], vec![0.0f32; lse.len()]);
    combine(
        &View::new(&outs, &[2, B, SQ, H, D]).unwrap(),
        &View::new(&lses, &[2, B, H, SQ]).unwrap(),
        &mut ViewMut::new(&mut out, &[B, SQ, H, D]).unwrap(),
        Some(&mut ViewMut::new(&mut merged, &[B, H, SQ]).unwrap()),
    )
    .unwrap();
    assert!(largest_difference(&out, &whole) < 2e-6);
    assert!(largest_difference(&merged, &lse) < 2e-6);
}

#[test]
fn errors_have_the_librarys_message() {
    let problem = Problem::new();
    let [q, k, v] = problem.views();
    let mut out = vec![0.0f32; problem.q.len()];
    let mut call = |q: &View, k: &View, options: &Options| {
        forward(q, k, &v, options, Outputs::new(ViewMut::new(&mut out, &[B, SQ, H, D]).unwrap())).unwrap_err()
    };
    let wrong = View::new(&problem.k, &[B, SK, 1, 2 * D]).unwrap();
    let error = call(&q, &wrong, &Options::new());
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().starts_with("k has shape (2, 37, 1, 48); "), "{error}");
    let error = call(&q, &k, &Options::new().dropout(1.5, 0, 0));
    assert!(error.to_string().starts_with("dropout_p is 1.5; "), "{error}");
    let error = call(&q, &k, &Options::new().softcap(-1.0));
    assert!(error.message().starts_with("softcap is -1"), "{error}");
    let numbers = vec![0i32; problem.q.len()];
    let error = call(&View::new(&numbers, &[B, SQ, H, D]).unwrap(), &k, &Options::new());
    assert!(error.message().starts_with("q has dtype i32"), "{error}");
    let error = call(&q, &k, &Options::new().cache_batch_idx(View::new(&[0, 2], &[B]).unwrap()));
    assert!(error.message().starts_with("cache_batch_idx is 2 "), "{error}");
    let error = problem.forward(&mut Cpu::new().threads(1 << 40), &Options::new()).unwrap_err();
    assert!(error.message().starts_with("threads is 1099511627776; "), "{error}");
    assert!(KvCache::new(rocflash::DType::I32, 1, 1, 1, 1).is_err());
    assert!(KvCache::new(rocflash::DType::F32, usize::MAX, 2, 1, 1).is_err());
    let error = KvCache::new(rocflash::DType::F32, 1, 1 << 31, 0, 8).unwrap_err();
    assert_eq!(error.message(), "capacity is 2147483648; it must be 0 to 2147483647");
    let error = KvCache::new(rocflash::DType::F32, 1 << 20, 1 << 20, 1 << 10, 8).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
}

#[test]
fn a_cache_rejects_mismatched_rows() {
    let mut cache = KvCache::new(rocflash::DType::F32, 2, 8, HK, D).unwrap();
    let ones = vec![1.0f32; 2 * 8 * HK * D];
    let rows = |n: usize| View::new(&ones[..2 * n * HK * D], &[2, n, HK, D]).unwrap();
    let many = View::strided(&ones, 0, &[2, (1 << 32) + 1, HK, D], &[0, 0, D as isize, 1]).unwrap();
    let queries = vec![1.0f32; 2 * H * D];
    let q = View::new(&queries, &[2, 1, H, D]).unwrap();
    for (message, k_new, v_new) in [
        ("v_new has shape (2, 3, 2, 24); it must be (2, 1, 2, 24) with the rows of k_new", rows(1), rows(3)),
        ("k_new has 4294967297 new keys; sequence 0 has 0 of at most 8", many, many),
    ] {
        let mut out = vec![0.0f32; 2 * H * D];
        let outputs = Outputs::new(ViewMut::new(&mut out, &[2, 1, H, D]).unwrap());
        let append = Append::new(k_new, v_new);
        let error = cache.attend(&mut Cpu::new(), &q, &append, &Options::new(), outputs).unwrap_err();
        assert_eq!(error.message(), message);
        assert_eq!(cache.lengths(), [0, 0]);
    }
}

#[test]
fn results_are_bit_identical_for_any_number_of_threads() {
    let problem = Problem::new();
    let one = problem.forward(&mut Cpu::new().threads(1), &Options::new().causal()).unwrap();
    let three = problem.forward(&mut Cpu::new().threads(3), &Options::new().causal()).unwrap();
    assert_eq!(one, three);
}

#[test]
fn any_thread_may_call() {
    fn sendable<T: Send + Sync>() {}
    sendable::<View>();
    sendable::<ViewMut>();
    sendable::<Cpu>();
    sendable::<KvCache>();
    sendable::<rocflash::gpu::Stream>();
    sendable::<rocflash::gpu::Buffer>();
    sendable::<rocflash::Error>();
    let problem = Problem::new();
    let expected = problem.forward(&mut Cpu::new(), &Options::new()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(problem.forward(&mut Cpu::new(), &Options::new()).unwrap(), expected));
        }
    });
}

#[test]
fn version_limits_devices_and_drivers() {
    assert_eq!(rocflash::version(), env!("CARGO_PKG_VERSION"));
    let limits = rocflash::limits().unwrap();
    assert!(limits.max_head_dim >= 512 && limits.has_backward && limits.default_threads >= 1);
    let devices = rocflash::devices();
    assert_eq!(devices[0].platform, rocflash::Platform::Cpu);
    assert!(!devices[0].arch.is_empty());
    let drivers: Vec<_> = rocflash::drivers().into_iter().map(|driver| driver.name).collect();
    assert_eq!(drivers, ["hip", "cuda"]);
}
