"""`python -m rocflash.report`: measures this machine and writes the page."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Optional

from .._c.abi import library_path
from .._command import as_command
from ..info import info
from . import measure, page
from .progress import Progress

_CPU = measure.Shape(1, 4, 64, "float32")
_GPU = measure.Shape(4, 16, 64, "bfloat16")
_LENGTHS = {"cpu": [128, 256, 512, 1024, 2048, 4096], "cuda": [512, 1024, 2048, 4096, 8192, 16384]}
_EVERY = {"cpu": 3, "cuda": 8}


def _command() -> Optional[str]:
    """The program `rocflash` of this installation."""
    installed = library_path().parent.parent / "bin" / "rocflash"
    return str(installed) if installed.exists() else shutil.which("rocflash")


def verified(device: str, every: int) -> dict[str, Any]:
    """The result of `rocflash verify`, or why it did not run."""
    program = _command()
    if program is None:
        return {"missing": "the command rocflash is not installed"}
    name = "cpu"
    if device != "cpu":
        import torch

        index = torch.device(device).index or 0
        name = f"{'hip' if torch.version.hip else 'cuda'}:{index}"
    command = [program, "verify", "--device", name, "--every", str(every), "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        return {**json.loads(done.stdout), "every": every}
    except json.JSONDecodeError:
        return {
            "missing": (done.stderr or done.stdout).strip()[-500:]
            or f"{command} ended with {done.returncode}"
        }


def collect(
    device: str,
    shape: measure.Shape,
    lengths: list[int],
    every: int,
    seconds: float,
    quiet: bool = False,
) -> dict[str, Any]:
    """All data of the page."""
    import torch

    progress = Progress(1 + len(measure.OPERATIONS) * (1 + len(lengths)), quiet)
    progress.step(f"verify, one case in {every}")
    checked = verified(device, every)
    speed: dict[str, list[dict[str, Any]]] = {}
    for operation in measure.OPERATIONS:
        progress.step(f"{operation}: memory")
        memory = measure.memory(operation, shape, lengths, device)
        speed[operation] = []
        for length, used in zip(lengths, memory):
            progress.step(f"{operation}: {length} tokens")
            took = measure.times(operation, shape, length, device, seconds)
            speed[operation].append({"length": length, "seconds": took, "bytes": used})
    progress.close()
    return {
        "info": dict(info()),
        "machine": {
            "host": platform.node(),
            "when": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "threads": torch.get_num_threads(),
        },
        "device": device if device != "cpu" else f"the CPU (threads: {torch.get_num_threads()})",
        "shape": str(shape),
        "verify": checked,
        "speed": speed,
    }


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}; it must be at least 1")
    return number


def main(arguments: Optional[list[str]] = None) -> int:
    import torch

    from ..self_test import chosen_device

    parser = argparse.ArgumentParser(prog="python -m rocflash.report", description=__doc__)
    parser.add_argument(
        "--output",
        default="rocflash-report.html",
        metavar="FILE",
        help="the page; default: %(default)s",
    )
    parser.add_argument(
        "--device",
        default="auto",
        help="auto (a GPU if torch has one), cpu, hip:N or rocm:N, cuda:N; default: %(default)s",
    )
    parser.add_argument("--quiet", action="store_true", help="print no progress")
    parser.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        help="default: float32 on the CPU, bfloat16 on a GPU",
    )
    parser.add_argument("--head-dim", type=_positive, metavar="N", help="default: 64")
    parser.add_argument(
        "--lengths",
        type=_positive,
        nargs="+",
        metavar="N",
        help="tokens; default: 128 to 4096, on a GPU 512 to 16384",
    )
    parser.add_argument(
        "--every", type=_positive, metavar="N", help="verify one case in N; default: 3, on a GPU 8"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.3,
        metavar="S",
        help="to time each figure for; default: %(default)s",
    )
    given = parser.parse_args(arguments)
    device = chosen_device(parser, given.device)
    if device.startswith("sim:"):
        parser.error(
            f"--device is {device!r}; the simulator's times are not a GPU's, so it must be auto, "
            "cpu, hip:N or cuda:N"
        )
    kind = torch.device(device).type
    shape = _CPU if kind == "cpu" else _GPU
    shape = shape._replace(
        dtype=given.dtype or shape.dtype, head_dim=given.head_dim or shape.head_dim
    )
    Path(given.output).touch()  # refuses before the work, where it would after it
    lengths = sorted(set(given.lengths or _LENGTHS[kind]))
    data = collect(device, shape, lengths, given.every or _EVERY[kind], given.seconds, given.quiet)
    words = sys.argv[1:] if arguments is None else arguments
    data["command"] = shlex.join(["python", "-m", "rocflash.report", *words])
    Path(given.output).write_text(page.build(data), encoding="utf-8")
    checked = data["verify"]
    wrong = "missing" in checked or checked["failed"] > 0
    print(
        f"{given.output}: {Path(given.output).stat().st_size / 1024:.0f} "
        f"KiB{', NOT verified' if wrong else ''}"
    )
    return int(wrong)


if __name__ == "__main__":
    sys.exit(as_command(main))
