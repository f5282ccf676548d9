//! Plans: a run equals the call, on other tensors and in other threads, and what differs from the
//! plan is rejected.
mod common;

use common::random;
use rocflash::{Append, Backend, Cpu, Executor, Gradients, Options, Outputs, Plan, View, ViewMut};

const Q: [usize; 4] = [2, 9, 4, 16];
const K: [usize; 4] = [2, 21, 2, 16];

fn elements(shape: &[usize]) -> usize {
    shape.iter().product()
}

struct Inputs {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Inputs {
    fn new(seed: u64) -> Self {
        let keys = elements(&K);
        Self { q: random(seed, elements(&Q)), k: random(seed + 1, keys), v: random(seed + 2, keys) }
    }

    fn views(&self) -> [View<'_>; 3] {
        [View::new(&self.q, &Q).unwrap(), View::new(&self.k, &K).unwrap(), View::new(&self.v, &K).unwrap()]
    }
}

fn dropout(seed: u64) -> Options<'static> {
    Options::new().causal().dropout(0.25, seed, 3)
}

fn plan() -> Plan {
    let inputs = Inputs::new(1);
    let mut out = vec![0.0f32; elements(&Q)];
    let [q, k, v] = inputs.views();
    let outputs = Outputs::new(ViewMut::new(&mut out, &Q).unwrap());
    Plan::forward(&Cpu::new(), &q, &k, &v, &dropout(1), &outputs).unwrap()
}

fn called(seed: u64) -> Vec<f32> {
    let inputs = Inputs::new(seed);
    let mut out = vec![7.0f32; elements(&Q)];
    let [q, k, v] = inputs.views();
    let outputs = Outputs::new(ViewMut::new(&mut out, &Q).unwrap());
    Cpu::new().forward(&q, &k, &v, &dropout(seed), outputs).unwrap();
    out
}

fn run(plan: &Plan, seed: u64) -> Vec<f32> {
    let inputs = Inputs::new(seed);
    let mut out = vec![7.0f32; elements(&Q)];
    let [q, k, v] = inputs.views();
    let outputs = Outputs::new(ViewMut::new(&mut out, &Q).unwrap());
    plan.run_forward(&mut Cpu::new(), &q, &k, &v, &dropout(seed), outputs).unwrap();
    out
}

#[test]
fn forward_equals_the_call() {
    let plan = plan();
    for seed in [5, 9] {
        assert_eq!(run(&plan, seed), called(seed));
    }
    assert_ne!(called(5), called(9));
}

#[test]
fn threads_share_a_plan() {
    let plan = plan();
    std::thread::scope(|scope| {
        for seed in 10..14 {
            let plan = &plan;
            scope.spawn(move || assert_eq!(run(plan, seed), called(seed)));
        }
    });
}

#[test]
fn backward_equals_the_call() {
    let inputs = Inputs::new(3);
    let [q, k, v] = inputs.views();
    let options = Options::new().causal();
    let (mut out, mut lse) = (vec![0.0f32; elements(&Q)], vec![0.0f32; 2 * 4 * 9]);
    let outputs =
        Outputs::new(ViewMut::new(&mut out, &Q).unwrap()).lse(ViewMut::new(&mut lse, &[2, 4, 9]).unwrap());
    Cpu::new().forward(&q, &k, &v, &options, outputs).unwrap();
    let dout = random(8, elements(&Q));
    let mut results = Vec::new();
    for planned in [false, true] {
        let (mut dq, mut delta) = (vec![0.0f32; elements(&Q)], vec![0.0f32; 2 * 4 * 9]);
        let gradients = Gradients::new(
            View::new(&dout, &Q).unwrap(),
            View::new(&out, &Q).unwrap(),
            View::new(&lse, &[2, 4, 9]).unwrap(),
        )
        .dq(ViewMut::new(&mut dq, &Q).unwrap())
        .delta(ViewMut::new(&mut delta, &[2, 4, 9]).unwrap());
        let mut cpu = Cpu::new();
        if planned {
            let plan = Plan::backward(&cpu, &q, &k, &v, &options, &gradients).unwrap();
            plan.run_backward(&mut cpu, &q, &k, &v, &options, gradients).unwrap();
        } else {
            cpu.backward(&q, &k, &v, &options, gradients).unwrap();
        }
        results.push((dq, delta));
    }
    assert_eq!(results[0], results[1]);
    assert!(results[0].0.iter().any(|x| x.abs() > 0.01));
}

#[test]
fn decode_equals_the_call() {
    let inputs = Inputs::new(4);
    let new = random(6, 2 * 2 * 16);
    let used = [11i32, 20];
    let mut results = Vec::new();
    for planned in [false, true] {
        let (mut k, mut v) = (inputs.k.clone(), inputs.v.clone());
        let mut out = vec![0.0f32; elements(&Q)];
        let mut k_cache = ViewMut::new(&mut k, &K).unwrap();
        let mut v_cache = ViewMut::new(&mut v, &K).unwrap();
        let row = View::new(&new, &[2, 1, 2, 16]).unwrap();
        let (append, q) = (Append::new(row, row), View::new(&inputs.q, &Q).unwrap());
        let options = Options::new().causal().seqused_k(View::new(&used, &[2]).unwrap());
        let outputs = Outputs::new(ViewMut::new(&mut out, &Q).unwrap());
        let mut cpu = Cpu::new();
        if planned {
            let plan = Plan::decode(&cpu, &q, &k_cache, &v_cache, &append, &options, &outputs).unwrap();
            plan.run_decode(&mut cpu, &q, &mut k_cache, &mut v_cache, &append, &options, outputs).unwrap();
        } else {
            cpu.decode(&q, &mut k_cache, &mut v_cache, &append, &options, outputs).unwrap();
        }
        results.push((out, k));
    }
    assert_eq!(results[0], results[1]);
    assert_ne!(results[0].1, inputs.k);
}

#[test]
fn what_differs_is_rejected() {
    let plan = plan();
    let inputs = Inputs::new(1);
    let message = |cpu: &mut Cpu, options: &Options, rows: usize, lse: bool| {
        let mut out = vec![0.0f32; rows * 2 * 4 * 16];
        let mut statistics = vec![0.0f32; 2 * 4 * 9];
        let [_, k, v] = inputs.views();
        let shape = [2, rows, 4, 16];
        let q = View::new(&inputs.q[..rows * 2 * 4 * 16], &shape).unwrap();
        let mut outputs = Outputs::new(ViewMut::new(&mut out, &shape).unwrap());
        if lse {
            outputs = outputs.lse(ViewMut::new(&mut statistics, &[2, 4, 9]).unwrap());
        }
        let error = plan.run_forward(cpu, &q, &k, &v, options, outputs).unwrap_err();
        error.message().to_owned()
    };
    let same = dropout(1);
    let cpu = &mut Cpu::new();
    let shape = message(cpu, &same, 8, false);
    assert!(shape.starts_with("q has shape [2, 8, 4, 16]"), "{shape}");
    assert_eq!(message(cpu, &same, 9, true), "lse is given; this plan was created without it");
    assert_eq!(message(cpu, &same.softcap(3.0), 9, false), "softcap differs from that of this plan");
    assert_eq!(
        message(&mut Cpu::new().backend(Backend::Reference), &same, 9, false),
        "the executor has another backend or number of threads than this plan's"
    );
}
