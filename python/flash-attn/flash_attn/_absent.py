"""Import errors with a reason for modules of upstream that this package does not have.

importlib.util.find_spec finds nothing, and other distributions can still provide such modules: this
finder is the last one in sys.meta_path.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any

_KERNELS = "kernels of upstream's own; flash_attn's functions are served by rocflash's"
ABSENT = {
    "flash_attn.cute": "FlashAttention 4's interface is the distribution flash-attn-4, of the same "
    "release",
    "flash_attn.flash_attn_triton": f"{_KERNELS}; use flash_attn.flash_attn_func with attn_bias as "
    "rocflash.attention(bias=...)",
    "flash_attn.flash_attn_triton_og": _KERNELS,
    "flash_attn.flash_blocksparse_attention": "block-sparse attention is not offered",
    "flash_attn.flash_blocksparse_attn_interface": "block-sparse attention is not offered",
    "flash_attn.fused_softmax": "attention is never materialized here; torch.softmax does the same",
    "flash_attn.models": "whole models; transformers has them, and takes flash_attn from here",
    "flash_attn.ops.triton.k_activations": _KERNELS,
    "flash_attn.ops.triton.linear": _KERNELS,
    "flash_attn.ops.triton.mlp": f"{_KERNELS}; flash_attn.ops.fused_dense has FusedMLP",
    "flash_attn.utils.library": "upstream's helper for registering Triton kernels",
    "flash_attn.utils.torch": "upstream's helper for autocast; torch.amp has it",
}


class _AbsentModules(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Finds no modules. Raises with the reason where an import statement would raise without
        one.
        """
        why = ABSENT.get(name)
        # The caller's caller is the import system's loading function, or find_spec's.
        if why and sys._getframe(2).f_code.co_name == "_find_and_load_unlocked":
            raise ModuleNotFoundError(
                f"No module named {name!r}: it is no part of flash_attn as rocflash serves it "
                f"({why})",
                name=name,
            )


def register() -> None:
    if not any(isinstance(finder, _AbsentModules) for finder in sys.meta_path):
        sys.meta_path.append(_AbsentModules())
