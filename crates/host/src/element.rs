//! Element types of tensors that are Rust slices.

use crate::request::DataType;

/// Types that [`Session::all_reduce`](crate::Session::all_reduce) takes.
pub trait Element: Copy + sealed::Sealed {
    /// The same for [`Request`](crate::Request).
    const DATA_TYPE: DataType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! element {
    ($($rust:ty => $data_type:ident),*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DATA_TYPE: DataType = DataType::$data_type;
        }
    )*};
}

element!(f32 => Float32, i32 => Int32, i64 => Int64);
