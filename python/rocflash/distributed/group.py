"""Process groups: a ProcessGroup, a DeviceMesh or the default group, and the teams of ranks that
share heads or a sequence.

Operators of compiled graphs take groups by torch's name for them. No subgroup is created: torch
derives the name of a group that only its members create from the number of groups of each member,
so ranks with different numbers would deadlock. Teams send point to point within the caller's group
instead.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch.distributed as dist

from ..errors import Error, InvalidArgument
from .heuristic import Method

__all__ = ["RankError", "Team", "by_name", "parts", "ranks_per_node", "resolve", "team_of"]


class RankError(Error):
    """Another rank ended, or did not answer within the group's timeout."""


class Team(NamedTuple):
    """Ranks that communicate: all ranks of a group, or some of them."""

    group: Any
    rank: int  # this process's index in members
    members: tuple[int, ...]  # ranks in the group

    @property
    def size(self) -> int:
        return len(self.members)

    @property
    def backend(self) -> str:
        return str(dist.get_backend(self.group))

    def world_rank(self, rank: int) -> int:
        """The global rank of a member, for torch's point-to-point calls."""
        return dist.get_global_rank(self.group, self.members[rank])


# Ranks per node of two-dimensional meshes, by the name of the flattened group.
_node_sizes: dict[str, int] = {}


def _of_mesh(mesh: Any) -> Any:
    if mesh.ndim == 1:
        return mesh.get_group()
    if mesh.ndim != 2:
        raise InvalidArgument(
            f"group is a DeviceMesh of {mesh.ndim} dimensions; it must have one, or two (between "
            "and within nodes)"
        )
    ranks = mesh.mesh.flatten().tolist()
    if ranks != sorted(ranks):
        raise InvalidArgument(
            f"group is a DeviceMesh with ranks {ranks}; they must be in ascending order"
        )
    whole = len(ranks) == dist.get_world_size()
    group: Any = dist.group.WORLD if whole else mesh._flatten().get_group()
    _node_sizes[group.group_name] = mesh.size(1)
    return group


def resolve(group: Any) -> Any:
    """The group of an argument: a ProcessGroup, a DeviceMesh, or None for the default group."""
    if not dist.is_available() or not dist.is_initialized():
        raise InvalidArgument(
            "group requires torch.distributed, which is not initialized; call init_process_group "
            "(or use torchrun) first"
        )
    if group is None:
        return dist.group.WORLD
    if isinstance(group, dist.ProcessGroup):
        return group
    if hasattr(group, "get_group") and hasattr(group, "ndim"):
        return _of_mesh(group)
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidArgument("group does not have this rank; only its members may call")
    raise TypeError(
        f"group has type {type(group).__name__}; it must be a ProcessGroup, a DeviceMesh or None"
    )


def team_of(group: Any) -> Team:
    group = resolve(group)
    return Team(group, dist.get_rank(group), tuple(range(dist.get_world_size(group))))


def by_name(name: Any) -> Any:
    import torch.distributed.distributed_c10d as c10d

    return getattr(c10d, "_resolve_process_group")(name)  # noqa: B009 (it is not exported)


def ranks_per_node(name: str, size: int) -> int:
    """Consecutive ranks with fast links: the second dimension of a mesh, or torchrun's
    LOCAL_WORLD_SIZE.
    """
    if name in _node_sizes:
        return _node_sizes[name]
    given = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(int(given), size) if given.isdigit() and int(given) > 0 else size


def parts(team: Team, method: Method) -> tuple[Team, Team]:
    """(the Ulysses team of this rank, its ring)."""
    node, member = divmod(team.rank, method.inner)
    inner = range(node * method.inner, (node + 1) * method.inner)
    outer = range(member, team.size, method.inner)
    return Team(team.group, member, tuple(inner)), Team(team.group, node, tuple(outer))
