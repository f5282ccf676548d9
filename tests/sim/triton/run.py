"""Compiles the Triton kernels for AMD targets and runs them on the simulator against NumPy."""

import argparse
import ctypes
import os
import sys

import numpy as np
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import kernels

TYPES = {np.dtype(np.float32): "*fp32", np.dtype(np.float16): "*fp16", np.dtype(np.int32): "*i32"}


def signature_of(fn, arguments, constants):
    """Triton's type of each argument, in the order of the kernel's parameters."""
    signature, values = {}, {}
    names = [p.name for p in fn.params]
    pointers_and_scalars = [name for name in names if name not in constants]
    for name, value in zip(pointers_and_scalars, arguments):
        if isinstance(value, np.ndarray):
            signature[name] = TYPES[value.dtype]
        else:
            signature[name] = "i32" if isinstance(value, int) else "fp32"
    for name in names:
        if name in constants:
            signature[name] = "constexpr"
            values[(names.index(name),)] = constants[name]
    return {name: signature[name] for name in names}, values


class Device:
    def __init__(self, library):
        self.hip = ctypes.CDLL(library)
        self.hip.rocflashSimLastReport.restype = ctypes.c_char_p

    def check(self, error, what):
        if error != 0:
            raise RuntimeError(
                f"{what}: error {error}: {self.hip.rocflashSimLastReport().decode()}"
            )

    def upload(self, array):
        pointer = ctypes.c_void_p()
        self.check(
            self.hip.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(array.nbytes)), "malloc"
        )
        self.check(
            self.hip.hipMemcpy(
                pointer, ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes), 1
            ),
            "memcpy",
        )
        return pointer

    def download(self, pointer, array):
        self.check(
            self.hip.hipMemcpy(
                ctypes.c_void_p(array.ctypes.data), pointer, ctypes.c_size_t(array.nbytes), 2
            ),
            "memcpy",
        )

    def launch(self, compiled, arguments, grid, threads):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        image = compiled.asm["hsaco"]
        self.check(self.hip.hipModuleLoadData(ctypes.byref(module), image), "load")
        self.check(
            self.hip.hipModuleGetFunction(
                ctypes.byref(function), module, compiled.metadata.name.encode()
            ),
            "function",
        )
        values, pointers = [], []
        for a in arguments:
            if isinstance(a, np.ndarray):
                pointers.append((self.upload(a), a))
                values.append(pointers[-1][0])
            else:
                values.append(ctypes.c_int32(a) if isinstance(a, int) else ctypes.c_float(a))
        # Newer Tritons add pointers to scratch buffers; unused ones are null.
        values += [ctypes.c_void_p(0)] * 4
        params = (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])
        grid = tuple(grid) + (1,) * (3 - len(grid))
        error = self.hip.hipModuleLaunchKernel(
            function, *grid, threads, 1, 1, compiled.metadata.shared, None, params, None
        )
        self.check(error, "launch")
        for pointer, array in pointers:
            self.download(pointer, array)
            self.hip.hipFree(pointer)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--targets", default="gfx90a,gfx942,gfx950,gfx1100,gfx1201")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    targets = options.targets.split(",")
    os.environ["ROCFLASH_SIM_ARCH"] = options.targets
    os.environ["ROCFLASH_SIM_DEVICES"] = str(len(targets))
    device = Device(options.library)
    failures = []
    for index, arch in enumerate(targets):
        device.check(device.hip.hipSetDevice(index), "hipSetDevice")
        wave = 64 if arch.startswith("gfx9") else 32
        for name, fn, arguments, constants, grid, want, tolerance, warps in kernels.cases(
            np.random.default_rng(5)
        ):
            if options.only and options.only != name:
                continue
            signature, values = signature_of(fn, arguments, constants)
            try:
                compiled = triton.compile(
                    ASTSource(fn, signature, values),
                    options={"num_warps": warps},
                    target=GPUTarget("hip", arch, wave),
                )
                device.launch(compiled, arguments, grid, warps * wave)
                got = next(a for a in reversed(arguments) if isinstance(a, np.ndarray))
                worst = np.abs(got.astype(np.float64) - np.asarray(want, np.float64)).max()
                ok = worst <= tolerance * max(1.0, np.abs(want).max())
                print(
                    f"{arch:8} {name:18} {'ok' if ok else 'WRONG'}  max error {worst:.2e}",
                    flush=True,
                )
                if not ok:
                    failures.append((arch, name))
            except Exception as error:  # the report is what the reader needs
                print(f"{arch:8} {name:18} FAILED  {error}", flush=True)
                failures.append((arch, name))
    print(f"{len(failures)} failures", failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
