"""Writes the four wheels for every Python, torch and ROCm, with their SBOMs and SHA256SUMS."""

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
    """Writes rocflash, flash-attn, flash-attn-3 and flash-attn-4, then SBOMs and checksums."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        compiled = []
        for name, (data, _) in wheel.compiled_files(build).items():
            compiled.append(Path(directory) / Path(name).name)
            compiled[-1].write_bytes(data)
        audit.check_glibc(compiled)
        tag = audit.platform_tag(compiled)
    # Stamped wheels of flash_attn, which are for one Python, are kept.
    pure = ("flash_attn-*-py3-none-any.*", "flash_attn_3-*", "flash_attn_4-*")
    for pattern in ("rocflash-*", *pure, "SHA256SUMS"):
        for old in out.glob(pattern):
            old.unlink()
    wheels = [wheel.write_rocflash(out, build, [f"py3-none-{tag}"])]
    wheels += [
        wheel.write_pure(out, base) for base in (wheel.DROPIN, wheel.DROPIN_3, wheel.DROPIN_4)
    ]
    paths = wheels + [sbom.write(path, build) for path in wheels]
    sums = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(paths)
    )
    (out / "SHA256SUMS").write_text(sums)
    return [*paths, out / "SHA256SUMS"]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--build", type=Path, default=wheel.ROOT / "build", help="a build of the library (build/)"
    )
    parser.add_argument(
        "--out", type=Path, default=wheel.ROOT / "dist", help="output directory (dist/)"
    )
    options = parser.parse_args(arguments)
    try:
        for path in write_all(options.build, options.out):
            print(f"{path.stat().st_size:>10}  {path}")
    except (audit.AuditError, FileNotFoundError, subprocess.CalledProcessError) as error:
        print(f"universal.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
