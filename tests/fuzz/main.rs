//! Every decoder that takes bytes from outside, fed with bytes that nobody meant.
//!
//! As a test each target gets a fixed number of inputs, the same ones every time. By hand, for longer and with new ones:
//!
//! ```text
//! TAU_FUZZ_SECONDS=600 cargo test -p tau --test fuzz -- --nocapture --test-threads=2 [TARGET]
//! ```
//!
//! A failure prints the command that replays it (`TAU_FUZZ_SEED`), and the input, which belongs into `tests/corpus` once
//! the fault is mended. `TAU_FUZZ_CORPUS=write cargo test -p tau --test fuzz corpus` makes that folder anew, which is due
//! when a format changes. Files whose names begin with `refused-` are not valid and not made: they stay as they are.

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

/// Messages in postcard: an empty text takes a byte on the wire and 24 in memory, three times that while a list grows. A
/// list begins with as many entries as it says it has, if that many bytes follow, but with no more than a megabyte of them.
const MESSAGE: Bound = Bound::new(2 << 20, 128);
/// Frames are read in pieces of 64 KiB.
const FRAME: Bound = Bound::new(256 << 10, 4);
/// Texts become values, and messages that repeat them.
const TEXT: Bound = Bound::new(64 << 10, 256);

/// The table of targets: a test each.
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
    // name: what is put right after a change, how long one takes, the memory that is allowed, the decoder
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
    // Compressed zeros grow by a factor of a thousand; growing by doubling takes three times that for a moment.
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
