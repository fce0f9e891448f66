//! What host and kernels share, declared once: the tables here are Rust's types and, written out in C++ in front of the
//! kernels' files, the kernels' own. Layouts are checked when Rust is compiled, kernels' parameters when they are.

use std::ffi::c_void;
use std::fmt::Write as _;
use std::marker::PhantomData;

use cudarc::driver::{CudaFunction, DeviceRepr, ValidAsZeroBits};
use protocol::job::model::Activation;

use crate::backend::{self, turns::BLOCK};
use crate::learning::optimiser;
use crate::model::ops::orthogonal;
use crate::trainer::quantise::repeats_max;

/// What a type is called in C++.
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

/// A kernel's parameter in C++: `[T]` is an array that it reads, `[mut T]` one that it writes.
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

/// The same in Rust. Floats that are read in fours lie like others.
macro_rules! parameter {
    ([$(mut)? f32x4]) => { DeviceAddress<f32> };
    ([mut $kind:ident]) => { DeviceAddress<$kind> };
    ([$kind:ident]) => { DeviceAddress<$kind> };
    ($kind:ident) => { $kind };
}

/// Declares structs for both sides. Fields follow each other without gaps, which is asserted: then C++ lays them out alike.
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

            // SAFETY: it is `repr(C)` without gaps, and consists of numbers.
            unsafe impl DeviceRepr for $name {}
            // SAFETY: zeros are numbers.
            unsafe impl ValidAsZeroBits for $name {}
        )+

        /// All structs in C++, with the sizes that Rust gives them.
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

/// Declares numbers for both sides.
macro_rules! shared_constants {
    ($($(#[$about:meta])* const $name:ident: $kind:ident = $value:expr;)+) => {
        $($(#[$about])* pub(super) const $name: $kind = $value;)+

        /// All numbers in C++.
        fn constants() -> String {
            let mut text = String::new();
            // A double writes out every float in full.
            $(let _ = writeln!(text, "constexpr {} {} = {};", c_name!($kind), stringify!($name), f64::from($name));)+
            text
        }
    };
}

shared_constants! {
    /// Threads of a block that goes through a tile of [`BLOCK`] weights, four each.
    const TILE_THREADS: u32 = (BLOCK / 4) as u32;
    /// Tiles whose counts are added up in one.
    const GROUP: u32 = 64;
    /// Segments of others' changes that are applied in one go.
    const SEGMENTS_MAX: u32 = 32;
    /// The most rows of a block that is made orthogonal here.
    const SIDE: u32 = 64;
    /// The iteration's polynomial, and what keeps zeros what they are.
    const MUON_A: f32 = orthogonal::COEFFICIENTS[0];
    const MUON_B: f32 = orthogonal::COEFFICIENTS[1];
    const MUON_C: f32 = orthogonal::COEFFICIENTS[2];
    const MUON_EPSILON: f32 = orthogonal::EPSILON;
    /// State of an optimiser that becomes zero.
    const NEGLIGIBLE: f32 = optimiser::NEGLIGIBLE;
    /// Where weights are no longer exact.
    const RANGE_ERROR: f32 = protocol::weights::lattice::RANGE_ERROR_STEPS as f32 * protocol::weights::lattice::LATTICE_STEP;
    /// What becomes of a count of lattice steps for a weight of 1.
    const STEPS_PER_UNIT: f32 = protocol::weights::lattice::STEPS_PER_UNIT as f32;
    /// A step of the lattice.
    const LATTICE_STEP: f32 = protocol::weights::lattice::LATTICE_STEP;
}

shared_structs! {
    /// What a step tells its host.
    struct Report {
        /// Changes that leave.
        words: u32,
        /// Whether something was infinite or no number: then nothing leaves.
        not_finite: u32,
        /// The largest magnitude among the shared weights that were moved, as bits.
        largest: u32,
        /// The mean loss.
        loss: f32,
        /// What the gradient is multiplied by before it is used.
        clip: f32,
        /// Whether a change would have taken a weight out of the range: then nothing leaves.
        left_range: u32,
    }

    /// The numbers of an optimiser's rule; each uses its own.
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

    /// A comparison of both copies. Without a τ there is none.
    struct Compare {
        tau: f32,
        /// The multiple of the velocity that the own weights are ahead.
        ahead: f32,
        /// How often a weight may change in one batch.
        repeats: u32,
        /// The tiles whose turn it is.
        turn_from: u32,
        turn_to: u32,
    }

    /// A block of a matrix that is made orthogonal, seen from the side from which it is not taller than wide.
    struct Block {
        /// Where it begins among the weights.
        offset: u32,
        /// Its rows, [`SIDE`] at most.
        size: u32,
        /// Its columns.
        length: u32,
        /// From a row to the next.
        across: u32,
        /// From a column to the next.
        along: u32,
        /// The number of its first run.
        first_run: u32,
        /// How many it has.
        runs: u32,
        /// Which it is of the whole model's, which says whose turn it is.
        number: u32,
        /// What its orthogonal update is multiplied by.
        scale: f32,
    }

    /// Some columns of a block, for one block of threads.
    struct Run {
        block: u32,
        /// Its first column.
        first: u32,
        /// The one after its last.
        end: u32,
    }

    /// Whose turn it is: every so many-th block's.
    struct Turns {
        /// The number of the step, beyond whole rounds of turns.
        step: u32,
        every: u32,
    }

    /// Some of what others changed, sorted by weight: entries that are words of changes by τ, or, where τ is 0, words
    /// followed by as many numbers of lattice steps.
    struct Segment {
        /// The entries of all segments before it.
        entries_before: u32,
        /// Its own entries.
        count: u32,
        /// The place of the first among all words.
        from: u32,
        tau: f32,
    }

    /// How a minibatch of images lies: channel by channel, and within a channel sample by sample. Rows are one channel.
    struct Images {
        channels: u32,
        samples: u32,
        plane: u32,
    }

    /// The sizes of a convolution, for a minibatch.
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

    /// The sizes of a pooling layer, for a minibatch: windows of `tall` rows and `wide` columns, side by side, in `planes`
    /// of `height` by `width`.
    struct PoolGeometry {
        planes: u32,
        height: u32,
        width: u32,
        tall: u32,
        wide: u32,
    }

    /// Which numbers of a minibatch make a set, and which gain each of them has.
    ///
    /// Set `s` begins at `s / inner * outer_step + s % inner * inner_step`, and is `chunks` runs of `chunk` numbers, each
    /// `chunk_step` after the last. Its numbers have the gains from `s / gain_sets % gain_groups * gain_step` on, each for
    /// `per_gain` of them.
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
        /// Blocks that share a set.
        parts: u32,
        /// Whether relu follows.
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

/// The arguments of a kernel, or of several that take the same.
pub(super) trait Arguments {
    /// Its parameters in C++.
    const PARAMETERS: &'static str;

    /// Calls with where each argument lies, in order.
    fn with_pointers<R>(self, call: impl FnOnce(&mut [*mut c_void]) -> R) -> R;
}

/// A kernel that takes such arguments and no others.
pub(super) struct Kernel<A> {
    pub(super) function: CudaFunction,
    takes: PhantomData<A>,
}

impl<A: Arguments> Kernel<A> {
    /// A compiled function, whose parameters were compared with those of its arguments when it was compiled.
    pub(super) fn new(function: CudaFunction) -> Self {
        Self {
            function,
            takes: PhantomData,
        }
    }

    /// Its declaration. The compiler refuses a definition that differs.
    pub(super) fn declaration(name: &str) -> String {
        let parameters = A::PARAMETERS.trim_end_matches(", ");
        format!("extern \"C\" __global__ void {name}({parameters});\n")
    }
}

/// What is written in front of all kernels' files.
pub(super) fn prologue() -> String {
    let types = "typedef unsigned char u8;\ntypedef unsigned int u32;\ntypedef unsigned long long u64;\n";
    [types, &constants(), &activations(), &structs()].concat()
}

/// The activations as C++ numbers: `ACTIVATION_relu` and so on, in the order of [`Activation::ALL`].
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
