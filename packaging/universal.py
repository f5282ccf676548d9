"""Writes the three wheels for every Python, torch and ROCm, with their bills of materials and SHA256SUMS."""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

import audit
import sbom
import wheel


def write_all(build: Path, out: Path) -> list[Path]:
    """rocflash, tagged by what its binaries need, flash-attn and flash-attn-3; then what goes beside them."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        compiled = []
        for name, (data, _) in wheel.compiled_files(build).items():
            compiled.append(Path(folder) / Path(name).name)
            compiled[-1].write_bytes(data)
        audit.refuse_young(compiled)
        tag = audit.platform_tag(compiled)
    # Stamped wheels of flash_attn, which are for one Python, stay.
    for mine in ("rocflash-*", "flash_attn-*-py3-none-any.*", "flash_attn_3-*", "SHA256SUMS"):
        for old in out.glob(mine):
            old.unlink()
    wheels = [wheel.write_rocflash(out, build, [f"py3-none-{tag}"])]
    wheels += [wheel.write_pure(out, base) for base in (wheel.DROPIN, wheel.DROPIN_3)]
    made = wheels + [sbom.write(path, build) for path in wheels]
    sums = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(made)
    )
    (out / "SHA256SUMS").write_text(sums)
    return [*made, out / "SHA256SUMS"]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--build", type=Path, default=wheel.ROOT / "build", help="a build of the library (build/)"
    )
    parser.add_argument(
        "--out", type=Path, default=wheel.ROOT / "dist", help="where they go (dist/)"
    )
    given = parser.parse_args(words)
    try:
        for path in write_all(given.build, given.out):
            print(f"{path.stat().st_size:>10}  {path}")
    except (audit.Refused, FileNotFoundError, subprocess.CalledProcessError) as error:
        print(f"universal.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
