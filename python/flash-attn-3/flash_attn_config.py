"""What FlashAttention-3's build left out, by upstream's names; clients ask before they choose a path.

Nothing is left out here but fp8. Head sizes need no kernels of their own; upstream's flags of them stay clear.
"""

_FEATURES = (
    "BACKWARD",
    "SPLIT",
    "PAGEDKV",
    "APPENDKV",
    "LOCAL",
    "SOFTCAP",
    "PACKGQA",
    "FP16",
    "FP8",
    "VARLEN",
    "CLUSTER",
    "HDIM64",
    "HDIM96",
    "HDIM128",
    "HDIM192",
    "HDIM256",
    "SM8x",
    "HDIMDIFF64",
    "HDIMDIFF192",
)
# Upstream spells the flags of unequal head sizes in two ways; both are asked for.
_DIFFERENT_HEADS = ("HDIMDIFF64", "HDIMDIFF192")

CONFIG = {
    "build_flags": {
        **{f"FLASHATTENTION_DISABLE_{name}": name == "FP8" for name in _FEATURES},
        **{f"FLASH_ATTENTION_DISABLE_{name}": False for name in _DIFFERENT_HEADS},
        "FLASHATTENTION_ENABLE_VCOLMAJOR": False,
    }
}


def show() -> None:
    """Prints CONFIG."""
    from pprint import pprint

    pprint(CONFIG)
