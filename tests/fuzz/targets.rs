//! Fuzz targets that decode bytes and texts in memory.

use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use communicator::{checkpoint, link};
use protocol::job::JobDraft;
use protocol::job::data::DataSpec;
use protocol::job::model::{Layout, ModelSpec, Shape};
use protocol::log::batch::{Batch, Payload};
use protocol::log::bundle::Bundle;
use protocol::log::merged_range::MergedRange;
use protocol::weights::changes;
use protocol::weights::dense::Dense;
use protocol::weights::encoding::{self, Encoding};
use protocol::weights::lattice::Tau;
use protocol::weights::sums::Sums;
use protocol::wire;
use protocol::wire::control::Request;
use protocol::wire::flow::Flow;
use protocol::wire::frame;
use protocol::wire::snapshot::{self, Snapshot};
use serde::Serialize;
use serde::de::DeserializeOwned;
use worker::training::state_file;

use crate::engine::Check;

/// Number of weights of the model that batches are for.
pub(crate) const WEIGHTS: usize = 5_000;
/// Number of weights of the model that snapshots are of: few, because a snapshot contains all of them.
pub(crate) const SNAPSHOT_WEIGHTS: usize = 40;

pub(crate) fn batch(bytes: &[u8]) -> Option<Check> {
    let batch = Batch::decode(bytes, WEIGHTS).ok()?;
    Some(Box::new(move || {
        match &batch.payload {
            Payload::Steps { tau, changes } => changes::check(changes, WEIGHTS, *tau).unwrap(),
            Payload::Sums(sums) => assert!(Sums::checked(sums.entries().to_vec(), WEIGHTS).is_some()),
            Payload::Dense(dense) => {
                assert!(Dense::checked(dense.first(), dense.steps().to_vec(), WEIGHTS).is_some());
            }
        }
        let mut frame = Vec::new();
        batch.header.encode(&batch.payload, &mut frame).unwrap();
        // Compared as text, because a NaN loss is not equal to itself.
        let again = Batch::decode(&frame, WEIGHTS).unwrap();
        assert_eq!(format!("{again:?}"), format!("{batch:?}"));
    }))
}

pub(crate) fn bundle(bytes: &[u8]) -> Option<Check> {
    let bundle = Bundle::decode(bytes, WEIGHTS).ok()?;
    Some(Box::new(move || {
        assert_eq!(bundle.dense.digest(), bundle.digest());
        let again = Bundle::decode(&bundle.encode().unwrap(), WEIGHTS).unwrap();
        assert_eq!(format!("{again:?}"), format!("{bundle:?}"));
    }))
}

pub(crate) fn flow(bytes: &[u8]) -> Option<Check> {
    let flow = Flow::decode(bytes).ok()?;
    let address = Flow::addressed(bytes);
    Some(Box::new(move || {
        assert_eq!(address, Ok((flow.head.pipeline, flow.head.to)));
        let numbers = flow.numbers(flow.numbers.len() / 4);
        assert_eq!(numbers.is_ok(), flow.numbers.len().is_multiple_of(4));
        let again = Flow::decode(&flow.encode().unwrap()).unwrap();
        assert_eq!(format!("{again:?}"), format!("{flow:?}"));
    }))
}

pub(crate) fn merged_range(bytes: &[u8]) -> Option<Check> {
    let range = MergedRange::decode(bytes, WEIGHTS).ok()?;
    Some(Box::new(move || {
        assert_eq!(range.sums.digest(), range.header.digest);
        assert!(Sums::checked(range.sums.entries().to_vec(), WEIGHTS).is_some());
        assert_eq!(MergedRange::decode(&range.encode(), WEIGHTS), Ok(range));
    }))
}

pub(crate) fn snapshot(bytes: &[u8]) -> Option<Check> {
    let snapshot = snapshot::decode(bytes, SNAPSHOT_WEIGHTS)?;
    Some(Box::new(move || {
        let Snapshot { head, counts, log } = snapshot.clone();
        let again = snapshot::encode(head, counts.into(), &log).next(usize::MAX);
        assert_eq!(snapshot::decode(&again, SNAPSHOT_WEIGHTS), Some(snapshot));
    }))
}

pub(crate) fn checkpoint(bytes: &[u8]) -> Option<Check> {
    let found = checkpoint::decode(bytes, Path::new("some.checkpoint")).ok()?;
    Some(Box::new(move || {
        assert_eq!(found.snapshot.counts.len() as u64, found.snapshot.head.weights);
    }))
}

pub(crate) fn state_file(bytes: &[u8]) -> Option<Check> {
    let path = Path::new("some.state");
    let state = state_file::decode(path, bytes, bytes.len() as u64, SNAPSHOT_WEIGHTS).ok()?;
    Some(Box::new(move || {
        assert!(state.trainer.arrays.iter().all(|array| array.len() == SNAPSHOT_WEIGHTS));
    }))
}

/// Decodes changes: two bytes with their number, then the payload in this encoding.
pub(crate) fn encoding(encoding: Encoding, bytes: &[u8]) -> Option<Check> {
    let (count, payload) = bytes.split_first_chunk()?;
    let count = usize::from(u16::from_le_bytes(*count));
    let tau = Tau::ONE_STEP;
    let mut words = vec![7; 3];
    if encoding::decode(encoding, payload, count, WEIGHTS, tau, &mut words).is_err() {
        assert!(words.is_empty(), "a refused payload has left something");
        return None;
    }
    Some(Box::new(move || {
        changes::check(&words, WEIGHTS, tau).unwrap();
        assert_eq!(words.len(), count);
        let (mut payload, mut again) = (Vec::new(), Vec::new());
        assert!(encoding::encode(encoding, &words, &mut payload));
        encoding::decode(encoding, &payload, count, WEIGHTS, tau, &mut again).unwrap();
        assert_eq!(again, words);
    }))
}

pub(crate) fn frame_header(bytes: &[u8]) -> Option<Check> {
    let header = *bytes.first_chunk()?;
    let (kind, length) = frame::announced(header).ok()?;
    Some(Box::new(move || assert_eq!(frame::header(kind, length), Ok(header))))
}

/// Returns the result of a future that never waits, such as a read from memory.
fn at_once<T>(work: impl Future<Output = T>) -> T {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => panic!("it waits for bytes that are all there"),
    }
}

pub(crate) fn frame(bytes: &[u8]) -> Option<Check> {
    let mut rest = bytes;
    let (kind, contents) = at_once(link::read_frame(&mut rest)).ok()??;
    let read = bytes[..bytes.len() - rest.len()].to_vec();
    Some(Box::new(move || {
        let mut written = Vec::new();
        at_once(link::write_frame(&mut written, kind, &contents)).unwrap();
        assert_eq!(written, read);
    }))
}

/// Decodes a frame with the worker's reader, which must read the same bytes.
pub(crate) fn worker_frame(bytes: &[u8]) -> Option<Check> {
    let mut rest = bytes;
    let (kind, contents) = worker::process::read_frame(&mut rest).ok()??;
    let read = bytes[..bytes.len() - rest.len()].to_vec();
    Some(Box::new(move || {
        assert_eq!(
            frame::header(kind, contents.len()).unwrap(),
            read[..frame::HEADER_BYTES]
        );
        assert_eq!(contents, read[frame::HEADER_BYTES..]);
    }))
}

pub(crate) fn message(bytes: &[u8]) -> Option<Check> {
    let mut rest = bytes;
    let (message, length) = at_once(link::read_message(&mut rest)).ok()??;
    assert_eq!(length, bytes.len() - rest.len());
    Some(Box::new(move || {
        let mut written = Vec::new();
        at_once(link::write_message(&mut written, &message)).unwrap();
        let (again, _) = at_once(link::read_message(&mut &written[..])).unwrap().unwrap();
        // Compared as text, because a NaN loss is not equal to itself.
        assert_eq!(format!("{again:?}"), format!("{message:?}"));
    }))
}

pub(crate) fn hello(bytes: &[u8]) -> Option<Check> {
    let hello = at_once(link::read_hello(&mut &*bytes)).ok()?;
    Some(Box::new(move || {
        let mut written = Vec::new();
        at_once(link::write_hello(&mut written, &hello)).unwrap();
        assert_eq!(at_once(link::read_hello(&mut &written[..])).unwrap(), hello);
    }))
}

/// Decodes a message of type `T` in postcard.
pub(crate) fn wire<T: Serialize + DeserializeOwned + 'static>(bytes: &[u8]) -> Option<Check> {
    let value: T = wire::decode(bytes).ok()?;
    // Compared as bytes, because values with NaN are not equal to themselves.
    Some(Box::new(move || {
        let written = wire::encode(&value).unwrap();
        let again: T = wire::decode(&written).unwrap();
        assert_eq!(wire::encode(&again).unwrap(), written);
    }))
}

pub(crate) fn job(bytes: &[u8]) -> Option<Check> {
    let job = JobDraft::from_toml(str::from_utf8(bytes).ok()?).ok()?.resolve().ok()?;
    Some(Box::new(move || {
        assert_eq!(JobDraft::from(&job).resolve().unwrap(), job);
        let request = Request::StartTraining {
            job: Box::new(job),
            allow_partial: false,
        };
        let written = wire::encode(&request).unwrap();
        assert_eq!(wire::decode::<Request>(&written).unwrap(), request);
    }))
}

pub(crate) fn data(bytes: &[u8]) -> Option<Check> {
    let spec: DataSpec = str::from_utf8(bytes).ok()?.parse().ok()?;
    Some(Box::new(move || assert_eq!(spec.to_string().parse(), Ok(spec))))
}

/// Parses a model and lays it out for inputs of usual and unusual shapes.
pub(crate) fn model(bytes: &[u8]) -> Option<Check> {
    const CLASSES: usize = 3;
    let image = |channels, height, width| Shape::Image {
        channels,
        height,
        width,
    };
    let model: ModelSpec = str::from_utf8(bytes).ok()?.parse().ok()?;
    for input in [
        Shape::Flat(4),
        image(1, 28, 28),
        image(3, 32, 1),
        Shape::Flat(0),
        image(0, 1, usize::MAX),
        image(usize::MAX, usize::MAX, 0),
        image(1 << 32, 1 << 32, 1 << 32),
    ] {
        if let Ok(layout) = Layout::new(&model, input, CLASSES) {
            let ranges = layout.tensors.iter().map(protocol::job::model::TensorSlot::range);
            let end = ranges.fold(0, |end, range| {
                assert_eq!(range.start, end);
                range.end
            });
            assert_eq!(layout.weights, end);
            assert!(layout.training_bytes(1 << 16, 2) > 0);
        }
    }
    Some(Box::new(move || assert_eq!(model.to_string().parse(), Ok(model))))
}
