//! Element types and the Rust types that represent them.
use half::{bf16, f16};
use rocflash_sys as sys;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit IEEE floating point.
    F32,
    /// 16-bit IEEE floating point.
    F16,
    /// bfloat16.
    Bf16,
    /// 64-bit IEEE floating point; only the reference backend supports it.
    F64,
    /// 32-bit signed integers: lengths and indices.
    I32,
    /// Bytes: masks, nonzero attends.
    U8,
    /// 8-bit floating point of quantized k and v: 4 exponent bits, no infinity.
    E4m3fn,
    /// As `E4m3fn`, with one NaN, no −0 and one more in the bias.
    E4m3fnuz,
    /// 8-bit floating point of quantized k and v: 5 exponent bits.
    E5m2,
    /// As `E5m2`, with one NaN, no infinity, no −0 and one more in the bias.
    E5m2fnuz,
    /// 8-bit signed integers of quantized k and v.
    I8,
}

impl DType {
    /// The size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::Bf16 => 2,
            DType::U8 | DType::E4m3fn | DType::E4m3fnuz | DType::E5m2 | DType::E5m2fnuz | DType::I8 => 1,
        }
    }

    pub(crate) const fn dlpack(self) -> sys::DLDataType {
        let (code, bits) = match self {
            DType::F32 => (sys::kDLFloat, 32),
            DType::F16 => (sys::kDLFloat, 16),
            DType::Bf16 => (sys::kDLBfloat, 16),
            DType::F64 => (sys::kDLFloat, 64),
            DType::I32 => (sys::kDLInt, 32),
            DType::U8 => (sys::kDLUInt, 8),
            DType::E4m3fn => (sys::ROCFLASH_DL_FLOAT8_E4M3FN, 8),
            DType::E4m3fnuz => (sys::ROCFLASH_DL_FLOAT8_E4M3FNUZ, 8),
            DType::E5m2 => (sys::ROCFLASH_DL_FLOAT8_E5M2, 8),
            DType::E5m2fnuz => (sys::ROCFLASH_DL_FLOAT8_E5M2FNUZ, 8),
            DType::I8 => (sys::kDLInt, 8),
        };
        sys::DLDataType { code: code as u8, bits, lanes: 1 }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::F64 => "f64",
            DType::I32 => "i32",
            DType::U8 => "u8",
            DType::E4m3fn => "e4m3fn",
            DType::E4m3fnuz => "e4m3fnuz",
            DType::E5m2 => "e5m2",
            DType::E5m2fnuz => "e5m2fnuz",
            DType::I8 => "i8",
        })
    }
}

macro_rules! codes {
    ($($name:ident)*) => {$(
        #[doc = concat!("A code of [`DType::", stringify!($name), "`].")]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(transparent)]
        pub struct $name(pub u8);
    )*};
}

codes! { E4m3fn E4m3fnuz E5m2 E5m2fnuz }

mod sealed {
    pub trait Sealed {}
}

/// A Rust type of tensor elements. Sealed: every bit pattern must be a valid value, because the
/// library and GPUs write into such memory.
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    /// The element type as a value.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident)*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
        const _: () = assert!(size_of::<$rust>() == DType::$dtype.size());
    )*};
}

elements! {
    f32 => F32  f16 => F16  bf16 => Bf16  f64 => F64  i32 => I32  u8 => U8
    E4m3fn => E4m3fn  E4m3fnuz => E4m3fnuz  E5m2 => E5m2  E5m2fnuz => E5m2fnuz  i8 => I8
}
