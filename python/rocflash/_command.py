"""The command `rocflash`, also as `python -m rocflash`: executes the program in the wheel.

The program does not read Python's package metadata, so `info` and `doctor` add what concerns
Python.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

from ._c import abi
from .errors import Error

EXIT_FAILED = 1
PROGRAM = "rocflash.exe" if os.name == "nt" else "rocflash"


def program() -> Optional[Path]:
    """The program: in the package or, for a library named by ROCFLASH_LIBRARY, in its build or
    prefix.
    """
    found = Path(__file__).parent / "bin" / PROGRAM
    if not found.exists():
        found = abi.library_path().absolute().parents[1] / "bin" / PROGRAM
    if not found.exists():
        return None
    if not os.access(found, os.X_OK):  # installers may drop the executable bit of package data
        found.chmod(found.stat().st_mode | 0o111)
    return found


def _missing() -> str:
    path = Path(__file__).parent / "bin" / PROGRAM
    return (
        f"rocflash: {path} does not exist; this package was built without the command, which needs "
        "CLI11, fmt and "
        "nlohmann_json at build time. python -m rocflash.self_test, rocflash.info and `rocflash "
        "doctor` work."
    )


def _json_file(words: list[str]) -> Optional[str]:
    """The file of `--json [FILE]` if `words` have this or nothing; None for other words."""
    if not words:
        return ""
    if words == ["--json"]:
        return "-"
    if len(words) == 2 and words[0] == "--json":
        return words[1]
    return (
        words[0][len("--json=") :] if len(words) == 1 and words[0].startswith("--json=") else None
    )


def _write_json(file: str, report: dict[str, Any]) -> None:
    text = json.dumps(report, indent=2) + "\n"
    if file == "-":
        sys.stdout.write(text)
    elif file:
        try:
            Path(file).write_text(text)
        except OSError as error:
            sys.exit(f"rocflash: --json: cannot write {file}: {error.strerror}")


def _report_of(command: str) -> dict[str, Any]:
    """The program's own report, as JSON; empty without a program. Exits with the program's status
    and message if it reports nothing but an error."""
    path = program()
    if path is None:
        return {}
    done = subprocess.run([path, command, "--json", "-"], capture_output=True, text=True)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        print(done.stderr, end="", file=sys.stderr)
        sys.exit(done.returncode or EXIT_FAILED)
    return report


def _doctor(file: str) -> int:
    from .doctor import Python, cards_of, examine

    report = _report_of("doctor")
    findings = report.get("findings", [])
    findings += [asdict(found) for found in examine(Python.here(), cards_of(report))]
    from . import __version__

    counts = {kind: sum(f["severity"] == kind for f in findings) for kind in ("error", "warning")}
    to = sys.stderr if file == "-" else sys.stdout
    print(f"rocflash {__version__}", file=to)
    for f in findings:
        print(f"  {f['severity']:<9}{f['what']}", file=to)
        if f["advice"]:
            print(f"  {'':<9}-> {f['advice']}", file=to)
    print(", ".join(f"{n} {kind}{'' if n == 1 else 's'}" for kind, n in counts.items()), file=to)
    _write_json(
        file,
        {
            "version": __version__,
            "findings": findings,
            "errors": counts["error"],
            "warnings": counts["warning"],
        },
    )
    return EXIT_FAILED if counts["error"] else 0


def _info(file: str) -> int:
    from .info import backend_lines, chosen, interface_lines, interfaces

    path = program()
    backend = chosen()  # raises the error of a wrong ROCFLASH_BACKEND
    report = _report_of("info") if file else {}
    code = (
        subprocess.call([path, "info"], stdout=sys.stderr if file == "-" else None) if path else 0
    )
    if code:
        return code  # the program has said why
    to = sys.stderr if file == "-" else sys.stdout
    report["interfaces"] = interfaces()
    print(
        "\nPython interfaces",
        *(interface_lines(report["interfaces"]) or ["none"]),
        sep="\n  ",
        file=to,
    )
    report["python_backend"] = backend
    print("\nPython backend", *backend_lines(backend), sep="\n  ", file=to)
    _write_json(file, report)
    return 0


def _run(words: list[str]) -> int:
    own = {"info": _info, "doctor": _doctor}.get(words[0] if words else "")
    file = _json_file(words[1:]) if own else None
    if own is not None and file is not None and (own is _doctor or program() is not None):
        return own(file)
    path = program()
    if path is None:
        sys.exit(_missing())
    if os.name == "nt":  # execv would start another process there, and end this one at once
        return subprocess.call([path, *words])
    os.execv(path, ["rocflash", *words])


def as_command(run: Callable[[], int]) -> int:
    """The exit status of a program, with the habits of `rocflash`: `... | head -1` ends without a
    message, a failed write and rocflash's errors are one line and status 1."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        status = run()
        sys.stdout.flush()
    except Error as error:
        print(f"rocflash: {error}", file=sys.stderr)
        return EXIT_FAILED
    except OSError as error:
        if error.filename is not None:
            print(f"rocflash: {error.filename}: {error.strerror}", file=sys.stderr)
            return EXIT_FAILED
        print(
            f"rocflash: cannot write to standard output: {error.strerror or error}", file=sys.stderr
        )
        os._exit(EXIT_FAILED)  # Python would try to write it again
    return status


def main() -> int:
    return as_command(lambda: _run(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
