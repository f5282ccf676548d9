"""Names of the reference cards, by architecture. packaging/device_table.py --write makes this file
from kernels/table/devices.inc, which the installed package does not have.
"""

DEVICE_NAMES: dict[str, str] = {
    "gfx906": "MI50",
    "gfx908": "MI100",
    "gfx90a": "MI210",
    "gfx942": "MI300X",
    "gfx950": "MI355X",
    "gfx1030": "RX 6900 XT",
    "gfx1031": "RX 6700 XT",
    "gfx1032": "RX 6600 XT",
    "gfx1033": "gfx1033",
    "gfx1034": "RX 6500 XT",
    "gfx1035": "680M",
    "gfx1036": "gfx1036",
    "gfx1100": "RX 7900 XTX",
    "gfx1101": "RX 7800 XT",
    "gfx1102": "RX 7600",
    "gfx1103": "780M",
    "gfx1150": "890M",
    "gfx1151": "8060S",
    "gfx1152": "860M",
    "gfx1153": "gfx1153",
    "gfx1200": "RX 9060 XT",
    "gfx1201": "RX 9070 XT",
    "sm_80": "A100",
    "sm_90": "H100",
}
