//! Devices, streams, buffers and attention on simulated AMD GPUs and on the GPUs of this machine,
//! each in a child process.
mod common;

use common::processes::{on_simulator, report, run};
use common::{attention, largest_difference, random};
use rocflash::gpu::Device;
use rocflash::{Append, Cpu, DType, Executor, Gradients, KvCache, Options, Outputs, Platform, View, ViewMut};

/// The platform that a test in a child process uses.
fn platform() -> Platform {
    if std::env::var("ROCFLASH_TEST_PLATFORM").is_ok_and(|name| name == "cuda") {
        Platform::Cuda
    } else {
        Platform::Hip
    }
}

#[test]
fn on_the_gpus_of_this_machine() {
    for (name, platform) in [("hip", Platform::Hip), ("cuda", Platform::Cuda)] {
        if Device::count(platform).is_ok_and(|count| count > 0) {
            run("inside_buffers_and_streams", &[("ROCFLASH_TEST_PLATFORM", name)]);
            run("inside_attention", &[("ROCFLASH_TEST_PLATFORM", name)]);
            run("inside_rejected_appends", &[("ROCFLASH_TEST_PLATFORM", name)]);
            report(&format!("ran on a {name} device"));
        }
    }
}

#[test]
fn buffers_and_streams() {
    on_simulator("inside_buffers_and_streams", "gfx942,gfx1100");
}

#[test]
fn attention_on_gfx942() {
    on_simulator("inside_attention", "gfx942");
}

#[test]
fn attention_on_gfx1100() {
    on_simulator("inside_attention", "gfx1100");
}

#[test]
fn rejected_appends_on_gfx942() {
    on_simulator("inside_rejected_appends", "gfx942");
}

#[test]
fn a_missing_driver_is_reported() {
    run("inside_no_driver", &[("ROCFLASH_HIP_LIBRARY", "/nowhere/libamdhip64.so")]);
}

#[test]
#[ignore = "run by the tests above in a child process"]
fn inside_no_driver() {
    let error = Device::hip(0).unwrap_err();
    assert_eq!(error.kind(), rocflash::ErrorKind::Unsupported);
    assert!(error.message().contains("ROCFLASH_HIP_LIBRARY is set, but"), "{error}");
    assert!(Device::open(Platform::Cpu, 0).is_err());
}

#[test]
#[ignore = "run by the tests above in a child process"]
fn inside_buffers_and_streams() {
    let count = Device::count(platform()).unwrap();
    let error = Device::open(platform(), count).unwrap_err();
    assert_eq!(
        error.message(),
        format!("ordinal is {count}; this machine has {count} {:?} devices", platform())
    );
    let last = Device::open(platform(), count - 1).unwrap();
    assert!(!last.name().unwrap().is_empty());
    let stream = last.stream().unwrap();

    let data = random(1, 1000);
    let mut buffer = stream.upload(&data).unwrap();
    assert_eq!(buffer.download::<f32>().unwrap(), data);
    assert_eq!((buffer.len(), buffer.dtype()), (1000, DType::F32));
    let other = random(2, 1000);
    buffer.copy_from(&other).unwrap();
    let mut back = vec![0.0f32; 1000];
    buffer.copy_to(&mut back).unwrap();
    assert_eq!(back, other);
    assert_eq!(stream.zeros::<i32>(33).unwrap().download::<i32>().unwrap(), vec![0; 33]);
    let nothing = stream.upload::<f32>(&[]).unwrap();
    assert!(nothing.is_empty() && nothing.download::<f32>().unwrap().is_empty());

    // New buffers of about the same size reuse the memory of dropped ones, until it is freed.
    let first = stream.allocate(DType::F32, 300).unwrap().address();
    let again = stream.zeros::<f32>(290).unwrap();
    assert_eq!(again.address(), first);
    assert_eq!(again.download::<f32>().unwrap(), vec![0.0; 290]);
    drop(again);
    stream.release_unused();
    assert_eq!(stream.upload(&data).unwrap().download::<f32>().unwrap(), data);

    // Invalid arguments are rejected before they reach the driver.
    assert!(buffer.download::<i32>().is_err());
    assert!(buffer.copy_from(&other[1..]).is_err());
    assert!(buffer.view(&[1001]).is_err());
    assert!(buffer.view_strided(1, &[10, 100], &[100, 1]).is_err());
    assert!(buffer.view_mut_strided(0, &[10, 100], &[0, 1]).is_err());
    assert!(stream.allocate(DType::F64, usize::MAX).is_err());

    // A call accepts tensors of one stream only.
    let elsewhere = Device::open(platform(), 0).unwrap().stream().unwrap();
    let shape = [1, 125, 1, 8];
    let q = buffer.view(&shape).unwrap();
    let foreign = elsewhere.upload(&data).unwrap();
    let k = foreign.view(&shape).unwrap();
    let mut out = stream.zeros::<f32>(1000).unwrap();
    let outputs = Outputs::new(out.view_mut(&shape).unwrap());
    let error = stream.clone().forward(&q, &k, &q, &Options::new(), outputs).unwrap_err();
    assert!(error.message().starts_with("k is in ") && error.message().contains(":0, stream "), "{error}");
    let mut host = vec![0.0f32; 1000];
    let outputs = Outputs::new(ViewMut::new(&mut host, &shape).unwrap());
    let error = Cpu::new().forward(&q, &q, &q, &Options::new(), outputs).unwrap_err();
    assert!(error.message().ends_with("this call runs on host memory"), "{error}");

    // Buffers keep their stream alive, and may be dropped on another thread.
    drop(elsewhere);
    assert_eq!(foreign.download::<f32>().unwrap(), data);
    std::thread::spawn(move || drop(foreign)).join().unwrap();
    stream.synchronize().unwrap();
}

#[test]
#[ignore = "run by the tests above in a child process"]
fn inside_attention() {
    let device = Device::open(platform(), 0).unwrap();
    let info = match device.attention() {
        Ok(info) => info,
        Err(error) => return report(&format!("skipped: attention on a GPU: {error}")),
    };
    report(&format!("attention on {info:?}"));
    let mut stream = device.stream().unwrap();
    let (b, sq, sk, h, hk, d) = (1, 20, 45, 2, 1, 64);
    let (q_shape, k_shape) = ([b, sq, h, d], [b, sk, hk, d]);
    let (q, k, v) = (random(1, b * sq * h * d), random(2, b * sk * hk * d), random(3, b * sk * hk * d));
    let halves = |x: &[f32]| -> Vec<half::f16> { x.iter().map(|x| half::f16::from_f32(*x)).collect() };
    let floats = |x: &[half::f16]| -> Vec<f32> { x.iter().map(|x| x.to_f32()).collect() };
    let [q, k, v] = [q, k, v].map(|x| halves(&x));
    let expected = attention(&floats(&q), &floats(&k), &floats(&v), [b, sq, sk, h, hk, d], true);

    let [q_device, k_device, v_device] = [&q, &k, &v].map(|x| stream.upload(x).unwrap());
    let mut out = stream.zeros::<half::f16>(q.len()).unwrap();
    let mut lse = stream.zeros::<f32>(b * h * sq).unwrap();
    let views = [
        q_device.view(&q_shape).unwrap(),
        k_device.view(&k_shape).unwrap(),
        v_device.view(&k_shape).unwrap(),
    ];
    let outputs = Outputs::new(out.view_mut(&q_shape).unwrap()).lse(lse.view_mut(&[b, h, sq]).unwrap());
    stream.forward(&views[0], &views[1], &views[2], &Options::new().causal(), outputs).unwrap();
    let result = floats(&out.download().unwrap());
    assert!(largest_difference(&result, &expected) < 2e-3);

    // Gradients as on the CPU.
    let dout = halves(&random(4, q.len()));
    let dout_device = stream.upload(&dout).unwrap();
    let [mut dq, mut dk, mut dv] =
        [q.len(), k.len(), v.len()].map(|len| stream.zeros::<half::f16>(len).unwrap());
    let gradients = Gradients::new(
        dout_device.view(&q_shape).unwrap(),
        out.view(&q_shape).unwrap(),
        lse.view(&[b, h, sq]).unwrap(),
    )
    .dq(dq.view_mut(&q_shape).unwrap())
    .dk(dk.view_mut(&k_shape).unwrap())
    .dv(dv.view_mut(&k_shape).unwrap());
    stream.backward(&views[0], &views[1], &views[2], &Options::new().causal(), gradients).unwrap();
    let (out, lse) = (out.download::<half::f16>().unwrap(), lse.download::<f32>().unwrap());
    let mut expected =
        [vec![half::f16::ZERO; q.len()], vec![half::f16::ZERO; k.len()], vec![half::f16::ZERO; v.len()]];
    let [dq_host, dk_host, dv_host] = &mut expected;
    let gradients = Gradients::new(
        View::new(&dout, &q_shape).unwrap(),
        View::new(&out, &q_shape).unwrap(),
        View::new(&lse, &[b, h, sq]).unwrap(),
    )
    .dq(ViewMut::new(dq_host, &q_shape).unwrap())
    .dk(ViewMut::new(dk_host, &k_shape).unwrap())
    .dv(ViewMut::new(dv_host, &k_shape).unwrap());
    let host = [
        View::new(&q, &q_shape).unwrap(),
        View::new(&k, &k_shape).unwrap(),
        View::new(&v, &k_shape).unwrap(),
    ];
    rocflash::backward(&host[0], &host[1], &host[2], &Options::new().causal(), gradients).unwrap();
    for (on_device, on_host) in [dq, dk, dv].iter().zip(&expected) {
        assert!(largest_difference(&floats(&on_device.download().unwrap()), &floats(on_host)) < 4e-3);
    }

    // A KV cache on the device, in three steps.
    let mut cache = KvCache::on(&stream, DType::F16, 1, 64, hk, d).unwrap();
    let queries = halves(&random(5, sk * h * d));
    let expected = attention(&floats(&queries), &floats(&k), &floats(&v), [1, sk, sk, h, hk, d], true);
    let mut all = Vec::new();
    for (from, n) in [(0, 40), (40, 1), (41, 4)] {
        let k_new =
            k_device.view_strided(from * hk * d, &[1, n, hk, d], &[0, (hk * d) as isize, d as isize, 1]);
        let v_new =
            v_device.view_strided(from * hk * d, &[1, n, hk, d], &[0, (hk * d) as isize, d as isize, 1]);
        let q = stream.upload(&queries[from * h * d..][..n * h * d]).unwrap();
        let mut out = stream.zeros::<half::f16>(n * h * d).unwrap();
        let outputs = Outputs::new(out.view_mut(&[1, n, h, d]).unwrap());
        let append = Append::new(k_new.unwrap(), v_new.unwrap());
        let q = q.view(&[1, n, h, d]).unwrap();
        match cache.attend(&mut stream, &q, &append, &Options::new().causal(), outputs) {
            Err(error) if error.kind() == rocflash::ErrorKind::Unsupported => {
                return report(&format!("skipped: a cache on a GPU: {error}"));
            }
            result => result.unwrap(),
        }
        all.extend(floats(&out.download().unwrap()));
    }
    assert!(largest_difference(&all, &expected) < 2e-3);
}

#[test]
#[ignore = "run by the tests above in a child process"]
fn inside_rejected_appends() {
    let mut stream = Device::open(platform(), 0).unwrap().stream().unwrap();
    let (b, capacity, h, d) = (3, 8, 1, 64);
    let row = h * d;
    let ones = stream.upload(&vec![half::f16::ONE; b * 16 * row]).unwrap();
    let foreign_stream = stream.device().stream().unwrap();
    let foreign = foreign_stream.zeros::<half::f16>(b * row).unwrap();
    let floats = stream.zeros::<f32>(b * row).unwrap();
    let numbers = stream.zeros::<i32>(b).unwrap();
    let view = |rows: usize| {
        ones.view_strided(0, &[b, rows, h, d], &[(rows * row) as isize, row as isize, d as isize, 1]).unwrap()
    };
    let q = view(1);
    let mut cache = KvCache::on(&stream, DType::F16, b, capacity, h, d).unwrap();
    let mut out = stream.zeros::<half::f16>(b * row).unwrap();
    let mut attend = |cache: &mut KvCache, q: &View, append: &Append, options: &Options| {
        let outputs = Outputs::new(out.view_mut(&[b, 1, h, d]).unwrap());
        cache.attend(&mut stream, q, append, options, outputs)
    };
    match attend(&mut cache, &q, &Append::new(view(6), view(6)), &Options::new()) {
        Err(error) if error.kind() == rocflash::ErrorKind::Unsupported => {
            return report(&format!("skipped: a cache on a GPU: {error}"));
        }
        result => result.unwrap(),
    }
    // The sequences have 6, 0 and 3 keys of at most 8.
    cache.truncate(1, 0).unwrap();
    cache.truncate(2, 3).unwrap();
    let contents = |cache: &KvCache| {
        [cache.keys(), cache.values()].map(|view| {
            let mut copy = ones.stream().zeros::<half::f16>(b * capacity * row).unwrap();
            copy.copy_from_view(0, &view.unwrap()).unwrap();
            copy.download::<half::f16>().unwrap()
        })
    };
    let before = contents(&cache);

    // Shapes with more than 2^32 rows need no memory: every row has the same address.
    // one.
    let many = |rows: usize| ones.view_strided(0, &[b, rows, h, d], &[0, 0, d as isize, 1]).unwrap();
    let empty = ones.view_strided(0, &[b, 0, h, d], &[isize::MAX, isize::MAX, 1, 1]).unwrap();
    let wide = ones.view(&[b, 16, h, d]).unwrap();
    let short =
        ones.view_strided(0, &[b - 1, 1, h, d], &[row as isize, row as isize, d as isize, 1]).unwrap();
    let flat = ones.view_strided(0, &[b, row], &[row as isize, 1]).unwrap();
    let appends = [
        (
            "v_new has shape (3, 3, 1, 64); it must be (3, 1, 1, 64) with the rows of k_new",
            Append::new(view(1), view(3)),
        ),
        (
            "v_new has shape (3, 0, 1, 64); it must be (3, 1, 1, 64) with the rows of k_new",
            Append::new(view(1), view(0)),
        ),
        (
            "v_new has shape (3, 16, 1, 64); it must be (3, 2, 1, 64) with the rows of k_new",
            Append::new(view(2), wide),
        ),
        (
            "v_new has shape (2, 1, 1, 64); it must be (3, 1, 1, 64) with the rows of k_new",
            Append::new(view(1), short),
        ),
        ("k_new has shape (2, 1, 1, 64); it must be (3, new keys, 1, 64)", Append::new(short, view(1))),
        ("k_new has shape (3, 64); it must be (3, new keys, 1, 64)", Append::new(flat, view(1))),
        ("v_new is in ", Append::new(view(1), foreign.view(&[b, 1, h, d]).unwrap())),
        ("v_new has dtype f32; this cache is f16", Append::new(view(1), floats.view(&[b, 1, h, d]).unwrap())),
        ("k_new has 3 new keys; sequence 0 has 6 of at most 8", Append::new(view(3), view(3))),
        (
            "k_new has 4294967297 new keys; sequence 0 has 6 of at most 8",
            Append::new(many((1 << 32) + 1), many((1 << 32) + 1)),
        ),
        (
            "k_new has 4294967295 new keys; sequence 0 has 6 of at most 8",
            Append::new(many((1 << 32) - 1), many((1 << 32) - 1)),
        ),
    ];
    for (message, append) in appends {
        let error = attend(&mut cache, &q, &append, &Options::new()).unwrap_err();
        assert_eq!(error.kind(), rocflash::ErrorKind::InvalidArgument, "{error}");
        assert!(error.message().starts_with(message), "{error}\nexpected {message}");
        assert_eq!(cache.lengths(), [6, 0, 3]);
        assert!(contents(&cache) == before, "a rejected append has written: {message}");
    }
    // Errors that the library detects after the new rows: an option, and queries of the wrong
    // shape. not fit.
    let append = Append::new(view(1), view(1));
    let invalid = [Options::new().softcap(-1.0), Options::new().leftpad_k(numbers.view(&[1, b]).unwrap())];
    for options in invalid {
        assert!(attend(&mut cache, &q, &append, &options).is_err());
    }
    assert!(attend(&mut cache, &short, &append, &Options::new()).is_err());
    assert!(contents(&cache) == before, "a call that the library rejects has written");

    // Zero new rows append nothing, whatever their strides.
    attend(&mut cache, &q, &Append::new(empty, empty), &Options::new()).unwrap();
    assert!(contents(&cache) == before);
    attend(&mut cache, &q, &append, &Options::new()).unwrap();
    assert_eq!(cache.lengths(), [7, 1, 4]);
}
