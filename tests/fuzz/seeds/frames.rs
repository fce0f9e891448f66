//! Frames of the data plane and their contents, for the corpus.

use protocol::ids::{NodeId, OriginId, RunId};
use protocol::log::frontier::SequenceRange;
use protocol::weights::digest::Digest;
use protocol::weights::encoding;
use protocol::wire;
use protocol::wire::flow::{EvalBatch, EvalTotals, Flow, FlowBody, FlowHead, Lead};
use protocol::wire::frame;
use protocol::wire::frame::Kind;
use protocol::wire::link::Hello;
use protocol::wire::link::Note;
use protocol::wire::link::{Message, OriginInfo, ParcelKind, Piece};
use protocol::wire::part::{PartHead, RoundPart};
use protocol::wire::prefix::{Prefix, PrefixHead};

use super::batches::{batch, bundle, changes, steps};
use super::ranges::merged_range;
use super::values::frontier;
use crate::engine::add_to_corpus;

fn framed(kind: Kind, contents: &[u8]) -> Vec<u8> {
    let mut bytes = frame::header(kind, contents.len()).unwrap().to_vec();
    bytes.extend_from_slice(contents);
    bytes
}

pub(super) fn frames() {
    flows();
    let hello = [
        Hello::Link {
            version: "0.1.0".into(),
            run: RunId(9),
            from: NodeId(1 << 40),
            to: NodeId(5),
        },
        Hello::Accepted { from: NodeId(5) },
        Hello::Model { run: RunId(9) },
    ];
    for (name, hello) in ["link", "accepted", "model"].into_iter().zip(&hello) {
        let contents = wire::encode(hello).unwrap();
        add_to_corpus("hello_contents", name, &contents);
        add_to_corpus("hello", name, &framed(Kind::Hello, &contents));
    }
    let origin = OriginInfo {
        origin: OriginId(7),
        node: NodeId(5),
        slot: 2,
        ended: Some(300),
    };
    let mark = Note::Mark {
        number: 300,
        frontier: frontier(),
        members: vec![NodeId(5), NodeId(1 << 60)],
    };
    let marked = Note::Marked {
        number: 300,
        except: vec![OriginId(7), OriginId(1 << 60)],
    };
    let range = SequenceRange {
        origin: OriginId(7),
        from: 2,
        to: 300,
    };
    let piece = Piece {
        kind: ParcelKind::Range,
        total: 1 << 20,
        offset: 70_000,
        bytes: merged_range().encode().into(),
    };
    let bundle = bundle();
    let mut steps_of_part = Vec::new();
    encoding::write_dense(&bundle.dense, &mut steps_of_part);
    let part = RoundPart {
        head: PartHead {
            round: 12,
            members: 1 << 60,
            piece: 3,
            whole: true,
            headers: bundle.headers,
        },
        steps: steps_of_part.clone().into(),
    };
    let prefix = Prefix {
        head: PrefixHead {
            pass: 12,
            shared: Digest(1 << 60),
            from: OriginId(7),
            to: OriginId(1 << 60),
            count: 3,
        },
        steps: steps_of_part.into(),
    };
    let messages = [
        ("batch", Message::Batch(batch(&steps(&changes()[1].1), 2).into())),
        ("have", Message::Have(frontier())),
        ("origin", Message::Origin(origin)),
        ("mark", Message::Note(mark)),
        ("marked", Message::Note(marked)),
        ("cannot", Message::Note(Note::Cannot(range))),
        ("ask", Message::Note(Note::Ask)),
        ("newcomer", Message::Note(Note::Newcomer)),
        ("links", Message::Note(Note::Links(vec![NodeId(3), NodeId(4)]))),
        ("piece", Message::Piece(piece)),
        ("part", Message::Part(part)),
        ("prefix", Message::Prefix(prefix)),
        ("flow", Message::Flow(flow(FlowBody::Join).encode().unwrap().into())),
    ];
    for (name, message) in messages {
        let (kind, contents) = message.encode().unwrap();
        add_to_corpus("message", name, &framed(kind, &contents));
        add_to_corpus("frame", name, &framed(kind, &contents));
    }
    for (name, kind) in [
        ("message", Kind::Message),
        ("piece", Kind::Piece),
        ("hello", Kind::Hello),
    ] {
        add_to_corpus("frame", name, &framed(kind, b"some contents"));
        add_to_corpus("worker_frame", name, &framed(kind, b"some contents"));
        add_to_corpus("frame_header", name, &frame::header(kind, 700).unwrap());
    }
}

/// Writes the messages between the workers of a pipeline.
fn flows() {
    let lead = Lead {
        step: 7,
        key: 1 << 60,
        learning_rate: 0.01,
        micro_batches: 4,
        samples: vec![3, 1 << 20],
        cursors: Vec::new(),
    };
    let measured = EvalBatch {
        number: 1,
        layer_range: 1,
        samples: vec![1, 2],
        last: false,
    };
    for (name, word) in [
        ("call", FlowBody::Join),
        ("lead", FlowBody::Lead(Box::new(lead))),
        (
            "there",
            FlowBody::Forward {
                step: 8,
                micro_batch: 3,
                layer_range: 1,
            },
        ),
        (
            "back",
            FlowBody::Backward {
                step: 8,
                micro_batch: 3,
                layer_range: 1,
                loss: 0.5,
            },
        ),
        ("measure", FlowBody::Measure(measured)),
        ("judged", FlowBody::EvalTotals(EvalTotals::default())),
        ("end", FlowBody::End { done: 7 }),
    ] {
        add_to_corpus("flow", name, &flow(word).encode().unwrap());
    }
}

/// Returns a message between workers of a pipeline, with three numbers as its payload.
fn flow(body: FlowBody) -> Flow {
    let head = FlowHead {
        pipeline: 2,
        to: 1,
        from: 0,
        generation: 1 << 60,
        body,
    };
    Flow::with(head, &[1.0, -0.5, f32::MAX])
}
