//! Valid values of every kind, from which the corpus is generated, with one file for each kind of format.

mod archives;
mod attached;
mod batches;
mod control;
mod datasets;
mod frames;
mod handshakes;
mod model_files;
mod ranges;
mod texts;
mod values;

pub(crate) use archives::png;
pub(crate) use datasets::{TRAIN_IMAGES, TRAIN_LABELS, idx_files};

/// Regenerates the corpus if `TAU_FUZZ_CORPUS` is set.
pub(crate) fn write_if_asked() {
    if std::env::var("TAU_FUZZ_CORPUS").is_err() {
        return;
    }
    batches::batches();
    ranges::ranges();
    frames::frames();
    control::control();
    attached::attached();
    texts::texts();
    model_files::model_files();
    datasets::datasets();
    archives::archives();
    handshakes::handshakes();
}
