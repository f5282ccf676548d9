"""rocflash as an attention backend of vLLM: `vllm serve … --attention-backend ROCFLASH`, or
ROCFLASH_MLA for models with latent attention, whose prompts it computes too with
`--attention-config.mla_prefill_backend ROCFLASH`.

vLLM calls `register` through the distribution's entry point (group vllm.general_plugins) in each of
its processes. It registers the backends; vLLM selects its own unless these are requested. With
ROCFLASH_VLLM_DEFAULT=1 they come before vLLM's own (vllm_default.py). The classes are in
vllm_backend.py and vllm_mla.py, which are imported when vLLM looks them up.
"""

from __future__ import annotations

import warnings

from . import by_default

NAME = "ROCFLASH"
LATENT_NAME = "ROCFLASH_MLA"
_CLASS = "rocflash.integrations.vllm_backend.RocflashBackend"
_LATENT = "rocflash.integrations.vllm_mla.RocflashMLABackend"
_PREFILL = "rocflash.integrations.vllm_mla.RocflashMLAPrefill"
DEFAULT = "ROCFLASH_VLLM_DEFAULT"

__all__ = ["DEFAULT", "LATENT_NAME", "NAME", "register"]


def register() -> None:
    """Adds ROCFLASH and ROCFLASH_MLA to vLLM's backends, and registers as CUSTOM unless that is
    registered already; makes them the default if ROCFLASH_VLLM_DEFAULT is 1.

    Idempotent. Without a registry in vLLM it only warns: an exception here would stop vLLM, even if
    the backend is not used.
    """
    preferred = by_default(DEFAULT)
    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError as error:
        warnings.warn(f"rocflash: no attention backend for this vLLM: {error}", stacklevel=2)
        return
    for name, path in ((NAME, _CLASS), (LATENT_NAME, _LATENT)):
        if name not in AttentionBackendEnum.__members__:
            register_backend(name, path)
    if not AttentionBackendEnum.CUSTOM.is_overridden():
        register_backend(AttentionBackendEnum.CUSTOM, _CLASS)
    try:
        from vllm.v1.attention.backends.mla.prefill.registry import (
            MLAPrefillBackendEnum,
            register_mla_prefill_backend,
        )
    except ImportError:  # older versions have no backends for MLA prefill
        pass
    else:
        if NAME not in MLAPrefillBackendEnum.__members__:
            register_mla_prefill_backend(NAME, _PREFILL)
    if preferred:
        from . import vllm_default

        vllm_default.prefer()
