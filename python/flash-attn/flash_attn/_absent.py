"""Says of upstream's modules that are not here that they are absent, and why, when they are imported.

Those who only look (importlib.util.find_spec) find nothing, as ever, and other distributions may still bring such modules: this comes
last, after everybody has looked.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any

_KERNELS = "kernels of upstream's own; flash_attn's functions are served by rocflash's"
ABSENT = {
    "flash_attn.cute": "FlashAttention 4 for NVIDIA's Blackwell; flash_attn_func serves every device",
    "flash_attn.flash_attn_triton": f"{_KERNELS}; use flash_attn.flash_attn_func with attn_bias as rocflash.attention(bias=...)",
    "flash_attn.flash_attn_triton_og": _KERNELS,
    "flash_attn.flash_blocksparse_attention": "block-sparse attention is not offered",
    "flash_attn.flash_blocksparse_attn_interface": "block-sparse attention is not offered",
    "flash_attn.fused_softmax": "attention is never materialised here; torch.softmax does the same",
    "flash_attn.models": "whole models; transformers has them, and takes flash_attn from here",
    "flash_attn.ops.triton.k_activations": _KERNELS,
    "flash_attn.ops.triton.linear": _KERNELS,
    "flash_attn.ops.triton.mlp": f"{_KERNELS}; flash_attn.ops.fused_dense has FusedMLP",
    "flash_attn.utils.library": "upstream's helper for registering Triton kernels",
    "flash_attn.utils.torch": "upstream's helper for autocast; torch.amp has it",
}


class _Teller(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Never finds anything. Raises where an import statement would raise without saying why."""
        why = ABSENT.get(name)
        # The caller's caller is the import system's loading function, or that of somebody who only looks.
        if why and sys._getframe(2).f_code.co_name == "_find_and_load_unlocked":
            raise ModuleNotFoundError(
                f"No module named {name!r}: it is no part of flash_attn as rocflash serves it ({why})",
                name=name,
            )


def register() -> None:
    if not any(isinstance(finder, _Teller) for finder in sys.meta_path):
        sys.meta_path.append(_Teller())
