"""The peers of the GPU benchmark: which are used, which are skipped and why, and what is
recorded.
"""

import json
import math
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
gpu_peers = pytest.importorskip("gpu_peers")
import gpu_vs_torch  # noqa: E402


def install(directory, package, version, module, text):
    """A package with metadata, as pip leaves it."""
    path = directory / (module.replace(".", "/") + ".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    metadata = directory / f"{package.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("fa3_fwd_interface", "aiter"):
        sys.modules.pop(name, None)


def test_unknown_peer_is_rejected_by_name():
    with pytest.raises(ValueError, match=r"'FA5'; must be of FA3, FA4"):
        gpu_peers.find(["FA5"], "forward")
    with pytest.raises(SystemExit):
        gpu_vs_torch.parse(["--peers", "FA5"])
    with pytest.raises(SystemExit):
        gpu_vs_torch.parse(["--lengths", "0"])


def test_peers_that_are_not_installed_are_skipped_with_the_reason():
    found, skipped = gpu_peers.find(["FA3", "cuDNN"], "forward")
    assert [peer.name for peer in found] == ["cuDNN"]
    assert found[0].version == f"torch {torch.__version__}"
    assert skipped == {"FA3": "fa3-fwd is not installed"}


def test_installed_peer_is_called_with_its_version_known(directory):
    text = """
def flash_attn_func(q, k, v, causal):
    return q + (1 if causal else 0), "lse"

def flash_attn_varlen_func(q, k, v, causal, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k):
    assert cu_seqlens_q is cu_seqlens_k and max_seqlen_q == max_seqlen_k == 3
    return q - 1
"""
    install(directory, "fa3-fwd", "0.0.3", "fa3_fwd_interface", text)
    (peer,), skipped = gpu_peers.find(["FA3"], "forward")
    assert peer.version == "fa3-fwd 0.0.3" and not skipped
    x = torch.zeros(4, 1, 8)
    assert peer.forward(x, x, x, True, None).eq(1).all()
    varlen = gpu_peers.Varlen([3, 1], torch.tensor([0, 3, 4], dtype=torch.int32))
    assert peer.forward(x, x, x, False, varlen).eq(-1).all()
    assert "does not support f32" in peer.problem("forward", "f32")
    assert gpu_peers.find(["FA3"], "backward")[1] == {"FA3": "fa3-fwd 0.0.3 has no backward"}


def test_peers_of_rocm_are_aiter_and_torch(directory, monkeypatch):
    assert gpu_peers.find(["AITER"], "forward")[1] == {"AITER": "amd-aiter is not installed"}
    text = "def flash_attn_func(q, k, v, causal):\n    return q + (1 if causal else 0)\n"
    install(directory, "amd-aiter", "0.1.7", "aiter", text)
    (directory / "amd_aiter-0.1.7.dist-info" / "top_level.txt").write_text("aiter\n")
    (peer,), skipped = gpu_peers.find(["AITER"], "backward")
    assert peer.version == "aiter 0.1.7" and not skipped
    x = torch.zeros(4, 1, 8)
    assert peer.forward(x, x, x, True, None).eq(1).all()
    assert "AITER" not in gpu_vs_torch.parse([]).peers
    monkeypatch.setattr(torch.version, "hip", "7.2")
    assert gpu_vs_torch.parse([]).peers == ["AITER", "FA2", "efficient"]
    assert gpu_vs_torch.parse(["--dtypes", "f32", "--device", "hip:0"]).peers == ["efficient"]


def test_peer_that_does_not_import_is_skipped_with_its_error(directory):
    install(directory, "fa3-fwd", "9", "fa3_fwd_interface", "raise OSError('libcuda.so.1')")
    found, skipped = gpu_peers.find(["FA3"], "forward")
    assert not found and skipped == {"FA3": "fa3-fwd 9: OSError: libcuda.so.1"}


def test_torch_peers_agree_with_this_library(monkeypatch):
    """On the CPU torch's flash backend runs, which shows that layouts and options are right."""
    q = torch.randn(2, 5, 4, 8)
    k, v = torch.randn(2, 5, 2, 8), torch.randn(2, 5, 2, 8)
    (peer,), _ = gpu_peers.find(["FA2"], "forward")
    theirs = peer.forward(q, k, v, True, None)
    ours = gpu_peers.ours(deterministic=False).forward(q, k, v, True, None)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_results_and_summary(monkeypatch):
    arguments = gpu_vs_torch.parse(["--dims", "128", "--lengths", "2048", "--idle", "0.02"])
    assert len(list(gpu_vs_torch.cases(arguments))) == 4
    case = gpu_vs_torch.Case("bf16", 128, 2048, 16, 16, True)
    rows = [
        gpu_vs_torch.Row(case, {"rocflash": 2.0, "FA3": 1.0, "cuDNN": 4.0}, 1e-3),
        gpu_vs_torch.Row(case, {"rocflash": 2.0, "cuDNN": 4.0}, 1e-3, {"FA3": "not here"}),
    ]
    lines = list(gpu_vs_torch.summary(rows, ["FA3", "cuDNN"]))
    assert lines == [
        "d 128 against FA3: 0.500x (geometric mean of 1), least 0.500x",
        "d 128 against cuDNN: 2.000x (geometric mean of 2), least 2.000x",
        "d 128 against the best peer of each row: 1.000x, least 0.500x; slower in 1 of 2",
    ]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    (peer,), _ = gpu_peers.find(["cuDNN"], "forward")
    recorded = json.loads(json.dumps(gpu_vs_torch.result(rows, [peer], arguments)))
    assert recorded["of"] == ["rocflash", "cuDNN"]
    assert recorded["versions"]["torch"] == torch.__version__
    flop = 4 * 16 * 128 * 8 * 2048**2 / 2
    assert math.isclose(recorded["rows"][0]["FA3"], flop / 1e9, rel_tol=1e-3)
    assert recorded["rows"][1]["skipped"] == {"FA3": "not here"}
