"""Comparison of a call's arguments between ranks, before any rank sends data.

Ranks whose shapes, dtypes or options differ send messages of other sizes than their peers expect:
gloo then aborts the process, NCCL truncates or waits. So every rank first describes what must be
equal (the signature), and ranks compare 32-byte headers with its digest. They exchange
descriptions only if digests differ; then all ranks raise the same error.

When ranks compare depends on the transport of the call's tensors:

- gloo: on every call. Point-to-point messages of one fixed size go to and from every peer. A rank
  that knows a signature sends them too, so it cannot deadlock with one that does not. A rank that
  rejects its own arguments posts its message without waiting, and its peers raise it too. Tags
  count the calls of a group, so a later call does not receive messages of a rejected one.
- NCCL, RCCL: once per signature. Reading a digest makes the host wait for the GPU, so a rank does
  not compare a known signature again. In a correct program all ranks make the same calls, and a
  signature is new to all of them or to none. If it is new to some only, these wait for the others
  until the group's timeout.

`check=True` or ROCFLASH_DISTRIBUTED_DEBUG=1 compares on every call on any transport, and compares
the values of lengths on a GPU and of rng_state too. `check=False` or ROCFLASH_DISTRIBUTED_DEBUG=0
never compares.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Optional
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..errors import Error, InvalidArgument
from . import comm
from .group import RankError, Team

_DIGEST = 24
_FAILED = bytes(_DIGEST)  # in place of a digest: the rank rejected its own arguments
_HEADER = _DIGEST + 8  # digest, then the size of the description
_FIRST_TAG = 1 << 24  # data has tag 0
_KNOWN = 4096  # signatures of a group that count as compared
_POSTED = 1024  # messages of rejected calls that peers may still receive
_LENGTHS = ("cu_seqlens", "seqused", "leftpad", "cache_seqlens", "cache_leftpad")


class _State:
    """What this rank keeps for a group."""

    def __init__(self) -> None:
        self.calls = 0
        self.known: OrderedDict[bytes, None] = OrderedDict()
        self.posted: deque[Any] = deque(maxlen=_POSTED)

    def next_tags(self) -> tuple[int, int]:
        """Tags of this call's header and description."""
        self.calls += 1
        tag = _FIRST_TAG + 2 * (self.calls % (1 << 22))
        return tag, tag + 1


_states: WeakKeyDictionary[Any, _State] = WeakKeyDictionary()


def _state(team: Team) -> _State:
    return _states.setdefault(team.group, _State())


class Rows(NamedTuple):
    """Of a tensor whose rows are split: those of this rank, and those that the layout gives every
    rank.
    """

    own: int
    expected: list[int]


class Signature(NamedTuple):
    """What must be equal on all ranks of a call, as text by argument, and the split rows."""

    call: str
    arguments: dict[str, str]
    rows: dict[str, Rows]

    def digest(self, rank: int) -> bytes:
        fits = {name: (x.expected, x.own == x.expected[rank]) for name, x in self.rows.items()}
        text = json.dumps([self.call, sorted(self.arguments.items()), sorted(fits.items())])
        return hashlib.blake2b(text.encode(), digest_size=_DIGEST).digest()

    def encoded(self) -> bytes:
        return json.dumps(
            [self.call, self.arguments, {n: list(x) for n, x in self.rows.items()}]
        ).encode()

    @staticmethod
    def decoded(x: bytes) -> Signature:
        call, arguments, rows = json.loads(x)
        return Signature(call, arguments, {name: Rows(*found) for name, found in rows.items()})


def thorough(check: Optional[bool]) -> bool:
    """Whether every call compares everything, by `check` or by the environment."""
    if check is not None:
        return check
    return os.environ.get("ROCFLASH_DISTRIBUTED_DEBUG", "") not in ("", "0")


def _off(check: Optional[bool]) -> bool:
    return not check if check is not None else os.environ.get("ROCFLASH_DISTRIBUTED_DEBUG") == "0"


def describe(name: str, x: Any, free: Sequence[int] = (), with_values: bool = False) -> str:
    """An argument as text. Sizes of the dimensions in `free` may differ between ranks."""
    if not isinstance(x, Tensor):
        return repr(x)
    shape = ["rows" if n in free else str(size) for n, size in enumerate(x.shape)]
    text = f"{str(x.dtype).removeprefix('torch.')} of shape ({', '.join(shape)}) on {x.device.type}"
    readable = with_values or not x.is_cuda
    if (name.startswith(_LENGTHS) and readable) or (name == "rng_state" and with_values):
        text += f" with {x.tolist()}"
    return text


@contextmanager
def reporting_failures(
    team: Team, call: str, device: torch.device, check: Optional[bool]
) -> Iterator[None]:
    """A rank that rejects its own arguments informs its peers, which otherwise wait for it until
    the timeout.
    """
    try:
        yield
    except Exception as error:
        if team.size > 1 and not _off(check) and _host_transport(team, device):
            state = _state(team)
            text = f"{call}: {error}" if not isinstance(error, Error) else str(error)
            body = text.encode()
            for message, tag in zip((_header(_FAILED, body), body), state.next_tags()):
                # A peer has ended: the error of the arguments is what counts.
                with suppress(RankError):
                    state.posted.append(comm.post(team, message, tag, f"the error of {call}"))
        raise


def compare(team: Team, signature: Signature, device: torch.device, check: Optional[bool]) -> None:
    """Raises the same InvalidArgument on every rank if the signatures differ on any; see the
    module's text for when.
    """
    if team.size == 1 or _off(check):
        return
    if _host_transport(team, device):
        _compare_on_host(team, signature)
        return
    digest, known = signature.digest(team.rank), _state(team).known
    if not thorough(check):
        if digest in known:
            known.move_to_end(digest)
            return
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return  # a host cannot wait inside a capture; warm-up calls have compared
    _compare_on_device(team, signature, device)
    known[digest] = None
    if len(known) > _KNOWN:
        known.popitem(last=False)


def _host_transport(team: Team, device: torch.device) -> bool:
    return comm.transport(team, device) == "gloo"


def _header(digest: bytes, body: bytes) -> bytes:
    return digest + len(body).to_bytes(8, "little")


def _compare_on_host(team: Team, signature: Signature) -> None:
    own, body = signature.digest(team.rank), signature.encoded()
    header_tag, body_tag = _state(team).next_tags()
    what = f"the comparison of arguments of {signature.call}"
    headers, posted = comm.exchange_bytes(
        team, _header(own, body), [_HEADER] * team.size, header_tag, what
    )
    digests = [header[:_DIGEST] for header in headers]
    sizes = [int.from_bytes(header[_DIGEST:], "little") for header in headers]
    failed = [rank for rank, digest in enumerate(digests) if digest == _FAILED]
    # A rank that sent a digest had posted its receives; one that rejected its arguments never
    # receives.
    comm.wait_posted(team, [x for x in posted if x.rank not in failed], what)
    if failed:
        text = comm.receive_bytes(team, failed[0], sizes[failed[0]], body_tag, what).decode()
        raise InvalidArgument(f"rank {failed[0]}: {text}")
    if len(set(digests)) > 1:
        bodies, posted = comm.exchange_bytes(team, body, sizes, body_tag, what)
        comm.wait_posted(team, posted, what)
        _raise_difference([Signature.decoded(x) for x in bodies])


def _compare_on_device(team: Team, signature: Signature, device: torch.device) -> None:
    body = signature.encoded()
    headers = comm.all_gather_bytes(
        team, _header(signature.digest(team.rank), body), _HEADER, device
    )
    if len({header[:_DIGEST] for header in headers}) > 1:
        sizes = [int.from_bytes(header[_DIGEST:], "little") for header in headers]
        bodies = comm.all_gather_bytes(team, body.ljust(max(sizes), b" "), max(sizes), device)
        _raise_difference([Signature.decoded(x) for x in bodies])


def _raise_difference(every: list[Signature]) -> None:
    first = every[0]
    for rank, other in enumerate(every):
        if other.call != first.call:
            raise InvalidArgument(
                f"rank {rank}: calls {other.call}, but rank 0 calls {first.call}; all ranks of a "
                "group must make the "
                "same calls"
            )
        for name, value in other.arguments.items():
            if value != first.arguments.get(name):
                raise InvalidArgument(
                    f"rank {rank}: {name} is {value}, but {first.arguments.get(name)} on rank 0; "
                    "it must be the same on "
                    "all ranks"
                )
    # Rank 0's expectation counts: without length=, a rank expects its own number of rows
    # everywhere.
    for name, (_, expected) in first.rows.items():
        found = [other.rows[name].own for other in every]
        for rank, (own, wanted) in enumerate(zip(found, expected)):
            if own != wanted:
                raise InvalidArgument(
                    f"rank {rank}: {name} has {own} rows; the layout of {sum(expected)} rows gives "
                    f"it {wanted}, and rank 0 "
                    f"has {found[0]}. Where ranks hold different numbers, length= must be the "
                    "number of rows of all ranks"
                )
        for rank, other in enumerate(every):
            if other.rows[name].expected != expected:
                raise InvalidArgument(
                    f"rank {rank}: the length of {name} is {sum(other.rows[name].expected)}, but "
                    f"{sum(expected)} on rank 0; "
                    "it must be the same on all ranks"
                )
    raise AssertionError("digests differ, but descriptions do not")
