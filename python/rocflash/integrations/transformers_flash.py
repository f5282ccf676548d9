"""transformers' own `attn_implementation="flash_attention_2"` wherever rocflash runs, the CPU included.

transformers refuses that name before it imports flash_attn, unless it sees a GPU; and models with attention sinks
(GPT-OSS) refuse it because upstream's FA2 has none. Both checks are in one method, which is told here about the
installed flash_attn. All else stays as it is: padding, packing, windows and caches are transformers' own code, which then
calls flash_attn's functions.
"""

from __future__ import annotations

import functools
from typing import Any, Optional

from rocflash.errors import Unsupported

NAME = "flash_attention_2"

# A model may list the implementations that it works with. Those of flash_attn's functions mean that ours will do as
# well; a list without any of them is about another kind of attention.
_OF_FLASH_ATTN = ("flash_attention_", "flash-attn")


def serve() -> str:
    """Lets `attn_implementation="flash_attention_2"` pass; returns that name. A second call changes nothing."""
    import transformers
    from transformers import PreTrainedModel, modeling_flash_attention_utils

    _check_flash_attn()
    method = getattr(PreTrainedModel, "_check_and_adjust_attn_implementation", None)
    available = getattr(modeling_flash_attention_utils, "is_flash_attn_2_available", None)
    load = getattr(modeling_flash_attention_utils, "lazy_import_flash_attention", None)
    if method is None or available is None or load is None:
        raise Unsupported(
            f"transformers: version {transformers.__version__}; {NAME} can be served for 5.0 to 5.22, "
            "other versions take register() without a name"
        )
    if hasattr(method, "_rocflash"):
        return NAME

    @functools.wraps(method)
    def checked(self: Any, attn_implementation: Optional[str], *rest: Any, **named: Any) -> str:
        if attn_implementation != NAME or not _takes_flash_attn(self):
            return method(self, attn_implementation, *rest, **named)
        load(NAME)  # now, so that a compiler does not meet the import
        return NAME

    checked._rocflash = True  # type: ignore[attr-defined]
    PreTrainedModel._check_and_adjust_attn_implementation = checked
    # The module asks this when it imports flash_attn's functions.
    modeling_flash_attention_utils.is_flash_attn_2_available = lambda *_, **__: True
    return NAME


def _check_flash_attn() -> None:
    """Upstream's package would be imported just as well, and cannot run on the CPU."""
    import flash_attn

    if not hasattr(flash_attn, "__rocflash__"):
        raise ImportError(
            f"flash_attn: {flash_attn.__path__[0]} is not rocflash's; install the distribution flash-attn that comes "
            "with rocflash"
        )


def _takes_flash_attn(model: Any) -> bool:
    """Whether a model works with flash_attn's functions, sinks among their arguments."""
    listed = getattr(model, "_compatible_flash_implementations", None)
    return bool(getattr(model, "_supports_flash_attn", False)) and (
        listed is None or any(part in name for name in listed for part in _OF_FLASH_ATTN)
    )
