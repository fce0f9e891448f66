//! Workers at work: seated, they make batches of one sample, until all are trained or the run is stopped, and save.

use std::sync::Arc;

use protocol::batch::{Flags, Header, Payload};
use protocol::changes::word;
use protocol::cursor::{CursorAdvance, ShardId};
use protocol::digest::Digest;
use protocol::ids::{NodeId, OriginId, RunId};
use protocol::job::{Job, JobDraft};
use protocol::lattice::Tau;
use protocol::wire::attach::{Scores, WorkerStats};

use super::node::{Disk, Training, WEIGHTS, digest};
use super::world::{Due, World};
use crate::exchange::Event;
use crate::run::{RunEvent, Ticket, WorkerKey, WorkerWord};
use protocol::wire::link::OriginInfo;

impl World {
    pub(super) fn finish(&mut self, at: NodeId, worker: WorkerKey, counts: &[i32], save: bool) {
        let digest = Some(digest(counts));
        self.worker_says(at, worker, 20, WorkerWord::Finished { digest });
        let node = self.nodes.get_mut(&at).unwrap();
        let Some(run) = node.exchange.as_ref().map(|open| open.run).filter(|_| save) else {
            return;
        };
        let orders = node.workers.get(&worker).map_or(0, |worker| worker.orders);
        let delay = 40 + self.random.below(200);
        self.after(
            delay,
            Due::Write {
                at,
                key: worker,
                orders,
                run,
            },
        );
    }

    pub(super) fn write_model(&mut self, at: NodeId, key: WorkerKey, orders: u64, run: RunId) {
        let node = self.nodes.get_mut(&at).unwrap();
        let saved = match node.disk {
            Disk::Sound => {
                node.models.insert(run);
                Ok(Scores {
                    accuracy: 0.5,
                    loss: 1.0,
                })
            }
            Disk::Full => Err("the disk is full".into()),
            Disk::Hung => return self.after(500, Due::Write { at, key, orders, run }),
        };
        let word = WorkerWord::SavedModel { run, saved };
        self.after(1, Due::Worker { at, key, orders, word });
    }

    pub(super) fn seat(&mut self, at: NodeId, key: WorkerKey) {
        let origin = OriginId(self.number());
        let node = self.nodes.get_mut(&at).unwrap();
        let open = node.exchange.as_mut().unwrap();
        let Some(worker) = node.workers.get_mut(&key) else {
            return;
        };
        assert_eq!(
            worker.prepared,
            Some(open.run),
            "{at} seats a worker that has not opened the data"
        );
        worker.training = Some(Training {
            origin,
            sequence: 0,
            counts: open.core.ledger().counts().to_vec(),
            stop: false,
            closed: false,
        });
        open.seated.insert(key, origin);
        self.made.insert(origin, vec![Digest::default()]);
        self.exchange(at, Event::Origin(origin_info(at, origin, None)));
    }

    pub(super) fn train_all(&mut self, at: NodeId) {
        let Some(open) = &self.nodes[&at].exchange else {
            return;
        };
        let total = open.plan.data.train;
        let complete = open.core.ledger().cursors().samples_done() >= total;
        let keys: Vec<WorkerKey> = open.seated.keys().copied().collect();
        let (run, paused) = (open.run, open.core.should_pause());
        for key in keys {
            let idle = self.random.below(3) > 0;
            let node = self.nodes.get_mut(&at).unwrap();
            let Some(worker) = node.workers.get_mut(&key).filter(|worker| !worker.hangs) else {
                continue;
            };
            let Some(training) = worker.training.as_mut().filter(|training| !training.closed) else {
                continue;
            };
            let last = complete || training.stop;
            if !last && (paused || idle) {
                continue;
            }
            training.closed = last;
            let words = if last {
                Vec::new()
            } else {
                vec![word((training.sequence % WEIGHTS as u64) as u32, true)]
            };
            training.sequence += 1;
            let payload = Payload::Steps {
                tau: Tau::ONE_STEP,
                words,
            };
            payload.apply_to_counts(&mut training.counts).unwrap();
            let (origin, sequence, stop) = (training.origin, training.sequence, training.stop);
            let sums = self.made.get_mut(&origin).unwrap();
            sums.push(*sums.last().unwrap() + payload.digest());
            let bytes = batch(
                run,
                origin,
                sequence,
                &payload,
                Flags {
                    last,
                    stop: last && stop,
                },
            );
            self.exchange(at, Event::Local(bytes));
            if last {
                self.run(at, RunEvent::Worker(key, WorkerWord::Stats(WorkerStats::default())));
                self.run(at, RunEvent::Worker(key, WorkerWord::Closed { residual_norm: 0.0 }));
            }
        }
    }

    /// A client of a node.
    pub(super) fn ticket(&mut self) -> Ticket {
        Ticket(self.number())
    }
}

/// A batch of one sample.
fn batch(run: RunId, origin: OriginId, sequence: u64, payload: &Payload, flags: Flags) -> Arc<[u8]> {
    let cursors = vec![CursorAdvance {
        shard: ShardId {
            epoch: 0,
            shard: origin.0 as u32,
        },
        done: sequence as u32,
    }];
    let header = Header {
        run,
        origin,
        sequence,
        seen: 0,
        digest: payload.digest(),
        cursors,
        samples: 1,
        loss: 0.0,
        flags,
    };
    let mut frame = Vec::new();
    header.encode(payload, &mut frame).unwrap();
    frame.into()
}

pub(super) fn job() -> Job {
    let draft = JobDraft {
        epochs: Some(1),
        ..JobDraft::default()
    };
    draft.resolve().unwrap()
}

pub(super) fn origin_info(home: NodeId, origin: OriginId, ended: Option<u64>) -> OriginInfo {
    OriginInfo {
        origin,
        home,
        slot: 0,
        ended,
    }
}
