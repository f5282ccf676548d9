"""flash_attn_3, implemented with rocflash: FlashAttention-3's functions are in
flash_attn_3.flash_attn_interface.

Importing the package imports nothing else, as in upstream; `__rocflash__` is the version of
rocflash.
"""

from rocflash import __version__ as __rocflash__

__version__ = "3.0.0"

__all__ = ["__rocflash__", "__version__"]
