"""The workflows: linted, pinned, minimal permissions; their shell steps run here."""

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
WORKFLOWS = ROOT / ".github" / "workflows"
NAMES = ("ci", "docs", "_build_rocm", "build")


def load(name: str) -> dict[Any, Any]:
    return yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text())


def steps(name: str) -> list[tuple[str, dict[str, Any]]]:
    return [
        (job, step) for job, body in load(name)["jobs"].items() for step in body.get("steps", [])
    ]


def test_all_workflows_are_tested() -> None:
    assert sorted(path.name for path in WORKFLOWS.iterdir()) == sorted(
        f"{name}.yml" for name in NAMES
    )


def test_actionlint() -> None:
    done = subprocess.run([ROOT / "scripts" / "actionlint.sh"], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_actions_are_pinned(name: str) -> None:
    """By a full commit, with the release in a comment; own workflows are called by path."""
    lines = [
        line for line in (WORKFLOWS / f"{name}.yml").read_text().splitlines() if "uses:" in line
    ]
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
            r"([\w.-]+/[\w.-]+)@([0-9a-f]{40} # \S+)", (WORKFLOWS / f"{name}.yml").read_text()
        )
    }
    assert len({action for action, _ in pins}) == len(pins)


@pytest.mark.parametrize("name", NAMES)
def test_minimal_permissions(name: str) -> None:
    workflow = load(name)
    assert workflow["permissions"] == {"contents": "read"}
    writers = {job for job, body in workflow["jobs"].items() if "permissions" in body}
    assert (
        writers
        == {
            "ci": set(),
            "docs": {"publish"},
            "_build_rocm": {"upload"},
            "build": {"release", "build_wheels_rocm", "update_release_notes", "update_docs"},
        }[name]
    )
    for job in writers:
        pages = {"pages": "write", "id-token": "write"}
        expected = pages if name == "docs" else {"contents": "write"}
        assert workflow["jobs"][job]["permissions"] == expected
    for _, step in steps(name):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"] == {"persist-credentials": False}


def test_inputs_of_the_reusable_workflow() -> None:
    on = load("_build_rocm")[True]  # YAML 1.1 reads the key `on` so
    inputs = [
        "flash-attn-version",
        "python-version",
        "torch-version",
        "rocm-version",
        "runner",
        "is-upload",
        "build-triton-backend",
    ]
    assert list(on["workflow_call"]["inputs"]) == inputs
    assert on["workflow_call"]["inputs"] == on["workflow_dispatch"]["inputs"]
    assert list(load("build")["jobs"]["build_wheels_rocm"]["with"]) == inputs
    defaults = {name: body.get("default") for name, body in on["workflow_call"]["inputs"].items()}
    assert defaults["runner"] == "ubuntu-22.04" and defaults["is-upload"] is True
    assert defaults["build-triton-backend"] is False


def test_jobs_after_the_matrix() -> None:
    """The jobs of the guide's names wait for the ROCm wheels, and run if some of them failed."""
    jobs = load("build")["jobs"]
    for name in ("update_release_notes", "update_docs"):
        assert set(jobs[name]["needs"]) == {"release", "build_wheels_rocm"}
        assert "needs.release.result == 'success'" in jobs[name]["if"]
    # Uploading by default has no effect on a branch, which is no release.
    assert "startsWith(github.ref, 'refs/tags/v')" in load("_build_rocm")["jobs"]["upload"]["if"]


def test_issue_forms() -> None:
    """GitHub drops a form that it cannot read."""
    forms = sorted((WORKFLOWS.parent / "ISSUE_TEMPLATE").glob("*.yml"))
    named = {path.stem: yaml.safe_load(path.read_text()) for path in forms}
    assert named.pop("config") == {"blank_issues_enabled": False}
    assert set(named) == {"bug", "feature", "performance"}
    for form in named.values():
        assert form["name"] and form["description"]
        entries = [entry for entry in form["body"] if entry["type"] != "markdown"]
        assert entries and len({entry["id"] for entry in entries}) == len(entries)
    (doctor,) = (entry for entry in named["bug"]["body"] if entry.get("id") == "doctor")
    assert "rocflash doctor" in doctor["attributes"]["label"]
    assert doctor["validations"]["required"] is True


def test_hooks_exist() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    for hook in hooks:
        assert (ROOT / hook["entry"].removeprefix("python3 ").split()[0]).exists(), hook


def ci_gates() -> list[str]:
    jobs = load("ci")["jobs"]
    return [entry["gate"] for entry in jobs["gate"]["strategy"]["matrix"]["include"]]


def test_ci_runs_what_contributors_run() -> None:
    assert [step["run"] for job, step in steps("ci") if job == "gate" and "run" in step][-1] == (
        '.ci/run "$GATE"'
    )
    text = (ROOT / ".ci" / "run").read_text()
    for gate in ci_gates():
        assert re.search(rf"^ +(\w+ \| )*{gate}( \| \w+)*\) echo", text, re.M), gate
    assert {"test", "gcc", "asan", "tsan", "lint", "mypy", "docs"} <= {*ci_gates()}
    assert {"simulator", "packaging", "wheels", "tidy"} <= {*ci_gates()}


def test_an_unknown_gate_is_rejected() -> None:
    done = subprocess.run([ROOT / ".ci" / "run", "tests"], capture_output=True, text=True)
    assert done.returncode == 2 and "gate: tests; must be lint, mypy, docs, test" in done.stderr


def test_shares_of_clang_tidy_are_all_sources() -> None:
    matrix = load("ci")["jobs"]["gate"]["strategy"]["matrix"]["include"]
    shares = [entry["share"] for entry in matrix if entry["gate"] == "tidy"]
    assert shares == [f"{n}/{len(shares)}" for n in range(1, len(shares) + 1)]


def test_required_needs_every_job(tmp_path: Path) -> None:
    """Branch protection names this job only, so it must fail if another failed or was skipped."""
    jobs = load("ci")["jobs"]
    required = jobs.pop("required")
    assert set(required["needs"]) == set(jobs) and required["if"] == "${{ always() }}"
    shell("ci", "required", "Fail unless all jobs succeeded", tmp_path, RESULTS="success success")
    (script,) = (step["run"] for step in required["steps"])
    for other in ("failure", "skipped"):
        environment = {**os.environ, "RESULTS": f"success {other}"}
        done = subprocess.run(["bash", "-e", "-c", script], env=environment, capture_output=True)
        assert done.returncode == 1


@pytest.mark.parametrize("name", NAMES)
def test_shell_steps(name: str, tmp_path: Path) -> None:
    """No expression is expanded in a script, and shellcheck passes."""
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


def shell(name: str, job: str, step: str, directory: Path, **environment: str) -> dict[str, str]:
    """Runs one step as the runner would, in `directory`; returns its outputs."""
    (script,) = (
        body["run"]
        for name_of_job, body in steps(name)
        if name_of_job == job and body.get("name") == step
    )
    output = directory / "output"
    output.write_text("")
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=directory,
        env={**os.environ, "GITHUB_OUTPUT": str(output), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(line.split("=", 1) for line in output.read_text().splitlines())


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A writable directory that looks like a checkout."""
    directory = tmp_path / "checkout"
    directory.mkdir()
    for path in ROOT.iterdir():
        if not path.name.startswith((".git", "build-", "dist")) and path.name != "build":
            (directory / path.name).symlink_to(path)
    return directory


def test_matrix_step(checkout: Path) -> None:
    made = shell("build", "matrix", "Write the matrix and the excluded combinations", checkout)
    assert 15 < len(json.loads(made["matrix"])["include"]) < 50 and made["rocm"] == "true"
    # The switch of create_matrix.py.
    switch = checkout / "create_matrix.py"
    text = switch.read_text().replace('"rocm": ROCM_MATRIX,', '"rocm": False,')
    switch.unlink()
    switch.write_text(text)
    made = shell("build", "matrix", "Write the matrix and the excluded combinations", checkout)
    assert made == {"matrix": '{"include": []}', "rocm": "false"}


def test_build_steps(checkout: Path, build: Path, built_archs: str) -> None:
    """The steps of one job, with the existing build instead of the cache."""
    if not built_archs:
        pytest.skip("this build is CPU only")
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
    assert {path.name for path in (checkout / "dist").iterdir()} == names, "with and without triton"
    assert made == {
        "wheels": "rocm7.2torch2.13",
        "python": f"3.{sys.version_info[1]}",
        "torch-index": "https://download.pytorch.org/whl/rocm7.2",
        "container": versions.container("7.2"),
    }
    shell("_build_rocm", "build", "Audit", checkout)
    shell("_build_rocm", "build", "Install and test on the CPU", checkout, PYTHON=sys.executable)
    shell(
        "_build_rocm",
        "rocm",
        "Install and test with that torch",
        checkout,
        PYTHON_VERSION=made["python"],
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    )


def fake_gh(directory: Path) -> str:
    """A stub of gh that records its arguments."""
    path = directory / "fake"
    path.mkdir()
    (path / "gh").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >"{directory}/called"\n')
    (path / "gh").chmod(0o755)
    return f"{path}:{os.environ['PATH']}"


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
    rejected = subprocess.run(
        [checkout / "packaging" / "release_notes.sh", "0.3.0"], capture_output=True, text=True
    )
    assert rejected.returncode == 1 and "no section [0.3.0]; it has 0.2.0,0.1.0" in rejected.stderr


def test_update_release_notes_step(checkout: Path) -> None:
    """The notes of the release get the checksums of the stamped wheels."""
    (checkout / "release").mkdir()
    stamped = "flash_attn-2.8.3+rocm64torch2.8-cp312-cp312-linux_x86_64.whl"
    (checkout / "release" / stamped).touch()
    version = (ROOT / "VERSION").read_text().strip()
    shell(
        "build",
        "update_release_notes",
        "Add the checksums of the stamped wheels to the notes",
        checkout,
        PATH=fake_gh(checkout),
        TAG=f"v{version}",
    )
    notes = (checkout / "notes.md").read_text()
    assert f"- `{stamped}`, sha256 `e3b0c442" in notes and "```\nflash_attn-" not in notes
    called = (checkout / "called").read_text().split()
    assert called[:3] == ["release", "edit", f"v{version}"] and "notes.md" in called


def test_documents_step(checkout: Path) -> None:
    (checkout / "docs").unlink()
    shutil.copytree(ROOT / "docs", checkout / "docs")
    (checkout / "release").mkdir()
    (checkout / "release" / "rocflash-0.1.0-py3-none-any.whl").touch()
    name = "Pack the documents with the list of wheels"
    shell("build", "update_docs", name, checkout, TAG="v0.1.0")
    with tarfile.open(checkout / "docs.tar.gz") as archive:
        assert {"docs/wheels.md", "README.md", "CHANGELOG.md"} <= set(archive.getnames())
        page = archive.extractfile("docs/wheels.md").read().decode()
    assert page.startswith("# Wheels of rocflash 0.1.0\n")
    assert "- `rocflash-0.1.0-py3-none-any.whl`, sha256 `e3b0c442" in page
    path = fake_gh(checkout)
    shell("build", "update_docs", "Add the documents to the release", checkout, PATH=path, TAG="v1")
    assert (checkout / "called").read_text().split() == [
        "release", "upload", "v1", "docs.tar.gz", "--clobber",
    ]  # fmt: skip
