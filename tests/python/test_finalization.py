"""Interpreter exit while daemon threads compute: CPython terminates them when they acquire the GIL.

torch's own operators abort the process there, so each thread makes one long call that ends during
finalization.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading, time
import torch, rocflash
from rocflash._c.options import DEFAULTS
from rocflash._torch import calls, fast

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(5)  # the interpreter finalizes: threads that acquire the GIL now are ended

torch.set_num_threads(1)
n = int(sys.argv[2])
q = torch.randn(1, n, 2, 64)
calls.forward(q[:, :16], q[:, :16], q[:, :16], DEFAULTS)
calling = threading.Semaphore(0)

def compute():
    calling.release()
    if sys.argv[1] == "fast path":
        found = fast.infer(q, q, q, DEFAULTS)
    else:
        found = calls.infer(q, q, q, DEFAULTS, False, False)
    print("declined" if found is None else "returned", flush=True)

threads = [threading.Thread(target=compute, daemon=True) for _ in range(2)]
for x in threads:
    x.start()
for _ in threads:
    calling.acquire()
slow = sys.modules["sys"].slow = Slow()
time.sleep(0.02)
print("ok", flush=True)
"""


@pytest.mark.parametrize("call", ["fast path", "ctypes"])
def test_daemon_threads_do_not_abort_the_process(call: str) -> None:
    for rows in (2048, 4096, 8192):
        words = [sys.executable, "-c", PROGRAM, call, str(rows)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
        if done.stdout == "ok\n":  # no call had returned before the exit
            return
    pytest.fail(f"no call was running at exit: {done.stdout!r}")
