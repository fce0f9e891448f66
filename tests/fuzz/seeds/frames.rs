//! Frames of the data plane, and what they carry.

use communicator::exchange::Word as Note;
use communicator::exchange::{Message, OriginInfo, ParcelKind, Piece};
use communicator::link;
use communicator::link::Hello;
use protocol::frame;
use protocol::frame::Kind;
use protocol::frontier::SequenceRange;
use protocol::ids::{NodeId, OriginId, RunId};

use super::batches::{batch, changes, steps};
use super::ranges::merged_range;
use super::values::frontier;
use crate::engine::add_to_corpus;

fn framed(kind: Kind, contents: &[u8]) -> Vec<u8> {
    let mut bytes = frame::header(kind, contents.len()).unwrap().to_vec();
    bytes.extend_from_slice(contents);
    bytes
}

pub(super) fn frames() {
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
        let contents = link::encode(hello).unwrap();
        add_to_corpus("hello_contents", name, &contents);
        add_to_corpus("hello", name, &framed(Kind::Hello, &contents));
    }
    let origin = OriginInfo {
        origin: OriginId(7),
        home: NodeId(5),
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
    let messages = [
        ("batch", Message::Batch(batch(&steps(&changes()[1].1), 2).into())),
        ("have", Message::Have(frontier())),
        ("origin", Message::Origin(origin)),
        ("mark", Message::Word(mark)),
        ("marked", Message::Word(marked)),
        ("cannot", Message::Word(Note::Cannot(range))),
        ("ask", Message::Word(Note::Ask)),
        ("newcomer", Message::Word(Note::Newcomer)),
        ("links", Message::Word(Note::Links(vec![NodeId(3), NodeId(4)]))),
        ("piece", Message::Piece(piece)),
    ];
    for (name, message) in messages {
        let (kind, contents) = match &message {
            Message::Batch(bytes) => (Kind::Batch, bytes.to_vec()),
            Message::Have(frontier) => (Kind::Have, link::encode(frontier).unwrap()),
            Message::Origin(info) => (Kind::Origin, link::encode(info).unwrap()),
            Message::Word(word) => (Kind::Note, link::encode(word).unwrap()),
            Message::Piece(piece) => {
                let mut contents = link::encode(&(piece.kind, piece.total, piece.offset)).unwrap();
                contents.extend_from_slice(&piece.bytes);
                (Kind::Piece, contents)
            }
        };
        add_to_corpus("message", name, &framed(kind, &contents));
        add_to_corpus("frame", name, &framed(kind, &contents));
    }
    for (name, kind) in [("word", Kind::Word), ("piece", Kind::Piece), ("hello", Kind::Hello)] {
        add_to_corpus("frame", name, &framed(kind, b"some contents"));
        add_to_corpus("worker_frame", name, &framed(kind, b"some contents"));
        add_to_corpus("frame_header", name, &frame::header(kind, 700).unwrap());
    }
}
