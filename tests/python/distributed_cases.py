"""Cases for rocflash.distributed: inputs from a seed, each rank's part of them, and the error rule
of the whole.

Ranks import this module, so it has no tests.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist
from torch import Tensor

import rocflash
import rocflash.distributed as rfd
from rocflash._c.options import GRADED
from rocflash.distributed.layout import layout_from_spec, layout_of

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BATCH, HEADS, KV_HEADS, SIZE, VALUES = 2, 4, 2, 16, 8
_pairs: dict[int, Any] = {}


def group_of(size: int) -> Any:
    """The group of the first `size` ranks. The first call per size is collective."""
    if size == dist.get_world_size():
        return dist.group.WORLD
    if size not in _pairs:
        _pairs[size] = dist.new_group(list(range(size)))
    return _pairs[size]


def make_group(size: int) -> None:
    group_of(size)


def options_of(case: dict[str, Any], draw: torch.Generator) -> dict[str, Any]:
    """Options of the whole problem."""
    names = case["options"].split("+")
    sq, sk = case["sq"], case["sk"]
    heads = case.get("heads", HEADS)
    found: dict[str, Any] = {}
    for name in names:
        if name == "causal":
            found["causal"] = True
        elif name == "window":
            found["window"] = (7, 3)
        elif name == "narrow":
            found["window"] = (5, 0)
        elif name == "chunk":
            found["attention_chunk"] = 9
        elif name == "softcap":
            found["softcap"] = 2.5
        elif name == "scale":
            found["softmax_scale"] = 0.11
        elif name == "alibi":
            found["alibi_slopes"] = torch.rand(heads, generator=draw) * 0.3
        elif name == "alibis":
            found["alibi_slopes"] = (
                torch.rand(case.get("batch", BATCH), heads, generator=draw) * 0.3
            )
        elif name == "sinks":
            found["sinks"] = torch.randn(heads, generator=draw)
        elif name == "dropout":
            found["dropout_p"], found["rng_state"] = 0.25, torch.tensor([7, 2**40 + 9])
        elif name == "mask":
            found["mask"] = torch.rand(BATCH, 1, sq, sk, generator=draw) < 0.7
        elif name == "padding":
            found["mask"] = (
                torch.arange(sk)[None, None, None]
                < torch.tensor([sk, sk // 2])[:, None, None, None]
            )
        elif name == "bias":
            found["bias"] = torch.randn(1, heads, sq, sk, generator=draw)
        elif name == "used":
            found["seqused_q"] = torch.tensor([sq - 3, sq // 2], dtype=torch.int32)
            found["seqused_k"] = torch.tensor([sk // 2, sk - 1], dtype=torch.int32)
        elif name == "leftpad":
            found["leftpad_k"] = torch.tensor([2, 5], dtype=torch.int32).clamp(max=sk // 2)
        elif name == "packed":
            found["cu_seqlens_q"] = torch.tensor([0, 3, 3, sq // 2, sq - 2, sq], dtype=torch.int32)
            found["cu_seqlens_k"] = torch.tensor([0, 3, 3, sk // 2, sk - 2, sk], dtype=torch.int32)
        elif name != "none":
            raise KeyError(name)
    if "packed" in names:
        longest = [int(found[f"cu_seqlens_{x}"].diff().max()) for x in "qk"]
        if "alibis" in names:
            found["alibi_slopes"] = torch.rand(5, heads, generator=draw) * 0.3
        if "used" in names:
            for x in "qk":
                lengths = found[f"cu_seqlens_{x}"].diff()
                found[f"seqused_{x}"] = (lengths - torch.tensor([1, 0, 2, 0, 1])).clamp(min=0).int()
        if "bias" in names:
            found["bias"] = torch.randn(5, 1, *longest, generator=draw)
    return found


def inputs_of(case: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """q, k, v and the gradients of out and lse of the whole problem, and its options."""
    draw = torch.Generator().manual_seed(case["seed"])
    dtype = DTYPES[case["dtype"]]
    batch, heads, kv_heads = (
        case.get("batch", BATCH),
        case.get("heads", HEADS),
        case.get("kv_heads", KV_HEADS),
    )
    shapes = {
        "q": (batch, case["sq"], heads, SIZE),
        "k": (batch, case["sk"], kv_heads, SIZE),
        "v": (batch, case["sk"], kv_heads, VALUES),
        "dout": (batch, case["sq"], heads, VALUES),
        "dlse": (batch, heads, case["sq"]),
    }
    packed = "packed" in case["options"]
    tensors = {
        name: torch.randn(shape[1:] if packed else shape, generator=draw).to(dtype)
        for name, shape in shapes.items()
    }
    return tensors, options_of(case, draw)


def layouts_of(case: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The layout argument of `attention`, and the layouts of queries and keys."""
    if "spec" in case:
        layout = layout_from_spec(case["spec"])
        return layout, layout, layout
    name, ranks = case["layout"], case["ranks"]
    return name, layout_of(name, case["sq"], ranks), layout_of(name, case["sk"], ranks)


def attend(tensors: dict[str, Tensor], options: dict[str, Any], call: Any) -> dict[str, Tensor]:
    """out, lse and gradients by a function like `rocflash.attention`."""
    inputs = [tensors[name].detach().clone().requires_grad_() for name in ("q", "k", "v")]
    options = dict(options)
    for name in set(options) & set(GRADED):
        options[name] = options[name].detach().clone().requires_grad_()
    out, lse = call(*inputs, return_lse=True, **options)
    torch.autograd.backward([out, lse], [tensors["dout"].to(out.dtype), tensors["dlse"].float()])
    found = {
        "out": out.detach(),
        "lse": lse.detach(),
        **{f"d{n}": x.grad for n, x in zip("qkv", inputs)},
    }
    found.update({f"d{name}": options[name].grad for name in set(options) & set(GRADED)})
    return found


def of_rank(case: dict[str, Any]) -> Optional[dict[str, Any]]:
    """On a rank: its part of the results; None outside the case's group."""
    group = group_of(case["ranks"])
    if dist.get_rank() >= case["ranks"]:
        return None
    tensors, options = inputs_of(case)
    layout, q_layout, k_layout = layouts_of(case)
    rank = dist.get_rank()
    dim = 0 if "packed" in case["options"] else 1
    at = {"k": k_layout, "v": k_layout}
    own = {
        name: x.index_select(
            -1 if name == "dlse" else dim,
            torch.tensor(at.get(name, q_layout).positions(rank), dtype=torch.int64),
        )
        for name, x in tensors.items()
    }
    rows = torch.tensor(q_layout.positions(rank), dtype=torch.int64)
    for name in ("mask", "bias"):
        if name in options and options[name].shape[2] > 1 and dim == 1:
            options[name] = options[name].index_select(2, rows)
    lengths = {} if "spec" in case else {"length": case["sq"], "length_k": case["sk"]}
    device = case.get("device", "cpu")
    if device != "cpu":  # on its own stream, which communication has to be ordered with
        torch.cuda.set_stream(torch.cuda.Stream())
        own = {name: x.to(device) for name, x in own.items()}
        options = {
            name: x.to(device) if isinstance(x, Tensor) and name != "rng_state" else x
            for name, x in options.items()
        }

    def call(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Any:
        return rfd.attention(
            q, k, v, group=group, layout=layout, method=case["method"], **lengths, **given
        )

    return {name: x.float().cpu().numpy() for name, x in attend(own, options, call).items()}


def assembled(case: dict[str, Any], parts: list[Any]) -> dict[str, Tensor]:
    """The whole results from those of the ranks."""
    _, q_layout, k_layout = layouts_of(case)
    packed = "packed" in case["options"]
    found: dict[str, Tensor] = {}
    for name in parts[0]:
        pieces = [torch.from_numpy(part[name]) for part in parts[: case["ranks"]]]
        if name in ("dsinks", "dalibi_slopes") or (name == "dbias" and packed):
            found[name] = sum(pieces)
            continue
        layout = k_layout if name in ("dk", "dv") else q_layout
        dim = (1 if packed else 2) if name in ("lse", "dbias") else (0 if packed else 1)
        everywhere = [p for rank in range(case["ranks"]) for p in layout.positions(rank)]
        back = torch.tensor(everywhere, dtype=torch.int64).argsort()
        found[name] = torch.cat(pieces, dim).index_select(dim, back)
    return found


def errors(case: dict[str, Any], found: dict[str, Tensor]) -> dict[str, tuple[float, float]]:
    """For each result, its error and that of naive attention, against the double-precision
    reference.
    """
    tensors, options = inputs_of(case)

    def results(backend: str, double: bool) -> dict[str, Tensor]:
        given = {n: x.double() if double else x for n, x in tensors.items()}
        return attend(given, options, lambda *x, **o: rocflash.attention(*x, backend=backend, **o))

    exact, naive = results("reference", True), results("naive", False)
    result = {}
    for name, x in found.items():
        want = exact[name].double()
        same = (x.double() == want) | (x.isnan() & want.isnan())  # infinite in fully masked rows

        def worst(y: Tensor, want: Tensor = want, same: Tensor = same) -> float:
            return float((y.double() - want).abs().masked_fill(same, 0).max()) if y.numel() else 0.0

        finite = want[want.isfinite()].abs()
        dtype = (
            torch.float32
            if name in ("lse", "dsinks", "dbias", "dalibi_slopes")
            else DTYPES[case["dtype"]]
        )
        rounding = float(finite.max()) * torch.finfo(dtype).eps / 2 if finite.numel() else 0.0
        result[name] = worst(x), max(worst(naive[name]), rounding)
    return result


def over_the_bound(found: dict[str, tuple[float, float]]) -> list[str]:
    """Results that break the rule of docs/reference/semantics.md: twice the error of naive
    attention, three times for gradients.
    """
    return [
        f"{name}: error {error:.3g}, naive {naive:.3g}"
        for name, (error, naive) in found.items()
        if not error <= (3 if name.startswith("d") else 2) * naive
    ]


def over_the_bound_on_average(draws: list[dict[str, tuple[float, float]]]) -> list[str]:
    """The same for the root mean square of the largest errors over several draws."""
    means = {
        name: tuple((sum(d[name][n] ** 2 for d in draws) / len(draws)) ** 0.5 for n in (0, 1))
        for name in draws[0]
    }
    return over_the_bound(means)  # type: ignore[arg-type]
