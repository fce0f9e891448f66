//! Structs, constants and kernel signatures shared by host and kernels, declared once: the macros here define the Rust
//! types and write the same declarations in C++ in front of the kernel files. Rust's compiler checks struct layouts,
//! NVIDIA's the kernels' parameters.

use std::ffi::c_void;
use std::fmt::Write as _;
use std::marker::PhantomData;

use cudarc::driver::{CudaFunction, DeviceRepr, ValidAsZeroBits};
use protocol::job::model::Activation;

use crate::backend::{self, turns::BLOCK};
use crate::learning::optimiser;
use crate::model::ops::orthogonal;
use crate::trainer::quantise::repeats_max;

/// Expands to the C++ name of a type.
macro_rules! c_name {
    (u8) => {
        "u8"
    };
    (u32) => {
        "u32"
    };
    (u64) => {
        "u64"
    };
    (f32) => {
        "float"
    };
    (f64) => {
        "double"
    };
    (f32x4) => {
        "float4"
    };
    ($other:ident) => {
        stringify!($other)
    };
}

/// Expands to a kernel parameter in C++: `[T]` is an array that the kernel reads, `[mut T]` one that it writes.
macro_rules! c_parameter {
    ([mut $kind:ident]) => {
        concat!(c_name!($kind), "*")
    };
    ([$kind:ident]) => {
        concat!("const ", c_name!($kind), "*")
    };
    ($kind:ident) => {
        c_name!($kind)
    };
}

/// Expands to the Rust type of a kernel parameter. Arrays of `float4` have the same layout as arrays of `f32`.
macro_rules! parameter {
    ([$(mut)? f32x4]) => { DeviceAddress<f32> };
    ([mut $kind:ident]) => { DeviceAddress<$kind> };
    ([$kind:ident]) => { DeviceAddress<$kind> };
    ($kind:ident) => { $kind };
}

/// Declares structs for Rust and C++. Fields must follow each other without gaps, which is asserted: then both layouts
/// are equal.
macro_rules! shared_structs {
    ($($(#[$about:meta])* struct $name:ident { $($(#[$of_field:meta])* $field:ident: $kind:ident,)+ })+) => {
        $(
            $(#[$about])*
            #[derive(Clone, Copy, Debug, Default, PartialEq)]
            #[repr(C)]
            pub(super) struct $name { $($(#[$of_field])* pub(super) $field: $kind,)+ }

            const _: () = {
                let mut at = 0;
                $(
                    assert!(std::mem::offset_of!($name, $field) == at);
                    at += size_of::<$kind>();
                )+
                assert!(size_of::<$name>() == at);
            };

            // SAFETY: the struct is `repr(C)` without gaps, and all its fields are numbers.
            unsafe impl DeviceRepr for $name {}
            // SAFETY: zero is a valid value of all number types.
            unsafe impl ValidAsZeroBits for $name {}
        )+

        /// Returns the C++ declarations of all structs that Rust and the kernels share, with assertions of their sizes
        /// in Rust.
        fn structs() -> String {
            let mut text = String::new();
            $(
                text += concat!(
                    "struct ", stringify!($name), " {\n",
                    $("    ", c_name!($kind), " ", stringify!($field), ";\n",)+
                    "};\n",
                );
                let _ = writeln!(text, "static_assert(sizeof({}) == {});", stringify!($name), size_of::<$name>());
            )+
            text
        }
    };
}

/// Declares constants for Rust and for the CUDA kernels in C++.
macro_rules! shared_constants {
    ($($(#[$about:meta])* const $name:ident: $kind:ident = $value:expr;)+) => {
        $($(#[$about])* pub(super) const $name: $kind = $value;)+

        /// Returns the C++ declarations of all constants that Rust and the kernels share.
        fn constants() -> String {
            let mut text = String::new();
            // Formatting as f64 writes every f32 exactly.
            $(let _ = writeln!(text, "constexpr {} {} = {};", c_name!($kind), stringify!($name), f64::from($name));)+
            text
        }
    };
}

shared_constants! {
    /// Number of GPU threads that handle one tile of [`BLOCK`] weights, four weights per thread.
    const TILE_THREADS: u32 = (BLOCK / 4) as u32;
    /// Number of tiles (blocks of weights) in a group. The changes to emit are counted for each tile and for each
    /// group.
    const GROUP: u32 = 64;
    /// Most segments (pieces of other workers' changes) that one kernel launch applies.
    const SEGMENTS_MAX: u32 = 32;
    /// Most rows of a matrix block that the GPU makes orthogonal (Muon).
    const SIDE: u32 = 64;
    /// The coefficients of Muon's polynomial iteration are `MUON_A`, `MUON_B` and `MUON_C`; `MUON_EPSILON` keeps a zero
    /// gradient zero.
    const MUON_A: f32 = orthogonal::COEFFICIENTS[0];
    const MUON_B: f32 = orthogonal::COEFFICIENTS[1];
    const MUON_C: f32 = orthogonal::COEFFICIENTS[2];
    const MUON_EPSILON: f32 = orthogonal::EPSILON;
    /// Magnitude below which a number of the optimiser's state is set to zero, as on the CPU, which is slow with tiny
    /// numbers.
    const NEGLIGIBLE: f32 = optimiser::NEGLIGIBLE;
    /// Magnitude of a weight from which on sums of weights are no longer exact, so the run fails.
    const RANGE_ERROR: f32 = protocol::weights::lattice::RANGE_ERROR_STEPS as f32 * protocol::weights::lattice::LATTICE_STEP;
    /// Number of steps of `LATTICE_STEP` in a weight of 1.
    const STEPS_PER_UNIT: f32 = protocol::weights::lattice::STEPS_PER_UNIT as f32;
    /// Step between two neighbouring values of a shared weight: shared weights are multiples of it.
    const LATTICE_STEP: f32 = protocol::weights::lattice::LATTICE_STEP;
}

shared_structs! {
    /// Results of a step that the kernels report to the host.
    struct Report {
        /// Number of weight changes that the step has emitted.
        words: u32,
        /// Nonzero if the step met an infinite number or NaN; then the step emits nothing.
        not_finite: u32,
        /// Largest magnitude of the shared weights that moved, as the bits of a float. By it the host checks that the
        /// weights are within the safe range.
        largest: u32,
        /// Mean loss of the minibatch.
        loss: f32,
        /// Factor by which the gradient is scaled for clipping.
        clip: f32,
        /// Nonzero if a change would have taken a weight out of the allowed range; then the step emits nothing.
        left_range: u32,
    }

    /// Coefficients of an optimiser rule; each rule uses some of them.
    struct Factors {
        rate: f32,
        momentum: f32,
        of_gradient: f32,
        of_velocity: f32,
        ahead_before: f32,
        keep: f32,
        take: f32,
        epsilon: f32,
        spread: f32,
        shrink: f32,
    }

    /// Settings of a comparison of own and shared weights; `tau` is 0 if a step compares none.
    struct Compare {
        tau: f32,
        /// Look-ahead of the own weights: the multiple of the velocity by which they are ahead of the optimiser's
        /// weights.
        ahead: f32,
        /// Largest number of changes by ±τ that one weight may have in one batch.
        repeats: u32,
        /// First tile (block of weights) that the step compares; `turn_to` is the tile after the last one.
        turn_from: u32,
        turn_to: u32,
    }

    /// A matrix block to be made orthogonal (Muon), transposed if necessary so that it has at most as many rows as
    /// columns.
    struct Block {
        /// Index in the model of the matrix block's first weight.
        offset: u32,
        /// Number of rows of the matrix block, at most [`SIDE`].
        size: u32,
        /// Number of columns of the matrix block.
        length: u32,
        /// Distance in weights from one row of the matrix block to the next.
        across: u32,
        /// Distance in weights from one column of the matrix block to the next.
        along: u32,
        /// Index of the first of the runs (groups of columns) that the matrix block is cut into.
        first_run: u32,
        /// Number of runs (groups of columns) that the matrix block is cut into.
        runs: u32,
        /// Number of the matrix block in the whole model, which decides in which steps Muon updates it.
        number: u32,
        /// Factor by which the orthogonal update of the matrix block is scaled.
        scale: f32,
    }

    /// Some columns of a matrix block (Muon), handled by one thread block.
    struct Run {
        block: u32,
        /// Index in the matrix block of the first column of this run (group of columns).
        first: u32,
        /// Index in the matrix block after the last column of this run (group of columns).
        end: u32,
    }

    /// Determines the matrix blocks that Muon updates in a step: every `every`-th one.
    struct Turns {
        /// Number of the training step, modulo `every`.
        step: u32,
        every: u32,
    }

    /// A piece of other workers' weight changes on the GPU, sorted by index of the weight. If `tau` is not 0, all its
    /// weights move by ±`tau` and an entry is an index with a sign; if it is 0, an entry is an index and its own
    /// movement, as a multiple of `LATTICE_STEP`.
    struct Segment {
        /// Number of entries (movements of weights) in all segments before this one.
        entries_before: u32,
        /// Number of entries (movements of weights) in the segment.
        count: u32,
        /// Index of the segment's first word among the words of all segments.
        from: u32,
        tau: f32,
    }

    /// Sizes of a minibatch of images, and so their layout in memory: by channel, and within a channel by sample.
    /// Samples that are plain rows of numbers count as images of one channel.
    struct Images {
        channels: u32,
        samples: u32,
        plane: u32,
    }

    /// Sizes of a convolution over a minibatch.
    struct ConvGeometry {
        channels: u32,
        height: u32,
        width: u32,
        kernel: u32,
        stride: u32,
        pad: u32,
        rows: u32,
        columns: u32,
        samples: u32,
    }

    /// Sizes of a pooling layer over a minibatch: adjacent windows of `tall` rows and `wide` columns, in `planes`
    /// images of `height` by `width`.
    struct PoolGeometry {
        planes: u32,
        height: u32,
        width: u32,
        tall: u32,
        wide: u32,
    }

    /// Sets of numbers in a minibatch that are normalised together, and the gain of each number.
    ///
    /// Set `s` begins at `s / inner * outer_step + s % inner * inner_step`, and consists of `chunks` runs of `chunk`
    /// numbers, each `chunk_step` after the one before. The gains of its numbers begin at
    /// `s / gain_sets % gain_groups * gain_step`, and each gain applies to `per_gain` numbers.
    struct NormSets {
        sets: u32,
        inner: u32,
        outer_step: u32,
        inner_step: u32,
        chunks: u32,
        chunk: u32,
        chunk_step: u32,
        gain_sets: u32,
        gain_groups: u32,
        gain_step: u32,
        per_gain: u32,
        /// Number of thread blocks that share the work on one set of numbers to normalise.
        parts: u32,
        /// Nonzero if relu follows the normalisation.
        relu: u32,
    }
}

impl From<&backend::Compare> for Compare {
    fn from(compare: &backend::Compare) -> Self {
        Self {
            tau: compare.tau.value(),
            ahead: compare.ahead,
            repeats: repeats_max(compare.tau),
            turn_from: (compare.turn.start / BLOCK) as u32,
            turn_to: compare.turn.end.div_ceil(BLOCK) as u32,
        }
    }
}

impl From<optimiser::Factors> for Factors {
    fn from(factors: optimiser::Factors) -> Self {
        let optimiser::Factors {
            rate,
            momentum,
            of_gradient,
            of_velocity,
            ahead_before,
            keep,
            take,
            epsilon,
            spread,
            shrink,
        } = factors;
        Self {
            rate,
            momentum,
            of_gradient,
            of_velocity,
            ahead_before,
            keep,
            take,
            epsilon,
            spread,
            shrink,
        }
    }
}

/// The arguments of one kernel, or of several with the same parameters.
pub(super) trait Arguments {
    /// Parameter list of the kernel in C++.
    const PARAMETERS: &'static str;

    /// Calls `call` with a pointer to each of the kernel's arguments, in order.
    fn with_pointers<R>(self, call: impl FnOnce(&mut [*mut c_void]) -> R) -> R;
}

/// A compiled kernel that takes arguments of type `A`.
pub(super) struct Kernel<A> {
    pub(super) function: CudaFunction,
    takes: PhantomData<A>,
}

impl<A: Arguments> Kernel<A> {
    /// Wraps a compiled function. The C++ compiler has checked its parameters against the declaration.
    pub(super) fn new(function: CudaFunction) -> Self {
        Self {
            function,
            takes: PhantomData,
        }
    }

    /// Returns the kernel's C++ declaration; the compiler refuses a definition that differs from it.
    pub(super) fn declaration(name: &str) -> String {
        let parameters = A::PARAMETERS.trim_end_matches(", ");
        format!("extern \"C\" __global__ void {name}({parameters});\n")
    }
}

/// Returns the C++ declarations that precede every kernel file.
pub(super) fn prologue() -> String {
    let types = "typedef unsigned char u8;\ntypedef unsigned int u32;\ntypedef unsigned long long u64;\n";
    [types, &constants(), &activations(), &structs()].concat()
}

/// Returns the activations as a C++ enum: `ACTIVATION_relu` and so on, in the order of [`Activation::ALL`].
fn activations() -> String {
    let names = Activation::ALL.map(|activation| format!("ACTIVATION_{}", activation.name()));
    format!("enum ActivationKind {{ {} }};\n", names.join(", "))
}

pub(super) use {c_name, c_parameter, parameter};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_have_the_same_numbers() {
        let text = prologue();
        assert!(text.contains("constexpr u32 TILE_THREADS = 256;"), "{text}");
        assert!(text.contains("constexpr float RANGE_ERROR = 16;"), "{text}");
        assert!(text.contains("struct Images {\n    u32 channels;\n    u32 samples;\n    u32 plane;\n};"));
        assert!(text.contains("static_assert(sizeof(Report) == 24);"));
    }
}
