"""rocflash as an attention backend of SGLang: `sglang serve … --attention-backend rocflash`.

SGLang finds `register` by the entry point of the distribution (group sglang.srt.plugins) before it reads its command
line. It only makes the backend known; SGLang goes on choosing its own unless it is asked for this one. The class is in
sglang_backend.py, which is imported when a model runner wants it.
"""

from __future__ import annotations

import warnings
from typing import Any

NAME = "rocflash"

__all__ = ["NAME", "register"]


def register() -> None:
    """Adds `rocflash` to SGLang's backends and to the choices of its command line. May be called again.

    An SGLang without the registry is left as it is, with a warning.
    """
    try:
        from sglang.srt.layers.attention.attention_registry import register_attention_backend
        from sglang.srt.server_args import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices
    except ImportError as error:
        warnings.warn(f"rocflash: no attention backend for this SGLang: {error}", stacklevel=2)
        return
    register_attention_backend(NAME)(_create)
    if NAME not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([NAME])


def _create(runner: Any) -> Any:
    from .sglang_backend import RocflashAttnBackend

    return RocflashAttnBackend(runner)
