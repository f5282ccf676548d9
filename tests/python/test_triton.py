"""The backend `triton`: its kernels in the interpreter and the simulator, its selection and its
errors.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import flash_attn
import rocflash
from rocflash._backends.triton import calls, launch, tiles

pytest.importorskip("triton")
HERE = Path(__file__).parent
SIMULATOR = Path(os.environ.get("ROCFLASH_LIBRARY", "")).parent / "sim" / "libamdhip64.so"


def run(*words: str, **environment: str) -> subprocess.CompletedProcess:
    dropout_mask = {
        k: v for k, v in os.environ.items() if k not in ("ROCFLASH_BACKEND", "TRITON_INTERPRET")
    }
    return subprocess.run(
        [sys.executable, *words],
        env={**dropout_mask, **environment},
        capture_output=True,
        text=True,
    )


def ended_well(done: subprocess.CompletedProcess) -> None:
    assert done.returncode == 0 and done.stdout.strip() == "ok", done.stdout + done.stderr


def test_interpreted() -> None:
    ended_well(run(str(HERE / "triton_interpreted.py"), TRITON_INTERPRET="1"))


@pytest.mark.skipif(not SIMULATOR.exists(), reason="the simulator is not built")
@pytest.mark.parametrize("arch", ["gfx942", "gfx950", "gfx1100"])
def test_compiled_ahead_of_time_and_simulated(arch: str) -> None:
    where = {"ROCFLASH_HIP_LIBRARY": str(SIMULATOR), "ROCFLASH_SIM_ARCH": arch}
    ended_well(run(str(HERE / "triton_simulated.py"), **where))


PROGRAM = """
import rocflash
chosen = rocflash.info()
print(chosen["backend"], chosen["backend_symbol"], chosen["why"], sep="|")
from flash_attn import flash_attn_interface as f
print(f.USE_TRITON_ROCM, f.flash_attn_gpu.__name__, sep="|")
"""
V2 = "flash_attn.flash_attn_triton_amd.interface_v2"


@pytest.mark.parametrize(
    ("environment", "backend", "symbol"),
    [
        ({"FLASH_ATTENTION_TRITON_AMD_ENABLE": "TRUE"}, "triton", V2),
        ({"ROCFLASH_BACKEND": "triton"}, "triton", V2),
        ({"FLASH_ATTENTION_TRITON_AMD_ENABLE": "FALSE"}, "auto", "rocflash_forward in "),
        (
            {"FLASH_ATTENTION_TRITON_AMD_ENABLE": "TRUE", "ROCFLASH_BACKEND": "native"},
            "auto",
            "rocflash_forward in ",
        ),
    ],
    ids=["enable", "backend", "disable", "native wins"],
)
def test_selection_by_the_environment(
    environment: dict[str, str], backend: str, symbol: str
) -> None:
    done = run("-c", PROGRAM, **environment)
    assert done.returncode == 0, done.stderr
    chosen, served = (line.split("|") for line in done.stdout.splitlines())
    assert chosen[0] == backend and chosen[1].startswith(symbol)
    chosen_by = (
        "ROCFLASH_BACKEND"
        if "ROCFLASH_BACKEND" in environment
        else "FLASH_ATTENTION_TRITON_AMD_ENABLE"
    )
    assert chosen[2].startswith(
        f"chosen by {chosen_by}=" if backend == "triton" or len(environment) == 2 else "the default"
    )
    assert served == (["True", V2] if backend == "triton" else ["False", "flash_attn_2_cuda"])


def test_tensors_on_the_cpu_are_rejected() -> None:
    """Without the interpreter; and there is no silent switch to another backend."""
    x = torch.randn(1, 4, 2, 16).half()
    for call in (
        lambda: rocflash.attention(x, x, x, backend="triton"),
        lambda: rocflash.use_backend("triton")(flash_attn.flash_attn_func)(x, x, x),
    ):
        with pytest.raises(
            rocflash.Unsupported,
            match="^q is on cpu; backend 'triton' runs on GPUs.*TRITON_INTERPRET",
        ):
            call()
    with pytest.raises(rocflash.Unsupported, match="^backend is 'triton'; it takes torch tensors"):
        rocflash.attention(*[x.numpy()] * 3, backend="triton")
    with (
        rocflash.use_backend("triton"),
        pytest.raises(rocflash.Unsupported, match="^q is on cpu; backend 'triton'"),
    ):
        flash_attn.flash_attn_with_kvcache(x, x, x)


def test_without_triton_the_message_has_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    launch.kernels.cache_clear()
    x = torch.randn(1, 4, 2, 16).half()
    with pytest.raises(
        rocflash.Unsupported,
        match="^backend is 'triton'; Triton cannot be imported.*rocflash\\[triton\\]",
    ):
        rocflash.attention(x, x, x, backend="triton")
    launch.kernels.cache_clear()


def ints(*x: int) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.int32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"mask": torch.ones(1, 1, 4, 5, dtype=torch.bool)},
            "mask has shape .* size 5 in dimension 3 must be 1 or 6",
        ),
        (
            {"mask": torch.ones(1, 1, 4, 6)},
            "mask has dtype torch.float32; it must be torch.bool or",
        ),
        ({"bias": torch.ones(4, 6)}, "bias has shape .* of 2 dimensions"),
        ({"cache_batch_idx": ints(1)}, r"cache_batch_idx is \[1\]; entries must be 0 to 0"),
        ({"block_table": ints(0)}, "block_table has shape .* it must have a row for each"),
        (
            {"block_table": torch.ones(1, 1, dtype=torch.int32)},
            "block_table is 1 at entry 0 of sequence 0",
        ),
        ({"num_splits": 3}, "num_splits is 3; .* must be 0 or 1"),
        ({"dropout_p": 1.0}, "dropout_p is 1.0; it must be in"),
        ({"softcap": -1.0}, "softcap is -1.0; it must be 0"),
        ({"softmax_scale": float("nan")}, "softmax_scale is nan; it must be finite"),
        ({"window": (-2, 0)}, "window has left bound -2; it must be -1"),
        ({"seqused_k": ints(7)}, "seqused_k is 7 for sequence 0; it must be 0 to its length, 6"),
        ({"seqused_k": torch.ones(1)}, "seqused_k has dtype torch.float32; it must be torch.int32"),
        ({"alibi_slopes": torch.ones(3)}, r"alibi_slopes has shape \(3,\); it must be \(2,\) or"),
        ({"sinks": torch.ones(3)}, r"sinks has shape \(3,\)"),
        ({"cu_seqlens_k": ints(0, 6)}, "cu_seqlens_q is None, but cu_seqlens_k is given"),
        ({"max_seqlen_q": 9}, "max_seqlen_q is 9; without varlen sequences"),
        ({"rng_state": torch.zeros(3), "dropout_p": 0.5}, "rng_state is torch.float32 of shape"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_options_are_rejected_by_name(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(calls, "_check_device", lambda q: None)
    q, k = torch.randn(1, 4, 2, 16).half(), torch.randn(1, 6, 2, 16).half()
    with pytest.raises(rocflash.Error, match=f"^{message}"):
        rocflash.attention(q, k, k, backend="triton", **options)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            ((1, 4, 2, 257), (1, 6, 2, 257), (1, 6, 2, 16)),
            "q has head dimension 257; .* takes 1 to 256",
        ),
        (((1, 4, 3, 16), (1, 6, 2, 16), (1, 6, 2, 16)), "k has 2 heads; the 3 heads of q"),
        (
            ((1, 4, 2, 16), (2, 6, 2, 16), (2, 6, 2, 16)),
            "k has shape .* its batch must be that of q, 1",
        ),
        (((1, 4, 2, 16), (1, 6, 2, 16), (1, 5, 2, 16)), "v has shape"),
        (((4, 2, 16), (1, 6, 2, 16), (1, 6, 2, 16)), "q has shape .* of 3 dimensions"),
    ],
)
def test_shapes_are_rejected_by_name(
    monkeypatch: pytest.MonkeyPatch, shapes: Any, message: str
) -> None:
    monkeypatch.setattr(calls, "_check_device", lambda q: None)
    with pytest.raises(rocflash.Error, match=f"^{message}"):
        rocflash.attention(*(torch.randn(s).half() for s in shapes), backend="triton")
    q = torch.randn(1, 4, 2, 16)
    with pytest.raises(
        rocflash.Unsupported, match="^q has dtype torch.float32; .* takes float16 and bfloat16"
    ):
        rocflash.attention(q, q, q, backend="triton")


def test_tuning_selects_the_fastest_tile_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the first tile that fits is selected; both are cached."""
    from triton import testing
    from triton.runtime.errors import OutOfResources

    a, b, c = (tiles.Tile(n, 16, 4, 1) for n in (64, 32, 16))
    started: list[tiles.Tile] = []

    def start(_: Any, tile: tiles.Tile) -> None:
        if tile is a:
            raise OutOfResources(300, 200, "shared memory")
        started.append(tile)

    def timed(function: Any, **_: Any) -> float:
        function()
        return float(started[-1].block_m)

    monkeypatch.setattr(launch, "_start", start)
    monkeypatch.setattr(testing, "do_bench", timed)
    assert launch._first_that_fits(None, [a, b, c]) is b and launch._fastest(None, [a, b, c]) is c
    with pytest.raises(OutOfResources):
        launch._fastest(None, [a])
    for words, on in (("TRUE", True), ("true", True), ("FALSE", False), ("", False)):
        monkeypatch.setenv(launch.AUTOTUNE, words)
        assert launch.autotunes() is on


def test_tiles() -> None:
    assert [tiles.padded(d) for d in (1, 16, 17, 64, 80, 256)] == [16, 16, 32, 64, 128, 256]
    assert [tiles.family_of(a) for a in ("gfx942", "gfx1100", "90")] == [
        tiles.CDNA,
        tiles.RDNA,
        tiles.NVIDIA,
    ]
    for kernel in launch.kernels():
        for family in (tiles.CDNA, tiles.RDNA, tiles.NVIDIA, tiles.INTERPRETER):
            for columns in (16, 64, 128, 256):
                for tile in tiles.choices(kernel, family, columns):
                    for size in (
                        tile.block_m,
                        tile.block_n,
                    ):  # dropout wants multiples of 8, products of 16
                        assert size >= 16 and size & (size - 1) == 0, (kernel, family, tile)
    assert launch.dropout_of(0.0) is None and launch.dropout_of(0.25).threshold == 49152
    words = launch.random_keys(torch.tensor([-1, 2**33 + 5]))
    assert words == {"key_0": -1, "key_1": -3, "offset": 5}
