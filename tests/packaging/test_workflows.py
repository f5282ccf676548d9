"""The workflows: linted, pinned, with no more rights than they use; their shell steps run here as far as they can."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import versions
from conftest import ROOT

yaml = pytest.importorskip("yaml")
FOLDER = ROOT / ".github" / "workflows"
NAMES = ("ci", "_build_rocm", "build")


def load(name: str) -> dict[Any, Any]:
    return yaml.safe_load((FOLDER / f"{name}.yml").read_text())


def steps(name: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        (job, step) for job, told in load(name)["jobs"].items() for step in told.get("steps", [])
    ]


def test_these_are_all() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(f"{name}.yml" for name in NAMES)


def test_actionlint() -> None:
    done = subprocess.run([ROOT / "scripts" / "actionlint.sh"], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_actions_are_pinned(name: str) -> None:
    """By a full commit, with the release beside it for people; ours are called by path."""
    lines = [line for line in (FOLDER / f"{name}.yml").read_text().splitlines() if "uses:" in line]
    assert lines
    for line in lines:
        assert re.search(r"uses: (\./\S+|[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+)$", line), (
            line
        )


def test_one_release_of_each_action() -> None:
    pins = {
        match
        for name in NAMES
        for match in re.findall(
            r"([\w.-]+/[\w.-]+)@([0-9a-f]{40} # \S+)", (FOLDER / f"{name}.yml").read_text()
        )
    }
    assert len({action for action, _ in pins}) == len(pins)


@pytest.mark.parametrize("name", NAMES)
def test_least_rights(name: str) -> None:
    told = load(name)
    assert told["permissions"] == {"contents": "read"}
    writers = {job for job, words in told["jobs"].items() if "permissions" in words}
    assert (
        writers == {"ci": set(), "_build_rocm": {"upload"}, "build": {"release", "stamped"}}[name]
    )
    for job in writers:
        assert told["jobs"][job]["permissions"] == {"contents": "write"}
    for _, step in steps(name):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"] == {"persist-credentials": False}


def test_inputs_of_the_reusable_workflow() -> None:
    on = load("_build_rocm")[True]  # YAML 1.1 reads the key `on` so
    wanted = [
        "flash-attn-version",
        "python-version",
        "torch-version",
        "rocm-version",
        "runner",
        "is-upload",
        "build-triton-backend",
    ]
    assert list(on["workflow_call"]["inputs"]) == wanted
    assert on["workflow_call"]["inputs"] == on["workflow_dispatch"]["inputs"]
    assert list(load("build")["jobs"]["stamped"]["with"]) == wanted


def test_ci_runs_what_contributors_run() -> None:
    assert [step["run"] for _, step in steps("ci") if "run" in step][-1] == ".ci/run"


@pytest.mark.parametrize("name", NAMES)
def test_shell_steps(name: str, tmp_path: Path) -> None:
    """Nothing from outside is pasted into a script, and shellcheck has nothing to say."""
    assert load(name)["defaults"] == {"run": {"shell": "bash"}}
    for index, (job, step) in enumerate(steps(name)):
        if "run" not in step:
            continue
        assert "${{" not in step["run"], f"{job}: {step['name']}"
        script = tmp_path / f"{index}.sh"
        script.write_text("#!/bin/bash\nset -e\n" + step["run"] + "\n")
        subprocess.run(["bash", "-n", script], check=True)
        if shutil.which("shellcheck"):
            done = subprocess.run(["shellcheck", script], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout


def shell(name: str, job: str, step: str, folder: Path, **environment: str) -> dict[str, str]:
    """Runs one step as the runner would, in `folder`; the answer is what it wrote for later steps."""
    (words,) = (
        told["run"] for where, told in steps(name) if where == job and told.get("name") == step
    )
    output = folder / "output"
    output.write_text("")
    done = subprocess.run(
        ["bash", "-e", "-c", words],
        cwd=folder,
        env={**os.environ, "GITHUB_OUTPUT": str(output), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(line.split("=", 1) for line in output.read_text().splitlines())


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that looks like a checkout and that steps may write into."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for path in ROOT.iterdir():
        if not path.name.startswith((".git", "build-", "dist")) and path.name != "build":
            (folder / path.name).symlink_to(path)
    return folder


def test_matrix_step(checkout: Path) -> None:
    made = shell("build", "matrix", "Write the matrix, and what is left out of it", checkout)
    assert 15 < len(json.loads(made["matrix"])["include"]) < 50


def test_build_steps(checkout: Path, build: Path, built_archs: str) -> None:
    """The steps of a cell, with the library that is there in place of the cache."""
    if not built_archs:
        pytest.skip("this build is for the CPU alone")
    cell = {
        "FLASH_ATTN_VERSION": "2.8.3",
        "PYTHON_VERSION": f"3.{sys.version_info[1]}",
        "TORCH_VERSION": "2.13",
        "ROCM_VERSION": "7.2",
    }
    made = shell(
        "_build_rocm",
        "build",
        "Build and stamp",
        checkout,
        **cell,
        BUILD_TRITON_BACKEND="true",
        PYTORCH_ROCM_ARCH=built_archs,
        ROCFLASH_BUILD=str(build),
    )
    tag = f"cp3{sys.version_info[1]}"
    stem = "flash_attn-2.8.3+rocm72torch2.13"
    names = {f"{stem}{kind}-{tag}-{tag}-linux_x86_64.whl" for kind in ("", "triton")}
    assert {path.name for path in (checkout / "dist").iterdir()} == names, "both kinds"
    assert made == {
        "wheels": "rocm7.2torch2.13",
        "python": f"3.{sys.version_info[1]}",
        "torch-index": "https://download.pytorch.org/whl/rocm7.2",
        "container": versions.container("7.2"),
    }
    shell("_build_rocm", "build", "Audit", checkout)
    shell("_build_rocm", "build", "Install and use, on the CPU", checkout, PYTHON=sys.executable)
    shell(
        "_build_rocm",
        "rocm",
        "Install and use beside that torch",
        checkout,
        PYTHON_VERSION=made["python"],
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    )


def fake_gh(folder: Path) -> str:
    """A gh that writes down how it was called."""
    place = folder / "fake"
    place.mkdir()
    (place / "gh").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >"{folder}/called"\n')
    (place / "gh").chmod(0o755)
    return f"{place}:{os.environ['PATH']}"


def test_upload_step(checkout: Path) -> None:
    (checkout / "dist").mkdir()
    (checkout / "dist" / "x.whl").touch()
    shell(
        "_build_rocm",
        "upload",
        "Add the wheels to the release",
        checkout,
        PATH=fake_gh(checkout),
        TAG="v0.1.0",
    )
    assert (checkout / "called").read_text().split() == [
        "release",
        "upload",
        "v0.1.0",
        "dist/x.whl",
        "--clobber",
    ]


def test_release_step(checkout: Path) -> None:
    (checkout / "CHANGELOG.md").unlink()
    (checkout / "packaging").unlink()
    shutil.copytree(ROOT / "packaging", checkout / "packaging")
    (checkout / "CHANGELOG.md").write_text(
        "# Changelog\n\n## [0.2.0] - today\n\n- new\n\n## [0.1.0]\n\n- old\n"
    )
    (checkout / "release").mkdir()
    (checkout / "release" / "rocflash-0.2.0-py3-none-any.whl").touch()
    shell(
        "build",
        "release",
        "Publish with the changelog's notes",
        checkout,
        PATH=fake_gh(checkout),
        TAG="v0.2.0",
    )
    notes = (checkout / "notes.md").read_text()
    assert notes.startswith("\n- new\n") or notes.startswith("- new\n")
    assert "- old" not in notes and "- `rocflash-0.2.0-py3-none-any.whl`, sha256 `e3b0c442" in notes
    assert "flash_attn-2.8.3+rocm64torch2.8triton-cp312-cp312-linux_x86_64.whl" in notes
    assert (checkout / "called").read_text().splitlines() == [
        "release",
        "create",
        "v0.2.0",
        "--title",
        "rocflash 0.2.0",
        "--notes-file",
        "notes.md",
        "--verify-tag",
        "release/rocflash-0.2.0-py3-none-any.whl",
    ]
    refused = subprocess.run(
        [checkout / "packaging" / "release_notes.sh", "0.3.0"], capture_output=True, text=True
    )
    assert refused.returncode == 1 and "no section [0.3.0]; it has 0.2.0,0.1.0" in refused.stderr


def test_documents_step(checkout: Path) -> None:
    (checkout / "dist").mkdir()
    shell("build", "wheels", "Pack the documents", checkout)
    with tarfile.open(checkout / "dist" / "docs.tar.gz") as archive:
        assert {"docs", "README.md", "CHANGELOG.md"} <= set(archive.getnames())
