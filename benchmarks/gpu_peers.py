"""Implementations of attention that a benchmark times next to this library on a GPU.

find() returns those that can be used here, with their versions, and why each other one cannot.
A peer gets (b, s, h, d) tensors, or (tokens, h, d) of varlen sequences with a Varlen.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import rocflash

Tensor = torch.Tensor


@dataclass
class Varlen:
    """Varlen sequences: their lengths, and where each begins (int32, one more entry)."""

    lengths: list[int]
    starts: Tensor

    @property
    def options(self) -> dict[str, Any]:
        longest = max(self.lengths)
        return {
            "cu_seqlens_q": self.starts,
            "cu_seqlens_k": self.starts,
            "max_seqlen_q": longest,
            "max_seqlen_k": longest,
        }


Forward = Callable[[Tensor, Tensor, Tensor, bool, "Varlen | None"], Tensor]


@dataclass
class Peer:
    name: str
    version: str
    forward: Forward
    dtypes: tuple[str, ...] = ("bf16", "f16")
    operations: tuple[str, ...] = ("forward", "backward")

    def problem(self, operation: str, dtype: str) -> str | None:
        """Why it cannot run this, or None."""
        if operation not in self.operations:
            return f"has no {operation}"
        if dtype not in self.dtypes:
            return f"does not support {dtype}, only {', '.join(self.dtypes)}"
        return None


class Unavailable(Exception):
    """The text says why."""


def load(module: str, package: str) -> tuple[ModuleType, str]:
    """A module and the version of the package that has it."""
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise Unavailable(f"{package} is not installed") from None
    try:
        return importlib.import_module(module), version
    except Exception as error:  # its imports compile and load things, which fails in many ways
        raise Unavailable(f"{package} {version}: {type(error).__name__}: {error}") from error


def first(result: Tensor | tuple[Tensor, ...]) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


def flash_attn_interface(module: ModuleType) -> Forward:
    """FA3, FA4 and AITER share the names of the functions and arguments that are used here."""

    def forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, varlen: Varlen | None) -> Tensor:
        if varlen is None:
            return first(module.flash_attn_func(q, k, v, causal=causal))
        return first(module.flash_attn_varlen_func(q, k, v, causal=causal, **varlen.options))

    return forward


def fa3() -> Peer:
    module, version = load("fa3_fwd_interface", "fa3-fwd")
    forward = flash_attn_interface(module)
    return Peer("FA3", f"fa3-fwd {version}", forward, operations=("forward",))


def fa4() -> Peer:
    module, version = load("flash_attn.cute", "flash-attn-4")
    return Peer("FA4", f"flash-attn-4 {version}", flash_attn_interface(module))


def aiter() -> Peer:
    # Its distribution has had two names.
    packages = importlib.metadata.packages_distributions().get("aiter", ["amd-aiter"])
    module, version = load("aiter", packages[0])
    return Peer("AITER", f"aiter {version}", flash_attn_interface(module))


def torch_backend(backend: SDPBackend) -> Forward:
    def forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, varlen: Varlen | None) -> Tensor:
        if varlen is not None:
            limits = {"min_seqlen": min(varlen.lengths), "max_seqlen": max(varlen.lengths)}
            starts = varlen.starts.long()
            q, k, v = (
                torch.nested.nested_tensor_from_jagged(x, starts, **limits) for x in (q, k, v)
            )
        grouped = q.shape[-2] != k.shape[-2]
        with sdpa_kernel(backend):
            out = F.scaled_dot_product_attention(
                q.transpose(1, 2),
                k.transpose(1, 2),
                v.transpose(1, 2),
                is_causal=causal,
                enable_gqa=grouped,
            ).transpose(1, 2)
        return out if varlen is None else out.values()

    return forward


def torch_peer(name: str, backend: SDPBackend, dtypes: tuple[str, ...]) -> Callable[[], Peer]:
    return lambda: Peer(name, f"torch {torch.__version__}", torch_backend(backend), dtypes)


HALF = ("bf16", "f16")
PEERS: dict[str, Callable[[], Peer]] = {
    "FA3": fa3,
    "FA4": fa4,
    "cuDNN": torch_peer("cuDNN", SDPBackend.CUDNN_ATTENTION, HALF),
    "FA2": torch_peer("FA2", SDPBackend.FLASH_ATTENTION, HALF),
    "efficient": torch_peer("efficient", SDPBackend.EFFICIENT_ATTENTION, ("f32", *HALF)),
    "AITER": aiter,
}


def defaults(dtypes: set[str]) -> list[str]:
    """The names of the peers for these dtypes and this torch."""
    if dtypes == {"f32"}:
        return ["efficient"]
    return ["AITER", "FA2", "efficient"] if torch.version.hip else ["FA3", "FA4", "cuDNN", "FA2"]


def find(names: Sequence[str], operation: str) -> tuple[list[Peer], dict[str, str]]:
    """The usable peers of these names, and by name why each other one is skipped."""
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise ValueError(f"peers: {unknown[0]!r}; must be of {', '.join(PEERS)}")
    found, skipped = [], {}
    for name in names:
        try:
            peer = PEERS[name]()
        except Unavailable as why:
            skipped[name] = str(why)
            continue
        if operation in peer.operations:
            found.append(peer)
        else:
            skipped[name] = f"{peer.version} has no {operation}"
    return found, skipped


def ours(deterministic: bool) -> Peer:
    def forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, varlen: Varlen | None) -> Tensor:
        options = {} if varlen is None else varlen.options
        return rocflash.attention(q, k, v, causal=causal, deterministic=deterministic, **options)

    return Peer("rocflash", f"rocflash {rocflash.__version__}", forward, ("bf16", "f16", "f32"))
