"""A minimal test of the FlashAttention-3 interface: `python test_fa3.py [--device auto]`.

It needs the installed packages (`uv pip install .`). flash_attn_3.self_test is the implementation.
"""

import sys

try:
    from flash_attn_3.self_test import check, chosen_device
    from rocflash.self_test import as_command
except ModuleNotFoundError as error:
    sys.exit(
        f"test_fa3.py: {error}; install torch and this repository's packages first "
        "(docs/install.md)"
    )


def test_fa3() -> None:
    """The same test for pytest."""
    assert check(chosen_device([])) == 0


if __name__ == "__main__":
    sys.exit(as_command(lambda: check(chosen_device())))
