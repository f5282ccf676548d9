"""flash_attn_3, served by rocflash: FlashAttention-3's functions are in flash_attn_3.flash_attn_interface.

Importing the package alone imports nothing else, as upstream's does; `__rocflash__` says who serves it.
"""

from rocflash import __version__ as __rocflash__

__version__ = "3.0.0"

__all__ = ["__rocflash__", "__version__"]
