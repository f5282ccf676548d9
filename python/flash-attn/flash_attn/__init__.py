"""flash_attn, implemented with rocflash: the seven functions under their public names.

`__version__` is the version of the interface, `__rocflash__` that of rocflash. Other distributions
can add modules below flash_attn to the package path.
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
