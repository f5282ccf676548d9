"""flash_attn, served by rocflash: the seven functions under the names everybody imports.

`__version__` is that of the interface, `__rocflash__` that of who serves it. The package path stays
open to other distributions that add modules below flash_attn.
"""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)

__version__ = "2.8.3"

from flash_attn import _absent
from flash_attn.flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from rocflash import __version__ as __rocflash__

__all__ = [
    "__rocflash__",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]

_absent.register()
