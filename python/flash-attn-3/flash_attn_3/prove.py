"""The former name of flash_attn_3.self_test; `python -m flash_attn_3.prove` runs it."""

from __future__ import annotations

import sys

from flash_attn_3.self_test import check, chosen_device, describe, self_test

prove = self_test

__all__ = ["check", "chosen_device", "describe", "prove", "self_test"]

if __name__ == "__main__":
    sys.exit(prove(chosen_device()))
