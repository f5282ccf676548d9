"""Communication between ranks: ring transfers, all-to-all of rows and heads, all-gather of rows,
small host messages.

torch's errors say only that a connection broke, so every operation adds what it was doing and with
which rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Optional

import torch
import torch.distributed as dist
from torch import Tensor

from .group import RankError, Team


@contextmanager
def naming_peers(team: Team, what: str) -> Iterator[None]:
    """Raises failures of torch.distributed as RankError, with the operation and its peers."""
    try:
        yield
    except RankError:
        raise
    except RuntimeError as error:
        raise RankError(
            f"rank {team.rank} of {team.size}: {what} failed: {error}. The other rank has ended, "
            "did not call within "
            "the group's timeout, or called with other arguments (ROCFLASH_DISTRIBUTED_DEBUG=1 "
            "compares them)"
        ) from error


def _staged(team: Team, x: Tensor) -> bool:
    """Whether a tensor is staged in host memory, the only memory that gloo sends from."""
    return x.is_cuda and team.backend == "gloo"


class Transfer:
    """A ring transfer in flight: one flat tensor is sent to a rank while another is received."""

    def __init__(
        self,
        team: Team,
        sent: Optional[Tensor],
        to: int,
        destination: Optional[Tensor],
        source: int,
        what: str,
    ) -> None:
        self._team, self._destination, self._receive_buffer = team, destination, destination
        self._what = f"{what} (to rank {to}, from rank {source})"
        self._send_buffer = sent  # alive until it is sent
        operations = []
        with naming_peers(team, self._what):
            if sent is not None and sent.numel():
                self._send_buffer = sent.cpu() if _staged(team, sent) else sent
                operations.append(
                    dist.P2POp(dist.isend, self._send_buffer, team.world_rank(to), team.group)
                )
            if destination is not None and destination.numel():
                self._receive_buffer = (
                    torch.empty_like(destination, device="cpu")
                    if _staged(team, destination)
                    else destination
                )
                operations.append(
                    dist.P2POp(
                        dist.irecv, self._receive_buffer, team.world_rank(source), team.group
                    )
                )
            self._requests = dist.batch_isend_irecv(operations) if operations else []

    def wait(self) -> Optional[Tensor]:
        """Waits for both; over NCCL the current stream waits, not the host."""
        with naming_peers(self._team, self._what):
            for work in self._requests:
                work.wait()
        if self._destination is not None and self._receive_buffer is not self._destination:
            assert self._receive_buffer is not None
            self._destination.copy_(self._receive_buffer)
        self._send_buffer = None
        return self._destination


def _all_to_all(
    team: Team, parts: Sequence[Tensor], sizes: Sequence[int], what: str
) -> list[Tensor]:
    """Sends part n to rank n and returns the received parts as flat tensors of the given sizes.

    Uses point-to-point messages, since a team may be a part of its process group.
    """
    staged = _staged(team, parts[0])
    # Copies expanded views.
    sent = [(part.cpu() if staged else part).reshape(-1).contiguous() for part in parts]
    received = [sent[0].new_empty(size) for size in sizes]
    received[team.rank] = sent[team.rank]
    operations = []
    with naming_peers(team, what):
        for n in range(team.size):
            for call, x in ((dist.isend, sent[n]), (dist.irecv, received[n])):
                if n != team.rank and x.numel():
                    operations.append(dist.P2POp(call, x, team.world_rank(n), team.group))
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()
    return [x.to(parts[0].device) for x in received] if staged else received


def any_of(x: bool, team: Team, device: torch.device) -> bool:
    """Whether x is true on any rank; the host waits for the answer."""
    mine = torch.tensor([x], dtype=torch.uint8, device=device)
    received = _all_to_all(team, [mine] * team.size, [1] * team.size, "the exchange of a flag")
    return any(bool(part) for part in received)


def heads_of(heads: int, rank: int, ranks: int) -> range:
    """The heads of a rank; with fewer heads than ranks, several ranks have the same head."""
    return range(rank * heads // ranks, max((rank + 1) * heads // ranks, rank * heads // ranks + 1))


def gather_rows_scatter_heads(x: Tensor, team: Team, rows: Sequence[int]) -> Tensor:
    """All-to-all of Ulysses: (b, own rows, all heads, d) to (b, all rows, own heads, d); rank n has
    rows[n] rows.
    """
    b, _, heads, d = x.shape
    parts = []
    for n in range(team.size):
        own = heads_of(heads, n, team.size)
        parts.append(x[:, :, own.start : own.stop])
    mine = len(heads_of(heads, team.rank, team.size))
    received = _all_to_all(team, parts, [b * r * mine * d for r in rows], "the exchange of heads")
    return torch.cat([part.view(b, r, mine, d) for part, r in zip(received, rows)], dim=1)


def scatter_rows_gather_heads(x: Tensor, team: Team, rows: Sequence[int], heads: int) -> Tensor:
    """The inverse all-to-all: (b, all rows, own heads, d) to (b, own rows, all heads, d).

    Heads that several ranks have are summed, as the gradient of `gather_rows_scatter_heads`
    requires.
    """
    b, _, _, d = x.shape
    owned = [heads_of(heads, n, team.size) for n in range(team.size)]
    mine = rows[team.rank]
    received = _all_to_all(
        team,
        x.split(list(rows), dim=1),
        [b * mine * len(own) * d for own in owned],
        "the exchange of heads",
    )
    parts = [part.view(b, mine, len(own), d) for part, own in zip(received, owned)]
    if sum(map(len, owned)) == heads:
        return torch.cat(parts, dim=2)
    out = torch.zeros((b, mine, heads, d), dtype=torch.float32, device=x.device)
    for part, own in zip(parts, owned):
        out[:, :, own.start : own.stop] += part
    return out.to(x.dtype)


def all_gather_rows(x: Tensor, team: Team, rows: Sequence[int]) -> Tensor:
    """The rows of all ranks (first dimension), concatenated in the order of ranks; rank n has
    rows[n].
    """
    most = max(rows)
    padded = x.new_zeros((most, *x.shape[1:]))
    padded[: x.shape[0]] = x
    sent = padded.cpu() if _staged(team, x) else padded
    received = [torch.empty_like(sent) for _ in rows]
    with naming_peers(team, "the all-gather of rows"):
        dist.all_gather(received, sent, group=team.group)
    return torch.cat([part[:r] for part, r in zip(received, rows)]).to(x.device)


def all_reduce_sum(x: Tensor, team: Team) -> Tensor:
    sent = x.cpu() if _staged(team, x) else x.clone()
    with naming_peers(team, "the all-reduce of gradients"):
        dist.all_reduce(sent, group=team.group)
    return sent.to(x.device)


def transport(team: Team, device: torch.device) -> str:
    """The backend that carries a device's tensors: a group may have one for the CPU and another for
    GPUs.
    """
    if team.backend == "gloo":
        return "gloo"
    return str(team.group._get_backend(device).name())


def _bytes(x: bytes) -> Tensor:
    return torch.frombuffer(bytearray(x), dtype=torch.uint8)


class Posted(NamedTuple):
    """A message in flight to a rank.

    It is lost if this object is deleted before that rank has received it.
    """

    rank: int
    message: Tensor
    request: Any


def post(team: Team, message: bytes, tag: int, what: str) -> list[Posted]:
    """Starts to send a message to every other rank."""
    sent = _bytes(message)
    posted = []
    for n in range(team.size):
        if n != team.rank:
            with naming_peers(team, f"{what} (to rank {n})"):
                request = dist.isend(sent, team.world_rank(n), group=team.group, tag=tag)
                posted.append(Posted(n, sent, request))
    return posted


def wait_posted(team: Team, posted: Sequence[Posted], what: str) -> None:
    for x in posted:
        with naming_peers(team, f"{what} (to rank {x.rank})"):
            x.request.wait()


def receive_bytes(team: Team, source: int, size: int, tag: int, what: str) -> bytes:
    destination = torch.empty(size, dtype=torch.uint8)
    with naming_peers(team, f"{what} (from rank {source})"):
        request = dist.irecv(destination, team.world_rank(source), group=team.group, tag=tag)
        assert request is not None
        request.wait()
    return destination.numpy().tobytes()


def exchange_bytes(
    team: Team, message: bytes, sizes: Sequence[int], tag: int, what: str
) -> tuple[list[bytes], list[Posted]]:
    """The messages of all ranks, sizes[n] bytes from rank n, and this rank's own in flight.

    Messages are point to point, so that errors name the rank. Sends are left to the caller, since a
    rank that rejected its arguments does not receive them.
    """
    received = [torch.empty(size, dtype=torch.uint8) for size in sizes]
    others = [n for n in range(team.size) if n != team.rank]
    requests: list[Any] = []
    for n in others:
        with naming_peers(team, f"{what} (from rank {n})"):
            requests.append(dist.irecv(received[n], team.world_rank(n), group=team.group, tag=tag))
    posted = post(team, message, tag, what)
    for n, request in zip(others, requests):
        with naming_peers(team, f"{what} (from rank {n})"):
            request.wait()
    return [
        message if n == team.rank else x.numpy().tobytes() for n, x in enumerate(received)
    ], posted


def all_gather_bytes(team: Team, message: bytes, size: int, device: torch.device) -> list[bytes]:
    """The messages of all ranks, which have one size, over the transport of a device; the host
    waits for them.
    """
    sent = _bytes(message).to(device)
    received = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(team.size)]
    with naming_peers(team, "the comparison of arguments"):
        dist.all_gather(received, sent, group=team.group)
    return [x.cpu().numpy().tobytes() for x in received]
