"""The declarations of XLA's FFI in src/xla/abi.hpp against the header that jaxlib ships."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

# Ours, XLA's, and the fields that both have.
STRUCTS = {
    ("Header", "XLA_FFI_Args"): {"struct_size": "struct_size", "extensions": "extension_start"},
    ("Extension", "XLA_FFI_Extension_Base"): {"type": "type", "next": "next"},
    ("ApiVersion", "XLA_FFI_Api_Version"): {"major": "major_version", "minor": "minor_version"},
    ("ErrorCreateArgs", "XLA_FFI_Error_Create_Args"): {"message": "message", "code": "errc"},
    ("ErrorArgs", "XLA_FFI_Error_GetMessage_Args"): {"error": "error", "message": "message"},
    ("StreamGetArgs", "XLA_FFI_Stream_Get_Args"): {"context": "ctx", "stream": "stream"},
    ("AllocateArgs", "XLA_FFI_DeviceMemory_Allocate_Args"): {
        "context": "ctx",
        "size": "size",
        "alignment": "alignment",
        "data": "data",
    },
    ("FreeArgs", "XLA_FFI_DeviceMemory_Free_Args"): {
        "context": "ctx",
        "size": "size",
        "data": "data",
    },
    ("DeviceOrdinalGetArgs", "XLA_FFI_DeviceOrdinal_Get_Args"): {
        "context": "ctx",
        "ordinal": "device_ordinal",
    },
    ("Api", "XLA_FFI_Api"): {
        "version": "api_version",
        "error_create": "XLA_FFI_Error_Create",
        "error_message": "XLA_FFI_Error_GetMessage",
        "error_destroy": "XLA_FFI_Error_Destroy",
        "stream_get": "XLA_FFI_Stream_Get",
        "allocate": "XLA_FFI_DeviceMemory_Allocate",
        "free": "XLA_FFI_DeviceMemory_Free",
        "device_ordinal_get": "XLA_FFI_DeviceOrdinal_Get",
    },
    ("Buffer", "XLA_FFI_Buffer"): {
        "dtype": "dtype",
        "data": "data",
        "rank": "rank",
        "shape": "dims",
    },
    ("Buffers", "XLA_FFI_Args"): {"size": "size", "types": "types", "buffers": "args"},
    ("Buffers", "XLA_FFI_Rets"): {"size": "size", "types": "types", "buffers": "rets"},
    ("Text", "XLA_FFI_ByteSpan"): {"data": "ptr", "size": "len"},
    ("Scalar", "XLA_FFI_Scalar"): {"dtype": "dtype", "value": "value"},
    ("Attributes", "XLA_FFI_Attrs"): {
        "size": "size",
        "types": "types",
        "names": "names",
        "values": "attrs",
    },
    ("CallFrame", "XLA_FFI_CallFrame"): {
        "api": "api",
        "context": "ctx",
        "stage": "stage",
        "arguments": "args",
        "results": "rets",
        "attributes": "attrs",
    },
    ("Metadata", "XLA_FFI_Metadata"): {"version": "api_version", "traits": "traits"},
    ("MetadataExtension", "XLA_FFI_Metadata_Extension"): {"metadata": "metadata"},
}
VALUES = {
    "DataType::boolean": "XLA_FFI_DataType_PRED",
    "DataType::u8": "XLA_FFI_DataType_U8",
    "DataType::i32": "XLA_FFI_DataType_S32",
    "DataType::i64": "XLA_FFI_DataType_S64",
    "DataType::f16": "XLA_FFI_DataType_F16",
    "DataType::bf16": "XLA_FFI_DataType_BF16",
    "DataType::f32": "XLA_FFI_DataType_F32",
    "DataType::f64": "XLA_FFI_DataType_F64",
    "ErrorCode::unknown": "XLA_FFI_Error_Code_UNKNOWN",
    "ErrorCode::invalid_argument": "XLA_FFI_Error_Code_INVALID_ARGUMENT",
    "ErrorCode::resource_exhausted": "XLA_FFI_Error_Code_RESOURCE_EXHAUSTED",
    "ErrorCode::unimplemented": "XLA_FFI_Error_Code_UNIMPLEMENTED",
    "ErrorCode::internal": "XLA_FFI_Error_Code_INTERNAL",
    "AttributeType::scalar": "XLA_FFI_AttrType_SCALAR",
    "AttributeType::string": "XLA_FFI_AttrType_STRING",
    "Stage::execute": "XLA_FFI_ExecutionStage_EXECUTE",
    "metadata_extension": "XLA_FFI_Extension_Metadata",
    "buffer_type": "XLA_FFI_ArgType_BUFFER",
    "api_major": "XLA_FFI_API_MAJOR",
}


def test_declarations(tmp_path: Path) -> None:
    compiler = next(filter(None, map(shutil.which, ("clang++-22", "clang++", "g++"))), None)
    if compiler is None:
        pytest.skip("no C++ compiler found")
    lines = [
        "#include <xla/ffi/api/c_api.h>",
        '#include "xla/abi.hpp"',
        "namespace ours = rocflash::xla;",
    ]
    for (our, their), fields in STRUCTS.items():
        lines += [
            f"static_assert(offsetof(ours::{our}, {a}) == offsetof({their}, {b}) && "
            f"sizeof(ours::{our}::{a}) == sizeof({their}::{b}));"
            for a, b in fields.items()
        ]
    lines += [
        f"static_assert(static_cast<int>(ours::{a}) == static_cast<int>({b}));"
        for a, b in VALUES.items()
    ]
    lines.append("static_assert(XLA_FFI_RetType_BUFFER == ours::buffer_type);")
    source = tmp_path / "abi.cpp"
    source.write_text("\n".join(lines) + "\n")
    directories = [jax.ffi.include_dir(), Path(__file__).parents[2] / "src"]
    command = [compiler, "-std=c++20", "-fsyntax-only", *(f"-I{x}" for x in directories), source]
    subprocess.run(command, check=True)
