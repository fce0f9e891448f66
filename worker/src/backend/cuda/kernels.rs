//! The table of all GPU kernels: names, files and parameters, from which Rust types and C++ declarations are made.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::CudaContext;

use super::abi::{
    Arguments, Block, Compare, ConvGeometry, Factors, Images, Kernel, NormSets, PoolGeometry, Report, Run, Segment,
    Turns, c_name, c_parameter, parameter, prologue,
};
use super::address::DeviceAddress;
use super::compiler::module;
use super::error::GpuError;

const COMMON: &str = include_str!("kernels/common.cuh");

macro_rules! kernels {
    ($($module:ident in $file:literal {
        $($arguments:ident: $($kernel:ident),+ { $($field:ident: $kind:tt),+ $(,)? })*
    })*) => {
        $($(
            #[derive(Clone, Copy)]
            pub(super) struct $arguments { $(pub(super) $field: parameter!($kind),)+ }

            impl Arguments for $arguments {
                const PARAMETERS: &'static str = concat!($(c_parameter!($kind), " ", stringify!($field), ", "),+);

                fn with_pointers<R>(mut self, call: impl FnOnce(&mut [*mut c_void]) -> R) -> R {
                    call(&mut [$((&raw mut self.$field).cast::<c_void>()),+])
                }
            }
        )*)*

        /// All CUDA kernels, compiled and ready to be launched.
        pub(super) struct Kernels {
            $($($(pub(super) $kernel: Kernel<$arguments>,)+)*)*
        }

        /// C++ sources of the kernel files, with shared declarations in front.
        pub(super) struct Sources {
            $(pub(super) $module: String,)*
        }

        impl Sources {
            pub(super) fn new() -> Self {
                let prologue = prologue();
                Self {
                    $($module: {
                        let mut text = prologue.clone();
                        $($(text += &Kernel::<$arguments>::declaration(stringify!($kernel));)+)*
                        text + COMMON + include_str!(concat!("kernels/", $file))
                    },)*
                }
            }

            #[cfg(test)]
            fn all(&self) -> Vec<(&'static str, &str)> {
                vec![$(($file, &self.$module),)*]
            }
        }

        impl Kernels {
            /// Loads all kernels for a GPU: from the cache, or newly compiled.
            pub(super) fn load(context: &Arc<CudaContext>) -> Result<Self, GpuError> {
                let sources = Sources::new();
                $(let $module = module(context, &sources.$module)?;)*
                Ok(Self {
                    $($($($kernel: Kernel::new($module.load_function(stringify!($kernel))?),)+)*)*
                })
            }
        }
    };
}

kernels! {
    update in "update.cu" {
        Update: update_along, update_sgd, update_velocity, update_squares, update_adam {
            gradient: [f32x4], own: [mut f32x4], first: [mut f32x4], second: [mut f32x4], shared: [f32x4],
            eager: [u32], by: Factors, compare: Compare, report: [mut Report], counts: [mut u32], groups: [mut u32],
        }
        DirectOthers: direct_others {
            others: [u32], count: u32, by: Factors, report: [Report], gradient: [mut f32], first: [mut f32],
            second: [mut f32],
        }
        CountDue: count_due {
            own: [f32x4], velocity: [f32x4], shared: [f32x4], compare: Compare, report: [mut Report],
            counts: [mut u32], groups: [mut u32],
        }
        Emit: emit {
            own: [f32x4], velocity: [f32x4], shared: [mut f32x4], compare: Compare, tile_counts: [u32], groups: [u32],
            words_max: u32, report: [mut Report], words: [mut u32],
        }
        SumSquares: sum_squares { gradient: [f32x4], fours: u64, sums: [mut f64] }
        LossAndClip: loss_and_clip {
            losses: [f32], samples: u32, sums: [f64], parts: u32, norm_max: f64, report: [mut Report],
            next: [mut Report], groups: [mut u32], group_count: u32,
        }
    }
    muon in "muon.cu" {
        MuonGather: muon_gather {
            runs: [Run], blocks: [Block], turns: Turns, momentum: f32, report: [Report], gradient: [mut f32],
            velocity: [mut f32], products: [mut f32],
        }
        MuonIterate: muon_iterate {
            blocks: [Block], turns: Turns, iterations: u32, products: [f32], factors: [mut f32],
        }
        MuonTurn: muon_turn {
            runs: [Run], blocks: [Block], turns: Turns, factors: [f32], gradient: [mut f32],
        }
    }
    replica in "replica.cu" {
        CopyWords: copy_words { from: [u32], to: [mut u32], count: u32 }
        TellHost: tell_host { report: [Report], words: [u32], to_report: [mut Report], to_words: [mut u32] }
        ApplyWaiting: apply_waiting {
            waiting: [Segment], segment_count: u32, words: [u32], entries: u32, shared: [mut f32], own: [mut f32],
            report: [mut Report],
        }
        Digest: digest { shared: [f32], weights: u64, sums: [mut u64] }
        SampleResidual: sample_residual {
            own: [f32], velocity: [f32], ahead: f32, shared: [f32], step: u64, count: u32, sample: [mut f32],
        }
    }
    layers in "layers.cu" {
        GatherBytes: gather_bytes {
            values: [u8], all_labels: [u32], indices: [u32], views: [u32], row: u32, to: Images, scale: f32,
            x: [mut f32], labels: [mut u32], width: u32,
        }
        GatherFloats: gather_floats {
            values: [f32], all_labels: [u32], indices: [u32], views: [u32], row: u32, to: Images, scale: f32,
            x: [mut f32], labels: [mut u32], width: u32,
        }
        BiasRows4: bias_rows4 { y: [mut f32x4], bias: [f32], fours: u32, total: u32, relu: u32 }
        AddBias: bias { y: [mut f32], bias: [f32], inner: u32, outputs: u32, total: u32, relu: u32 }
        BiasRowsBack: bias_rows_back {
            dy: [mut f32], y: [f32], rows: u32, columns: u32, relu: u32, sums: [mut f32],
        }
        BiasRows4Back: bias_rows4_back {
            dy: [mut f32x4], y: [f32x4], rows: u32, fours: u32, relu: u32, sums: [mut f32x4],
        }
        BiasPlanesBack: bias_planes_back { dy: [mut f32], y: [f32], plane: u32, relu: u32, sums: [mut f32] }
        AddParts: add_parts { sums: [f32], parts: u32, columns: u32, gradient: [mut f32] }
        Softmax: softmax_few, softmax_many, softmax_any {
            logits: [f32], labels: [u32], classes: u32, share: f32, losses: [mut f32], gradient: [mut f32],
            smoothing: f32, weights: [f32], weighted: u32,
        }
        SingleLoss: single_loss {
            logits: [f32], labels: [u32], samples: u32, share: f32, losses: [mut f32], gradient: [mut f32],
            smoothing: f32, weights: [f32], weighted: u32,
        }
        NumberLoss: number_loss {
            found: [f32], wanted: [u32], width: u32, samples: u32, kind: u32, share: f32, losses: [mut f32],
            gradient: [mut f32],
        }
        Activate: activate { x: [f32], y: [mut f32], total: u32, kind: u32, slope: f32 }
        ActivateBack: activate_back {
            x: [f32], y: [f32], dy: [f32], dx: [mut f32], total: u32, kind: u32, slope: f32,
        }
        AddWays: add_ways { one: [f32], other: [f32], y: [mut f32], total: u32, relu: u32 }
        CutWays: cut_ways {
            dy: [f32], y: [f32], total: u32, relu: u32, twice: u32, one: [mut f32], other: [mut f32],
        }
        Drop: dropout { x: [f32], y: [mut f32], total: u32, border: u32, kept: f32, key: u64, step: [u64] }
    }
    norm in "norm.cu" {
        NormSums: norm_sums { x: [f32], by: NormSets, found: [mut f64] }
        NormBySums: norm_by_sums {
            x: [f32], by: NormSets, epsilon: f32, found: [f64], gains: [f32], biases: [f32], y: [mut f32],
            moments: [mut f32], noted: u32, means: [mut f32], variances: [mut f32],
        }
        NormAsGiven: norm_as_given {
            x: [f32], by: NormSets, epsilon: f32, means: [f32], variances: [f32], gains: [f32], biases: [f32],
            y: [mut f32],
        }
        NormBackSums: norm_back_sums {
            dy: [f32], y: [f32], x: [f32], by: NormSets, moments: [f32], gains: [f32], found: [mut f64],
        }
        NormBack: norm_back {
            dy: [f32], y: [f32], x: [f32], by: NormSets, moments: [f32], gains: [f32], found: [f64], wanted: u32,
            dx: [mut f32], dgains: [mut f32], dbiases: [mut f32],
        }
        NormGainsBack: norm_gains_back {
            dy: [f32], y: [f32], x: [f32], by: NormSets, moments: [f32], dgains: [mut f32], dbiases: [mut f32],
        }
    }
    images in "images.cu" {
        Unfold: unfold { x: [f32], by: ConvGeometry, unfolded: [mut f32] }
        Fold: fold { unfolded: [f32], by: ConvGeometry, dx: [mut f32] }
        MaxPool: max_pool { x: [f32], by: PoolGeometry, y: [mut f32], winners: [mut u32] }
        MaxPoolBack: max_pool_back { dy: [f32], winners: [u32], by: PoolGeometry, dx: [mut f32] }
        MeanPool: mean_pool { x: [f32], by: PoolGeometry, y: [mut f32] }
        MeanPoolBack: mean_pool_back { dy: [f32], by: PoolGeometry, dx: [mut f32] }
        SwapOuter: swap_outer { x: [f32], outer: u32, inner: u32, plane: u32, y: [mut f32] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::compiler::compile;

    #[test]
    fn all_kernels_compile_where_there_is_a_compiler() {
        // SAFETY: the call only loads a library by its name, which runs the library's initialisers.
        if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
            println!("skipped: this machine has no libnvrtc");
            return;
        }
        for (file, source) in Sources::new().all() {
            if let Err(error) = compile(source, "--gpu-architecture=compute_80") {
                panic!("{file}: {error}");
            }
        }
    }

    #[test]
    fn a_kernel_that_takes_something_else_does_not_compile() {
        // SAFETY: as in the test above.
        if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
            println!("skipped: this machine has no libnvrtc");
            return;
        }
        let other =
            "extern \"C\" __global__ void add_parts(const float* sums, u32 parts, float columns, float* gradient) {}";
        let source = prologue() + &Kernel::<AddParts>::declaration("add_parts") + other;
        assert!(compile(&source, "--gpu-architecture=compute_80").is_err());
    }
}
