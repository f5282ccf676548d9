"""Persistent processes that form one group over gloo: tests send them functions, since starting
processes is slow.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import traceback
from datetime import timedelta
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class Failed(Exception):
    """A function raised on some ranks; `kinds` and `messages` have, for each rank, what or None."""

    def __init__(self, found: list[Any]) -> None:
        self.kinds = [x[1] if x[0] == "raised" else None for x in found]
        self.messages = [x[2] if x[0] == "raised" else None for x in found]
        super().__init__(
            "\n".join(f"rank {n}: {x[2]}\n{x[3]}" for n, x in enumerate(found) if x[0] == "raised")
        )


def _serve(rank: int, size: int, file: str, timeout: float, pipe: Any) -> None:
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{file}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
    )
    pipe.send("here")
    while True:
        try:
            work = pipe.recv()
        except EOFError:  # the parent process has ended
            break
        if work is None:
            break
        function, arguments = work
        try:
            pipe.send(("done", function(*arguments)))
        except BaseException as error:
            kinds = [kind.__name__ for kind in type(error).__mro__]
            pipe.send(("raised", kinds, str(error), traceback.format_exc()))
    os._exit(0)  # torch's shutdown takes seconds


class Ranks:
    def __init__(self, size: int, timeout: float = 60) -> None:
        self.size = size
        self._directory = tempfile.TemporaryDirectory()
        file = os.path.join(self._directory.name, "store")
        context = mp.get_context("spawn")
        self._pipes, self.processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, size, file, timeout, theirs), daemon=True
            )
            process.start()
            self._pipes.append(ours)
            self.processes.append(process)
        for pipe in self._pipes:
            if not pipe.poll(120):
                raise TimeoutError("a rank did not start")
            assert pipe.recv() == "here"

    def run(self, function: Callable[..., Any], *arguments: Any, ranks: Any = None) -> list[Any]:
        """Each rank's result of a function of some module; raises `Failed` if any raised."""
        asked = range(self.size) if ranks is None else ranks
        for rank in asked:
            self._pipes[rank].send((function, arguments))
        found = []
        for rank in asked:
            if not self._pipes[rank].poll(120):
                raise TimeoutError(f"rank {rank} did not answer")
            found.append(self._pipes[rank].recv())
        if any(x[0] == "raised" for x in found):
            raise Failed(found)
        return [x[1] for x in found]

    def close(self) -> None:
        for pipe, process in zip(self._pipes, self.processes):
            if process.is_alive():
                with contextlib.suppress(BrokenPipeError):
                    pipe.send(None)
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
        self._directory.cleanup()
