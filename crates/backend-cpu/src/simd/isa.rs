//! Which instruction set to run.

#[cfg(target_arch = "aarch64")]
use super::Neon;
#[cfg(target_arch = "x86_64")]
use super::{Avx2, Avx512};
use super::{Scalar, Simd, WithSimd};
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

/// An instruction set with kernels in this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Portable Rust; the reference the others are compared with.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 F/BW/VL/DQ and VNNI.
    Avx512Vnni,
    /// AArch64 with the dot-product extension.
    Neon,
}

/// An instruction set's name that is not known, or one this machine lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// No instruction set has this name.
    #[error("isa {name:?} is unknown (expected scalar, avx2, avx512-vnni or neon)")]
    Unknown {
        /// The name as given.
        name: String,
    },
    /// The name is known but this machine cannot run it.
    #[error("isa {isa} is not available on this machine")]
    Unavailable {
        /// The instruction set asked for.
        isa: Isa,
    },
}

impl Isa {
    /// Every instruction set, slowest first.
    pub const ALL: [Isa; 4] = [Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512Vnni];

    /// The fastest instruction set of this machine. Detected once, then remembered.
    pub fn detect() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Isa::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Isa::Scalar))
    }

    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Avx2::new().is_some(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => Avx512::new().is_some(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => Neon::new().is_some(),
            #[allow(unreachable_patterns, reason = "reached for the other architectures' sets")]
            _ => false,
        }
    }

    /// `self`, if this machine can run it.
    pub fn checked(self) -> Result<Isa, IsaError> {
        if self.is_available() { Ok(self) } else { Err(IsaError::Unavailable { isa: self }) }
    }

    /// The instruction sets this machine can run, slowest first.
    pub fn available() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// The name used in configuration and logs.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512Vnni => "avx512-vnni",
            Isa::Neon => "neon",
        }
    }

    /// Runs `op` compiled for this instruction set.
    ///
    /// # Panics
    /// If the machine lacks it; [`Isa::detect`] and [`Isa::checked`] never give such a value.
    #[inline]
    pub fn run<O: WithSimd>(self, op: O) -> O::Output {
        const MISSING: &str = "an Isa is used only after detect() or checked()";
        match self {
            Isa::Scalar => Scalar.vectorize(op),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Avx2::new().expect(MISSING).vectorize(op),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => Avx512::new().expect(MISSING).vectorize(op),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => Neon::new().expect(MISSING).vectorize(op),
            #[allow(unreachable_patterns, reason = "reached for the other architectures' sets")]
            _ => panic!("{MISSING}: {self}"),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = IsaError;

    fn from_str(name: &str) -> Result<Isa, IsaError> {
        Isa::ALL
            .into_iter()
            .find(|isa| isa.name() == name)
            .ok_or_else(|| IsaError::Unknown { name: name.to_owned() })
    }
}
