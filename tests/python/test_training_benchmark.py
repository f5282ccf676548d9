"""The training benchmark of FA2 and FA3: its output, and detection of wrong results."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flash_attn import flash_attn_func

FILE = Path(__file__).parents[2] / "benchmarks" / "benchmark_fa2_vs_fa3_mlp_transformer.py"
spec = importlib.util.spec_from_file_location("training_benchmark", FILE)
assert spec is not None and spec.loader is not None
benchmark = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmark)

SHORT = {"seq_len": 64, "warmup_steps": 1, "timed_steps": 2}
CONFIG = {**benchmark.PRESETS["cpu"], **SHORT, "device": "cpu"}


def run(*words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(FILE), "--device", "cpu", *words]
    return subprocess.run(
        command, env=dict(os.environ), capture_output=True, text=True, timeout=300
    )


def test_presets_equal_the_documented_ones() -> None:
    asked = benchmark.parsed(["--device", "cpu", "--preset", "mi300x"])
    found = benchmark.resolved(asked)
    expected = (4, 4096, 1024, 16, 8, 20, 80, "bfloat16")
    names = (
        "batch_size",
        "seq_len",
        "d_model",
        "n_heads",
        "n_layers",
        "warmup_steps",
        "timed_steps",
        "dtype",
    )
    assert tuple(found[name] for name in names) == expected
    light = benchmark.PRESETS["default"]
    assert {n: light[n] for n in light if light[n] != found[n]} == {
        "seq_len": 2048,
        "n_layers": 6,
        "warmup_steps": 10,
        "timed_steps": 50,
    }
    assert benchmark.resolved(benchmark.parsed(["--device", "cpu"]))["preset"] == "cpu"
    for device, why in (("abacus", "it must be auto, cpu"), ("cuda:77", "torch says")):
        with pytest.raises(ValueError, match=f"--device: device is '{device}'.*{why}"):
            benchmark.resolved(benchmark.parsed(["--device", device]))


def test_names_of_backends() -> None:
    assert benchmark.chosen_backends([]) == ["fa2", "fa3"]
    assert benchmark.chosen_backends(["sdpa,standard"]) == ["fa2", "fa3", "sdpa", "standard"]
    assert benchmark.chosen_backends(["native", "sdpa"]) == ["fa2", "sdpa"]


def test_complete_benchmark(tmp_path: Path) -> None:
    file, picture = tmp_path / "r.json", tmp_path / "r.svg"
    steps = ("--warmup-steps", "1", "--timed-steps", "2", "--seq-len", "64")
    done = run("--backends", "sdpa", *steps, "--output-json", str(file), "--plot", str(picture))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "preset cpu" in done.stdout
        and "losses agree" in done.stdout
        and "fa2: step 3/3" in done.stderr
    )
    report = json.loads(file.read_text())
    assert list(report) == ["config", "fa2", "fa3", "sdpa", "summary"]
    assert report["config"]["seq_len"] == 64
    for name in ("fa2", "fa3", "sdpa"):
        r = report[name]
        assert r["median_step_ms"] > 0 and r["peak_memory_mib"] > 0 and len(r["losses"]) == 3
        assert r["steps_per_s"] == pytest.approx(1e3 / r["median_step_ms"])
        assert r["tokens_per_s"] == pytest.approx(2 * 64 * r["steps_per_s"])
        assert abs(r["final_loss"] - report["fa2"]["final_loss"]) < 0.02 and r["backend_symbol"]
    summary = report["summary"]
    assert summary["fa3_speedup_over_fa2"] == pytest.approx(
        report["fa2"]["median_step_ms"] / report["fa3"]["median_step_ms"]
    )
    assert summary["memory_delta_mib"] == pytest.approx(
        report["fa3"]["peak_memory_mib"] - report["fa2"]["peak_memory_mib"]
    )
    assert "<svg" in picture.read_text()


def test_a_backend_that_fails_is_reported(right: Any, capsys: pytest.CaptureFixture[str]) -> None:
    failed = benchmark.run_isolated("sdpa_cudnn", CONFIG)  # which the CPU does not have
    results = {"fa2": right, "sdpa_cudnn": failed}
    summary = benchmark.summary_of(results, "cpu")
    benchmark.print_table(results, summary)
    assert failed["error"] and f"sdpa_cudnn failed: {failed['error']}" in capsys.readouterr().out
    assert summary["failed"] == ["sdpa_cudnn"] and summary["fa3_speedup_over_fa2"] is None


WRONG = {
    "attends one key ahead": {"window_size": (-1, 1)},
    "another scale": {"causal": True, "softmax_scale": 0.15},
}


@pytest.fixture(scope="module")
def right() -> Any:
    return benchmark.train("fa2", CONFIG)


@pytest.mark.parametrize("options", WRONG.values(), ids=WRONG)
def test_wrong_attention_is_detected(
    options: Any, right: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        benchmark, "attention_of", lambda _: lambda *qkv: flash_attn_func(*qkv, **options)
    )
    wrong = benchmark.train("fa2", CONFIG)
    assert benchmark.disagreements({"fa2": right, "other": wrong})
    assert not benchmark.disagreements({"fa2": right, "other": right})


def test_diverging_losses_are_detected(right: Any) -> None:
    for change in (lambda x: 1.1 * x, lambda x: float("nan")):
        other = {**right, "losses": [*right["losses"][:-1], change(right["losses"][-1])]}
        assert benchmark.disagreements({"fa2": right, "other": other})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--backends", "quick"), "--backends is 'quick'; allowed are fa2"),
        (("--n-heads", "3"), "--d-model is 128; it must be a multiple of --n-heads, 3"),
        (("--seq-len", "0"), "argument --seq-len: 0; it must be at least 1"),
    ],
)
def test_bad_options(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = benchmark.main(["--device", "cpu", *words])
    except SystemExit as ended:
        code = ended.code
    assert code == 2 and message in capsys.readouterr().err
