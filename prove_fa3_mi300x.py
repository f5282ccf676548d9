"""Proof of what serves the FlashAttention-3 interface on an MI300X: `python prove_fa3_mi300x.py [device]`.

On other devices it proves what is there, and says so. It needs the packages to be installed (`uv pip install .`).
flash_attn_3.prove has the work.
"""

import sys

try:
    from flash_attn_3.prove import chosen_device, describe, prove
except ModuleNotFoundError as error:
    sys.exit(f"prove_fa3_mi300x.py: {error}; install torch and this repository's packages first (docs/install.md)")


def main() -> int:
    device = chosen_device()
    failed = prove(device)
    arch = describe(device)["device gfx arch"]
    if not arch.startswith("gfx942"):
        print(f"this is no MI300X (gfx942): what is proved holds for {device} ({arch})")
    return failed


if __name__ == "__main__":
    sys.exit(main())
