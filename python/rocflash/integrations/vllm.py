"""rocflash as an attention backend of vLLM: `vllm serve … --attention-backend ROCFLASH`.

vLLM finds `register` by the entry point of the distribution (group vllm.general_plugins) in each of its processes. It
only makes the backend known: vLLM goes on choosing its own unless it is asked for this one. The classes are in
vllm_backend.py, which is imported when vLLM looks them up.
"""

from __future__ import annotations

import warnings

NAME = "ROCFLASH"
_CLASS = "rocflash.integrations.vllm_backend.RocflashBackend"

__all__ = ["NAME", "register"]


def register() -> None:
    """Adds ROCFLASH to vLLM's backends, and takes the place named CUSTOM unless somebody has it.

    May be called again. A vLLM without a registry is left as it is, with a warning: vLLM would not survive an
    exception here, and it must not be stopped by a package that it happens to find.
    """
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError as error:
        warnings.warn(f"rocflash: no attention backend for this vLLM: {error}", stacklevel=2)
        return
    if NAME not in AttentionBackendEnum.__members__:
        register_backend(NAME, _CLASS)
    if not AttentionBackendEnum.CUSTOM.is_overridden():
        register_backend(AttentionBackendEnum.CUSTOM, _CLASS)
