"""rocflash as an attention backend of vLLM: `vllm serve … --attention-backend ROCFLASH`, or ROCFLASH_MLA for models with
latent attention, whose prompts it computes too with `--attention-config.mla_prefill_backend ROCFLASH`.

vLLM finds `register` by the entry point of the distribution (group vllm.general_plugins) in each of its processes. It
only makes the backends known: vLLM goes on choosing its own unless it is asked for these. The classes are in
vllm_backend.py and vllm_mla.py, which are imported when vLLM looks them up.
"""

from __future__ import annotations

import warnings

NAME = "ROCFLASH"
LATENT_NAME = "ROCFLASH_MLA"
_CLASS = "rocflash.integrations.vllm_backend.RocflashBackend"
_LATENT = "rocflash.integrations.vllm_mla.RocflashMLABackend"
_PREFILL = "rocflash.integrations.vllm_mla.RocflashMLAPrefill"

__all__ = ["LATENT_NAME", "NAME", "register"]


def register() -> None:
    """Adds ROCFLASH and ROCFLASH_MLA to vLLM's backends, and takes the place named CUSTOM unless somebody has it.

    May be called again. A vLLM without a registry is left as it is, with a warning: vLLM would not survive an
    exception here, and it must not be stopped by a package that it happens to find.
    """
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
    except ImportError:  # an older vLLM computes prompts of latent attention by itself
        return
    if NAME not in MLAPrefillBackendEnum.__members__:
        register_mla_prefill_backend(NAME, _PREFILL)
