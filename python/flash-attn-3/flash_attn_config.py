"""The features that a FlashAttention-3 build omits, by upstream's names. Clients read them to
select a path.

Only fp8 is omitted here. Upstream's flags for head dimensions do not apply and stay clear.
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
# Upstream has two spellings of the flags for unequal head dimensions; both are present.
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
