"""Times rocflash.jax against jax.nn.dot_product_attention, forward and backward.

    python benchmarks/jax_attention.py [--lengths 1024 4096] [--dtype bfloat16] [--backward]

A timing is the median of several runs of a jitted function, each of which computes one call after
another, so that the time of a launch from Python does not count. Figures are TFLOP/s of the visible
half of the scores (causal), with 2.5 times the operations in backward.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import rocflash.jax

REPEATS = 8  # calls per run
PEERS = {"cpu": ("xla",), "gpu": ("xla", "cudnn")}


def chained(function: Callable[..., Any], backward: bool) -> Callable[..., Any]:
    """A jitted function that depends on REPEATS calls in order."""

    def once(q: Any, k: Any, v: Any) -> Any:
        if not backward:
            return function(q, k, v)
        out, gradients = jax.vjp(function, q, k, v)
        return sum(gradients(out)[:1])

    def run(q: Any, k: Any, v: Any) -> Any:
        return jax.lax.fori_loop(0, REPEATS, lambda _, x: once(x, k, v).astype(q.dtype), q)

    return jax.jit(run)


def seconds(function: Callable[..., Any], arrays: tuple[Any, ...], runs: int) -> float:
    """The median time of a call."""
    function(*arrays).block_until_ready()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        function(*arrays).block_until_ready()
        times.append(time.perf_counter() - start)
    return statistics.median(times) / REPEATS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--tokens", type=int, default=16384, help="batch times length")
    parser.add_argument(
        "--heads", type=int, nargs=2, default=[16, 16], help="of queries and of keys"
    )
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument(
        "--backward", action="store_true", help="forward and backward, not forward alone"
    )
    parser.add_argument("--runs", type=int, default=9)
    given = parser.parse_args()

    functions = {"rocflash": lambda q, k, v: rocflash.jax.attention(q, k, v, causal=True)}
    for name in PEERS.get(jax.default_backend(), ("xla",)):
        functions[name] = lambda q, k, v, name=name: jax.nn.dot_product_attention(
            q, k, v, is_causal=True, implementation=name
        )
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, {given.dtype}, causal, TFLOP/s")
    print("length", *(f"{name:>10}" for name in functions))
    for length in given.lengths:
        batch, (h, hk) = max(given.tokens // length, 1), given.heads
        keys = jax.random.split(jax.random.key(0), 3)
        arrays = tuple(
            jax.random.normal(key, (batch, length, n, given.head_dim), jnp.float32).astype(
                given.dtype
            )
            for key, n in zip(keys, (h, hk, hk))
        )
        operations = 2 * batch * h * length**2 * given.head_dim * (3.5 if given.backward else 1)
        row = []
        for function in functions.values():
            try:
                time_of_one = seconds(chained(function, given.backward), arrays, given.runs)
                row.append(f"{operations / time_of_one / 1e12:10.3g}")
            except Exception as error:  # a peer that does not support the problem
                row.append(f"{type(error).__name__[:10]:>10}")
        print(f"{length:6}", *row, flush=True)


if __name__ == "__main__":
    main()
