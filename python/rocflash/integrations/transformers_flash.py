"""transformers' `attn_implementation="flash_attention_2"` on all devices of rocflash, including the
CPU.

transformers rejects that name without a GPU before it imports flash_attn. Models with attention
sinks (GPT-OSS) reject it because upstream's FA2 has none. Both checks are in one method, which this
module wraps to accept the installed flash_attn. Padding, packing, windows and caches remain
transformers' code, which calls flash_attn's functions.

The name "rocflash" is the same, but transformers never searches its hub for it, and its continuous
batching takes it for flash attention.
"""

from __future__ import annotations

import functools
from typing import Any, Optional

from rocflash.errors import Unsupported

NAME = "flash_attention_2"
OWN_NAME = "rocflash"

# A model may list its supported implementations. If flash_attn's functions are among them, this one
# is supported too.
_OF_FLASH_ATTN = ("flash_attention_", "flash-attn")


def serve(name: str = NAME) -> str:
    """Enables `attn_implementation=name`, which is flash_attention_2 or rocflash; returns the name.
    Idempotent.
    """
    import transformers
    from transformers import PreTrainedModel, modeling_flash_attention_utils

    _check_flash_attn()
    method = getattr(PreTrainedModel, "_check_and_adjust_attn_implementation", None)
    parts = [
        getattr(modeling_flash_attention_utils, part, None)
        for part in ("is_flash_attn_2_available", "lazy_import_flash_attention", "_lazy_imports")
    ]
    if method is None or None in parts:
        raise Unsupported(
            f"transformers has version {transformers.__version__}; for {name} it must be 5.0 to "
            "5.23, "
            "and with other versions register() takes no name"
        )
    if not hasattr(method, "_rocflash"):
        _serve(PreTrainedModel, modeling_flash_attention_utils)
    if name == OWN_NAME:
        from transformers import AttentionInterface
        from transformers.integrations.flash_attention import flash_attention_forward
        from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

        AttentionInterface.register(OWN_NAME, flash_attention_forward)
        AttentionMaskInterface.register(OWN_NAME, flash_attention_mask)
    return name


def _serve(models: Any, utils: Any) -> None:
    """Lets transformers import flash_attn under both names on every device."""
    method, load, imports = (
        models._check_and_adjust_attn_implementation,
        utils.lazy_import_flash_attention,
        utils._lazy_imports,
    )

    @functools.wraps(method)
    def checked(self: Any, attn_implementation: Optional[str], *rest: Any, **named: Any) -> str:
        asked = attn_implementation in (NAME, OWN_NAME)
        if attn_implementation == OWN_NAME and not _takes_flash_attn(self):
            raise ValueError(
                f"attn_implementation is {OWN_NAME!r}; {type(self).__name__} does not support "
                "flash attention, so it must be 'roc_attention', after register()"
            )
        if not asked or not _takes_flash_attn(self):
            return str(method(self, attn_implementation, *rest, **named))
        load(attn_implementation)  # imported now, so that a compiler does not trace the import
        return str(attn_implementation)

    @functools.wraps(imports)
    def imported(implementation: Optional[str], *rest: Any, **named: Any) -> Any:
        return imports(NAME if implementation == OWN_NAME else implementation, *rest, **named)

    checked._rocflash = True  # type: ignore[attr-defined]
    models._check_and_adjust_attn_implementation = checked
    utils._lazy_imports = imported
    # The module calls this when it imports flash_attn's functions.
    utils.is_flash_attn_2_available = lambda *_, **__: True


def _check_flash_attn() -> None:
    """Checks that flash_attn is that of rocflash: upstream's package cannot run on the CPU."""
    import flash_attn

    if not hasattr(flash_attn, "__rocflash__"):
        raise ImportError(
            f"flash_attn in {flash_attn.__path__[0]} is not rocflash's; install the distribution "
            "flash-attn that comes "
            "with rocflash"
        )


def _takes_flash_attn(model: Any) -> bool:
    """Whether a model supports flash_attn's functions, with sinks as an argument."""
    listed = getattr(model, "_compatible_flash_implementations", None)
    return bool(getattr(model, "_supports_flash_attn", False)) and (
        listed is None or any(part in name for name in listed for part in _OF_FLASH_ATTN)
    )
