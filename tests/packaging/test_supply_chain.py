"""Builds are pinned: packages by hash, containers by digest, caches by toolchain."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import containers
import pytest
import versions
from conftest import ROOT, VERSION, Run

PACKAGING = ROOT / "packaging"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}$")


def locked(kind: str) -> dict[str, list[str]]:
    """Each requirement of a list ("name==version") and its hashes; anything else in the file is an
    error.
    """
    found: dict[str, list[str]] = {}
    text = (PACKAGING / f"requirements-{kind}.txt").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        fields = line.split()
        match = re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", fields[0])
        assert match, line
        hashes = [field for field in fields if field.startswith("--")]
        assert hashes and all(HASH.match(entry) for entry in hashes), line
        found[fields[0].lower()] = hashes
    return found


@pytest.mark.parametrize("kind", ["build", "docs", "lint", "test"])
def test_requirements_have_hashes(kind: str) -> None:
    packages = locked(kind)
    requirements = [
        line.strip().lower()
        for line in (PACKAGING / f"requirements-{kind}.in").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert requirements and not [line for line in requirements if line not in packages], (
        "run scripts/lock_requirements.sh"
    )
    assert len(packages) > len(requirements), "their dependencies must be listed too"
    text = (PACKAGING / f"requirements-{kind}.txt").read_text()
    assert "://" not in text and "--index" not in text, "a list must not name an index"


def test_environments_require_hashes() -> None:
    (line,) = [
        line
        for line in (ROOT / "scripts" / "python_env.sh")
        .read_text()
        .replace("\\\n", " ")
        .splitlines()
        if "pip install" in line
    ]
    assert "--require-hashes" in line and "--only-binary=:all:" in line


def test_a_wrong_hash_is_rejected(tmp_path: Path) -> None:
    """python_env.sh with a list that has one small wheel and a wrong hash."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "small-1.0-py3-none-any.whl"
    import zipfile

    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("small.py", "")
        archive.writestr(
            "small-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n"
        )
        archive.writestr(
            "small-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("small-1.0.dist-info/RECORD", "")
    clone = tmp_path / "clone"
    (clone / "scripts").mkdir(parents=True)
    (clone / "packaging").mkdir()
    shutil.copy(ROOT / "scripts" / "python_env.sh", clone / "scripts")
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()

    def install(line: str) -> subprocess.CompletedProcess[str]:
        (clone / "packaging" / "requirements-build.txt").write_text(line + "\n")
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(tmp_path),
            "PYTHON": sys.executable,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheels),
            "ROCFLASH_VENVS": str(tmp_path / "venvs"),
        }
        command = [clone / "scripts" / "python_env.sh", "build"]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    wrong = install(f"small==1.0 --hash=sha256:{'0' * 64}")
    assert wrong.returncode != 0 and "DO NOT MATCH THE HASHES" in wrong.stderr, wrong.stderr
    assert install("small==1.0").returncode != 0
    good = install(f"small==1.0 --hash=sha256:{right}")
    assert good.returncode == 0, good.stderr


def test_containers_are_named_by_digest() -> None:
    """The workflows name images with digests, or use versions.py; never only a tag."""
    table = containers.digests()
    named = []
    for path in WORKFLOWS:
        for image in re.findall(r"^ *(?:container|image): *(\S+)", path.read_text(), re.M):
            if image == "${{":
                continue
            named.append(image)
            name, digest = image.split("@")
            assert table[name] == digest, f"{path.name}: {image}"
    assert len(named) >= 3


def test_images_without_digest_build_nothing() -> None:
    """These are AMD's, in one job, which has no write permission and no outputs."""
    yaml = pytest.importorskip("yaml")
    for image, digest in containers.digests().items():
        if digest is None:
            assert image.startswith("rocm/"), image
        else:
            assert re.fullmatch(r"sha256:[0-9a-f]{64}", digest), image
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "_build_rocm.yml").read_text())
    chosen = [
        job for job, body in workflow["jobs"].items() if "${{" in str(body.get("container", ""))
    ]
    assert chosen == ["rocm"]
    job = workflow["jobs"]["rocm"]
    assert (
        "permissions" not in job
        and "outputs" not in job
        and workflow["permissions"] == {"contents": "read"}
    )
    used = [step["uses"].split("@")[0] for step in job["steps"] if "uses" in step]
    assert set(used) == {"actions/checkout", "actions/setup-python", "actions/download-artifact"}
    assert {versions.container(rocm).split("@")[0] for rocm in versions.rocm_versions()} <= set(
        containers.digests()
    )


def test_pinning(tmp_path: Path) -> None:
    """containers.py in a copy, against a registry whose digests are hashes of names."""
    digest_of = lambda name: "sha256:" + hashlib.sha256(name.encode()).hexdigest()  # noqa: E731

    class Registry(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            name, _, reference = self.path.removeprefix("/v2/").partition("/manifests/")
            known = not reference.startswith("sha256:") or reference == digest_of(name)
            self.send_response(200 if known else 404)
            self.send_header("Docker-Content-Digest", digest_of(name))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "packaging").mkdir()
    for name in ("containers.py", "containers.json"):
        shutil.copy(PACKAGING / name, tmp_path / "packaging")
    shutil.copytree(ROOT / ".github", tmp_path / ".github")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        urls = ["--registry", f"http://127.0.0.1:{server.server_port}", "--tokens", ""]
        command = [sys.executable, tmp_path / "packaging" / "containers.py", *arguments, *urls]
        return subprocess.run(command, capture_output=True, text=True)

    before = run("--check")
    assert before.returncode == 1 and "debian:bookworm: HTTP Error 404" in before.stderr
    pinned = run("--pin")
    assert pinned.returncode == 0, pinned.stderr
    assert run("--check").returncode == 0
    server.shutdown()
    table = json.loads((tmp_path / "packaging" / "containers.json").read_text())
    assert table["debian:bookworm"] == digest_of("library/debian")
    assert table["rocm/dev-ubuntu-22.04:6.4-complete"] == digest_of("rocm/dev-ubuntu-22.04")
    assert (
        f"debian:bookworm@{digest_of('library/debian')}"
        in (tmp_path / ".github/workflows/ci.yml").read_text()
    )
    assert run("--pin").returncode == 1, "an unreachable registry must not pass"


def test_caches_are_named_by_toolchain(run: Run) -> None:
    for path in WORKFLOWS:
        for key in re.findall(r"^ *key: (.+)$", path.read_text(), re.M):
            assert "${{ steps.toolchain.outputs.hash }}" in key, f"{path.name}: {key}"
            for directory in ("cmake", "src", "kernels", "include", "verify", "cli"):
                assert f"'{directory}/**'" in key, (
                    f"{path.name}: {directory} is compiled but not in the key"
                )
    result = run("scripts/toolchain.sh")
    assert result.returncode == 0, result.stderr
    assert (
        re.search(r"(clang|gcc|g\+\+).* \d+\.\d+", result.stdout)
        and "cmake version" in result.stdout
    )


def test_security_policy() -> None:
    """The policy names the current version, and how to report."""
    text = (ROOT / "SECURITY.md").read_text()
    assert f"the latest {VERSION.rpartition('.')[0]}.x release" in text
    assert "Report a vulnerability" in text and "## Guarantees" in text
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / target).exists(), target
