"""rocflash.distributed in programs: sharding, KV caches, compilation, checkpointing, FSDP2, models,
the example.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import Failed, Ranks
from torch import Tensor

import rocflash
import rocflash.distributed as rfd


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    found = Ranks(2)
    yield found
    found.close()


def near(a: Tensor, b: Tensor, times: float = 4e-6) -> bool:
    return bool((a - b).abs().max() <= times * b.abs().max().clamp(min=1))


def rows_and_back(layout: str) -> bool:
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.arange(2 * 11 * 3.0).view(2, 11, 3)
    own = rfd.shard_sequence(x, None, 1, layout)
    position_ids = rfd.positions(11, None, layout)
    assert torch.equal(own, x[:, position_ids])
    assert torch.equal(rfd.unshard_sequence(own, None, 1, layout, length=11), x)
    # The loss is the sum of all ranks' losses, so the gradients of all ranks for a row are summed.
    own = own.clone().requires_grad_()
    factor = torch.arange(11.0)[None, :, None] + rank
    (rfd.unshard_sequence(own, None, 1, layout, length=11) * factor).sum().backward()
    wanted = sum(torch.arange(11.0) + r for r in range(size))[position_ids]
    assert torch.equal(own.grad, wanted[None, :, None].expand(2, -1, 3))
    other = rfd.shard_sequence(x.transpose(0, 1), None, 0, layout)
    assert torch.equal(other, x[:, position_ids].transpose(0, 1))
    return True


@pytest.mark.parametrize("layout", ["zigzag", "striped", "contiguous"])
def test_shard_and_gather(two: Ranks, layout: str) -> None:
    assert all(two.run(rows_and_back, layout))


CACHES: list[dict[str, Any]] = [
    {},
    {"causal": True},
    {"causal": True, "window": (5, -1)},
    {"causal": True, "alibi": True},
    {"causal": True, "alibi": True, "window": (9, 0)},
    {"softcap": 2.0, "sinks": True},
    {"causal": True, "attention_chunk": 7},
    {"alibi": True, "window": (9, 4)},
    {"causal": True, "pages": 4, "attention_chunk": 7, "leftpad": True},
    {"pages": 5, "alibi": True, "rotary": True},
    {"causal": True, "index": True, "rotary": True, "leftpad": True},
    {"causal": True, "packed": True, "sinks": True},
    {"packed": True, "alibi": True, "pages": 4},
]


def decoded(
    layout: str, sq: int, case: dict[str, Any], dtype: torch.dtype, device: str = "cpu"
) -> dict[str, Any]:
    """Results of the ranks and of one call, and whether the caches are equal."""
    draw = torch.Generator().manual_seed(3)
    rank, size = dist.get_rank(), dist.get_world_size()
    b, capacity, h, hk, d = 3, 20, 4, 2, 16
    q, k, v, new_k, new_v = (
        torch.randn(b, rows, heads, d, generator=draw).to(dtype)
        for rows, heads in (
            (sq, h),
            (size * capacity, hk),
            (size * capacity, hk),
            (sq, hk),
            (sq, hk),
        )
    )
    own = ("alibi", "sinks", "pages", "leftpad", "rotary", "index", "packed")
    options = {name: x for name, x in case.items() if name not in own}
    if "alibi" in case:
        options["alibi_slopes"] = torch.rand(b, h, generator=draw)
    if "sinks" in case:
        options["sinks"] = torch.randn(h, generator=draw)
    if "leftpad" in case:
        options["cache_leftpad"] = torch.tensor([3, 7, 0], dtype=torch.int32)
    if "rotary" in case:
        angles = torch.rand(64, 4, generator=draw)
        options.update(
            rotary_cos=angles.cos().to(dtype),
            rotary_sin=angles.sin().to(dtype),
            rotary_interleaved=False,
        )
    if "packed" in case:
        options["cu_seqlens_q"] = torch.tensor([1, 1 + sq, 1 + sq, 3 * sq], dtype=torch.int32)
        options["max_seqlen_q"] = 2 * sq
        options["cu_seqlens_k_new"] = torch.tensor([0, 1, 1 + sq, 2 * sq], dtype=torch.int32)
        q, new_k, new_v = (x.flatten(0, 1) for x in (q, new_k, new_v))
    lengths = torch.tensor([31, 7, 0], dtype=torch.int32)
    whole_k, whole_v = k.clone(), v.clone()
    appended = {"k": new_k, "v": new_v, "cache_seqlens": lengths}
    wanted = rocflash.decode(q, whole_k, whole_v, **appended, **options)
    row = torch.arange(capacity)
    held = row * size + rank if layout == "striped" else row + rank * capacity
    own_k, own_v = k[:, held].clone(), v[:, held].clone()
    order = torch.tensor([2, 0, 1])
    back = order.argsort()
    if "index" in case:
        own_k, own_v = own_k[order], own_v[order]
        options["cache_batch_idx"] = back.int()
    elif "pages" in case:  # each rank has its own page table, in random order
        page = case["pages"]
        count = capacity // page
        order = torch.randperm(b * count, generator=torch.Generator().manual_seed(rank))
        own_k, own_v = (x.reshape(b * count, page, hk, d)[order] for x in (own_k, own_v))
        # Page pools may differ in size.
        own_k, own_v = (torch.cat([x, x[:rank]]) for x in (own_k, own_v))
        back = order.argsort()
        options["page_table"] = back.view(b, count).int()
    if device != "cpu":
        torch.cuda.set_stream(torch.cuda.Stream())
        q, own_k, own_v = (x.to(device) for x in (q, own_k, own_v))
        appended, options = (
            {name: x.to(device) if isinstance(x, Tensor) else x for name, x in given.items()}
            for given in (appended, options)
        )
    found = rfd.decode(q, own_k, own_v, layout=layout, check=True, **appended, **options)
    own_k, own_v = own_k.cpu(), own_v.cpu()
    if "index" in case or "pages" in case:
        own_k, own_v = (x[back].reshape(b, capacity, hk, d) for x in (own_k, own_v))
    return {
        "caches": torch.equal(own_k, whole_k[:, held]) and torch.equal(own_v, whole_v[:, held]),
        "found": [x.float().cpu() for x in found],
        "wanted": [x.float() for x in wanted],
    }


def check_decode(two: Ranks, layout: str, sq: int, device: str = "cpu") -> None:
    for n, case in enumerate(CACHES):
        dtype, times = ((torch.float32, 4e-6), (torch.bfloat16, 8e-3))[n % 2]
        for answer in two.run(decoded, layout, sq, case, dtype, device):
            assert answer["caches"], case
            for found, wanted in zip(answer["found"], answer["wanted"]):
                assert torch.equal(found.isinf(), wanted.isinf()), case
                assert near(found.nan_to_num(posinf=0), wanted.nan_to_num(posinf=0), times), case


@pytest.mark.parametrize("layout", ["striped", "contiguous"])
@pytest.mark.parametrize("sq", [1, 3])
def test_decode(two: Ranks, layout: str, sq: int) -> None:
    check_decode(two, layout, sq)


def attended_pages(layout: str, method: str) -> bool:
    """Paged and indexed KV caches, with one table per rank, against one call on contiguous rows."""
    draw = torch.Generator().manual_seed(4)
    rank, b, length, page = dist.get_rank(), 3, 22, 4
    q, k, v = (torch.randn(b, length, heads, 16, generator=draw) for heads in (4, 2, 2))
    options = {"causal": True, "seqused_k": torch.tensor([22, 9, 0], dtype=torch.int32)}
    wanted = rocflash.attention(q, k, v, return_lse=True, **options)
    at = rfd.positions(length, None, layout)
    own_q, own_k, own_v = (x[:, at] for x in (q, k, v))
    count = -(-len(at) // page)
    order = torch.randperm(b * count, generator=torch.Generator().manual_seed(rank))
    padding = count * page - len(at)
    pages = [
        F.pad(x, (0, 0, 0, 0, 0, padding)).reshape(b * count, page, 2, 16)[order]
        for x in (own_k, own_v)
    ]
    table = order.argsort().view(b, count).int()
    table[2] = -1  # no keys of this sequence are in use
    shuffled = [x[torch.tensor([2, 0, 1])] for x in (own_k, own_v)]
    where = {
        "layout": layout,
        "method": method,
        "length": length,
        "length_k": length,
        "return_lse": True,
        "check": True,
    }
    for keys, given in (
        (pages, {"block_table": table}),
        (shuffled, {"cache_batch_idx": torch.tensor([1, 2, 0], dtype=torch.int32)}),
    ):
        out, lse = rfd.attention(own_q, *keys, **given, **options, **where)
        assert near(out, wanted[0][:, at]) and torch.equal(lse.isinf(), wanted[1][..., at].isinf())
    return True


@pytest.mark.parametrize("layout, method", [("zigzag", "ring"), ("striped", "ulysses")])
def test_paged_keys(two: Ranks, layout: str, method: str) -> None:
    assert all(two.run(attended_pages, layout, method))


def reject_caches() -> list[str]:
    q, cache = torch.zeros(1, 2, 2, 8), torch.zeros(1, 4, 2, 8)
    found = []
    for given in (
        {"cache_seqlens": 9},
        {"cache_seqlens": 7, "k": q, "v": q},
        {"cache_seqlens": 1, "k": q},
        {"cache_seqlens": 1, "layout": "zigzag"},
        {"cache_seqlens": 4, "page_table": torch.zeros(1, 1)},
        {
            "cache_seqlens": 0,
            "page_table": torch.full((1, 1), -1, dtype=torch.int32),
            "k": q,
            "v": q,
        },
    ):
        try:
            rfd.decode(q, cache, cache.clone(), **given)
            found.append("nothing")
        except RuntimeError as error:
            found.append(str(error))
    return found


def test_caches_that_are_rejected(two: Ranks) -> None:
    wanted = (
        "cache_seqlens is 9; it must be 0 to 8",
        "cache_seqlens has 7 keys and 2 new ones",
        "v is None, but its counterpart is given",
        "layout is 'zigzag'; for a cache it must be one of striped, contiguous",
        "page_table is torch.float32 of shape (1, 1); it must be int32 of shape (1, pages)",
        "page_table has [-1] for new keys; it must be 0 to 0",
    )
    for found in two.run(reject_caches):
        for text, message in zip(found, wanted):
            assert message in text


def compiled(method: str) -> bool:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return rfd.attention(q * 1.5, k, v, causal=True, method=method).sin()

    results = []
    for call in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        draw = torch.Generator().manual_seed(dist.get_rank())
        inputs = [torch.randn(2, 8, 4, 16, generator=draw).requires_grad_() for _ in range(3)]
        out = call(*inputs)
        out.sum().backward()
        results.append([out.detach(), *(x.grad for x in inputs)])
    return all(torch.equal(a, b) for a, b in zip(*results))


def opchecked(method: str, return_lse: bool) -> bool:
    from rocflash._c.options import Options

    draw = torch.Generator().manual_seed(dist.get_rank())
    inputs = [torch.randn(2, 8, 4, 16, generator=draw).requires_grad_() for _ in range(3)]
    options = Options(causal=True)
    torch.library.opcheck(
        torch.ops.rocflash.distributed_forward.default,
        (*inputs, *options, dist.group.WORLD.group_name, method, "zigzag", -1, -1, -1, return_lse),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
    return True


def summed(method: str) -> bool:
    """Expanded tensors: the gradient of a sum has strides of 0, and inputs may have them too."""
    draw = torch.Generator().manual_seed(0)
    whole = [
        torch.randn(1, 8, 4, 16, generator=draw)[:, :, :1].expand(-1, -1, 4, -1) for _ in range(3)
    ]
    own = [rfd.shard_sequence(x).detach() for x in whole]
    own = [x[:, :, :1].expand(x.shape).requires_grad_() for x in own]
    rfd.attention(*own, causal=True, method=method).sum().backward()
    leaves = [x.clone().requires_grad_() for x in whole]
    rocflash.attention(*leaves, causal=True).sum().backward()
    return all(near(x.grad, rfd.shard_sequence(y.grad)) for x, y in zip(own, leaves))


@pytest.mark.parametrize("method", ["ring", "ulysses"])
def test_expanded_tensors(two: Ranks, method: str) -> None:
    assert all(two.run(summed, method))


@pytest.mark.parametrize("method, return_lse", [("ring", True), ("ulysses", False)])
def test_operators_pass_opcheck(two: Ranks, method: str, return_lse: bool) -> None:
    assert all(two.run(opchecked, method, return_lse))


@pytest.mark.parametrize("method", ["ring", "ulysses"])
def test_compiles_without_graph_breaks(two: Ranks, method: str) -> None:
    assert all(two.run(compiled, method))


class Layer(torch.nn.Module):
    """A small attention block."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(32, 96)
        self.out = torch.nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 12, 8).split(4, dim=2)
        attend = F.scaled_dot_product_attention
        found = attend(*(y.transpose(1, 2) for y in (q, k, v)), is_causal=True)
        return x + self.out(found.transpose(1, 2).flatten(2))


def trained(way: str) -> list[Any]:
    """The loss of a context-parallel model, that of one process, and the largest error of the
    gradients.
    """
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(1)
    size = dist.get_world_size()
    model = torch.nn.Sequential(Layer(), Layer())
    x, target = torch.randn(2, 16, 32), torch.randn(2, 16, 32)
    loss = F.mse_loss(model(x), target)
    loss.backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    if way == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (size,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    with rfd.context_parallel(buffers=[x, target], buffer_seq_dims=[1, 1], method="ring"):
        assert x.shape[1] == 16 // size
        if way == "checkpoint":
            out = x
            for layer in model:
                out = checkpoint(layer, out, use_reentrant=False)
        else:
            out = model(x)
        own = F.mse_loss(out, target)
        own.backward()
    assert (
        x.shape[1] == 16
        and F.scaled_dot_product_attention.__module__ != "rocflash.distributed.context"
    )
    total = own.detach().clone()
    dist.all_reduce(total)
    errors = []
    for p, right in zip(model.parameters(), wanted):
        grad = p.grad
        if way == "fsdp":
            grad = grad.full_tensor()  # the mean over ranks
        else:
            dist.all_reduce(grad)
            grad = grad / size
        errors.append(float((grad - right).abs().max()))
    return [float(loss), float(total) / size, max(errors)]


@pytest.mark.parametrize("way", ["eager", "checkpoint", "fsdp"])
def test_a_model_trains(two: Ranks, way: str) -> None:
    for whole, split, error in two.run(trained, way):
        assert abs(whole - split) < 1e-6 and error < 1e-6


def through_transformers() -> list[float]:
    from transformers import LlamaConfig, LlamaForCausalLM

    import rocflash.integrations.transformers_distributed as bridge

    torch.manual_seed(0)
    config = LlamaConfig(
        **{"vocab_size": 32, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2},
    )
    model = LlamaForCausalLM._from_config(config, attn_implementation=bridge.register())
    tokens = torch.randint(0, 32, (2, 25))
    tokens, targets = tokens[:, :-1].clone(), tokens[:, 1:].clone()
    position_ids = torch.arange(24)[None].repeat(2, 1)
    whole = model(
        input_ids=tokens, position_ids=position_ids, labels=targets, shift_labels=targets
    ).loss
    whole.backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    buffers = [tokens, targets, position_ids]
    with rfd.context_parallel(buffers=buffers, buffer_seq_dims=[1, 1, 1]) as context:
        assert torch.equal(context.position_ids(), position_ids[:1])
        loss = model(
            input_ids=tokens, position_ids=position_ids, labels=targets, shift_labels=targets
        ).loss
        loss.backward()
    padding = torch.arange(24)[None] >= torch.tensor([[0], [7]])
    padding[0, 20:] = False
    with torch.no_grad():
        padded = model(input_ids=tokens, position_ids=position_ids, attention_mask=padding).logits
        for shared in (True, False):  # the mask sharded, or whole
            buffers = [tokens, position_ids, *([padding] if shared else [])]
            kept = padding.clone()
            with rfd.context_parallel(
                buffers=buffers, buffer_seq_dims=[1] * len(buffers)
            ) as context:
                found = model(
                    input_ids=tokens, position_ids=position_ids, attention_mask=padding
                ).logits
                at = context.position_ids()[0]
            unpadded = kept[:, at]
            assert near(found[unpadded], padded[:, at][unpadded], 1e-5)
    total = loss.detach().clone()
    dist.all_reduce(total)
    worst = 0.0
    for p, right in zip(model.parameters(), wanted):
        dist.all_reduce(p.grad)
        worst = max(worst, float((p.grad / dist.get_world_size() - right).abs().max()))
    return [float(whole), float(total) / dist.get_world_size(), worst]


def test_a_transformers_model_trains(two: Ranks) -> None:
    pytest.importorskip("transformers")
    for whole, split, error in two.run(through_transformers):
        assert abs(whole - split) < 2e-6 and error < 1e-6


def on_a_mesh() -> bool:
    from torch.distributed.device_mesh import init_device_mesh

    draw = torch.Generator().manual_seed(0)
    whole = [torch.randn(1, 12, 4, 8, generator=draw) for _ in range(3)]
    wanted = rocflash.attention(*whole, causal=True)
    for mesh in (
        init_device_mesh("cpu", (2,)),
        init_device_mesh("cpu", (1, 2)),
        init_device_mesh("cpu", (2, 1)),
    ):
        own = [rfd.shard_sequence(x, mesh) for x in whole]
        found = rfd.unshard_sequence(rfd.attention(*own, group=mesh, causal=True), mesh)
        assert near(found, wanted)
    return True


def test_device_meshes(two: Ranks) -> None:
    assert all(two.run(on_a_mesh))


def test_ranks_return_failures(two: Ranks) -> None:
    with pytest.raises(Failed, match="rank 0"):
        two.run(rows_and_back, "no layout")


def test_the_example_resumes_after_a_process_was_killed(tmp_path: Path) -> None:
    """Losses are those of an uninterrupted run."""
    example = Path(__file__).parents[2] / "examples" / "train_long.py"
    small = ["--length", "64", "--steps", "5", "--layers", "1", "--width", "32"]
    killed = ["--checkpoint", str(tmp_path / "run.pt"), "--save-every", "2", "--kill-at", "3"]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [*command, str(example), *small, *killed, "--compare"],
        **{"capture_output": True, "text": True, "timeout": 150, "env": environment},
    )
    assert found.returncode == 0, found.stderr[-3000:]
    assert "resumes after step 1" in found.stdout and (tmp_path / "run.pt.killed").exists()
    assert "largest difference of a loss to the run in one process" in found.stdout
    assert found.stdout.count("split step   4") == 1
    alone = subprocess.run(
        [sys.executable, str(example), *small, "--most-rows", "32"],
        **{"capture_output": True, "text": True, "timeout": 100, "env": environment},
    )
    assert alone.returncode == 1 and "--length 64: a process may hold 32 rows" in alone.stderr
