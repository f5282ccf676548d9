"""Modules of flash_attn around attention: activations, norms, MLPs, blocks, embeddings, generation;
against torch.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flash_attn.layers.patch_embed import PatchEmbed
from flash_attn.modules.block import MHA, Block, ParallelBlock
from flash_attn.modules.embedding import BertEmbeddings, GPT2Embeddings
from flash_attn.modules.mlp import GatedMlp, Mlp
from flash_attn.ops import activations, layer_norm, rms_norm
from flash_attn.ops.fused_dense import FusedDense, FusedMLP
from flash_attn.ops.triton.layer_norm import RMSNorm
from flash_attn.utils import generation
from flash_attn.utils.pretrained import state_dict_from_pretrained


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("ops.activations", "swiglu"),  # OmniGen2
        ("utils.distributed", "all_gather all_gather_raw sync_shared_params"),  # OpenRLHF, H-Net
        ("modules.mlp", "GatedMlp Mlp FusedMLP ParallelMLP ParallelGatedMlp"),  # bonito
        ("modules.block", "Block ParallelBlock MHA"),  # H-Net, Hyena
        ("modules.embedding", "GPT2Embeddings ParallelGPT2Embeddings"),
        ("modules.mha", "MHA ParallelMHA _update_kv_cache"),
        ("utils.generation", "GenerationMixin InferenceParams"),  # H-Net
        ("ops.rms_norm", "rms_norm RMSNorm DropoutAddRMSNorm"),  # InternLM, axolotl
        ("ops.layer_norm", "dropout_add_layer_norm layer_norm"),
        ("ops.fused_dense", "FusedDense FusedMLP ColumnParallelLinear"),  # InternVideo2
        ("layers.patch_embed", "PatchEmbed"),
        ("utils.pretrained", "state_dict_from_pretrained"),
        (
            "utils.benchmark",
            "benchmark_forward benchmark_backward benchmark_combined benchmark_all",
        ),
        ("utils.benchmark", "benchmark_fwd_bwd benchmark_memory pytorch_profiler"),
        ("utils.testing", "generate_random_padding_mask generate_qkv attention_ref"),
    ],
)
def test_imports(module: str, names: str) -> None:
    found = importlib.import_module(f"flash_attn.{module}")
    for name in names.split():
        assert hasattr(found, name), name


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (activations.swiglu, lambda x, y: F.silu(x) * y),
        (activations.bias_gelu_impl, lambda x, y: F.gelu(x + y, approximate="tanh")),
        (lambda x, y: activations.fast_gelu_impl(x), lambda x, y: F.gelu(x, approximate="tanh")),
    ],
    ids=["swiglu", "bias_gelu", "fast_gelu"],
)
def test_activations(ours, theirs) -> None:
    x, y = torch.randn(3, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    y_ = y.expand(3, 8) if ours is activations.swiglu else y
    out, expected, dout = ours(x, y_), theirs(x, y_), torch.randn(3, 8)
    close(out, expected)
    for a, b in zip(
        torch.autograd.grad(out, (x, y), dout, allow_unused=True),
        torch.autograd.grad(expected, (x, y), dout, allow_unused=True),
    ):
        assert (a is None) == (b is None)
        if a is not None:
            close(a, b)


def test_derivatives() -> None:
    x, g = torch.randn(50, requires_grad=True), torch.randn(50)
    for forward, backward in (
        (activations.sqrelu_fwd, activations.sqrelu_bwd),
        (F.relu, activations.relu_bwd),
        (activations.gelu_fwd, activations.gelu_bwd),
    ):
        close(backward(g, x.detach()), torch.autograd.grad(forward(x), x, g)[0])
    close(activations.sqrelu_fwd(x), F.relu(x) ** 2)


def test_norms() -> None:
    x, residual = torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    weight, bias, column = torch.randn(16), torch.randn(16), torch.randn(16)
    rows = torch.rand(2, 5)
    summed = residual + x * rows[..., None] * column
    out, total = layer_norm.dropout_add_layer_norm(
        x, residual, weight, bias, 0.0, 1e-5, rowscale=rows, layerscale=column, prenorm=True
    )
    close(total, summed)
    close(out, F.layer_norm(summed, (16,), weight, bias, 1e-5))
    close(layer_norm.layer_norm(x, weight, bias, 1e-6), F.layer_norm(x, (16,), weight, bias, 1e-6))
    close(rms_norm.rms_norm(x, weight, 1e-6), F.rms_norm(x, (16,), weight, 1e-6))
    first, second, total = rms_norm.dropout_add_rms_norm_parallel_residual(
        x, residual, None, weight, None, bias, None, 0.0, 1e-5, prenorm=True
    )
    close(total, x + residual)
    close(first, F.rms_norm(x + residual, (16,), weight, 1e-5))
    close(second, F.rms_norm(x + residual, (16,), bias, 1e-5))
    narrow = x.bfloat16()
    _, total = rms_norm.dropout_add_rms_norm(
        narrow, None, weight, None, 0.0, 1e-5, prenorm=True, residual_in_fp32=True
    )
    assert total.dtype == torch.float32
    out, mask = layer_norm.dropout_add_layer_norm(
        x, None, weight, bias, 0.5, 1e-5, return_dropout_mask=True
    )
    assert mask.dtype == torch.uint8 and 0 < mask.float().mean() < 1
    close(out, F.layer_norm(x * mask * 2, (16,), weight, bias, 1e-5))


def test_mlps() -> None:
    x = torch.randn(2, 5, 12)
    mlp = Mlp(12)
    close(mlp(x), F.linear(F.gelu(mlp.fc1(x)), mlp.fc2.weight, mlp.fc2.bias))
    assert mlp.fc1.weight.shape == (48, 12)
    gated = GatedMlp(12, activation=F.silu, multiple_of=8, return_residual=True)
    assert gated.fc1.weight.shape == (2 * 32, 12)
    value, gate = gated.fc1(x).chunk(2, -1)
    out, kept = gated(x)
    close(out, gated.fc2(value * F.silu(gate)))
    assert kept is x
    sigmoid = GatedMlp(12, hidden_features=8, multiple_of=1)
    close(sigmoid(x), sigmoid.fc2(F.glu(sigmoid.fc1(x), -1)))


@pytest.mark.parametrize("level", [0, 1, 2])
def test_fused_mlp(level: int) -> None:
    x = torch.randn(3, 12, requires_grad=True)
    mlp = FusedMLP(12, activation="sqrelu", checkpoint_lvl=level)
    expected = mlp.fc2(F.relu(mlp.fc1(x)) ** 2)
    close(mlp(x), expected)
    for a, b in zip(
        torch.autograd.grad(mlp(x).sum(), (x, mlp.fc1.weight)),
        torch.autograd.grad(expected.sum(), (x, mlp.fc1.weight)),
    ):
        close(a, b)
    dense = FusedDense(12, 5, return_residual=True)
    out, kept = dense(x)
    assert kept is x
    close(out, F.linear(x, dense.weight, dense.bias))
    with pytest.raises(ValueError, match="^activation is 'tanh'; allowed are gelu_approx"):
        FusedMLP(12, activation="tanh")


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("norm", [nn.LayerNorm, RMSNorm])
def test_block(fused: bool, norm) -> None:
    torch.manual_seed(0)
    mixer = partial(MHA, num_heads=2, use_flash_attn=True, causal=True)
    x, residual = torch.randn(2, 7, 32), torch.randn(2, 7, 32)
    block = Block(32, mixer, norm_cls=norm, fused_dropout_add_ln=fused)
    out, total = block(x, residual)
    first = x + residual
    second = first + block.mixer(block.norm1(first))
    close(total, second)
    close(out, block.mlp(block.norm2(second)))
    after = Block(32, mixer, norm_cls=norm, prenorm=False, fused_dropout_add_ln=fused)
    first = after.norm1(x + after.mixer(x))
    close(after(x), after.norm2(first + after.mlp(first)))
    for tied in (False, True):
        side = ParallelBlock(32, mixer, norm_cls=norm, tied_norm=tied, fused_dropout_add_ln=fused)
        total = x + residual + first
        for_mlp = side.norm1(total) if tied else side.norm2(total)
        found = side(x, first, residual)
        for a, b in zip(found, (side.mixer(side.norm1(total)), side.mlp(for_mlp), total)):
            close(a, b)


def test_fused_projections_are_the_same() -> None:
    baseline, fused = (MHA(32, 2, fused_bias_fc=x, return_residual=True) for x in (False, True))
    fused.load_state_dict(baseline.state_dict())
    x = torch.randn(2, 7, 32)
    assert torch.equal(baseline(x)[0], fused(x)[0])


def test_block_stochastic_depth() -> None:
    block = Block(32, lambda _: nn.Identity(), lambda _: nn.Identity(), drop_path1=0.5)
    x = torch.ones(64, 3, 32)
    _, total = block(x)
    assert set(total.unique().tolist()) == {0.0, 2.0}
    assert (total.flatten(1).std(1) == 0).all()
    block.eval()
    assert torch.equal(block(x)[1], x)


def test_embeddings() -> None:
    ids, positions = torch.tensor([[3, 1, 4], [1, 5, 2]]), torch.tensor([[2, 1, 0], [0, 1, 2]])
    words = GPT2Embeddings(8, 6, 3, word_embed_proj_dim=4)
    expected = words.project_in(words.word_embeddings.weight[ids])
    close(words(ids), expected + words.position_embeddings.weight[:3])
    close(words(ids, positions), expected + words.position_embeddings.weight[positions])
    bert = BertEmbeddings(8, 6, 0, 2)
    close(bert(ids), bert.word_embeddings.weight[ids] + bert.token_type_embeddings.weight[0])


def test_patches() -> None:
    """A convolution whose steps are as wide as its kernel."""
    layer, image = PatchEmbed((8, 12), 4, 3, 16), torch.randn(2, 3, 8, 12)
    kernel = layer.proj.weight.view(16, 3, 4, 4)
    expected = F.conv2d(image, kernel, layer.proj.bias, stride=4)
    close(layer(image), expected.flatten(2).transpose(1, 2))
    with pytest.raises(ValueError, match=r"^x has images of size \(8, 8\); it must be \(8, 12\)"):
        layer(image[..., :8])


class Tiny(nn.Module, generation.GenerationMixin):
    """Two layers that keep keys and values in inference_params."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = GPT2Embeddings(32, 50, 0)
        self.layers = nn.ModuleList(
            Block(32, partial(MHA, num_heads=2, causal=True, use_flash_attn=True,
                              rotary_emb_dim=16, layer_idx=n))
            for n in range(2)
        )  # fmt: skip

    def forward(self, input_ids, position_ids=None, inference_params=None, num_last_tokens=0):
        x, residual = self.embeddings(input_ids), None
        arguments = {} if inference_params is None else {"inference_params": inference_params}
        for layer in self.layers:
            x, residual = layer(x, residual, mixer_kwargs=arguments)
        x = (x + residual)[:, -num_last_tokens:]
        return SimpleNamespace(logits=x @ self.embeddings.word_embeddings.weight.T)


def test_generation() -> None:
    torch.manual_seed(0)
    model, prompt = Tiny().eval(), torch.randint(50, (2, 5))
    found = model.generate(prompt, 12, return_dict_in_generate=True, output_scores=True)
    tokens = prompt
    with torch.no_grad():
        for scores in found.scores:
            logits = model(tokens).logits[:, -1]
            close(scores, logits)
            tokens = torch.cat((tokens, logits.argmax(-1, keepdim=True)), 1)
    assert torch.equal(found.sequences, tokens) and tokens.shape == (2, 12)
    taught = model.generate(prompt, 12, teacher_outputs=torch.arange(20).view(2, 10), vocab_size=50)
    assert torch.equal(taught[:, 5:10], torch.arange(20).view(2, 10)[:, 5:])
    with pytest.raises(NotImplementedError, match="^cg is True; .* must be False"):
        model.generate(prompt, 12, cg=True)


def test_sampling() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    kept = logits.clone()
    generation.modify_logits_for_top_p_filtering(kept, 0.8)
    assert torch.isinf(kept).tolist() == [[False, False, True, True]]
    kept = logits.clone()
    generation.modify_logits_for_top_k_filtering(kept, 3)
    assert torch.isinf(kept).tolist() == [[False, False, False, True]]
    many = logits.expand(4000, 4)
    drawn = generation.sample(many, top_k=0, top_p=0.8)
    assert set(drawn.tolist()) == {0, 1}
    drawn = generation.sample(many, top_k=3, temperature=0.5)
    share = torch.bincount(drawn, minlength=4) / 4000
    expected = torch.tensor([0.25, 0.09, 0.0225, 0.0]) / 0.3625
    assert (share - expected).abs().max() < 0.04


@pytest.mark.parametrize("split", [False, True])
def test_pretrained(tmp_path, split: bool) -> None:
    from safetensors.torch import save_file

    weights = {"a": torch.randn(3), "b": torch.randn(2)}
    if split:
        for name, x in weights.items():
            save_file({name: x}, tmp_path / f"{name}.safetensors")
        listed = '{"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}'
        (tmp_path / "model.safetensors.index.json").write_text(listed)
    else:
        torch.save(weights, tmp_path / "pytorch_model.bin")
    found = state_dict_from_pretrained(str(tmp_path), dtype=torch.bfloat16)
    assert {k: x.tolist() for k, x in found.items()} == {
        k: x.bfloat16().tolist() for k, x in weights.items()
    }
    with pytest.raises(OSError, match="^model_name is .*; it must have one of"):
        state_dict_from_pretrained(str(tmp_path / ".."))


def _rank(rank: int, directory: str) -> None:
    """Split layers against whole ones, on two processes."""
    import torch.distributed as dist

    from flash_attn.modules.embedding import ParallelGPT2Embeddings
    from flash_attn.modules.mlp import ParallelGatedMlp, ParallelMLP
    from flash_attn.utils import distributed as d

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/store", rank=rank, world_size=2
    )
    group = dist.group.WORLD
    torch.manual_seed(0)
    whole, x = torch.randn(4, 6), torch.randn(4, 6, requires_grad=True)
    mine = x.chunk(2)[rank].detach().requires_grad_()
    gathered = d.all_gather(mine, group)
    assert torch.equal(gathered, x)
    (grad,) = torch.autograd.grad(gathered, mine, whole)
    close(grad, 2 * whole.chunk(2)[rank])
    close(d.reduce_scatter(whole, group), 2 * whole.chunk(2)[rank])
    close(d.all_reduce(whole, group), 2 * whole)
    assert [d.get_dim_for_local_rank(40, 2, r, 8) for r in (0, 1)] == [24, 16]

    torch.manual_seed(1)
    baseline = Mlp(6, 8)
    for sequence_parallel in (False, True):
        split = ParallelMLP(6, 8, process_group=group, sequence_parallel=sequence_parallel)
        with torch.no_grad():
            split.fc1.weight.copy_(baseline.fc1.weight.chunk(2)[rank])
            split.fc1.bias.copy_(baseline.fc1.bias.chunk(2)[rank])
            split.fc2.weight.copy_(baseline.fc2.weight.chunk(2, 1)[rank])
            if rank == 0:
                split.fc2.bias.copy_(baseline.fc2.bias)
        expected = baseline(x)
        (whole_grad,) = torch.autograd.grad(expected, x, whole)
        part = (lambda t: t.chunk(2)[rank]) if sequence_parallel else (lambda t: t)
        given = part(x).detach().requires_grad_()
        out = split(given)
        close(out, part(expected))
        close(torch.autograd.grad(out, given, part(whole))[0], part(whole_grad))
    assert ParallelGatedMlp(6, group, 8, multiple_of=8)(mine).shape == (2, 6)

    words, ids = GPT2Embeddings(6, 10, 4), torch.tensor([[1, 9, 4], [7, 0, 2]])
    shared = ParallelGPT2Embeddings(6, 10, 4, group, sequence_parallel=False)
    for name, dim in (("word_embeddings", 0), ("position_embeddings", 1)):
        source = getattr(words, name).weight.detach().clone()
        dist.broadcast(source, 0)
        getattr(words, name).weight.data.copy_(source)
        getattr(shared, name).weight.data.copy_(source.chunk(2, dim)[rank])
    close(shared(ids), words(ids))

    norm = nn.Linear(2, 2)
    with torch.no_grad():
        norm.weight.fill_(rank + 1.0)
    norm.weight._shared_params = norm.weight._sequence_parallel = True
    d.sync_shared_params(norm, group)
    assert (norm.weight == 1).all()
    norm.weight.grad = torch.full((2, 2), rank + 1.0)
    d.allreduce_sequence_parallel_grad(norm, group)
    assert (norm.weight.grad == 3).all()
    dist.destroy_process_group()


def test_split_over_processes(tmp_path) -> None:
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_rank, args=(n, str(tmp_path))) for n in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(240)
    assert [process.exitcode for process in ranks] == [0, 0]


def test_benchmark_functions(capsys: pytest.CaptureFixture[str]) -> None:
    """Published benchmark scripts: (timer, measurement), gradients dropped between runs."""
    from flash_attn.utils.benchmark import benchmark_all, benchmark_backward, pytorch_profiler

    x = torch.randn(3, 4, requires_grad=True)
    found = benchmark_all(lambda y: (y * 2, None), x, repeats=2, desc="twice")
    assert len(found) == 3 and all(m.mean > 0 for _, m in found)
    torch.testing.assert_close(x.grad.shape, x.shape)
    printed = capsys.readouterr().out
    assert "twice - Forward pass" in printed and "twice - Forward + Backward pass" in printed
    with pytest.raises(RuntimeError, match="^grad has shape"):
        benchmark_backward(lambda y: y * 2, x, grad=torch.ones(2), verbose=False)
    pytorch_profiler(lambda y: y * 2, x, backward=True, cpu=True)
    assert "mul" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["full", "random", "third"])
def test_functions_of_tests(mode: str) -> None:
    """generate_qkv's packed inputs through flash_attn, against attention_ref on the padded ones."""
    from flash_attn import (
        flash_attn_varlen_func,
        flash_attn_varlen_kvpacked_func,
        flash_attn_varlen_qkvpacked_func,
    )
    from flash_attn.utils.testing import attention_ref, generate_qkv, generate_random_padding_mask

    q, k, v = (torch.randn(3, 26, h, 16) for h in (4, 2, 2))
    masks = [generate_random_padding_mask(26, 3, "cpu", mode) for _ in range(2)]
    assert all(m.sum(-1).min() >= {"full": 26, "random": 6, "third": 8}[mode] for m in masks)
    arguments = {"causal": True, "window_size": (5, -1), "softcap": 3.0}
    expected, weights = attention_ref(q, k, v, *masks, **arguments)
    assert not weights.isnan().any()
    rows, keys, values, _, cu_q, cu_k, _, _, most_q, most_k, *_, back, _, _ = generate_qkv(
        q, k, v, *masks
    )
    out = flash_attn_varlen_func(rows, keys, values, cu_q, cu_k, most_q, most_k, **arguments)
    torch.testing.assert_close(back(out), expected, rtol=1e-4, atol=1e-5)
    rows, pair, cu_q, cu_k, most_q, most_k, _, _, back, _, _ = generate_qkv(
        q, k, v, *masks, kvpacked=True
    )
    out = flash_attn_varlen_kvpacked_func(rows, pair, cu_q, cu_k, most_q, most_k, **arguments)
    torch.testing.assert_close(back(out), expected, rtol=1e-4, atol=1e-5)
    three = (k, k * 2, v)
    rows, cu, most, _, back, _ = generate_qkv(*three, masks[0], masks[0], qkvpacked=True)
    out = flash_attn_varlen_qkvpacked_func(rows, cu, most)
    torch.testing.assert_close(
        back(out), attention_ref(*three, masks[0], masks[0])[0], rtol=1e-4, atol=1e-5
    )
    with pytest.raises(ValueError, match="^mode is 'half'; it must be full, random or third"):
        generate_random_padding_mask(4, 2, "cpu", "half")


def test_reference_masks() -> None:
    """Chunks, skipped keys, and a window's sinks, against the library's definition."""
    import rocflash
    from flash_attn.utils.testing import attention_ref

    q, k, v = (torch.randn(2, n, 4, 16) for n in (7, 12, 12))
    found = attention_ref(q, k, v, attention_chunk=4, causal=True)[0]
    close = torch.testing.assert_close
    close(found, rocflash.attention(q, k, v, attention_chunk=4, causal=True, backend="reference"))
    first = attention_ref(q, k, v, window_size=(2, 0), sink_token_length=2)[1]
    assert (first[..., :2] > 0).all() and not first[:, :, -1, 3:9].any()
    skipped = attention_ref(q, k, v, key_leftpad=torch.tensor([0, 3]), causal=True)[1]
    assert not skipped[1, :, :, :3].any() and skipped[0, :, :, 0].all()


def test_absent_modules_have_a_reason() -> None:
    from flash_attn._absent import ABSENT

    for name in ABSENT.keys() - {"flash_attn.cute"}:  # which python/flash-attn-4 provides here
        with pytest.raises(
            ModuleNotFoundError, match="no part of flash_attn as rocflash serves it"
        ) as refusal:
            importlib.import_module(name)
        assert refusal.value.name == name
        assert importlib.util.find_spec(name) is None, "who only looks finds nothing"
    with pytest.raises(ModuleNotFoundError, match="flash_attn.models"):
        from flash_attn.models.gpt import GPTLMHeadModel  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'flash_attn.unheard_of'$"):
        importlib.import_module("flash_attn.unheard_of")
