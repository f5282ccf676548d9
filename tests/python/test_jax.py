"""rocflash.jax: jit, grad, vmap and shard_map against naive attention in JAX.

Runs on the CPU, and with ROCFLASH_TEST_JAX_PLATFORM=cuda or rocm on the first GPU of that platform.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

PLATFORM = os.environ.get("ROCFLASH_TEST_JAX_PLATFORM", "cpu")
if PLATFORM == "cpu":
    # Two CPU devices, for shard_map, and short compilations. JAX reads both variables on first use.
    os.environ["XLA_FLAGS"] = " ".join(
        (
            os.environ.get("XLA_FLAGS", ""),
            "--xla_force_host_platform_device_count=2",
            "--xla_backend_optimization_level=0",
            "--xla_llvm_disable_expensive_passes=true",
        )
    )
    os.environ["JAX_PLATFORMS"] = "cpu"

jax = pytest.importorskip("jax", reason="jax is not installed")

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import Mesh, PartitionSpec  # noqa: E402

import rocflash  # noqa: E402
import rocflash.jax as rj  # noqa: E402


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    # XLA's default precision of f32 products on GPUs is less than f32.
    with jax.default_device(jax.devices(PLATFORM)[0]), jax.default_matmul_precision("highest"):
        yield


def arrays(
    dtype: str = "float32",
    *,
    b: int = 2,
    sq: int = 33,
    sk: int = 47,
    h: int = 4,
    hk: int = 2,
    d: int = 32,
) -> Any:
    rng = np.random.default_rng(0)
    shapes = ((b, sq, h, d), (b, sk, hk, d), (b, sk, hk, d))
    return tuple(jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes)


def naive(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    bias: Any = None,
    mask: Any = None,
    sinks: Any = None,
    alibi_slopes: Any = None,
    seqused_k: Any = None,
    exact: bool = False,
) -> tuple[Any, Any]:
    """(out, lse) by steps in the inputs' dtype, or in f64 if `exact`."""
    if exact:
        q, k, v, bias, sinks, alibi_slopes = (
            x if x is None else x.astype(jnp.float64) for x in (q, k, v, bias, sinks, alibi_slopes)
        )
    k, v = (jnp.repeat(x, q.shape[2] // k.shape[2], 2) for x in (k, v))
    sq, sk = q.shape[1], k.shape[1]
    s = jnp.einsum("bthd,bshd->bhts", q, k * jnp.asarray(q.shape[3] ** -0.5, q.dtype))
    if softcap:
        s = jnp.tanh(s / softcap) * softcap
    keys = jnp.arange(sk)[None, None, None]
    used = jnp.full((q.shape[0],), sk) if seqused_k is None else seqused_k
    position = jnp.arange(sq)[None, None, :, None] + used[:, None, None, None] - sq
    if alibi_slopes is not None:
        s = s - (alibi_slopes[..., None, None] * jnp.abs(position - keys)).astype(s.dtype)
    if bias is not None:
        s = s + bias.astype(s.dtype)
    left, right = window[0], 0 if causal else window[1]
    visible = keys < used[:, None, None, None]
    visible &= (position - keys <= left) | (left < 0)
    visible &= (keys - position <= right) | (right < 0)
    if mask is not None:
        visible &= mask
    s = jnp.where(visible, s, -jnp.inf)
    if sinks is not None:
        extra = jnp.broadcast_to(sinks.astype(s.dtype)[None, :, None, None], (*s.shape[:3], 1))
        s = jnp.concatenate((s, extra), 3)
    weights = jax.nn.softmax(s, -1)[..., :sk]
    return jnp.einsum("bhts,bshd->bthd", weights, v), jax.nn.logsumexp(
        s.astype(jnp.promote_types(s.dtype, jnp.float32)), -1
    )


def check(name: str, got: Any, exact: Any, baseline: Any, factor: float) -> None:
    got, exact, baseline = (np.asarray(x, np.float64) for x in (got, exact, baseline))
    assert got.shape == exact.shape and np.isfinite(got).all(), name
    error, allowed = np.abs(got - exact).max(), np.abs(baseline - exact).max()
    # XLA may compute naive attention in f32 with less rounding than its steps have.
    assert error <= factor * max(allowed, 2e-7 * np.abs(exact).max()), (
        f"{name}: error {error:.3g}, baseline {allowed:.3g}"
    )


def options_of(case: str, dtype: str) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "causal": {"causal": True},
        "bias": {"bias": jnp.asarray(rng.standard_normal((1, 4, 33, 47)), dtype), "softcap": 3.0},
        "mask": {
            "mask": jnp.asarray(rng.random((2, 1, 33, 47)) < 0.7).at[..., 0].set(True),
            "sinks": jnp.asarray(rng.standard_normal(4), jnp.float32),
        },
        "window": {
            "window": (9, 4),
            "alibi_slopes": jnp.asarray(rng.random((2, 4)) * 0.3, jnp.float32),
        },
        "lengths": {"seqused_k": jnp.asarray([47, 40], jnp.int32), "causal": True},
    }[case]


POINTS = [
    ("causal", "bfloat16"),
    ("bias", "float32"),
    ("mask", "float16"),
    ("mask", "float32"),
    ("window", "float32"),
    ("window", "bfloat16"),
    ("lengths", "float32"),
]


@pytest.mark.parametrize(("case", "dtype"), POINTS)
def test_forward_and_gradients(case: str, dtype: str) -> None:
    inputs = arrays(dtype)
    options = options_of(case, dtype)
    graded = {name: options[name] for name in ("bias", "sinks", "alibi_slopes") if name in options}
    rest = {name: x for name, x in options.items() if name not in graded}
    draw = np.random.default_rng(2)
    weight = jnp.asarray(draw.standard_normal(inputs[0].shape), dtype)
    of_lse = jnp.asarray(draw.standard_normal(weight.shape[:3]).swapaxes(1, 2), jnp.float32)

    def results(function: Any, **more: Any) -> tuple[Any, Any]:
        def loss(inputs: Any, graded: Any) -> Any:
            out, lse = function(*inputs, **rest, **graded, **more)
            widened = out.astype(jnp.float32 if out.dtype != jnp.float64 else out.dtype)
            return (widened * weight).sum() + (lse * of_lse).sum(), (out, lse)

        value = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(inputs, graded)
        return value[0][1], {**dict(zip("qkv", value[1][0])), **value[1][1]}

    (out, lse), gradients = results(partial(rj.attention, return_lse=True))
    (baseline, baseline_lse), baseline_gradients = results(naive)
    with (
        jax.experimental.enable_x64()
        if hasattr(jax.experimental, "enable_x64")
        else jax.enable_x64(True)
    ):
        (exact, exact_lse), exact_gradients = results(naive, exact=True)
    check("out", out, exact, baseline, 2)
    check("lse", lse, exact_lse, baseline_lse, 2)
    assert gradients.keys() == exact_gradients.keys()
    for name, gradient in gradients.items():
        check(f"d{name}", gradient, exact_gradients[name], baseline_gradients[name], 3)
    # Without a gradient, the scores may be summed in another order.
    check("out", rj.attention(*inputs, **options), exact, baseline, 2)


def same(got: Any, expected: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(
        np.asarray(got, np.float32), np.asarray(expected, np.float32), tolerance, tolerance
    )


def test_packed() -> None:
    q, k, v = (x.reshape(-1, *x.shape[2:]) for x in arrays(sq=40, sk=40, b=1))
    begins = jnp.asarray([0, 13, 40], jnp.int32)
    packed = partial(
        rj.attention,
        cu_seqlens_q=begins,
        cu_seqlens_k=begins,
        max_seqlen_q=27,
        max_seqlen_k=27,
        causal=True,
    )
    whole = jnp.concatenate(
        [
            rj.attention(q[None, a:e], k[None, a:e], v[None, a:e], causal=True)[0]
            for a, e in ((0, 13), (13, 40))
        ]
    )
    same(jax.jit(packed)(q, k, v), whole)
    assert jax.grad(lambda q: packed(q, k, v).sum())(q).shape == q.shape
    mapped = jax.vmap(packed)(jnp.stack([q, -q]), jnp.stack([k, k]), jnp.stack([v, v]))
    same(mapped[0], whole)
    with pytest.raises(rocflash.InvalidArgument, match="max_seqlen_q is None"):
        rj.attention(q, k, v, cu_seqlens_q=begins, cu_seqlens_k=begins)


MAPPED = {
    "shared keys": ((2, None, None), {}, {}),
    "shared bias": ((0, 0, 0), {"bias": (1, 4, 33, 47)}, {}),
    "mapped bias": ((0, 0, 0), {}, {"bias": (3, 1, 1, 33, 47)}),
    "slopes": ((1, 1, 1), {"alibi_slopes": (4,)}, {}),
    "mapped slopes": ((0, 0, 0), {}, {"alibi_slopes": (3, 4)}),
    "mapped sinks": ((0, 0, 0), {}, {"sinks": (3, 4)}),
}


@pytest.mark.parametrize("name", MAPPED)
def test_vmap(name: str) -> None:
    """As one call after another, with gradients."""
    axes, shared, mapped = MAPPED[name]
    rng = np.random.default_rng(3)
    shared, mapped = (
        {n: jnp.asarray(rng.random(shape), jnp.float32) for n, shape in x.items()}
        for x in (shared, mapped)
    )
    inputs = [
        x if axis is None else jnp.stack([x, x * 0.5, -x], axis) for x, axis in zip(arrays(), axes)
    ]

    def gradients(q: Any, k: Any, v: Any, mapped: Any, shared: Any) -> Any:
        def loss(q: Any, k: Any, v: Any, mapped: Any, shared: Any) -> Any:
            out = rj.attention(q, k, v, causal=True, **mapped, **shared)
            return (out * out).sum(), out

        return jax.grad(loss, (0, 1, 2, 3, 4), has_aux=True)(q, k, v, mapped, shared)

    found = jax.jit(jax.vmap(gradients, (*axes, 0, None)))(*inputs, mapped, shared)
    for n in range(3):
        given = [x if axis is None else jnp.take(x, n, axis) for x, axis in zip(inputs, axes)]
        expected = gradients(*given, {name: x[n] for name, x in mapped.items()}, shared)
        jax.tree.map(lambda a, b, n=n: same(a[n], b), found, expected)


def test_vmap_under_grad_and_scan() -> None:
    q, k, v = (jnp.stack([x, -x]) for x in arrays())
    sinks = jnp.linspace(-1, 1, 4)

    def loss(sinks: Any) -> Any:
        out = jax.vmap(lambda *x: rj.attention(*x, sinks=sinks))(q, k, v)
        return jax.lax.scan(
            lambda sum_, x: (sum_ + rj.attention(*x, sinks=sinks)[0].sum(), None),
            out.sum(),
            (q, k, v),
        )[0]

    def expected_loss(sinks: Any) -> Any:
        outs = [naive(*x, sinks=sinks)[0] for x in zip(q, k, v)]
        return sum(out.sum() + out[0].sum() for out in outs)

    expected = jax.jit(jax.grad(expected_loss))(sinks)
    same(jax.jit(jax.grad(loss))(sinks), expected, 1e-4)
    same(jax.jit(jax.grad(jax.checkpoint(loss)))(sinks), expected, 1e-4)


@pytest.mark.parametrize("axis", ["batch", "heads"])
def test_shard_map(axis: str) -> None:
    devices = jax.devices(PLATFORM)[:2]
    if len(devices) < 2:
        pytest.skip(f"shard_map over two devices; there is {len(devices)}")
    spec = PartitionSpec("i") if axis == "batch" else PartitionSpec(None, None, "i")
    mesh = Mesh(np.array(devices), ("i",))
    inputs = arrays()
    bias = jnp.asarray(np.random.default_rng(4).random((1, 1, 33, 47)), jnp.float32)
    shard_map = getattr(jax, "shard_map", None)
    if shard_map is None:  # before JAX 0.6
        from jax.experimental.shard_map import shard_map
    one = partial(rj.attention, causal=True)
    sharded = shard_map(
        lambda q, k, v, bias: one(q, k, v, bias=bias),
        mesh=mesh,
        in_specs=(spec, spec, spec, PartitionSpec()),
        out_specs=spec,
    )

    def gradients(function: Any) -> Any:
        return jax.jit(jax.grad(lambda *x: (function(*x) ** 2).sum(), (0, 1, 2, 3)))(*inputs, bias)

    same(jax.jit(sharded)(*inputs, bias), one(*inputs, bias=bias))
    found, expected = gradients(sharded), gradients(lambda q, k, v, bias: one(q, k, v, bias=bias))
    for a, b in zip(found, expected):
        same(a, b)


def test_decode() -> None:
    """Appended keys are attended to and returned in the caches; donated caches are written in
    place.
    """
    q, k, v = arrays(sq=1, sk=40)
    lengths = jnp.asarray([11, 30], jnp.int32)
    k_new, v_new = k[:, :1] * 0.5, v[:, :1] * 0.5
    k_expected, v_expected = (
        x.at[jnp.arange(2), lengths].set(new[:, 0]) for x, new in ((k, k_new), (v, v_new))
    )
    expected, expected_lse = jax.jit(naive)(q, k_expected, v_expected, seqused_k=lengths + 1)
    call = partial(rj.decode, causal=True, return_lse=True)
    step = jax.jit(
        lambda q, kc, vc, k, v, n: call(q, kc, vc, k=k, v=v, cache_seqlens=n), donate_argnums=(1, 2)
    )
    kept = np.asarray(k)
    found = call(q, k, v, k=k_new, v=v_new, cache_seqlens=lengths)
    np.testing.assert_array_equal(kept, k)  # not donated, so not written
    k_cache, v_cache = jnp.array(k), jnp.array(v)
    address = k_cache.unsafe_buffer_pointer()
    donated = step(q, k_cache, v_cache, k_new, v_new, lengths)
    assert donated.k_cache.unsafe_buffer_pointer() == address and k_cache.is_deleted()
    for results in (found, donated):
        same(results.out, expected)
        same(results.lse, expected_lse)
        np.testing.assert_array_equal(results.k_cache, k_expected)
        np.testing.assert_array_equal(results.v_cache, v_expected)
    mapped = jax.vmap(lambda q, k, v, a, b: call(q, k, v, k=a, v=b, cache_seqlens=lengths))(
        *(jnp.stack([x, x]) for x in (q, k, v, k_new, v_new))
    )
    same(mapped.out[1], expected)
    np.testing.assert_array_equal(mapped.k_cache[1], k_expected)


def test_paged_decode_and_rotary() -> None:
    q, k, v = arrays(sq=2, sk=32)
    pages = jnp.asarray([[3, 0], [1, 2]], jnp.int32)
    paged = tuple(
        jnp.zeros((4, 16, *x.shape[2:])).at[pages].set(x.reshape(2, 2, 16, *x.shape[2:]))
        for x in (k, v)
    )
    angles = jnp.arange(40)[:, None] / 10.0 ** jnp.arange(16)[None]
    new = (k[:, :2] * 0.5, v[:, :2] * 0.5)
    options = dict(
        k=new[0],
        v=new[1],
        cache_seqlens=20,
        rotary_cos=jnp.cos(angles),
        rotary_sin=jnp.sin(angles),
        causal=True,
    )
    dense = rj.decode(q, k, v, **options)
    found = jax.jit(lambda q, k, v: rj.decode(q, k, v, page_table=pages, **options))(q, *paged)
    same(found.out, dense.out)
    same(found.k_cache[pages].reshape(k.shape), dense.k_cache)
    assert dense.lse is None and not np.array_equal(dense.k_cache, k)


DOT_PRODUCT = [
    ((9, 14), {"is_causal": True}),
    ((14, 9), {"is_causal": True}),
    ((9, 14), {"local_window_size": (3, 2)}),
    ((14, 13), {"local_window_size": 2}),
    ((14, 9), {"local_window_size": (6, 1), "is_causal": True}),
    ((9, 9), {"scale": 0.3, "bias": (1, 1, 9, 9)}),
    ((9, 14), {"bias": (4, 9, 14), "is_causal": True}),
    ((9, 9), {"lengths": True, "is_causal": True}),
    ((9, 9), {"return_residual": True}),
]


@pytest.mark.parametrize(("lengths", "options"), DOT_PRODUCT, ids=str)
def test_dot_product_attention(lengths: tuple[int, int], options: dict[str, Any]) -> None:
    inputs = arrays(sq=lengths[0], sk=lengths[1])
    options = dict(options)
    if "bias" in options:
        options["bias"] = jnp.asarray(np.random.default_rng(5).random(options["bias"]), jnp.float32)
    if options.pop("lengths", False):
        options |= {
            "query_seq_lengths": jnp.asarray([9, 5], jnp.int32),
            "key_value_seq_lengths": jnp.asarray([9, 7], jnp.int32),
        }

    def run(function: Any) -> Any:
        def loss(q: Any, k: Any, v: Any) -> Any:
            found = function(q, k, v, **options)
            return ((found[0] if isinstance(found, tuple) else found) ** 2).sum(), found

        return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*inputs)

    found, expected = run(rj.dot_product_attention), run(jax.nn.dot_product_attention)
    jax.tree.map(lambda a, b: same(a, b, 2e-5), found, expected)


def test_dot_product_attention_of_one_sequence() -> None:
    q, k, v = (x[0] for x in arrays())
    same(rj.dot_product_attention(q, k, v), jax.nn.dot_product_attention(q, k, v))
    with pytest.raises(rocflash.InvalidArgument, match="implementation is 'cudnn'"):
        rj.dot_product_attention(q, k, v, implementation="cudnn")


BAD: list[tuple[dict[str, Any], type, str]] = [
    ({"k": (2, 47, 3, 32)}, rocflash.InvalidArgument, "k"),
    ({"q": (33, 4, 32)}, rocflash.InvalidArgument, "q has shape"),
    ({"bias": (2, 3, 33, 47)}, rocflash.InvalidArgument, "bias has shape"),
    ({"softcap": -1.0}, rocflash.InvalidArgument, "softcap is -1"),
    ({"causal": 2}, TypeError, "causal is 2"),
    ({"window": (-2, 0)}, rocflash.InvalidArgument, "window"),
    ({"backend": "ck"}, rocflash.Unsupported, "backend is 'ck'"),
    ({"num_splits": 2**40}, rocflash.InvalidArgument, "num_splits"),
]


@pytest.mark.parametrize(
    ("change", "error", "message"), BAD, ids=[str(next(iter(b[0]))) for b in BAD]
)
def test_bad_calls(change: dict[str, Any], error: type, message: str) -> None:
    """Rejected when they are traced."""
    given: dict[str, Any] = dict(zip("qkv", arrays()))
    given |= {
        n: jnp.zeros(x, jnp.float32) if isinstance(x, tuple) and len(x) > 2 else x
        for n, x in change.items()
    }
    if "k" in change:
        given["v"] = given["k"]
    with pytest.raises(error, match=re.escape(message)):
        jax.eval_shape(lambda: rj.attention(**given))


@pytest.mark.parametrize("value", [-1, 48])
def test_bad_lengths(value: int) -> None:
    """Values are known when the call runs. A GPU's lengths are not read."""
    if PLATFORM != "cpu":
        pytest.skip("lengths on a GPU are not checked")
    lengths = jnp.asarray([3, value], jnp.int32)
    with pytest.raises(Exception, match=rf"seqused_k.* is {value}"):
        jax.jit(lambda *x: rj.attention(*x, seqused_k=lengths))(*arrays()).block_until_ready()


@pytest.mark.parametrize("shape", [dict(b=0), dict(sq=0), dict(sk=0)], ids=str)
def test_empty(shape: dict[str, int]) -> None:
    inputs = arrays(**shape)
    found = jax.jit(jax.grad(lambda *x: rj.attention(*x).sum(), (0, 1, 2)))(*inputs)
    for a, x in zip(found, inputs):
        assert a.shape == x.shape and not np.asarray(a).any()


def test_dtypes_are_kept_and_f8_is_rejected() -> None:
    inputs = tuple(x.astype(jnp.float8_e4m3fn) for x in arrays())
    with pytest.raises(rocflash.InvalidArgument, match="q has dtype float8_e4m3fn"):
        rj.attention(*inputs)
