//! Fuzz test: feeds every decoder of outside data with mutated inputs.
//!
//! As a test each target gets a fixed number of inputs, the same ones every time. By hand, for longer and with new
//! inputs:
//!
//! ```text
//! TAU_FUZZ_SECONDS=600 cargo test -p tau --test fuzz -- --nocapture --test-threads=2 [TARGET]
//! ```
//!
//! A failure prints the command that replays it (`TAU_FUZZ_SEED`), and the input, which should be added to
//! `tests/corpus` once the fault is fixed. `TAU_FUZZ_CORPUS=write cargo test -p tau --test fuzz corpus` regenerates
//! that folder, which is needed when a format changes. Files whose names begin with `refused-` are invalid and not
//! generated: they stay as they are.

mod doors;
mod engine;
mod files;
mod memory;
mod mutate;
mod seeds;
mod targets;

use protocol::weights::encoding::Encoding;
use protocol::wire::attach::{FromWorker, ToWorker};
use protocol::wire::control::{ControlMessage, Reply, Request};
use protocol::wire::link::Hello;

use engine::{Target, Work};
use memory::Bound;
use mutate::Form;

/// Memory bound of a message in postcard: an empty text takes one byte on the wire and 24 in memory, and three times
/// that while a list grows. A list is allocated with its declared number of entries if that many bytes follow, but with
/// at most a megabyte.
const MESSAGE: Bound = Bound::new(2 << 20, 128);
/// Memory bound of a frame, which is read in pieces of 64 KiB.
const FRAME: Bound = Bound::new(256 << 10, 4);
/// Memory bound of a text, for its values and the error messages that repeat them.
const TEXT: Bound = Bound::new(64 << 10, 256);

/// Defines the table of targets, and a test for each.
macro_rules! targets {
    ($($name:ident: $form:ident, $work:ident, $bound:expr, $decode:expr;)*) => {
        const TARGETS: &[Target] = &[$(Target {
            name: stringify!($name),
            form: Form::$form,
            work: Work::$work,
            bound: $bound,
            decode: $decode,
        }),*];

        $(
            #[test]
            fn $name() {
                engine::fuzz(stringify!($name));
            }
        )*
    };
}

targets! {
    // name: the part that is repaired after a mutation, the cost of an execution, the memory bound, the decoder
    batch: Checksum, Light, Bound::new(4 << 10, 16), targets::batch;
    encoding_fixed: Plain, Light, Bound::new(1 << 10, 16), |bytes| targets::encoding(Encoding::Fixed, bytes);
    encoding_rice: Plain, Light, Bound::new(1 << 10, 16), |bytes| targets::encoding(Encoding::Rice, bytes);
    encoding_bitmap: Plain, Light, Bound::new(1 << 10, 16), |bytes| targets::encoding(Encoding::Bitmap, bytes);
    merged_range: Checksum, Light, Bound::new(64 << 10, 64), targets::merged_range;
    bundle: Checksum, Light, Bound::new(64 << 10, 160), targets::bundle;
    snapshot: Plain, Light, MESSAGE, targets::snapshot;
    checkpoint: Checksum, Light, MESSAGE, targets::checkpoint;
    state_file: Checksum, Light, MESSAGE, targets::state_file;
    frame_header: Plain, Light, Bound::new(1 << 10, 0), targets::frame_header;
    frame: Frame, Light, FRAME, targets::frame;
    worker_frame: Frame, Light, FRAME, targets::worker_frame;
    message: Frame, Light, Bound::new(256 << 10, 64), targets::message;
    flow: Plain, Light, MESSAGE, targets::flow;
    hello: Frame, Light, FRAME, targets::hello;
    hello_contents: Plain, Light, MESSAGE, targets::wire::<Hello>;
    control_message: Plain, Light, MESSAGE, targets::wire::<ControlMessage>;
    request: Plain, Light, MESSAGE, targets::wire::<Request>;
    reply: Plain, Light, MESSAGE, targets::wire::<Reply>;
    from_worker: Plain, Light, MESSAGE, targets::wire::<FromWorker>;
    to_worker: Plain, Light, MESSAGE, targets::wire::<ToWorker>;
    job: Plain, Light, TEXT, targets::job;
    data: Plain, Light, TEXT, targets::data;
    model: Plain, Light, TEXT, targets::model;
    model_file: SafeTensors, Light, TEXT, files::model;
    stages: SafeTensors, Light, TEXT, files::stages;
    // Compressed zeros expand by a factor of a thousand, and a vector that grows by doubling briefly takes three times
    // its size.
    idx: Plain, Files, Bound::new(256 << 10, 3 << 10), files::idx;
    csv: Plain, Files, Bound::new(1 << 20, 16 << 10), files::csv;
    // A row of a few bytes has as many inputs as there are categories.
    table: Plain, Files, Bound::new(1 << 20, 32 << 10), files::table;
    npz: Plain, Files, Bound::new(1 << 20, 16 << 10), files::npz;
    cifar: Plain, Files, Bound::new(256 << 10, 16), files::cifar;
    image: Plain, Files, Bound::new(64 << 20, 1 << 12), files::image;
    credentials: Plain, Files, Bound::new(256 << 10, 64), files::credentials;
    accept: TlsRecord, Network, Bound::new(1 << 20, 64), doors::accept;
    dial: TlsRecord, Network, Bound::new(1 << 20, 64), doors::dial;
}

#[test]
fn the_corpus_is_valid() {
    seeds::write_if_asked();
    for target in TARGETS {
        engine::check_corpus(target);
    }
}
