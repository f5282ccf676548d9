//! The bindings are written by hand; these tests compare them with `rocflash.h`. A C program
//! generated from the declarations below checks sizes, offsets, types, values and signatures at
//! compile time. The header's text is searched for names that are missing here.
#![allow(non_upper_case_globals, non_snake_case)] // names as in C

use rocflash_sys::*;
use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

/// The assertions of the C program, and the names that they cover.
#[derive(Default)]
struct Checks {
    c: String,
    names: BTreeSet<String>,
}

/// The C spelling of a Rust type.
fn c_type(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(rest) = rust.strip_prefix("*const ") {
        return format!("const {}*", c_type(rest));
    }
    if let Some(rest) = rust.strip_prefix("*mut ") {
        return format!("{}*", c_type(rest));
    }
    match rust {
        "i32" => "int32_t",
        "i64" => "int64_t",
        "u8" => "uint8_t",
        "u16" => "uint16_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        "f32" => "float",
        "c_int" => "int",
        "c_uint" => "unsigned",
        "c_char" => "char",
        "c_void" | "()" => "void",
        other => other,
    }
    .to_string()
}

macro_rules! structs {
    ($checks:ident; $($name:ident { $($field:ident: $type:ty,)* })*) => {$(
        writeln!($checks.c, "_Static_assert(sizeof({0}) == {1}, \"size of {0}\");",
                 stringify!($name), size_of::<$name>()).unwrap();
        writeln!($checks.c, "_Static_assert(_Alignof({0}) == {1}, \"alignment of {0}\");",
                 stringify!($name), align_of::<$name>()).unwrap();
        $checks.names.insert(stringify!($name).into());
        // Compiles only if these are all fields, with these types.
        #[allow(dead_code)]
        fn $name(value: $name) {
            let $name { $($field,)* } = value;
            $(let _: $type = $field;)*
        }
        $(
            writeln!($checks.c, "_Static_assert(offsetof({0}, {1}) == {2}, \"offset of {0}.{1}\");",
                     stringify!($name), stringify!($field), std::mem::offset_of!($name, $field)).unwrap();
            writeln!($checks.c, "_Static_assert(_Generic((({0}*)0)->{1}, {2}: 1, default: 0), \"type of {0}.{1}\");",
                     stringify!($name), stringify!($field), c_type(stringify!($type))).unwrap();
            $checks.names.insert(format!("{}.{}", stringify!($name), stringify!($field)));
        )*
    )*};
}

macro_rules! functions {
    ($checks:ident; $($name:ident($($type:ty),*) -> $result:ty;)*) => {$(
        let _: unsafe extern "C" fn($($type),*) -> $result = $name;
        let arguments: &[&str] = &[$(stringify!($type)),*];
        let arguments: Vec<String> = arguments.iter().map(|a| c_type(a)).collect();
        let arguments = if arguments.is_empty() { "void".into() } else { arguments.join(", ") };
        writeln!($checks.c, "{} (*check_{}) ({arguments}) = {1};", c_type(stringify!($result)), stringify!($name)).unwrap();
        $checks.names.insert(format!("{}()", stringify!($name)));
    )*};
}

macro_rules! values {
    ($checks:ident; $($name:ident)*) => {$(
        writeln!($checks.c, "_Static_assert({0} == {1}, \"value of {0}\");", stringify!($name), $name).unwrap();
        $checks.names.insert(stringify!($name).into());
    )*};
}

fn checks() -> Checks {
    let mut checks = Checks::default();
    structs! { checks;
        DLDevice { device_type: DLDeviceType, device_id: c_int, }
        DLDataType { code: u8, bits: u8, lanes: u16, }
        DLTensor {
            data: *mut c_void, device: DLDevice, ndim: c_int, dtype: DLDataType, shape: *mut i64, strides: *mut i64,
            byte_offset: u64,
        }
        rocflash_problem {
            struct_size: usize, q: *const DLTensor, k: *const DLTensor, v: *const DLTensor,
            cu_seqlens_q: *const DLTensor, cu_seqlens_k: *const DLTensor, seqused_q: *const DLTensor,
            seqused_k: *const DLTensor, leftpad_k: *const DLTensor, max_seqlen_q: i64, max_seqlen_k: i64,
            causal: i32, window: *const i64, attention_chunk: i64, mask: *const DLTensor,
            softmax_scale: *const f32, softcap: f32, alibi_slopes: *const DLTensor, bias: *const DLTensor,
            sinks: *const DLTensor, dropout_p: f32, dropout_seed: u64, dropout_offset: u64, deterministic: i32,
            num_splits: i32, block_table: *const DLTensor, cache_batch_idx: *const DLTensor,
            k_descale: *const DLTensor, v_descale: *const DLTensor,
        }
        rocflash_forward_outputs {
            struct_size: usize, out: *const DLTensor, lse: *const DLTensor, s_dmask: *const DLTensor,
        }
        rocflash_backward_tensors {
            struct_size: usize, dout: *const DLTensor, out: *const DLTensor, lse: *const DLTensor,
            dq: *const DLTensor, dk: *const DLTensor, dv: *const DLTensor, dsinks: *const DLTensor,
            dbias: *const DLTensor, dalibi_slopes: *const DLTensor, delta: *const DLTensor,
            dlse: *const DLTensor,
        }
        rocflash_append {
            struct_size: usize, k_new: *const DLTensor, v_new: *const DLTensor, cu_seqlens_k_new: *const DLTensor,
            rotary_cos: *const DLTensor, rotary_sin: *const DLTensor, rotary_seqlens: *const DLTensor,
            rotary_interleaved: i32,
        }
        rocflash_execution {
            struct_size: usize, backend: i32, num_threads: i32, stream: *mut c_void, workspace: *mut c_void,
            workspace_size: usize,
        }
        rocflash_plan_arguments {
            struct_size: usize, q: *const c_void, k: *mut c_void, v: *mut c_void, cu_seqlens_q: *const c_void, cu_seqlens_k: *const c_void, seqused_q: *const c_void, seqused_k: *const c_void, leftpad_k: *const c_void, mask: *const c_void, alibi_slopes: *const c_void, bias: *const c_void, sinks: *const c_void, block_table: *const c_void, cache_batch_idx: *const c_void, k_new: *const c_void, v_new: *const c_void, cu_seqlens_k_new: *const c_void, rotary_cos: *const c_void, rotary_sin: *const c_void, rotary_seqlens: *const c_void, out: *mut c_void, lse: *mut c_void, s_dmask: *mut c_void, dout: *const c_void, dq: *mut c_void, dk: *mut c_void, dv: *mut c_void, dsinks: *mut c_void, dbias: *mut c_void, dalibi_slopes: *mut c_void, delta: *mut c_void, dlse: *const c_void, dropout_seed: u64, dropout_offset: u64, stream: *mut c_void, workspace: *mut c_void, workspace_size: usize, k_descale: *const c_void, v_descale: *const c_void,
        }
        rocflash_limits {
            struct_size: usize, max_head_dim: i32, has_backward: i32, default_threads: i32, dropout_steps: i32,
        }
        rocflash_device {
            struct_size: usize, device: DLDevice, name: *const c_char, arch: *const c_char,
            features: *const c_char, units: i32,
        }
        rocflash_driver {
            struct_size: usize, name: *const c_char, library: *const c_char, reason: *const c_char, in_use: i32,
        }
        rocflash_target {
            struct_size: usize, arch: *const c_char, family: *const c_char, driver: *const c_char,
        }
    }
    functions! { checks;
        rocflash_forward(*const rocflash_problem, *const rocflash_forward_outputs, *const rocflash_execution) -> rocflash_status;
        rocflash_backward(*const rocflash_problem, *const rocflash_backward_tensors, *const rocflash_execution) -> rocflash_status;
        rocflash_infer(*const rocflash_problem, *const rocflash_forward_outputs, *const rocflash_execution) -> rocflash_status;
        rocflash_decode(*const rocflash_problem, *const rocflash_append, *const rocflash_forward_outputs, *const rocflash_execution) -> rocflash_status;
        rocflash_combine(*const DLTensor, *const DLTensor, *const DLTensor, *const DLTensor, *const rocflash_execution) -> rocflash_status;
        rocflash_rotate(*const DLTensor, *const DLTensor, *const DLTensor, *const DLTensor, *const DLTensor, i32, *const DLTensor, *const rocflash_execution) -> rocflash_status;
        rocflash_forward_workspace(*const rocflash_problem, *const rocflash_forward_outputs, *const rocflash_execution, *mut usize) -> rocflash_status;
        rocflash_backward_workspace(*const rocflash_problem, *const rocflash_backward_tensors, *const rocflash_execution, *mut usize) -> rocflash_status;
        rocflash_infer_workspace(*const rocflash_problem, *const rocflash_forward_outputs, *const rocflash_execution, *mut usize) -> rocflash_status;
        rocflash_decode_workspace(*const rocflash_problem, *const rocflash_append, *const rocflash_forward_outputs, *const rocflash_execution, *mut usize) -> rocflash_status;
        rocflash_plan_create_forward(*const rocflash_problem, *const rocflash_forward_outputs, *const rocflash_execution, *mut *mut rocflash_plan) -> rocflash_status;
        rocflash_plan_create_backward(*const rocflash_problem, *const rocflash_backward_tensors, *const rocflash_execution, *mut *mut rocflash_plan) -> rocflash_status;
        rocflash_plan_create_infer(*const rocflash_problem, *const rocflash_forward_outputs, *const rocflash_execution, *mut *mut rocflash_plan) -> rocflash_status;
        rocflash_plan_create_decode(*const rocflash_problem, *const rocflash_append, *const rocflash_forward_outputs, *const rocflash_execution, *mut *mut rocflash_plan) -> rocflash_status;
        rocflash_plan_workspace(*const rocflash_plan, *mut usize) -> rocflash_status;
        rocflash_plan_run(*const rocflash_plan, *const rocflash_plan_arguments) -> rocflash_status;
        rocflash_plan_destroy(*mut rocflash_plan) -> ();
        rocflash_forward_explain(*const rocflash_problem, *const rocflash_forward_outputs, *const c_char, i32, *mut c_char, *mut usize) -> rocflash_status;
        rocflash_backward_explain(*const rocflash_problem, *const rocflash_backward_tensors, *const c_char, i32, *mut c_char, *mut usize) -> rocflash_status;
        rocflash_decode_explain(*const rocflash_problem, *const rocflash_append, *const rocflash_forward_outputs, *const c_char, i32, *mut c_char, *mut usize) -> rocflash_status;
        rocflash_combine_explain(*const DLTensor, *const DLTensor, *const DLTensor, *const DLTensor, *const c_char, i32, *mut c_char, *mut usize) -> rocflash_status;
        rocflash_rotate_explain(*const DLTensor, *const DLTensor, *const DLTensor, *const DLTensor, *const DLTensor, i32, *const DLTensor, *const c_char, i32, *mut c_char, *mut usize) -> rocflash_status;
        rocflash_last_error() -> *const c_char;
        rocflash_status_name(rocflash_status) -> *const c_char;
        rocflash_version() -> *const c_char;
        rocflash_version_number() -> i32;
        rocflash_query_limits(*mut rocflash_limits) -> rocflash_status;
        rocflash_query_device(i32, *mut rocflash_device) -> rocflash_status;
        rocflash_query_driver(i32, *mut rocflash_driver) -> rocflash_status;
        rocflash_query_target(i32, *mut rocflash_target) -> rocflash_status;
    }
    values! { checks;
        kDLCPU kDLCUDA kDLROCM kDLInt kDLUInt kDLFloat kDLBfloat ROCFLASH_DL_BOOL
        ROCFLASH_DL_FLOAT8_E4M3FN ROCFLASH_DL_FLOAT8_E4M3FNUZ ROCFLASH_DL_FLOAT8_E5M2
        ROCFLASH_DL_FLOAT8_E5M2FNUZ
        ROCFLASH_OK ROCFLASH_INVALID_ARGUMENT ROCFLASH_UNSUPPORTED ROCFLASH_OUT_OF_MEMORY ROCFLASH_DEVICE_ERROR
        ROCFLASH_INTERNAL
        ROCFLASH_BACKEND_AUTO ROCFLASH_BACKEND_CPU ROCFLASH_BACKEND_REFERENCE ROCFLASH_BACKEND_NAIVE
        ROCFLASH_BACKEND_PLAIN
        ROCFLASH_BACKEND_STANDARD
        ROCFLASH_VERSION_MAJOR ROCFLASH_VERSION_MINOR ROCFLASH_VERSION_PATCH
    }
    // C enums have this type in the ABI.
    let _: c_uint = ROCFLASH_OK;
    writeln!(
        checks.c,
        "_Static_assert(sizeof(rocflash_status) == {}, \"status\");",
        size_of::<rocflash_status>()
    )
    .unwrap();
    checks
}

fn native() -> PathBuf {
    // Read at run time, because several clones may share a target directory.
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"))
        .join("native")
}

fn c_compiler() -> String {
    std::env::var("CC")
        .into_iter()
        .chain(["clang-22", "clang", "gcc", "cc"].map(String::from))
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success()))
        .expect("a C compiler: CC, clang, gcc or cc")
}

/// Compiles the checks, with the crate's own copy of DLPack's structs or the installed one.
fn compile(dlpack: Option<PathBuf>) -> Result<(), String> {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let file = directory.join(if dlpack.is_some() { "layout_own.c" } else { "layout_installed.c" });
    let source = format!("#include <rocflash/rocflash.h>\n#include <stddef.h>\n{}", checks().c);
    std::fs::write(&file, source).unwrap();
    let mut command = Command::new(c_compiler());
    command
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"])
        .arg(native().join("include"));
    if let Some(directory) = dlpack {
        command.arg("-I").arg(directory);
    }
    let output = command.arg(&file).output().unwrap();
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_bindings_match_the_header() {
    compile(Some(native().join("dlpack/include"))).unwrap_or_else(|diagnostics| panic!("{diagnostics}"));
}

#[test]
fn the_bindings_match_the_installed_dlpack() {
    match compile(None) {
        Ok(()) => {}
        Err(diagnostics)
            if diagnostics.contains("dlpack/dlpack.h") && diagnostics.contains("not found")
                || diagnostics.contains("No such file") =>
        {
            eprintln!("skipped: DLPack is not installed, so this comparison is not possible");
        }
        Err(diagnostics) => panic!("{diagnostics}"),
    }
}

/// Removes comments from C source.
fn without_comments(text: &str) -> String {
    let mut rest = text;
    let mut code = String::new();
    while let Some(begin) = rest.find("/*") {
        code += &rest[..begin];
        rest = rest[begin..].split_once("*/").expect("every comment is closed").1;
    }
    code + rest
}

fn last_identifier(text: &str) -> &str {
    text.trim().rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap()
}

#[test]
fn the_bindings_cover_the_header() {
    let text = std::fs::read_to_string(native().join("include/rocflash/rocflash.h")).unwrap();
    let text = without_comments(&text);
    let declarations: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let text = declarations.join("\n");
    let mut found = BTreeSet::new();
    for part in text.split("typedef struct ").skip(1) {
        let Some((name, rest)) = part.split_once('{').filter(|(name, _)| !name.contains(';')) else {
            continue; // opaque
        };
        let (body, _) = rest.split_once('}').unwrap();
        found.insert(name.trim().to_string());
        for field in body.split(';').filter(|f| !f.trim().is_empty()) {
            found.insert(format!("{}.{}", name.trim(), last_identifier(field)));
        }
    }
    for part in text.split("typedef enum ").skip(1) {
        let body = part.split_once('{').unwrap().1.split_once('}').unwrap().0;
        for value in body.split(',').filter(|v| !v.trim().is_empty()) {
            found.insert(last_identifier(value.split('=').next().unwrap()).to_string());
        }
    }
    for part in text.split("ROCFLASH_API ").skip(1) {
        found.insert(format!("{}()", last_identifier(part.split_once('(').unwrap().0)));
    }
    assert!(found.len() > 80, "could not parse the header: {found:?}");
    let covered = checks().names;
    let missing: Vec<_> = found.difference(&covered).collect();
    assert!(missing.is_empty(), "in rocflash.h but not in the bindings: {missing:?}");
}

#[test]
fn the_library_returns_its_version_and_limits() {
    // SAFETY: both functions have no arguments; the string lives as long as the library.
    let (number, text) = unsafe { (rocflash_version_number(), std::ffi::CStr::from_ptr(rocflash_version())) };
    assert_eq!(
        number,
        10000 * ROCFLASH_VERSION_MAJOR + 100 * ROCFLASH_VERSION_MINOR + ROCFLASH_VERSION_PATCH
    );
    assert_eq!(text.to_str().unwrap(), env!("CARGO_PKG_VERSION"));
    let mut limits = rocflash_limits::new();
    // SAFETY: the struct's size field is correct.
    assert_eq!(unsafe { rocflash_query_limits(&mut limits) }, ROCFLASH_OK);
    assert!(limits.max_head_dim >= 512);
}
