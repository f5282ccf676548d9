"""rocflash as an attention backend of SGLang: `sglang serve … --attention-backend rocflash`.

SGLang calls `register` through the distribution's entry point (group sglang.srt.plugins) before it
parses its command line. It registers the backend; SGLang selects its own unless this one is
requested. With ROCFLASH_SGLANG_DEFAULT=1 it is the default. The class is in sglang_backend.py,
which is imported when a model runner creates the backend.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any, Optional

from . import by_default

NAME = "rocflash"
DEFAULT = "ROCFLASH_SGLANG_DEFAULT"
_DEFAULT_OF_SGLANG = "sglang.srt.arg_groups.model_override_base.get_default_attn_backend"

__all__ = ["DEFAULT", "NAME", "register"]

_hooked = False


def register() -> None:
    """Adds `rocflash` to SGLang's backends and to the choices of its command line; makes it the
    default if ROCFLASH_SGLANG_DEFAULT is 1. Idempotent.

    Without the registry in SGLang it only warns.
    """
    preferred = by_default(DEFAULT)
    try:
        from sglang.srt.layers.attention.attention_registry import register_attention_backend
        from sglang.srt.server_args import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices
    except ImportError as error:
        warnings.warn(f"rocflash: no attention backend for this SGLang: {error}", stacklevel=2)
        return
    register_attention_backend(NAME)(_create)
    if NAME not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([NAME])
    if preferred:
        _prefer()


def _prefer() -> None:
    """Hooks the function that selects the backend when none is requested."""
    global _hooked
    if _hooked:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_DEFAULT_OF_SGLANG, _default, HookType.AROUND)
    _hooked = True


def _default(theirs: Any, server_args: Any, use_mla_backend: bool, model_config: Any) -> str:
    reason = _reason_against(server_args, model_config)
    logger = logging.getLogger("sglang.rocflash")
    if reason is None:
        logger.info("Using %s (%s=1).", NAME, DEFAULT)
        return NAME
    logger.warning("%s not used: %s. SGLang selects its own.", NAME, reason)
    return str(theirs(server_args, use_mla_backend, model_config))


def _reason_against(server_args: Any, model_config: Any) -> Optional[str]:
    """Why a server cannot use the backend, by its arguments; None if it can."""
    cache = getattr(server_args, "kv_cache_dtype", None) or "auto"
    if cache not in ("auto", "float16", "bfloat16", "bf16"):
        return f"kv_cache_dtype is {cache}"
    for name in ("speculative_algorithm", "enable_deterministic_inference"):
        if getattr(server_args, name, None):
            return f"{name} is {getattr(server_args, name)}"
    if (getattr(server_args, "dcp_size", None) or 1) > 1:
        return f"dcp_size is {server_args.dcp_size}"
    if model_config.is_encoder_decoder:
        return "the model is an encoder and a decoder"
    # SGLang accepts a fixed list of backends for this model.
    names = getattr(model_config.hf_config, "architectures", None) or []
    if "GptOssForCausalLM" in names:
        return "SGLang accepts only its own backends for GptOssForCausalLM"
    return None


def _create(runner: Any) -> Any:
    from .sglang_backend import RocflashAttnBackend

    return RocflashAttnBackend(runner)
