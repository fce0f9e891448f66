//! The stats actor: keeps the records of all nodes for late readers.
//!
//! Readers ask, and are answered as soon as there is a new record. Nothing is pushed, so a reader that stands still
//! costs nothing. Records from other nodes are bounded: in bytes, and for each node in number.

use protocol::reasons::waiting::WaitingFor;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use protocol::bounded::NAME_BYTES_MAX;
use protocol::ids::NodeId;
use protocol::stats::measured::ProcessUsage;
use protocol::stats::{LogNotice, PeerRecord, StatsRecord};
use protocol::wire::control::Reply;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use ractor_cluster::RactorMessage;

use crate::control::{Payload, encoded_length};
use crate::meter::Meter;

/// Maximum number of records of nodes' statistics that are kept: an hour of ten nodes, and more.
const RECORDS_MAX: usize = 40_000;
/// Maximum number of bytes that the kept records of nodes' statistics take.
const RECORDS_BYTES_MAX: usize = 32 << 20;
/// Maximum number of bytes of the records in one reply to a client. The reply has to fit into a message of the control
/// plane, and half of that leaves room.
const ANSWER_BYTES_MAX: usize = 512 << 10;
/// Number of records that another node may send in the time in which an honest node usually sends one.
const TOLD_FOR_ONE: u32 = 8;
/// Number of records that another node may send in a burst: delayed records come together, and a short run has several.
const TOLD_AT_ONCE: u32 = 16;
/// Maximum number of clients that wait for new records; further ones are answered at once.
const READERS_MAX: usize = 256;

/// Message to the actor that keeps the records of all nodes' statistics.
#[derive(RactorMessage)]
pub(crate) enum StatsMessage {
    /// A record of this node's statistics.
    Record(Box<StatsRecord>),
    /// A record of another node's statistics.
    Told(NodeId, Box<StatsRecord>),
    /// A client's request for the records of statistics that are newer than those it has.
    Read {
        /// Number of the last record that the client has.
        after: u64,
        /// Port for the reply, which holds the records whose numbers are greater than `after`.
        reply: RpcReplyPort<Payload<Reply>>,
    },
    /// Periodic clock tick, at which clients that have waited long enough for new records get an answer.
    Tick,
}

/// Arguments with which the stats actor is started.
pub(crate) struct StatsArguments {
    /// Usual interval between two records of statistics that a node makes. Records that another node sends much more
    /// often are dropped.
    pub(crate) record: Duration,
    /// Time for which a client that asks for new records waits before it is told that there are none.
    pub(crate) news: Duration,
}

pub(crate) struct StatsActor;

pub(crate) struct Stats {
    arguments: StatsArguments,
    records: VecDeque<StatsRecord>,
    /// Number of bytes that the kept records take.
    bytes: usize,
    /// Number of the newest record that was kept; the first one has number 1.
    last: u64,
    readers: Vec<(Instant, u64, RpcReplyPort<Payload<Reply>>)>,
    /// For each other node: the time of its last record, and the budget that limits its records.
    tellers: BTreeMap<NodeId, (Duration, Meter)>,
    start: Instant,
    /// Time since 1970 at which this actor was started. Times of records are counted from there, so that setting the
    /// system's clock does not shift them.
    start_time: Duration,
}

impl Stats {
    fn new(arguments: StatsArguments) -> Self {
        Self {
            arguments,
            records: VecDeque::new(),
            bytes: 0,
            last: 0,
            readers: Vec::new(),
            tellers: BTreeMap::new(),
            start: Instant::now(),
            start_time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        }
    }
}

impl Actor for StatsActor {
    type Msg = StatsMessage;
    type State = Stats;
    type Arguments = StatsArguments;

    async fn pre_start(
        &self,
        myself: ActorRef<StatsMessage>,
        arguments: StatsArguments,
    ) -> Result<Stats, ActorProcessingErr> {
        myself.send_interval(arguments.news / 4, || StatsMessage::Tick);
        Ok(Stats::new(arguments))
    }

    async fn handle(
        &self,
        _myself: ActorRef<StatsMessage>,
        message: StatsMessage,
        state: &mut Stats,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            StatsMessage::Record(record) => state.record(*record),
            StatsMessage::Told(node, record) => {
                if state.count_record_of(node, state.start.elapsed()) {
                    state.record(*record);
                }
            }
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
                    .partition(|(asked, ..)| asked.elapsed() >= state.arguments.news);
                state.readers = waiting;
                state.answer(done);
                state.forget_tellers(state.start.elapsed());
            }
        }
        Ok(())
    }
}

impl Stats {
    /// Counts a record from another node against the node's budget. Returns false if the node has sent too many of
    /// late.
    fn count_record_of(&mut self, node: NodeId, now: Duration) -> bool {
        let a_second = (f64::from(TOLD_FOR_ONE) / self.arguments.record.as_secs_f64()).ceil() as u32;
        let new = || (now, Meter::new(a_second, TOLD_AT_ONCE));
        let (heard, meter) = self.tellers.entry(node).or_insert_with(new);
        *heard = now;
        meter.try_spend(1, now)
    }

    /// Drops the record budgets of nodes that have sent no record for so long that their budgets are full again.
    fn forget_tellers(&mut self, now: Duration) {
        let full_after = self.arguments.record * TOLD_AT_ONCE / TOLD_FOR_ONE;
        self.tellers
            .retain(|_, (heard, _)| now.saturating_sub(*heard) < full_after);
    }

    /// Keeps a node's record with the time by this node's clock, so that clients see the times of all records by one
    /// clock.
    fn record(&mut self, mut record: StatsRecord) {
        record.time = (self.start_time + self.start.elapsed()).as_secs_f64();
        self.bytes += size(&record);
        self.records.push_back(record);
        self.last += 1;
        while self.records.len() > RECORDS_MAX || self.bytes > RECORDS_BYTES_MAX {
            let Some(oldest) = self.records.pop_front() else {
                break;
            };
            self.bytes -= size(&oldest);
        }
        let readers = std::mem::take(&mut self.readers);
        self.answer(readers);
    }

    fn answer(&self, readers: Vec<(Instant, u64, RpcReplyPort<Payload<Reply>>)>) {
        for (_, after, reply) in readers {
            let _ = reply.send(self.since(after).into());
        }
    }

    /// Returns a reply with the records after the one of this number, as many as fit into it. A number that this node
    /// has not reached yet must come from another node: the reply then begins with the oldest record.
    fn since(&self, after: u64) -> Reply {
        let first = self.last - self.records.len() as u64;
        let after = if after > self.last { 0 } else { after };
        let skip = after.saturating_sub(first) as usize;
        let mut room = ANSWER_BYTES_MAX;
        let fitting = self.records.iter().skip(skip).take_while(|record| {
            let left = room.checked_sub(encoded_length(record));
            room = left.unwrap_or(0);
            left.is_some()
        });
        let records: Vec<StatsRecord> = fitting.cloned().collect();
        Reply::Stats {
            last: after.max(first) + records.len() as u64,
            records,
        }
    }
}

/// Returns the bytes of memory that a record takes.
fn size(record: &StatsRecord) -> usize {
    let texts = [&record.node, &record.run, &record.state, &record.digest];
    let peers = record
        .peers
        .iter()
        .map(|peer| size_of::<PeerRecord>() + peer.node.len());
    let sentences = record
        .said
        .iter()
        .map(|notice| size_of::<LogNotice>() + notice.text.len());
    let waiting = record.waiting.len() * (size_of::<WaitingFor>() + NAME_BYTES_MAX);
    let evaluations = size_of_val(&*record.evaluations);
    let processes = record.processes.iter();
    let processes = processes.map(|process| size_of::<ProcessUsage>() + process.process.len());
    size_of::<StatsRecord>()
        + evaluations
        + processes.sum::<usize>()
        + sentences.sum::<usize>()
        + waiting
        + texts.iter().map(|text| text.len()).sum::<usize>()
        + peers.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use ractor::rpc::CallResult;

    use super::*;

    fn stats() -> Stats {
        Stats::new(StatsArguments {
            record: Duration::from_secs(1),
            news: Duration::from_secs(2),
        })
    }

    fn record(samples: u64) -> StatsRecord {
        StatsRecord {
            samples,
            ..StatsRecord::default()
        }
    }

    /// Returns a record of a node's statistics with this many peers.
    fn long(samples: u64, peers: usize) -> StatsRecord {
        let peer = PeerRecord {
            node: "a-host-with-a-name-123456".into(),
            bytes_in: 1 << 40,
            bytes_out: 1 << 40,
            lag: 1 << 20,
            queue: 1 << 20,
        };
        StatsRecord {
            peers: vec![peer; peers],
            ..record(samples)
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
        let mut stats = stats();
        assert_eq!(read(&stats, 0), (0, vec![]));
        (1..=3).for_each(|samples| stats.record(record(samples)));
        assert_eq!(read(&stats, 0), (3, vec![1, 2, 3]));
        assert_eq!(read(&stats, 2), (3, vec![3]));
        assert_eq!(read(&stats, 3), (3, vec![]));
        assert_eq!(
            read(&stats, 99),
            (3, vec![1, 2, 3]),
            "a reader that followed another node gets all records"
        );
    }

    #[test]
    fn old_records_go_and_a_reader_gets_all_that_are_left() {
        let mut stats = stats();
        (1..=RECORDS_MAX as u64 + 10).for_each(|samples| stats.record(record(samples)));
        let (mut last, mut found) = read(&stats, 0);
        assert!(found.len() < RECORDS_MAX, "one answer does not hold all records");
        loop {
            let (next, more) = read(&stats, last);
            if more.is_empty() {
                break;
            }
            last = next;
            found.extend(more);
        }
        assert_eq!(found, (11..=RECORDS_MAX as u64 + 10).collect::<Vec<_>>());
    }

    #[test]
    fn a_thousand_nodes_can_be_read_of_and_take_no_more_memory() {
        const NODES: usize = 1000;
        let mut stats = stats();
        for samples in 1..=2000 {
            stats.record(long(samples, NODES - 1));
            assert!(stats.bytes <= RECORDS_BYTES_MAX);
        }
        assert_eq!(stats.bytes, stats.records.iter().map(size).sum::<usize>());
        let reply = stats.since(0);
        let length = encoded_length(&reply);
        assert!((1..=ANSWER_BYTES_MAX + 100).contains(&length), "{length}");
        let (last, found) = read(&stats, 0);
        assert!(!found.is_empty());
        assert_eq!(read(&stats, last).1[0], found.last().unwrap() + 1);
    }

    #[tokio::test]
    async fn a_reader_waits_for_news_but_not_for_ever() {
        let arguments = StatsArguments {
            record: Duration::from_millis(10),
            news: Duration::from_millis(20),
        };
        let (actor, _) = Actor::spawn(None, StatsActor, arguments).await.unwrap();
        let read = |after| actor.call(move |reply| StatsMessage::Read { after, reply }, None);
        let (none, told) = (read(0), StatsMessage::Record(Box::new(record(7))));
        let Ok(CallResult::Success(Payload(Ok(Reply::Stats { last: 0, records })))) = none.await else {
            panic!("expected an answer without records");
        };
        assert!(records.is_empty());
        let (news, ()) = tokio::join!(read(0), async { actor.cast(told).unwrap() });
        let Ok(CallResult::Success(Payload(Ok(Reply::Stats { last: 1, records })))) = news else {
            panic!("expected an answer with the new record");
        };
        assert_eq!(records[0].samples, 7);
        actor.stop_and_wait(None, None).await.unwrap();
    }

    #[test]
    fn nobody_tells_more_than_a_node_has_to_tell() {
        let mut stats = stats();
        let (honest, liar) = (NodeId(1), NodeId(2));
        let mut told = 0;
        for tenth in 0..100 {
            let now = Duration::from_millis(100 * tenth);
            assert!(tenth % 10 > 0 || stats.count_record_of(honest, now));
            told += (0..100).filter(|_| stats.count_record_of(liar, now)).count();
        }
        assert!(told <= (TOLD_AT_ONCE + 10 * TOLD_FOR_ONE) as usize, "{told}");
        stats.forget_tellers(Duration::from_mins(1));
        assert!(stats.tellers.is_empty());
    }
}
