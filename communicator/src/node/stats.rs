//! The stats' actor: what every node did each second, kept for late readers.
//!
//! Readers ask and are answered as soon as there is something new. Nothing is pushed: a reader that stands still costs
//! nothing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use protocol::control::Reply;
use protocol::stats::StatsRecord;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use ractor_cluster::RactorMessage;

use crate::control::Payload;

/// Records kept: an hour of ten nodes and more.
const RECORDS_MAX: usize = 40_000;
/// Records in one answer; it has to fit into a message of the control plane.
const ANSWER_MAX: usize = 200;
/// How long a reader waits for news before it is told that there is none.
const PATIENCE: Duration = Duration::from_secs(2);
/// Readers that wait at a time; more are answered at once.
const READERS_MAX: usize = 256;

/// What the stats' actor is told.
#[derive(RactorMessage)]
pub(crate) enum StatsMessage {
    /// A node's record.
    Record(Box<StatsRecord>),
    /// What is new since this number?
    Read {
        /// The last one that the reader has.
        after: u64,
        /// Where the answer goes.
        reply: RpcReplyPort<Payload<Reply>>,
    },
    /// Some time has passed.
    Tick,
}

/// The actor.
pub(crate) struct StatsActor;

/// The actor's state.
#[derive(Default)]
pub(crate) struct Stats {
    records: VecDeque<StatsRecord>,
    /// The number of the newest record; they count from 1.
    last: u64,
    readers: Vec<(Instant, u64, RpcReplyPort<Payload<Reply>>)>,
}

impl Actor for StatsActor {
    type Msg = StatsMessage;
    type State = Stats;
    type Arguments = ();

    async fn pre_start(&self, myself: ActorRef<StatsMessage>, (): ()) -> Result<Stats, ActorProcessingErr> {
        myself.send_interval(PATIENCE / 4, || StatsMessage::Tick);
        Ok(Stats::default())
    }

    async fn handle(
        &self,
        _myself: ActorRef<StatsMessage>,
        message: StatsMessage,
        state: &mut Stats,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            StatsMessage::Record(record) => state.record(*record),
            StatsMessage::Read { after, reply } => {
                if after < state.last || state.readers.len() >= READERS_MAX {
                    let _ = reply.send(state.since(after).into());
                } else {
                    state.readers.push((Instant::now(), after, reply));
                }
            }
            StatsMessage::Tick => {
                let (done, waiting) = std::mem::take(&mut state.readers)
                    .into_iter()
                    .partition(|(asked, ..)| asked.elapsed() >= PATIENCE);
                state.readers = waiting;
                state.answer(done);
            }
        }
        Ok(())
    }
}

impl Stats {
    fn record(&mut self, record: StatsRecord) {
        if self.records.len() == RECORDS_MAX {
            self.records.pop_front();
        }
        self.records.push_back(record);
        self.last += 1;
        let readers = std::mem::take(&mut self.readers);
        self.answer(readers);
    }

    fn answer(&self, readers: Vec<(Instant, u64, RpcReplyPort<Payload<Reply>>)>) {
        for (_, after, reply) in readers {
            let _ = reply.send(self.since(after).into());
        }
    }

    /// The records after a number, as many as fit into an answer. A number that is not from here starts afresh.
    fn since(&self, after: u64) -> Reply {
        let first = self.last - self.records.len() as u64;
        let after = if after > self.last { 0 } else { after };
        let skip = after.saturating_sub(first) as usize;
        let records: Vec<StatsRecord> = self.records.iter().skip(skip).take(ANSWER_MAX).cloned().collect();
        Reply::Stats {
            last: after.max(first) + records.len() as u64,
            records,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(samples: u64) -> StatsRecord {
        StatsRecord {
            samples,
            ..StatsRecord::default()
        }
    }

    fn read(stats: &Stats, after: u64) -> (u64, Vec<u64>) {
        match stats.since(after) {
            Reply::Stats { last, records } => (last, records.iter().map(|record| record.samples).collect()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn readers_get_everything_once() {
        let mut stats = Stats::default();
        assert_eq!(read(&stats, 0), (0, vec![]));
        (1..=3).for_each(|samples| stats.record(record(samples)));
        assert_eq!(read(&stats, 0), (3, vec![1, 2, 3]));
        assert_eq!(read(&stats, 2), (3, vec![3]));
        assert_eq!(read(&stats, 3), (3, vec![]));
        assert_eq!(read(&stats, 99), (3, vec![1, 2, 3]), "a reader of another node's");
    }

    #[test]
    fn old_records_go_and_answers_stay_short() {
        let mut stats = Stats::default();
        (1..=RECORDS_MAX as u64 + 10).for_each(|samples| stats.record(record(samples)));
        let (last, found) = read(&stats, 0);
        assert_eq!((found[0], found.len()), (11, ANSWER_MAX));
        let (_, next) = read(&stats, last);
        assert_eq!(next[0], 11 + ANSWER_MAX as u64);
    }
}
