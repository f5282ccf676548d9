"""Who takes part: a ProcessGroup, a DeviceMesh or the whole world, and those of them that share heads or a sequence.

Operators of a compiled graph can only take strings, so groups go by the names that torch has for them. No group is
made here: torch names groups that only their members make after the number of groups that each member is in, so ranks
that are in different numbers would wait for each other. Parts of a group send point to point within it instead.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch.distributed as dist

from ..errors import Error, InvalidArgument
from .choose import Method

__all__ = ["RankError", "Team", "by_name", "parts", "ranks_per_node", "resolve", "team_of"]


class RankError(Error):
    """Another rank failed, or did not answer within the group's timeout."""


class Team(NamedTuple):
    """Ranks that work together, as seen from this one: all of a group, or some."""

    group: Any
    rank: int  # of this process among the members
    members: tuple[int, ...]  # their ranks in the group

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def backend(self) -> str:
        return str(dist.get_backend(self.group))

    def world_rank(self, rank: int) -> int:
        """What torch's point-to-point calls want: a member's rank in the whole world."""
        return dist.get_global_rank(self.group, self.members[rank])


# Ranks within a node of two-dimensional meshes, by the name of the group of all their ranks.
_nodes: dict[str, int] = {}


def _of_mesh(mesh: Any) -> Any:
    if mesh.ndim == 1:
        return mesh.get_group()
    if mesh.ndim != 2:
        raise InvalidArgument(
            f"group: a DeviceMesh of {mesh.ndim} dimensions; it must have one, or two: between and "
            "within nodes"
        )
    ranks = mesh.mesh.flatten().tolist()
    if ranks != sorted(ranks):
        raise InvalidArgument(f"group: a DeviceMesh with ranks {ranks}; they must ascend")
    whole = len(ranks) == dist.get_world_size()
    group = dist.group.WORLD if whole else mesh._flatten().get_group()
    _nodes[group.group_name] = mesh.size(1)
    return group


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
    return Team(group, dist.get_rank(group), tuple(range(dist.get_world_size(group))))


def by_name(name: str) -> Any:
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _resolve_process_group(name)


def ranks_per_node(name: str, size: int) -> int:
    """Neighbouring ranks with fast links: a mesh's second dimension, or as torchrun says."""
    if name in _nodes:
        return _nodes[name]
    given = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(int(given), size) if given.isdigit() and int(given) > 0 else size


def parts(team: Team, method: Method) -> tuple[Team, Team]:
    """(those who share heads with this rank, those who share the sequence with it)."""
    node, place = divmod(team.rank, method.inner)
    inner = range(node * method.inner, (node + 1) * method.inner)
    outer = range(place, team.size, method.inner)
    return Team(team.group, place, tuple(inner)), Team(team.group, node, tuple(outer))
