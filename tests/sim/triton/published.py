"""Published kernels in the simulator's cycle model, against the authors' hardware measurements.

    published.py --library build/lib/sim/libamdhip64.so --tutorials CHECKOUT [--only NAME] [--json]

CHECKOUT is a clone of github.com/ROCm/gfx950-gluon-tutorials (AMD; MI355X and MI300X, thread
traces). Its kernels are compiled here by Triton, without the authors' scheduler plug-in, as for the
figures below. Needs Triton 3.8 or later, but not torch. Only what the model samples is executed:
about 15 seconds of processor time per kernel.
"""

import argparse
import ctypes
import importlib.util
import json
import multiprocessing
import os
import sys
import tempfile
import types
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource

TILE = {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 64}
UNIT_STRIDES = {"stride_ak": 1, "stride_bk": 1, "stride_cn": 1}
CDNA3 = TILE | UNIT_STRIDES | {"WARPS_M": 2, "GRID_MN": 304, "NUM_XCDS": 8, "GROUP_SIZE_M": 4}


def product(file, name, target, k, warps, published, constants, registers=None):
    """A GEMM of f16: 4096 rows, as many columns as fill the device's compute units once."""
    n = 4864 if target == "gfx942" else 4096
    sizes = {"M": 4096, "N": n, "K": k, "stride_am": k, "stride_bn": k, "stride_cm": n}
    return {
        "file": file,
        "name": name,
        "target": target,
        "warps": warps,
        "constants": constants,
        "registers": registers,
        "buffers": {"a_ptr": 4096 * k * 2, "b_ptr": n * k * 2, "c_ptr": 4096 * n * 2},
        "numbers": sizes,
        "types": {},
        "grid": (4096 // 256 * n // 256, 1, 1),
        "flops": 2 * 4096 * n * k,
        "published": published,
        "shape": f"4096x{n}x{k}",
    }


def attention(file, name, published):
    """bf16, 32 sequences, 8 heads, 8192 queries and keys, head dimension 128, not causal."""
    b, h, s, d = 32, 8, 8192, 128
    strides = {f"stride_{x}{y}": size for x in "qkvo" for y, size in zip("zh", (h * s * d, s * d))}
    strides |= {"stride_qm": d, "stride_kn": d, "stride_vk": d, "stride_om": d}
    constants = {
        "SM_SCALE": d**-0.5,
        "HQ": h,
        "HK": h,
        "N_CTX": s,
        "IS_CAUSAL": False,
        "BLOCK_M": 256,
        "BLOCK_DMODEL": d,
        "BLOCK_N": 64,
        "SCALE_ON_Q": True,
        "stride_qk": 1,
        "stride_kk": 1,
        "stride_vn": 1,
        "stride_on": 1,
    }
    buffers = {x: b * h * s * d * 2 for x in ("Q", "K", "V", "Out")} | {"L": b * h * s * 4}
    return {
        "file": file,
        "name": name,
        "target": "gfx950",
        "warps": 8,
        "constants": constants,
        "registers": "0,0",
        "buffers": buffers,
        "numbers": strides,
        "types": {x: "*bf16" for x in ("Q", "K", "V", "Out")} | {"L": "*fp32"},
        "grid": (h, s // 256, b),
        "flops": 4 * b * h * s * s * d,
        "published": published,
        "shape": "b32 h8 s8192 d128",
    }


# Published: TFLOP/s; matrix share in the loop; cycles of the whole dispatch.
CASES = {
    "MI300X, 4 waves": product(
        "gemm/gfx942/intra_wave/matmul_kernel.py",
        "a16w16_intra_wave_gfx942",
        "gfx942",
        8256,
        4,
        {"tflops": 561, "share": 0.697, "cycles": 856e3},
        CDNA3 | {"WARPS_N": 2},
        "256",
    ),
    "MI300X, 8 waves": product(
        "gemm/gfx942/inter_wave/matmul_kernel.py",
        "a16w16_inter_wave_gfx942",
        "gfx942",
        8256,
        8,
        {"tflops": 575, "share": 0.865, "cycles": 715e3},
        CDNA3 | {"WARPS_N": 4},
        "0,0",
    ),
    "MI300X, 4 waves, short": product(
        "gemm/gfx942/intra_wave/matmul_kernel.py",
        "a16w16_intra_wave_gfx942",
        "gfx942",
        4160,
        4,
        {"tflops": 567},
        CDNA3 | {"WARPS_N": 2},
        "256",
    ),
    "MI300X, 8 waves, short": product(
        "gemm/gfx942/inter_wave/matmul_kernel.py",
        "a16w16_inter_wave_gfx942",
        "gfx942",
        4160,
        8,
        {"tflops": 622},
        CDNA3 | {"WARPS_N": 4},
        "0,0",
    ),
    "MI355X, naive": product(
        "gemm/intra_wave/a16w16/v0_naive/matmul_kernel.py",
        "v0_naive",
        "gfx950",
        8192,
        4,
        {"tflops": 541, "share": 0.25},
        TILE | UNIT_STRIDES,
    ),
    "MI355X, two stages": product(
        "gemm/intra_wave/a16w16/v4_global_prefetch/matmul_kernel.py",
        "v4_global_prefetch",
        "gfx950",
        8192,
        4,
        {"tflops": 1123, "share": 0.57},
        TILE | UNIT_STRIDES,
    ),
    "MI355X, three stages": product(
        "gemm/intra_wave/a16w16/v5_local_prefetch/matmul_kernel.py",
        "v5_local_prefetch",
        "gfx950",
        8192,
        4,
        {"tflops": 1134, "share": 0.58},
        TILE | UNIT_STRIDES,
    ),
    "MI355X, attention": attention(
        "attention/fmha_v3.py", "gluon_attn_fwd", {"tflops": 1141, "share": 0.678}
    ),
}


def load(path, root):
    """A kernel file of the checkout, with its own imports."""
    try:
        import torch  # noqa: F401
    except ImportError:
        fake_torch = types.ModuleType("torch")  # only launchers use it
        fake_torch.__getattr__ = lambda name: object
        sys.modules["torch"] = fake_torch
    sys.modules.pop("common", None)
    sys.path[:0] = [str(path.parent), str(path.parent.parent), str(root / "kernels/gemm/utils")]
    try:
        spec = importlib.util.spec_from_file_location("kernel_of_others", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        del sys.path[:3]
    return module


def compiled(case, root):
    fn = getattr(load(root / "kernels" / case["file"], root), case["name"])
    if isinstance(fn, triton.runtime.Autotuner):
        fn = fn.fn
    names = [p.name for p in fn.params]
    signature = {}
    for name in names:
        pointer = case["types"].get(name, "*fp16") if name in case["buffers"] else "i32"
        signature[name] = "constexpr" if name in case["constants"] else pointer
    constants = {(names.index(name),): value for name, value in case["constants"].items()}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if name not in case["constants"]
    }
    options = {"num_warps": case["warps"]}
    if case["registers"]:
        options["llvm_fn_attrs"] = (("amdgpu-agpr-alloc", case["registers"]),)
    source = GluonASTSource(fn, signature, constants, aligned)
    kernel = triton.compile(source, options=options, target=GPUTarget("hip", case["target"], 64))
    values = [
        ("buffer", case["buffers"][n]) if n in case["buffers"] else ("i32", case["numbers"][n])
        for n in names
        if n not in case["constants"]
    ]
    return kernel, values


def launch(library, case, image, name, shared, values, log):
    """Runs in a separate process: the simulator reads its settings once."""
    os.environ.update(
        {
            "ROCFLASH_SIM_ARCH": case["target"],
            "ROCFLASH_SIM_CHECKS": "none",
            "ROCFLASH_SIM_TIME": log,
            "ROCFLASH_SIM_TIME_ONLY": "1",
        }
    )
    hip = ctypes.CDLL(library)
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    errors = [
        hip.hipModuleLoadData(ctypes.byref(module), image),
        hip.hipModuleGetFunction(ctypes.byref(function), module, name.encode()),
    ]
    held = []
    for kind, value in values:
        held.append(ctypes.c_void_p() if kind == "buffer" else ctypes.c_int32(value))
        if kind == "buffer":
            errors.append(hip.hipMalloc(ctypes.byref(held[-1]), ctypes.c_size_t(value)))
    held += [ctypes.c_void_p(0)] * 4  # Triton's own scratch buffers
    params = (ctypes.c_void_p * len(held))(*[ctypes.addressof(v) for v in held])
    errors.append(
        hip.hipModuleLaunchKernel(
            function, *case["grid"], case["warps"] * 64, 1, 1, shared, None, params, None
        )
    )
    sys.exit(1 if any(errors) else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--library", required=True)
    parser.add_argument("--tutorials", type=Path, required=True)
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not (given.tutorials / "kernels").is_dir():
        parser.error(f"--tutorials {given.tutorials}: it has no directory kernels")
    beyond = 0
    print(f"{'kernel':24} {'shape':18} {'':14} {'published':>10} {'model':>10} {'error':>8}")
    for name, case in CASES.items():
        if given.only not in (None, name):
            continue
        kernel, values = compiled(case, given.tutorials)
        with tempfile.TemporaryDirectory() as directory:
            log = str(Path(directory) / "time")
            process = multiprocessing.get_context("fork").Process(
                target=launch,
                args=(
                    given.library,
                    case,
                    kernel.asm["hsaco"],
                    kernel.metadata.name,
                    kernel.metadata.shared,
                    values,
                    log,
                ),
            )
            process.start()
            process.join()
            if process.exitcode != 0:
                sys.exit(f"{name}: the launch failed")
            time = json.loads(Path(log).read_text())
        if given.json:
            print(json.dumps(time))
        model = {
            "tflops": case["flops"] / time["time_us"] / 1e6,
            "share": time["unit_matrix_busy"],
            "cycles": time["cycles"],
        }
        for what, value in case["published"].items():
            error = model[what] / value - 1
            beyond += what == "tflops" and abs(error) > 0.15
            digits = 3 if what == "share" else 0
            print(
                f"{name:24} {case['shape']:18} {what:14} {value:>10.{digits}f} "
                f"{model[what]:>10.{digits}f} {error:>+8.1%}",
                flush=True,
            )
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
