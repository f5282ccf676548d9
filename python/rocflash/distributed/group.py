"""Who takes part: a ProcessGroup, a DeviceMesh or the whole world, and the subgroups of the mixed method.

Operators of a compiled graph can only take strings, so groups go by the names that torch has for them.
"""

from __future__ import annotations

import datetime
import os
from typing import Any, NamedTuple, Optional

import torch.distributed as dist

from ..errors import Error, InvalidArgument
from .choose import Method

__all__ = ["RankError", "Team", "group_name", "ranks_per_node", "resolve", "subgroups", "team_of"]


class RankError(Error):
    """Another rank failed, or did not answer within the group's timeout."""


class Team(NamedTuple):
    """A group as seen from this rank."""

    group: Any
    rank: int
    size: int

    @property
    def backend(self) -> str:
        return str(dist.get_backend(self.group))

    def world_rank(self, rank: int) -> int:
        """What torch's point-to-point calls want: a member's rank in the whole world."""
        return dist.get_global_rank(self.group, rank)


# Groups of the mixed method: of (name of the group, ranks that share heads).
_made: dict[tuple[str, int], tuple[Any, Any]] = {}
# Two-dimensional meshes, by the name of the group of all their ranks.
_meshes: dict[str, tuple[Any, Any]] = {}


def _of_mesh(mesh: Any) -> Any:
    if mesh.ndim == 1:
        return mesh.get_group()
    if mesh.ndim != 2:
        raise InvalidArgument(
            f"group: a DeviceMesh of {mesh.ndim} dimensions; it must have one, or two: between and "
            "within nodes"
        )
    ranks = mesh.mesh.flatten().tolist()
    known = _of_ranks.get(tuple(ranks))
    if known is None:
        if ranks != sorted(ranks):
            raise InvalidArgument(f"group: a DeviceMesh with ranks {ranks}; they must ascend")
        known = _group(ranks, mesh.get_group(0))
        _of_ranks[tuple(ranks)] = known
        _meshes[known.group_name] = (mesh.get_group(1), mesh.get_group(0))
    return known


_of_ranks: dict[tuple[int, ...], Any] = {}


def _timeout(group: Any) -> Optional[datetime.timedelta]:
    """A group's timeout, for the groups made of it."""
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        found = getattr(options, "_timeout", None)
        if isinstance(found, datetime.timedelta):
            return found
    return None


def _group(ranks: list[int], like: Any) -> Any:
    """A group of these ranks of the world, made by them alone."""
    return dist.new_group(
        ranks,
        timeout=_timeout(like),
        backend=dist.get_backend(like),
        use_local_synchronization=True,
    )


def resolve(group: Any) -> Any:
    """A ProcessGroup from what callers pass: that, a DeviceMesh, or None for the world."""
    if not dist.is_available() or not dist.is_initialized():
        raise InvalidArgument(
            "group: torch.distributed is not initialized; call init_process_group (or use torchrun) first"
        )
    if group is None:
        return dist.group.WORLD
    if isinstance(group, dist.ProcessGroup):
        return group
    if hasattr(group, "get_group") and hasattr(group, "ndim"):
        return _of_mesh(group)
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidArgument("group: this rank is not one of its members")
    raise TypeError(f"group: {type(group).__name__}; it must be a ProcessGroup, a DeviceMesh or None")


def team_of(group: Any) -> Team:
    group = resolve(group)
    return Team(group, dist.get_rank(group), dist.get_world_size(group))


def group_name(group: Any) -> str:
    return str(resolve(group).group_name)


def by_name(name: str) -> Any:
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _resolve_process_group(name)


def ranks_per_node(name: str, size: int) -> int:
    """Neighbouring ranks with fast links: a mesh's second dimension, or as torchrun says."""
    if name in _meshes:
        return dist.get_world_size(_meshes[name][0])
    given = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(int(given), size) if given.isdigit() and int(given) > 0 else size


def subgroups(team: Team, method: Method) -> tuple[Team, Team]:
    """(those who share heads with this rank, those who share the sequence with it)."""
    if method.inner == 1:
        return Team(None, 0, 1), team
    if method.outer == 1:
        return team, Team(None, 0, 1)
    name = team.group.group_name
    mesh = _meshes.get(name)
    if mesh is not None and dist.get_world_size(mesh[0]) == method.inner:
        return team_of(mesh[0]), team_of(mesh[1])
    key = (name, method.inner)
    if key not in _made:
        node, place = divmod(team.rank, method.inner)
        inner = [team.world_rank(node * method.inner + n) for n in range(method.inner)]
        outer = [team.world_rank(n * method.inner + place) for n in range(method.outer)]
        _made[key] = (_group(inner, team.group), _group(outer, team.group))
    return team_of(_made[key][0]), team_of(_made[key][1])
