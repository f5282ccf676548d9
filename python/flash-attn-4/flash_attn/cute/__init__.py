"""flash_attn.cute, FlashAttention-4's interface, implemented with rocflash.

`__version__` is the version of the interface, `__rocflash__` that of rocflash.
"""

from rocflash import __version__ as __rocflash__  # noqa: F401

from .interface import flash_attn_func, flash_attn_varlen_func

__version__ = "4.0.0"

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]
