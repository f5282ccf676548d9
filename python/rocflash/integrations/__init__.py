"""Bridges to other libraries, each imported on first use."""

from __future__ import annotations

import os


def by_default(variable: str) -> bool:
    """Whether an environment variable makes rocflash a server's default: 1; 0 or unset does not."""
    value = os.environ.get(variable, "").strip()
    if value not in ("", "0", "1"):
        from ..errors import InvalidArgument

        raise InvalidArgument(f"{variable} is {value!r}; it must be 0 or 1")
    return value == "1"
