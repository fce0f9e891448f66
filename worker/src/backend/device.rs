//! The device that a worker computes on: the choice in a flag, and the device found on the machine.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

#[cfg(feature = "cuda")]
use crate::backend::cuda::{Gpu, GpuError};

/// Precision in which a GPU multiplies matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Matrices are multiplied in full single precision.
    F32,
    /// Matrices are multiplied by tensor cores, with factors rounded to 10-bit mantissas: several times faster. Sums
    /// and weights keep single precision.
    Tf32,
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "f32" => Ok(Self::F32),
            "tf32" => Ok(Self::Tf32),
            _ => Err(format!("there is no precision '{text}'; use f32 or tf32")),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
        })
    }
}

/// A requested device: `auto`, `cpu` or `cuda:N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// `auto`: the first GPU, or the CPU if there is none.
    Auto,
    Cpu,
    /// `cuda:N`: the GPU with this number, counted from 0.
    Cuda(usize),
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().map(Self::Cuda).ok();
        match text {
            "auto" => Some(Self::Auto),
            "cpu" => Some(Self::Cpu),
            _ => text.strip_prefix("cuda:").and_then(number),
        }
        .ok_or_else(|| format!("there is no device '{text}'; use auto, cpu, or cuda:N with a GPU's number from 0"))
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// A device that exists on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Device {
    Cpu,
    /// An NVIDIA GPU.
    #[cfg(feature = "cuda")]
    Cuda {
        ordinal: usize,
        /// Model name of the GPU.
        name: String,
        /// Bytes of the GPU's memory.
        memory: u64,
        /// Precision of the GPU's matrix products.
        precision: Precision,
    },
}

/// Reason why a requested device is not available.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// A GPU was requested, but this build has no GPU support.
    #[cfg(not(feature = "cuda"))]
    #[error("this build of tau does not support GPUs: build it with --features cuda, or use --device cpu")]
    NotBuilt,
    /// The requested GPU cannot be used.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// TF32 was requested for the CPU, which only has full precision.
    #[error("--precision tf32 needs a GPU: leave it out, or use --device cuda:0")]
    PrecisionOfCpu,
}

impl Device {
    /// Finds the requested device. `auto` never fails: without a usable GPU it logs the reason and returns the CPU.
    pub fn find(choice: Choice, precision: Option<Precision>) -> Result<Self, DeviceError> {
        match choice {
            Choice::Cpu if precision == Some(Precision::Tf32) => Err(DeviceError::PrecisionOfCpu),
            Choice::Cpu => Ok(Self::Cpu),
            Choice::Cuda(ordinal) => Self::gpu(ordinal, precision),
            Choice::Auto => Ok(Self::gpu(0, precision).unwrap_or_else(|why| {
                tracing::info!(event = "device_fell_back", "training on the CPU: {why}");
                Self::Cpu
            })),
        }
    }

    #[cfg(feature = "cuda")]
    fn gpu(ordinal: usize, precision: Option<Precision>) -> Result<Self, DeviceError> {
        Ok(Self::Cuda {
            ordinal,
            name: Gpu::name_of(ordinal)?,
            memory: Gpu::memory_of(ordinal)?,
            precision: precision.unwrap_or(Precision::Tf32),
        })
    }

    #[cfg(not(feature = "cuda"))]
    fn gpu(_ordinal: usize, _precision: Option<Precision>) -> Result<Self, DeviceError> {
        Err(DeviceError::NotBuilt)
    }

    /// Bytes of the GPU's memory; `None` for the CPU.
    #[must_use]
    pub fn gpu_bytes(&self) -> Option<u64> {
        match self {
            Self::Cpu => None,
            #[cfg(feature = "cuda")]
            Self::Cuda { memory, .. } => Some(*memory),
        }
    }

    /// Returns the choice (`cpu` or `cuda:N`) that names exactly this device.
    #[must_use]
    pub fn choice(&self) -> Choice {
        match self {
            Self::Cpu => Choice::Cpu,
            #[cfg(feature = "cuda")]
            Self::Cuda { ordinal, .. } => Choice::Cuda(*ordinal),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            #[cfg(feature = "cuda")]
            Self::Cuda {
                ordinal,
                name,
                precision,
                ..
            } => write!(f, "cuda:{ordinal} {name} {precision}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_and_others_refused() {
        for text in ["auto", "cpu", "cuda:0", "cuda:11"] {
            assert_eq!(text.parse::<Choice>().unwrap().to_string(), text);
        }
        for text in ["", "gpu", "cuda", "cuda:", "cuda:x", "cuda:-1", "CPU"] {
            let error = text.parse::<Choice>().unwrap_err();
            assert!(error.contains("cuda:N"), "{error}");
        }
    }

    #[test]
    fn a_cpu_does_not_round() {
        assert_eq!(Device::find(Choice::Cpu, None).unwrap(), Device::Cpu);
        assert!(Device::find(Choice::Cpu, Some(Precision::Tf32)).is_err());
        let found = Device::find(Choice::Auto, None).unwrap();
        assert_eq!(Device::find(found.choice(), None).unwrap(), found);
    }

    #[test]
    fn who_asks_for_a_gpu_that_is_not_there_is_told_what_to_do() {
        let error = Device::find(Choice::Cuda(77), None).unwrap_err().to_string();
        assert!(
            error.contains("--device cpu") || error.contains("counted from 0"),
            "{error}"
        );
    }
}
