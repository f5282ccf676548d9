//! Raw bindings to `rocflash.h`, the C ABI of rocflash: exact attention on CPUs and GPUs.
//!
//! Everything here is as in C: `unsafe`, unchecked, named as in the header, whose comments say what each field
//! means. The crate `rocflash` is the safe face of it.
//!
//! The structs begin with their size and zero means absent, so each has a `new` that gives zeros but for that
//! size. A test of this crate compares layout, values and signatures with the header.
//!
//! How the library is built or found is said in the crate's README.
#![no_std]
#![allow(non_camel_case_types, non_upper_case_globals)] // names as in C

use core::ffi::{c_char, c_int, c_uint, c_void};

/// DLPack's kind of device: one of the `kDL...` constants.
pub type DLDeviceType = c_uint;
/// Host memory.
pub const kDLCPU: DLDeviceType = 1;
/// An NVIDIA GPU.
pub const kDLCUDA: DLDeviceType = 2;
/// An AMD GPU.
pub const kDLROCM: DLDeviceType = 10;

/// DLPack's kind of number: one of the `kDL...` constants below.
pub type DLDataTypeCode = c_uint;
/// Signed integers.
pub const kDLInt: DLDataTypeCode = 0;
/// Unsigned integers.
pub const kDLUInt: DLDataTypeCode = 1;
/// IEEE floating point.
pub const kDLFloat: DLDataTypeCode = 2;
/// bfloat16.
pub const kDLBfloat: DLDataTypeCode = 4;
/// Booleans, which older DLPack headers do not name.
pub const ROCFLASH_DL_BOOL: DLDataTypeCode = 6;

/// DLPack's device: a kind and a number.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDevice {
    /// The kind.
    pub device_type: DLDeviceType,
    /// The number among its kind.
    pub device_id: c_int,
}

/// DLPack's element type.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDataType {
    /// A [`DLDataTypeCode`].
    pub code: u8,
    /// Its bits.
    pub bits: u8,
    /// 1 for plain elements.
    pub lanes: u16,
}

/// DLPack's tensor: a view of memory that belongs to somebody else.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    /// The first element, before `byte_offset`.
    pub data: *mut c_void,
    /// Where it is.
    pub device: DLDevice,
    /// The number of dimensions.
    pub ndim: c_int,
    /// The element type.
    pub dtype: DLDataType,
    /// `ndim` sizes.
    pub shape: *mut i64,
    /// `ndim` strides in elements, or null: contiguous.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// What became of a call: one of the constants below.
pub type rocflash_status = c_uint;
/// It was done.
pub const ROCFLASH_OK: rocflash_status = 0;
/// The call makes no sense; the message says which argument and why.
pub const ROCFLASH_INVALID_ARGUMENT: rocflash_status = 1;
/// It makes sense, but this backend or device cannot do it.
pub const ROCFLASH_UNSUPPORTED: rocflash_status = 2;
/// The system refused memory or threads.
pub const ROCFLASH_OUT_OF_MEMORY: rocflash_status = 3;
/// A driver failed; the message carries its words.
pub const ROCFLASH_DEVICE_ERROR: rocflash_status = 4;
/// A defect of the library.
pub const ROCFLASH_INTERNAL: rocflash_status = 5;

/// Who computes: one of the constants below.
pub type rocflash_backend = c_uint;
/// Whoever serves the tensors' device.
pub const ROCFLASH_BACKEND_AUTO: rocflash_backend = 0;
/// The CPU, tiled, threaded and vectorised.
pub const ROCFLASH_BACKEND_CPU: rocflash_backend = 1;
/// The definition, in double.
pub const ROCFLASH_BACKEND_REFERENCE: rocflash_backend = 2;
/// Step by step in the dtype of q: the yardstick for errors.
pub const ROCFLASH_BACKEND_PLAIN: rocflash_backend = 3;
/// With all scores in memory: for comparisons.
pub const ROCFLASH_BACKEND_STANDARD: rocflash_backend = 4;

/// The version of the header that these bindings were written for.
pub const ROCFLASH_VERSION_MAJOR: i32 = 0;
/// See [`ROCFLASH_VERSION_MAJOR`].
pub const ROCFLASH_VERSION_MINOR: i32 = 1;
/// See [`ROCFLASH_VERSION_MAJOR`].
pub const ROCFLASH_VERSION_PATCH: i32 = 0;

/// Declares a struct of the ABI: fields as in C, and `new`, which gives zeros but for the size.
macro_rules! sized_struct {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            /// The size of this struct in bytes, as the caller knows it.
            pub struct_size: usize,
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            /// All zeros, which means absent, but for the size.
            pub const fn new() -> Self {
                // SAFETY: every field is a number, a pointer or a struct of numbers; zero is valid for each.
                let mut zero: Self = unsafe { core::mem::zeroed() };
                zero.struct_size = size_of::<Self>();
                zero
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new()
            }
        }
    };
}

sized_struct! {
    /// What is computed: inputs and options, the same for forward and backward.
    rocflash_problem {
        /// (b, sq, h, d), or packed (total_q, h, d) with cu_seqlens_q.
        q: *const DLTensor,
        /// (b, sk, hk, d), or packed (total_k, hk, d) with cu_seqlens_k.
        k: *const DLTensor,
        /// (b, sk, hk, dv), or packed (total_k, hk, dv).
        v: *const DLTensor,
        /// int (b + 1): row where each packed sequence of q begins.
        cu_seqlens_q: *const DLTensor,
        /// int (b + 1): likewise for k and v.
        cu_seqlens_k: *const DLTensor,
        /// int (b): rows of q in use, counted from the sequence's begin.
        seqused_q: *const DLTensor,
        /// int (b): likewise for k and v.
        seqused_k: *const DLTensor,
        /// int (b): keys to skip at each sequence's begin; seqused_k counts them.
        leftpad_k: *const DLTensor,
        /// Packed: no sequence of q is longer; 0: found from cu_seqlens_q, which only the CPU can.
        max_seqlen_q: i64,
        /// Packed: likewise for k.
        max_seqlen_k: i64,
        /// 0 or 1: no key after the query's own place.
        causal: i32,
        /// {left, right}: at most so many keys before and after; -1: no bound.
        window: *const i64,
        /// > 0: only keys of the chunk that the query's place lies in.
        attention_chunk: i64,
        /// bool or uint8 (b|1, h|1, sq|1, sk|1): nonzero sees.
        mask: *const DLTensor,
        /// null: 1 / sqrt(d).
        softmax_scale: *const f32,
        /// > 0: s = softcap * tanh(s / softcap).
        softcap: f32,
        /// f32 (h) or (b, h): s -= slope * |distance|.
        alibi_slopes: *const DLTensor,
        /// float (b|1, h|1, sq|1, sk|1): s += bias; -inf hides the key.
        bias: *const DLTensor,
        /// float (h): one more logit per head that takes weight but has no value.
        sinks: *const DLTensor,
        /// In [0, 1).
        dropout_p: f32,
        /// The pattern is a function of seed, offset and position alone.
        dropout_seed: u64,
        /// See dropout_seed.
        dropout_offset: u64,
        /// 0 or 1: bit-equal results on every run, even where that costs time.
        deterministic: i32,
        /// Few queries: parts that their keys are split into; 0: chosen.
        num_splits: i32,
        /// int (b, pages): k and v are (num_pages, page, hk, d or dv).
        block_table: *const DLTensor,
        /// int (b): the batch of k and v that each sequence uses.
        cache_batch_idx: *const DLTensor,
    }
}

sized_struct! {
    /// What forward writes.
    rocflash_forward_outputs {
        /// As q but with dv columns.
        out: *const DLTensor,
        /// Optional, f32 (b, h, sq) or packed (h, total_q): log of the sum of exponentials.
        lse: *const DLTensor,
        /// Optional, float (b, h, sq, sk), packed (b, h, max_q, max_k): weights, negative where dropped.
        s_dmask: *const DLTensor,
    }
}

sized_struct! {
    /// What backward reads beside the problem, and what it writes.
    rocflash_backward_tensors {
        /// In: as out.
        dout: *const DLTensor,
        /// In: what forward wrote.
        out: *const DLTensor,
        /// In: what forward wrote.
        lse: *const DLTensor,
        /// Out: as q; gradients are each optional, but one must be there.
        dq: *const DLTensor,
        /// Out: as k.
        dk: *const DLTensor,
        /// Out: as v.
        dv: *const DLTensor,
        /// Out, optional: f32 (h).
        dsinks: *const DLTensor,
        /// Out, optional: shape and dtype of bias; summed over the dimensions in which that has size 1.
        dbias: *const DLTensor,
        /// Out, optional: f32, shape of alibi_slopes.
        dalibi_slopes: *const DLTensor,
    }
}

sized_struct! {
    /// New keys and values on their way into a cache, and rotary embedding. All of it is optional.
    rocflash_append {
        /// As k: (b, s_new, hk, d), or packed (total_new, hk, d).
        k_new: *const DLTensor,
        /// As v: (b, s_new, hk, dv), or packed (total_new, hk, dv).
        v_new: *const DLTensor,
        /// int (b + 1): row where each packed sequence of them begins.
        cu_seqlens_k_new: *const DLTensor,
        /// float (positions, r / 2): rotates the first r columns of q and k_new.
        rotary_cos: *const DLTensor,
        /// See rotary_cos.
        rotary_sin: *const DLTensor,
        /// int (b): first position; null: where the new keys go.
        rotary_seqlens: *const DLTensor,
        /// 1: pairs are (0, 1), (2, 3) ...; 0: (0, r/2), (1, r/2 + 1) ...
        rotary_interleaved: i32,
    }
}

sized_struct! {
    /// How it is computed.
    rocflash_execution {
        /// A [`rocflash_backend`].
        backend: i32,
        /// CPU: 0 takes ROCFLASH_NUM_THREADS, else the CPUs this process may use.
        num_threads: i32,
        /// GPU: hipStream_t or CUstream; CPU: must be null.
        stream: *mut c_void,
        /// Scratch memory on the tensors' device, 64-byte aligned, not shared by two calls at once.
        workspace: *mut c_void,
        /// In bytes, at least what the query answers for the same arguments.
        workspace_size: usize,
    }
}

sized_struct! {
    /// What this library can do, whatever the device.
    rocflash_limits {
        /// Of q and k, and of v.
        max_head_dim: i32,
        /// 0 or 1.
        has_backward: i32,
        /// What num_threads = 0 means now.
        default_threads: i32,
        /// dropout_p is honoured to the nearest 1 / dropout_steps.
        dropout_steps: i32,
    }
}

sized_struct! {
    /// A device it can run on. Strings live as long as the library.
    rocflash_device {
        /// Kind and number.
        device: DLDevice,
        /// "AMD EPYC", "AMD Instinct MI300X".
        name: *const c_char,
        /// The code path taken: "avx512", "gfx942".
        arch: *const c_char,
        /// Instruction sets and the like that were found, separated by blanks.
        features: *const c_char,
        /// CPUs or compute units.
        units: i32,
    }
}

sized_struct! {
    /// A GPU driver it looked for, and what came of it.
    rocflash_driver {
        /// "hip", "cuda".
        name: *const c_char,
        /// The file that was opened, or "".
        library: *const c_char,
        /// A sentence: why it is or is not used.
        reason: *const c_char,
        /// 0 or 1.
        in_use: i32,
    }
}

sized_struct! {
    /// A GPU architecture that this library carries kernels for.
    rocflash_target {
        /// "gfx942", "sm_80".
        arch: *const c_char,
        /// Whose schedule its kernels follow: "cdna3", "nvidia".
        family: *const c_char,
        /// "hip", "cuda".
        driver: *const c_char,
    }
}

extern "C" {
    /// Attention.
    pub fn rocflash_forward(
        problem: *const rocflash_problem,
        outputs: *const rocflash_forward_outputs,
        execution: *const rocflash_execution,
    ) -> rocflash_status;
    /// Its gradients.
    pub fn rocflash_backward(
        problem: *const rocflash_problem,
        tensors: *const rocflash_backward_tensors,
        execution: *const rocflash_execution,
    ) -> rocflash_status;
    /// Attention over a cache: appends k_new and v_new to k and v in place, and computes forward.
    pub fn rocflash_decode(
        problem: *const rocflash_problem,
        append: *const rocflash_append,
        outputs: *const rocflash_forward_outputs,
        execution: *const rocflash_execution,
    ) -> rocflash_status;
    /// Merges attention over parts of the keys.
    pub fn rocflash_combine(
        out_partial: *const DLTensor,
        lse_partial: *const DLTensor,
        out: *const DLTensor,
        lse: *const DLTensor,
        execution: *const rocflash_execution,
    ) -> rocflash_status;
    /// Rotary embedding by itself, into `out` or in place.
    pub fn rocflash_rotate(
        x: *const DLTensor,
        cos: *const DLTensor,
        sin: *const DLTensor,
        cu_seqlens: *const DLTensor,
        first: *const DLTensor,
        interleaved: i32,
        out: *const DLTensor,
        execution: *const rocflash_execution,
    ) -> rocflash_status;
    /// The workspace that forward with these arguments needs; checks all that the call itself would check.
    pub fn rocflash_forward_workspace(
        problem: *const rocflash_problem,
        outputs: *const rocflash_forward_outputs,
        execution: *const rocflash_execution,
        bytes: *mut usize,
    ) -> rocflash_status;
    /// Likewise for backward.
    pub fn rocflash_backward_workspace(
        problem: *const rocflash_problem,
        tensors: *const rocflash_backward_tensors,
        execution: *const rocflash_execution,
        bytes: *mut usize,
    ) -> rocflash_status;
    /// Likewise for decode.
    pub fn rocflash_decode_workspace(
        problem: *const rocflash_problem,
        append: *const rocflash_append,
        outputs: *const rocflash_forward_outputs,
        execution: *const rocflash_execution,
        bytes: *mut usize,
    ) -> rocflash_status;
    /// The message of this thread's last call that did not return ROCFLASH_OK; valid until its next call.
    pub fn rocflash_last_error() -> *const c_char;
    /// "ROCFLASH_OK", ...
    pub fn rocflash_status_name(status: rocflash_status) -> *const c_char;
    /// "0.1.0"
    pub fn rocflash_version() -> *const c_char;
    /// 10000 major + 100 minor + patch.
    pub fn rocflash_version_number() -> i32;
    /// What the library can do.
    pub fn rocflash_query_limits(limits: *mut rocflash_limits) -> rocflash_status;
    /// Entry `index`, from 0; ROCFLASH_INVALID_ARGUMENT past the last. Entry 0 is the CPU.
    pub fn rocflash_query_device(index: i32, device: *mut rocflash_device) -> rocflash_status;
    /// Likewise for the GPU drivers that it looked for.
    pub fn rocflash_query_driver(index: i32, driver: *mut rocflash_driver) -> rocflash_status;
    /// Likewise for the GPU architectures that it has kernels for.
    pub fn rocflash_query_target(index: i32, target: *mut rocflash_target) -> rocflash_status;
}
