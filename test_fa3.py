"""A minimal check of the FlashAttention-3 interface: `python test_fa3.py [device]`.

It needs the packages to be installed (`uv pip install .`). flash_attn_3.prove has the work.
"""

import sys

try:
    from flash_attn_3.prove import check, chosen_device
except ModuleNotFoundError as error:
    sys.exit(f"test_fa3.py: {error}; install torch and this repository's packages first (docs/install.md)")


def test_fa3() -> None:
    """For those who run this file by pytest."""
    assert check(chosen_device([])) == 0


if __name__ == "__main__":
    sys.exit(check(chosen_device()))
