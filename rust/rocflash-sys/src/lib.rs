//! Raw bindings to `rocflash.h`, the C ABI of rocflash: exact attention on CPUs and GPUs.
//!
//! Everything is as in C: `unsafe`, unchecked, with the names of the header, whose comments
//! document each field. The crate `rocflash` is a safe wrapper.
//!
//! Each struct starts with its size, and zero means absent. So each has a `new` that sets the size
//! and zeros everything else. A test of this crate compares layout, values and signatures with the
//! header.
//!
//! The crate's README describes how the library is built or found.
#![no_std]
#![allow(non_camel_case_types, non_upper_case_globals)] // names as in C

use core::ffi::{c_char, c_int, c_uint, c_void};

/// DLPack's device type: one of the `kDL...` constants.
pub type DLDeviceType = c_uint;
/// Host memory.
pub const kDLCPU: DLDeviceType = 1;
/// An NVIDIA GPU.
pub const kDLCUDA: DLDeviceType = 2;
/// An AMD GPU.
pub const kDLROCM: DLDeviceType = 10;

/// DLPack's data type code: one of the `kDL...` constants below.
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
/// 8-bit floats of quantized keys and values, which older DLPack headers do not define either.
pub const ROCFLASH_DL_FLOAT8_E4M3FN: DLDataTypeCode = 10;
/// See [`ROCFLASH_DL_FLOAT8_E4M3FN`].
pub const ROCFLASH_DL_FLOAT8_E4M3FNUZ: DLDataTypeCode = 11;
/// See [`ROCFLASH_DL_FLOAT8_E4M3FN`].
pub const ROCFLASH_DL_FLOAT8_E5M2: DLDataTypeCode = 12;
/// See [`ROCFLASH_DL_FLOAT8_E4M3FN`].
pub const ROCFLASH_DL_FLOAT8_E5M2FNUZ: DLDataTypeCode = 13;

/// DLPack's device: a type and an index.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDevice {
    /// The device type.
    pub device_type: DLDeviceType,
    /// The index among the devices of its type.
    pub device_id: c_int,
}

/// DLPack's element type.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDataType {
    /// A [`DLDataTypeCode`].
    pub code: u8,
    /// The bits of one element.
    pub bits: u8,
    /// 1 for scalar elements.
    pub lanes: u16,
}

/// DLPack's tensor: a view of memory that it does not own.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    /// The first element, before `byte_offset`.
    pub data: *mut c_void,
    /// The device of the memory.
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

/// The status of a call: one of the constants below.
pub type rocflash_status = c_uint;
/// Success.
pub const ROCFLASH_OK: rocflash_status = 0;
/// An argument is invalid; the message names it, its value and what is allowed.
pub const ROCFLASH_INVALID_ARGUMENT: rocflash_status = 1;
/// The call is valid, but this backend or device does not support it.
pub const ROCFLASH_UNSUPPORTED: rocflash_status = 2;
/// The system could not provide memory or threads.
pub const ROCFLASH_OUT_OF_MEMORY: rocflash_status = 3;
/// A driver failed; the message contains the driver's error text.
pub const ROCFLASH_DEVICE_ERROR: rocflash_status = 4;
/// A defect of the library.
pub const ROCFLASH_INTERNAL: rocflash_status = 5;

/// The backend of a call: one of the constants below.
pub type rocflash_backend = c_uint;
/// The default backend of the tensors' device.
pub const ROCFLASH_BACKEND_AUTO: rocflash_backend = 0;
/// The CPU, tiled, threaded and vectorized.
pub const ROCFLASH_BACKEND_CPU: rocflash_backend = 1;
/// The double-precision reference implementation.
pub const ROCFLASH_BACKEND_REFERENCE: rocflash_backend = 2;
/// Naive attention in the dtype of q: the baseline of the error bound.
pub const ROCFLASH_BACKEND_NAIVE: rocflash_backend = 3;
/// Former name of [`ROCFLASH_BACKEND_NAIVE`].
pub const ROCFLASH_BACKEND_PLAIN: rocflash_backend = ROCFLASH_BACKEND_NAIVE;
/// Naive attention, vectorized and threaded: the baseline of speed comparisons.
pub const ROCFLASH_BACKEND_STANDARD: rocflash_backend = 4;

/// The version of the header that these bindings were written for.
pub const ROCFLASH_VERSION_MAJOR: i32 = 0;
/// See [`ROCFLASH_VERSION_MAJOR`].
pub const ROCFLASH_VERSION_MINOR: i32 = 1;
/// See [`ROCFLASH_VERSION_MAJOR`].
pub const ROCFLASH_VERSION_PATCH: i32 = 0;

/// Declares a struct of the ABI: fields as in C, and `new`, which sets the size and zeros the rest.
macro_rules! sized_struct {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            /// The size of this struct in bytes, as the caller was compiled with.
            pub struct_size: usize,
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            /// Everything zero, which means absent, except the size.
            pub const fn new() -> Self {
                // SAFETY: every field is a number, a pointer or a struct of numbers; zero is valid
                // for each.
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
    /// Inputs and options of forward and backward.
    rocflash_problem {
        /// (b, sq, h, d), or varlen (total_q, h, d) with cu_seqlens_q.
        q: *const DLTensor,
        /// (b, sk, hk, d), or varlen (total_k, hk, d) with cu_seqlens_k.
        k: *const DLTensor,
        /// (b, sk, hk, dv), or varlen (total_k, hk, dv).
        v: *const DLTensor,
        /// int (b + 1): row where each varlen sequence of q starts.
        cu_seqlens_q: *const DLTensor,
        /// int (b + 1): likewise for k and v.
        cu_seqlens_k: *const DLTensor,
        /// int (b): rows of q in use, from the sequence's start.
        seqused_q: *const DLTensor,
        /// int (b): likewise for k and v.
        seqused_k: *const DLTensor,
        /// int (b): keys to skip at each sequence's start; seqused_k includes them.
        leftpad_k: *const DLTensor,
        /// Varlen: the longest sequence of q; 0: computed from cu_seqlens_q, on the CPU only.
        max_seqlen_q: i64,
        /// Varlen: likewise for k.
        max_seqlen_k: i64,
        /// 0 or 1: causal mask, bottom-right aligned.
        causal: i32,
        /// {left, right}: sliding window around the query position; -1: unbounded.
        window: *const i64,
        /// > 0: only keys of the query position's chunk.
        attention_chunk: i64,
        /// bool or uint8 (b|1, h|1, sq|1, sk|1): nonzero attends.
        mask: *const DLTensor,
        /// null: 1 / sqrt(d).
        softmax_scale: *const f32,
        /// > 0: s = softcap * tanh(s / softcap).
        softcap: f32,
        /// f32 (h) or (b, h): s -= slope * |distance|.
        alibi_slopes: *const DLTensor,
        /// float (b|1, h|1, sq|1, sk|1): s += bias; -inf masks the key.
        bias: *const DLTensor,
        /// float (h): one extra logit per head that adds to the softmax's sum but has no value.
        sinks: *const DLTensor,
        /// In [0, 1).
        dropout_p: f32,
        /// The mask is a function of seed, offset and position only.
        dropout_seed: u64,
        /// See dropout_seed.
        dropout_offset: u64,
        /// 0 or 1: bit-identical results on every run, possibly at the cost of speed.
        deterministic: i32,
        /// The number of splits of split-KV decode; 0: selected by the heuristic.
        num_splits: i32,
        /// int (b, pages): k and v are (num_pages, page, hk, d or dv).
        block_table: *const DLTensor,
        /// int (b): the batch of k and v that each sequence uses.
        cache_batch_idx: *const DLTensor,
        /// f32: the scales of a quantized k; one element, (b|1, hk|1), or the shape of k without
        /// columns, in which any size may be 1.
        k_descale: *const DLTensor,
        /// Likewise for v.
        v_descale: *const DLTensor,
    }
}

sized_struct! {
    /// Outputs of forward and decode.
    rocflash_forward_outputs {
        /// The shape of q, with head dim dv.
        out: *const DLTensor,
        /// Optional, f32 (b, h, sq) or varlen (h, total_q): log-sum-exp of each row.
        lse: *const DLTensor,
        /// Optional, float (b, h, sq, sk), varlen (b, h, max_q, max_k): weights, negative where
        /// dropped.
        s_dmask: *const DLTensor,
    }
}

sized_struct! {
    /// Inputs and outputs of backward besides the problem.
    rocflash_backward_tensors {
        /// In: as out.
        dout: *const DLTensor,
        /// In: output of forward.
        out: *const DLTensor,
        /// In: output of forward.
        lse: *const DLTensor,
        /// Out: as q; each gradient is optional, but one is required.
        dq: *const DLTensor,
        /// Out: as k.
        dk: *const DLTensor,
        /// Out: as v.
        dv: *const DLTensor,
        /// Out, optional: f32 (h).
        dsinks: *const DLTensor,
        /// Out, optional: shape and dtype of bias; summed over its dimensions of size 1.
        dbias: *const DLTensor,
        /// Out, optional: f32, shape of alibi_slopes.
        dalibi_slopes: *const DLTensor,
        /// Out, optional: f32, shape of lse, last stride 1: (rowsum(dout · out) - dlse) · (1 -
        /// dropout_p).
        delta: *const DLTensor,
        /// In, optional: f32, shape of lse: its gradient.
        dlse: *const DLTensor,
    }
}

sized_struct! {
    /// Keys and values to append to a KV cache, and the rotary embedding. All of it is optional.
    rocflash_append {
        /// As k: (b, s_new, hk, d), or varlen (total_new, hk, d).
        k_new: *const DLTensor,
        /// As v: (b, s_new, hk, dv), or varlen (total_new, hk, dv).
        v_new: *const DLTensor,
        /// int (b + 1): row where each varlen sequence of new keys starts.
        cu_seqlens_k_new: *const DLTensor,
        /// float (positions, r / 2): rotary embedding of the first r columns of q and k_new.
        rotary_cos: *const DLTensor,
        /// See rotary_cos.
        rotary_sin: *const DLTensor,
        /// int (b): position of the first new row; null: the row that it is appended at.
        rotary_seqlens: *const DLTensor,
        /// 1: pairs are (0, 1), (2, 3) ...; 0: (0, r/2), (1, r/2 + 1) ...
        rotary_interleaved: i32,
    }
}

sized_struct! {
    /// Backend, threads, stream and workspace of a call.
    rocflash_execution {
        /// A [`rocflash_backend`].
        backend: i32,
        /// CPU: 0: ROCFLASH_NUM_THREADS, else all CPUs that the process may use.
        num_threads: i32,
        /// GPU: hipStream_t or CUstream; CPU: must be null.
        stream: *mut c_void,
        /// Memory on the tensors' device, 64-byte aligned, not shared by concurrent calls.
        workspace: *mut c_void,
        /// In bytes, at least the result of the workspace query with the same arguments.
        workspace_size: usize,
    }
}

/// A planned call, to be destroyed by [`rocflash_plan_destroy`].
#[repr(C)]
pub struct rocflash_plan {
    _private: [u8; 0],
}

sized_struct! {
    /// What a run gives to its plan. Exactly the tensors that the plan was created with are
    /// required.
    rocflash_plan_arguments {
        /// Address of the tensor of this name.
        q: *const c_void,
        /// Address of the tensor of this name.
        k: *mut c_void,
        /// Address of the tensor of this name.
        v: *mut c_void,
        /// Address of the tensor of this name.
        cu_seqlens_q: *const c_void,
        /// Address of the tensor of this name.
        cu_seqlens_k: *const c_void,
        /// Address of the tensor of this name.
        seqused_q: *const c_void,
        /// Address of the tensor of this name.
        seqused_k: *const c_void,
        /// Address of the tensor of this name.
        leftpad_k: *const c_void,
        /// Address of the tensor of this name.
        mask: *const c_void,
        /// Address of the tensor of this name.
        alibi_slopes: *const c_void,
        /// Address of the tensor of this name.
        bias: *const c_void,
        /// Address of the tensor of this name.
        sinks: *const c_void,
        /// Address of the tensor of this name.
        block_table: *const c_void,
        /// Address of the tensor of this name.
        cache_batch_idx: *const c_void,
        /// Address of the tensor of this name.
        k_new: *const c_void,
        /// Address of the tensor of this name.
        v_new: *const c_void,
        /// Address of the tensor of this name.
        cu_seqlens_k_new: *const c_void,
        /// Address of the tensor of this name.
        rotary_cos: *const c_void,
        /// Address of the tensor of this name.
        rotary_sin: *const c_void,
        /// Address of the tensor of this name.
        rotary_seqlens: *const c_void,
        /// Address of the tensor of this name.
        out: *mut c_void,
        /// Address of the tensor of this name.
        lse: *mut c_void,
        /// Address of the tensor of this name.
        s_dmask: *mut c_void,
        /// Address of the tensor of this name.
        dout: *const c_void,
        /// Address of the tensor of this name.
        dq: *mut c_void,
        /// Address of the tensor of this name.
        dk: *mut c_void,
        /// Address of the tensor of this name.
        dv: *mut c_void,
        /// Address of the tensor of this name.
        dsinks: *mut c_void,
        /// Address of the tensor of this name.
        dbias: *mut c_void,
        /// Address of the tensor of this name.
        dalibi_slopes: *mut c_void,
        /// Address of the tensor of this name.
        delta: *mut c_void,
        /// Address of the tensor of this name.
        dlse: *const c_void,
        /// Seed of dropout; its probability is that of the plan.
        dropout_seed: u64,
        /// Offset of dropout.
        dropout_offset: u64,
        /// GPU: hipStream_t or CUstream; CPU: must be null.
        stream: *mut c_void,
        /// As in [`rocflash_execution`].
        workspace: *mut c_void,
        /// As in [`rocflash_execution`].
        workspace_size: usize,
        /// Address of the tensor of this name.
        k_descale: *const c_void,
        /// Address of the tensor of this name.
        v_descale: *const c_void,
    }
}

sized_struct! {
    /// Limits of this library on any device.
    rocflash_limits {
        /// Of q and k, and of v.
        max_head_dim: i32,
        /// 0 or 1.
        has_backward: i32,
        /// What num_threads = 0 means now.
        default_threads: i32,
        /// dropout_p is rounded to a multiple of 1 / dropout_steps.
        dropout_steps: i32,
    }
}

sized_struct! {
    /// A supported device. Strings live as long as the library.
    rocflash_device {
        /// Type and index.
        device: DLDevice,
        /// "AMD EPYC", "AMD Instinct MI300X".
        name: *const c_char,
        /// The selected code path: "avx512", "gfx942".
        arch: *const c_char,
        /// Detected features, such as instruction sets, space-separated.
        features: *const c_char,
        /// CPUs or compute units.
        units: i32,
    }
}

sized_struct! {
    /// A GPU driver that the library searched for, and the outcome.
    rocflash_driver {
        /// "hip", "cuda".
        name: *const c_char,
        /// The file that was opened, or "".
        library: *const c_char,
        /// Why the driver is or is not used, as a sentence.
        reason: *const c_char,
        /// 0 or 1.
        in_use: i32,
    }
}

sized_struct! {
    /// A GPU architecture that this library has kernels for.
    rocflash_target {
        /// "gfx942", "sm_80".
        arch: *const c_char,
        /// The family that defines the schedule of its kernels: "cdna3", "nvidia".
        family: *const c_char,
        /// "hip", "cuda".
        driver: *const c_char,
    }
}

extern "C" {
    /// Computes attention.
    pub fn rocflash_forward(
        problem: *const rocflash_problem,
        outputs: *const rocflash_forward_outputs,
        execution: *const rocflash_execution,
    ) -> rocflash_status;
    /// Computes the gradients of attention.
    pub fn rocflash_backward(
        problem: *const rocflash_problem,
        tensors: *const rocflash_backward_tensors,
        execution: *const rocflash_execution,
    ) -> rocflash_status;
    /// Computes attention without a backward pass: scores may be summed in any order.
    pub fn rocflash_infer(
        problem: *const rocflash_problem,
        outputs: *const rocflash_forward_outputs,
        execution: *const rocflash_execution,
    ) -> rocflash_status;
    /// Appends k_new and v_new to the KV cache k and v in place, then computes attention.
    pub fn rocflash_decode(
        problem: *const rocflash_problem,
        append: *const rocflash_append,
        outputs: *const rocflash_forward_outputs,
        execution: *const rocflash_execution,
    ) -> rocflash_status;
    /// Combines the partial results of split-KV attention.
    pub fn rocflash_combine(
        out_partial: *const DLTensor,
        lse_partial: *const DLTensor,
        out: *const DLTensor,
        lse: *const DLTensor,
        execution: *const rocflash_execution,
    ) -> rocflash_status;
    /// Applies rotary embedding into `out` or in place.
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
    /// Queries the workspace size of forward; validates everything that the call validates.
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
    /// Likewise for infer.
    pub fn rocflash_infer_workspace(
        problem: *const rocflash_problem,
        outputs: *const rocflash_forward_outputs,
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
    /// Which GPU kernels rocflash_forward selects, as JSON text with a terminating 0 if it fits.
    pub fn rocflash_forward_explain(
        problem: *const rocflash_problem,
        outputs: *const rocflash_forward_outputs,
        arch: *const c_char,
        units: i32,
        json: *mut c_char,
        size: *mut usize,
    ) -> rocflash_status;
    /// Likewise for backward.
    pub fn rocflash_backward_explain(
        problem: *const rocflash_problem,
        tensors: *const rocflash_backward_tensors,
        arch: *const c_char,
        units: i32,
        json: *mut c_char,
        size: *mut usize,
    ) -> rocflash_status;
    /// Likewise for decode.
    pub fn rocflash_decode_explain(
        problem: *const rocflash_problem,
        append: *const rocflash_append,
        outputs: *const rocflash_forward_outputs,
        arch: *const c_char,
        units: i32,
        json: *mut c_char,
        size: *mut usize,
    ) -> rocflash_status;
    /// Likewise for combine.
    pub fn rocflash_combine_explain(
        out_partial: *const DLTensor,
        lse_partial: *const DLTensor,
        out: *const DLTensor,
        lse: *const DLTensor,
        arch: *const c_char,
        units: i32,
        json: *mut c_char,
        size: *mut usize,
    ) -> rocflash_status;
    /// Likewise for rotate.
    pub fn rocflash_rotate_explain(
        x: *const DLTensor,
        cos: *const DLTensor,
        sin: *const DLTensor,
        cu_seqlens: *const DLTensor,
        first: *const DLTensor,
        interleaved: i32,
        out: *const DLTensor,
        arch: *const c_char,
        units: i32,
        json: *mut c_char,
        size: *mut usize,
    ) -> rocflash_status;
    /// Creates a plan of rocflash_forward: the call is validated and planned once.
    pub fn rocflash_plan_create_forward(
        problem: *const rocflash_problem,
        outputs: *const rocflash_forward_outputs,
        execution: *const rocflash_execution,
        plan: *mut *mut rocflash_plan,
    ) -> rocflash_status;
    /// Likewise for backward.
    pub fn rocflash_plan_create_backward(
        problem: *const rocflash_problem,
        tensors: *const rocflash_backward_tensors,
        execution: *const rocflash_execution,
        plan: *mut *mut rocflash_plan,
    ) -> rocflash_status;
    /// Likewise for infer.
    pub fn rocflash_plan_create_infer(
        problem: *const rocflash_problem,
        outputs: *const rocflash_forward_outputs,
        execution: *const rocflash_execution,
        plan: *mut *mut rocflash_plan,
    ) -> rocflash_status;
    /// Likewise for decode.
    pub fn rocflash_plan_create_decode(
        problem: *const rocflash_problem,
        append: *const rocflash_append,
        outputs: *const rocflash_forward_outputs,
        execution: *const rocflash_execution,
        plan: *mut *mut rocflash_plan,
    ) -> rocflash_status;
    /// Queries the workspace size of a run.
    pub fn rocflash_plan_workspace(plan: *const rocflash_plan, bytes: *mut usize) -> rocflash_status;
    /// Runs a plan.
    pub fn rocflash_plan_run(
        plan: *const rocflash_plan,
        arguments: *const rocflash_plan_arguments,
    ) -> rocflash_status;
    /// Destroys a plan, which no thread may be running.
    pub fn rocflash_plan_destroy(plan: *mut rocflash_plan);
    /// The message of this thread's last failed call; valid until its next call.
    pub fn rocflash_last_error() -> *const c_char;
    /// "ROCFLASH_OK", ...
    pub fn rocflash_status_name(status: rocflash_status) -> *const c_char;
    /// "0.1.0"
    pub fn rocflash_version() -> *const c_char;
    /// 10000 major + 100 minor + patch.
    pub fn rocflash_version_number() -> i32;
    /// Queries the limits.
    pub fn rocflash_query_limits(limits: *mut rocflash_limits) -> rocflash_status;
    /// Queries device `index`; ROCFLASH_INVALID_ARGUMENT past the last. Device 0 is the CPU.
    pub fn rocflash_query_device(index: i32, device: *mut rocflash_device) -> rocflash_status;
    /// Likewise for the GPU drivers that the library searched for.
    pub fn rocflash_query_driver(index: i32, driver: *mut rocflash_driver) -> rocflash_status;
    /// Likewise for the GPU architectures that the library has kernels for.
    pub fn rocflash_query_target(index: i32, target: *mut rocflash_target) -> rocflash_status;
}
