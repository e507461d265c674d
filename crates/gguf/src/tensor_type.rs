//! The element types a tensor in a GGUF file can have.

/// A tensor's rows do not fill whole blocks of its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} elements are not a whole number of {ty} blocks of {block_size}", ty = .ty.name(), block_size = .ty.block_size())]
pub struct PartialBlock {
    /// Elements asked for.
    pub len: u64,
    /// The type whose block size does not divide `len`.
    pub ty: TensorType,
}

macro_rules! tensor_types {
    ($($(#[$doc:meta])* $variant:ident = $id:literal, $name:literal, $block:literal => $bytes:literal;)*) => {
        /// How a tensor's elements are stored: plain numbers or blocks of quantized ones.
        ///
        /// Every type of the format is known by name, including those nothing here computes with, so that an
        /// error can say which one a file uses. The discriminant is the id stored in files.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        #[allow(non_camel_case_types)]
        pub enum TensorType {
            $($(#[$doc])* $variant = $id,)*
        }

        impl TensorType {
            /// Every type, in the order of ids.
            pub const ALL: &'static [TensorType] = &[$(TensorType::$variant,)*];

            /// The type with this id, `None` for unknown and removed ids.
            pub const fn from_id(id: u32) -> Option<TensorType> {
                match id {
                    $($id => Some(TensorType::$variant),)*
                    _ => None,
                }
            }

            /// The name used by the field's tools, such as `Q4_K`.
            pub const fn name(self) -> &'static str {
                match self { $(TensorType::$variant => $name,)* }
            }

            /// Elements per block; 1 for plain numbers.
            pub const fn block_size(self) -> usize {
                match self { $(TensorType::$variant => $block,)* }
            }

            /// Bytes per block.
            pub const fn type_size(self) -> usize {
                match self { $(TensorType::$variant => $bytes,)* }
            }
        }
    };
}

tensor_types! {
    /// IEEE 754 single precision.
    F32 = 0, "F32", 1 => 4;
    /// IEEE 754 half precision.
    F16 = 1, "F16", 1 => 2;
    /// 4-bit, symmetric, 32 per scale.
    Q4_0 = 2, "Q4_0", 32 => 18;
    /// 4-bit with minimum, 32 per scale.
    Q4_1 = 3, "Q4_1", 32 => 20;
    /// 5-bit, symmetric, 32 per scale.
    Q5_0 = 6, "Q5_0", 32 => 22;
    /// 5-bit with minimum, 32 per scale.
    Q5_1 = 7, "Q5_1", 32 => 24;
    /// 8-bit, symmetric, 32 per scale.
    Q8_0 = 8, "Q8_0", 32 => 34;
    /// 8-bit with block sum, 32 per scale; an intermediate format for activations.
    Q8_1 = 9, "Q8_1", 32 => 36;
    /// 2-bit super-blocks of 256.
    Q2_K = 10, "Q2_K", 256 => 84;
    /// 3-bit super-blocks of 256.
    Q3_K = 11, "Q3_K", 256 => 110;
    /// 4-bit super-blocks of 256.
    Q4_K = 12, "Q4_K", 256 => 144;
    /// 5-bit super-blocks of 256.
    Q5_K = 13, "Q5_K", 256 => 176;
    /// 6-bit super-blocks of 256.
    Q6_K = 14, "Q6_K", 256 => 210;
    /// 8-bit super-blocks of 256; an intermediate format for activations.
    Q8_K = 15, "Q8_K", 256 => 292;
    /// 2.06 bits per weight, lattice codebook.
    IQ2_XXS = 16, "IQ2_XXS", 256 => 66;
    /// 2.31 bits per weight, lattice codebook.
    IQ2_XS = 17, "IQ2_XS", 256 => 74;
    /// 3.06 bits per weight, lattice codebook.
    IQ3_XXS = 18, "IQ3_XXS", 256 => 98;
    /// 1.56 bits per weight, lattice codebook.
    IQ1_S = 19, "IQ1_S", 256 => 50;
    /// 4-bit non-linear, 32 per scale.
    IQ4_NL = 20, "IQ4_NL", 32 => 18;
    /// 3.44 bits per weight, lattice codebook.
    IQ3_S = 21, "IQ3_S", 256 => 110;
    /// 2.56 bits per weight, lattice codebook.
    IQ2_S = 22, "IQ2_S", 256 => 82;
    /// 4-bit non-linear super-blocks of 256.
    IQ4_XS = 23, "IQ4_XS", 256 => 136;
    /// Signed 8-bit integer.
    I8 = 24, "I8", 1 => 1;
    /// Signed 16-bit integer.
    I16 = 25, "I16", 1 => 2;
    /// Signed 32-bit integer.
    I32 = 26, "I32", 1 => 4;
    /// Signed 64-bit integer.
    I64 = 27, "I64", 1 => 8;
    /// IEEE 754 double precision.
    F64 = 28, "F64", 1 => 8;
    /// 1.75 bits per weight, lattice codebook.
    IQ1_M = 29, "IQ1_M", 256 => 56;
    /// The upper half of an IEEE 754 single.
    BF16 = 30, "BF16", 1 => 2;
    /// Ternary, five per byte.
    TQ1_0 = 34, "TQ1_0", 256 => 54;
    /// Ternary, four per byte.
    TQ2_0 = 35, "TQ2_0", 256 => 66;
    /// OCP microscaling 4-bit float, 32 per E8M0 scale.
    MXFP4 = 39, "MXFP4", 32 => 17;
    /// 4-bit float, 16 per E4M3 scale, four scales a block.
    NVFP4 = 40, "NVFP4", 64 => 36;
    /// 1-bit, 128 per scale.
    Q1_0 = 41, "Q1_0", 128 => 18;
    /// 2-bit, 64 per scale.
    Q2_0 = 42, "Q2_0", 64 => 18;
}

impl TensorType {
    /// The id stored in files.
    pub const fn id(self) -> u32 {
        self as u32
    }

    /// The name of a type that the format once had and files may no longer use.
    pub const fn removed_name(id: u32) -> Option<&'static str> {
        Some(match id {
            4 => "Q4_2",
            5 => "Q4_3",
            31 => "Q4_0_4_4",
            32 => "Q4_0_4_8",
            33 => "Q4_0_8_8",
            36 => "IQ4_NL_4_4",
            37 => "IQ4_NL_4_8",
            38 => "IQ4_NL_8_8",
            _ => return None,
        })
    }

    /// True if elements are stored in blocks that share a scale.
    pub const fn is_quantized(self) -> bool {
        self.block_size() > 1
    }

    /// Bytes of a row of `n` elements; an error if `n` does not fill whole blocks or the size exceeds a `u64`.
    pub fn row_bytes(self, n: u64) -> Result<u64, PartialBlock> {
        let partial = PartialBlock { len: n, ty: self };
        if !n.is_multiple_of(self.block_size() as u64) {
            return Err(partial);
        }
        (n / self.block_size() as u64).checked_mul(self.type_size() as u64).ok_or(partial)
    }
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Parses a type's name, ignoring case: `q4_k` and `Q4_K` are the same.
impl std::str::FromStr for TensorType {
    type Err = UnknownTensorTypeName;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        TensorType::ALL
            .iter()
            .copied()
            .find(|t| t.name().eq_ignore_ascii_case(s))
            .ok_or_else(|| UnknownTensorTypeName(s.to_owned()))
    }
}

/// No tensor type has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown tensor type `{0}`")]
pub struct UnknownTensorTypeName(pub String);
