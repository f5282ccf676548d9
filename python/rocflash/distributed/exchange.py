"""What ranks send each other: blocks that travel, rows for heads, rows for all. Nothing about attention.

Each call says in its errors what it was doing and with whom, since all that torch says is that a connection broke.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Optional

import torch
import torch.distributed as dist
from torch import Tensor

from .group import RankError, Team


@contextmanager
def told(team: Team, what: str) -> Iterator[None]:
    """Failures of torch.distributed, with what was being done."""
    try:
        yield
    except RankError:
        raise
    except RuntimeError as error:
        raise RankError(
            f"rank {team.rank} of {team.size}: {what} failed: {error}. The other rank has ended, did not come "
            "within the group's timeout, or called with other shapes (ROCFLASH_DISTRIBUTED_DEBUG=1 compares "
            "them)"
        ) from error


def _staged(team: Team, x: Tensor) -> bool:
    """gloo sends from the CPU's memory only."""
    return x.is_cuda and team.backend == "gloo"


class Travel:
    """A block on its way: one flat tensor goes to a rank while another comes from one."""

    def __init__(
        self, team: Team, sent: Optional[Tensor], to: int, into: Optional[Tensor], source: int, what: str
    ) -> None:
        self._team, self._into, self._came = team, into, into
        self._what = f"{what} (to rank {to}, from rank {source})"
        self._kept = sent  # until it is sent
        operations = []
        with told(team, self._what):
            if sent is not None and sent.numel():
                self._kept = sent.cpu() if _staged(team, sent) else sent
                operations.append(
                    dist.P2POp(dist.isend, self._kept, team.world_rank(to), team.group)
                )
            if into is not None and into.numel():
                self._came = torch.empty_like(into, device="cpu") if _staged(team, into) else into
                operations.append(
                    dist.P2POp(dist.irecv, self._came, team.world_rank(source), team.group)
                )
            self._works = dist.batch_isend_irecv(operations) if operations else []

    def arrived(self) -> Optional[Tensor]:
        """Waits; on a GPU, lets the current stream wait."""
        with told(self._team, self._what):
            for work in self._works:
                work.wait()
        if self._into is not None and self._came is not self._into:
            self._into.copy_(self._came)
        self._kept = None
        return self._into


def _all_to_all(team: Team, parts: Sequence[Tensor], sizes: Sequence[int], what: str) -> list[Tensor]:
    """Sends part n to rank n; what comes, as flat tensors of the sizes given.

    Point to point, since the members may be a part of their group.
    """
    staged = _staged(team, parts[0])
    sent = [(part.cpu() if staged else part).reshape(-1).contiguous() for part in parts]  # a view may be expanded
    came = [sent[0].new_empty(size) for size in sizes]
    came[team.rank] = sent[team.rank]
    operations = []
    with told(team, what):
        for n in range(team.size):
            for call, x in ((dist.isend, sent[n]), (dist.irecv, came[n])):
                if n != team.rank and x.numel():
                    operations.append(dist.P2POp(call, x, team.world_rank(n), team.group))
        for work in dist.batch_isend_irecv(operations) if operations else []:
            work.wait()
    return [x.to(parts[0].device) for x in came] if staged else came


def any_of(x: bool, team: Team, device: torch.device) -> bool:
    """Whether it holds for any rank. Waits for a GPU."""
    mine = torch.tensor([x], dtype=torch.uint8, device=device)
    came = _all_to_all(team, [mine] * team.size, [1] * team.size, "asking all ranks")
    return any(bool(part) for part in came)


def heads_of(heads: int, rank: int, ranks: int) -> range:
    """The heads that a rank gets; where there are fewer than ranks, several get the same one."""
    return range(rank * heads // ranks, max((rank + 1) * heads // ranks, rank * heads // ranks + 1))


def gather_rows(x: Tensor, team: Team, rows: Sequence[int]) -> Tensor:
    """(b, own rows, all heads, d) to (b, all rows, own heads, d): rank n has rows[n] of the rows."""
    b, _, heads, d = x.shape
    parts = []
    for n in range(team.size):
        own = heads_of(heads, n, team.size)
        parts.append(x[:, :, own.start : own.stop])
    mine = len(heads_of(heads, team.rank, team.size))
    came = _all_to_all(team, parts, [b * r * mine * d for r in rows], "the exchange of heads")
    return torch.cat([part.view(b, r, mine, d) for part, r in zip(came, rows)], dim=1)


def scatter_rows(x: Tensor, team: Team, rows: Sequence[int], heads: int) -> Tensor:
    """The way back: (b, all rows, own heads, d) to (b, own rows, all heads, d).

    Of heads that several ranks have, the sum: what `gather_rows` needs for its gradient.
    """
    b, _, _, d = x.shape
    owned = [heads_of(heads, n, team.size) for n in range(team.size)]
    mine = rows[team.rank]
    came = _all_to_all(
        team, x.split(list(rows), dim=1), [b * mine * len(own) * d for own in owned], "the exchange of heads"
    )
    parts = [part.view(b, mine, len(own), d) for part, own in zip(came, owned)]
    if sum(map(len, owned)) == heads:
        return torch.cat(parts, dim=2)
    out = torch.zeros((b, mine, heads, d), dtype=torch.float32, device=x.device)
    for part, own in zip(parts, owned):
        out[:, :, own.start : own.stop] += part
    return out.to(x.dtype)


def all_rows(x: Tensor, team: Team, rows: Sequence[int]) -> Tensor:
    """Every rank's rows (first dimension), one behind the other; rank n has rows[n]."""
    most = max(rows)
    padded = x.new_zeros((most, *x.shape[1:]))
    padded[: x.shape[0]] = x
    sent = padded.cpu() if _staged(team, x) else padded
    came = [torch.empty_like(sent) for _ in rows]
    with told(team, "gathering all ranks' rows"):
        dist.all_gather(came, sent, group=team.group)
    return torch.cat([part[:r] for part, r in zip(came, rows)]).to(x.device)


def sum_of_all(x: Tensor, team: Team) -> Tensor:
    sent = x.cpu() if _staged(team, x) else x.clone()
    with told(team, "adding up all ranks' gradients"):
        dist.all_reduce(sent, group=team.group)
    return sent.to(x.device)


def objects_of_all(x: Any, team: Team) -> list[Any]:
    found: list[Any] = [None] * team.size
    with told(team, "comparing arguments"):
        dist.all_gather_object(found, x, group=team.group)
    return found
