"""Self-test of the FlashAttention-3 interface on an MI300X.

    python prove_fa3_mi300x.py [--device auto] [--any-device]

The device is auto (a GPU if torch has one), cpu, hip:N, cuda:N, or sim:gfx942: the simulator, which
runs the same kernels. On another device than an MI300X (gfx942) it exits with 1, even if all
results are right; --any-device accepts it. It needs the installed packages (`uv pip install .`).
flash_attn_3.self_test is the implementation.
"""

import argparse
import sys

try:
    from flash_attn_3.self_test import describe, self_test
    from rocflash.self_test import add_device_option, as_command, chosen_device
except ModuleNotFoundError as error:
    sys.exit(
        f"prove_fa3_mi300x.py: {error}; install torch and this repository's packages first "
        "(docs/install.md)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_device_option(parser)
    parser.add_argument(
        "--any-device", action="store_true", help="accept other devices than an MI300X"
    )
    options = parser.parse_args()
    device = chosen_device(parser, options)
    failed = self_test(device)
    arch = describe(device)["device gfx arch"]
    if not arch.startswith("gfx942"):
        print(f"NOT an MI300X (gfx942): the results are those of {device} ({arch})")
        if not options.any_device:
            print("--any-device accepts other devices; --device sim:gfx942 uses the simulator")
            return 1
    return failed


if __name__ == "__main__":
    sys.exit(as_command(main))
