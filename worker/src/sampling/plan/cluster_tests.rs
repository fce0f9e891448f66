//! Tests of whole clusters of plans: slots of different speeds that hear of each other late, die and come back.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::tests::{Minibatch, next, shared_plans};
use super::*;

/// All minibatches that one simulated worker has trained, in order, and its slot.
struct Log {
    slot: usize,
    minibatches: Vec<Minibatch>,
    /// Number of these minibatches that any other worker has heard of; the remaining ones are lost if the worker dies.
    spread: usize,
}

#[derive(Clone, Copy)]
enum News {
    OriginDead(usize),
    SlotDead(usize),
    SlotAlive(usize),
}

struct Worker {
    plan: SamplePlan,
    /// Index of the simulated worker's own log of minibatches.
    origin: usize,
    /// For each log of minibatches, the number that the worker has heard of.
    heard: Vec<usize>,
    /// Progress of other workers that this worker has not been told yet.
    news: VecDeque<News>,
}

impl Worker {
    /// Lets the worker hear of at most `most` further minibatches of another worker.
    fn hear(&mut self, logs: &mut [Log], origin: usize, most: usize) {
        self.heard.resize(logs.len(), 0);
        if origin == self.origin {
            return;
        }
        let log = &mut logs[origin];
        for (_, advances) in log.minibatches[self.heard[origin]..].iter().take(most) {
            self.plan.observe(OriginId(origin as u64), advances);
            self.heard[origin] += 1;
        }
        log.spread = log.spread.max(self.heard[origin]);
    }

    fn next_news(&mut self) {
        match self.news.pop_front() {
            Some(News::OriginDead(origin)) => self.plan.set_origin_alive(OriginId(origin as u64), false),
            Some(News::SlotDead(slot)) => self.plan.set_slot_alive(slot, false),
            Some(News::SlotAlive(slot)) => self.plan.set_slot_alive(slot, true),
            None => {}
        }
    }

    fn hear_all(&mut self, logs: &mut [Log]) {
        while !self.news.is_empty() {
            self.next_news();
        }
        for origin in 0..logs.len() {
            self.hear(logs, origin, usize::MAX);
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// Simulated event: a slot makes a step. The slot is drawn in proportion to the slots' speeds.
    Step(u32),
    Hear {
        slot: usize,
        origin: usize,
        most: usize,
    },
    News(usize),
    Kill(usize),
    Restart(usize),
}

fn events(deaths: bool) -> impl Strategy<Value = Vec<Event>> {
    let often = u32::from(deaths);
    let event = prop_oneof![
        8 => any::<u32>().prop_map(Event::Step),
        6 => (0usize..8, 0usize..16, 1usize..6).prop_map(|(slot, origin, most)| Event::Hear { slot, origin, most }),
        2 * often + 1 => (0usize..8).prop_map(Event::News),
        often => (0usize..8).prop_map(Event::Kill),
        often => (0usize..8).prop_map(Event::Restart),
    ];
    prop::collection::vec(event, 0..300)
}

struct Cluster {
    shared: SharedPlan,
    speeds: Vec<u32>,
    logs: Vec<Log>,
    /// Simulated worker of each slot; `None` for a slot without one.
    workers: Vec<Option<Worker>>,
    /// True if every simulated worker hears of every minibatch at once.
    instant: bool,
}

impl Cluster {
    fn new(shared: SharedPlan, speeds: Vec<u32>, instant: bool) -> Self {
        let slots = shared.slots;
        let mut cluster = Self {
            shared,
            speeds,
            logs: Vec::new(),
            workers: Vec::new(),
            instant,
        };
        for slot in 0..slots {
            cluster.workers.push(None);
            cluster.workers[slot] = Some(cluster.new_worker(slot));
        }
        cluster
    }

    fn run(&mut self, events: &[Event]) {
        for &event in events {
            self.happen(event);
            if self.instant {
                self.hear_all();
            }
        }
        self.finish();
    }

    fn happen(&mut self, event: Event) {
        let slots = self.shared.slots;
        match event {
            Event::Step(draw) => {
                let mut draw = draw % self.speeds[..slots].iter().sum::<u32>();
                let mut slot = 0;
                while draw >= self.speeds[slot] {
                    draw -= self.speeds[slot];
                    slot += 1;
                }
                self.step(slot);
            }
            Event::Hear { slot, origin, most } => {
                let origin = origin % self.logs.len();
                if let Some(worker) = &mut self.workers[slot % slots] {
                    worker.hear(&mut self.logs, origin, most);
                }
            }
            Event::News(slot) => {
                if let Some(worker) = &mut self.workers[slot % slots] {
                    worker.next_news();
                }
            }
            Event::Kill(slot) => self.kill(slot % slots),
            Event::Restart(slot) => self.restart(slot % slots),
        }
    }

    fn new_worker(&mut self, slot: usize) -> Worker {
        self.logs.push(Log {
            slot,
            minibatches: Vec::new(),
            spread: 0,
        });
        Worker {
            plan: SamplePlan::new(self.shared.clone(), slot).unwrap(),
            origin: self.logs.len() - 1,
            heard: Vec::new(),
            news: VecDeque::new(),
        }
    }

    fn step(&mut self, slot: usize) -> bool {
        let Some(worker) = &mut self.workers[slot] else {
            return false;
        };
        let minibatch = next(&mut worker.plan);
        let stepped = minibatch.is_some();
        self.logs[worker.origin].minibatches.extend(minibatch);
        stepped
    }

    fn hear_all(&mut self) {
        for worker in self.workers.iter_mut().flatten() {
            worker.hear_all(&mut self.logs);
        }
    }

    /// Ends a worker, and with it the minibatches that no other worker has heard of. Keeps the last worker.
    fn kill(&mut self, slot: usize) {
        if self.workers.iter().flatten().count() < 2 {
            return;
        }
        let Some(Worker { origin, .. }) = self.workers[slot].take() else {
            return;
        };
        let log = &mut self.logs[origin];
        log.minibatches.truncate(log.spread);
        self.tell(&[News::OriginDead(origin), News::SlotDead(slot)]);
    }

    /// Starts a worker for a slot without one. It knows every minibatch that any worker has heard of.
    fn restart(&mut self, slot: usize) {
        if self.workers[slot].is_some() {
            return;
        }
        let mut worker = self.new_worker(slot);
        let known = self.logs.iter().flat_map(|log| &log.minibatches[..log.spread]);
        worker
            .plan
            .skip_done(&known.flat_map(|(_, advances)| advances.clone()).collect());
        worker.heard = self.logs.iter().map(|log| log.spread).collect();
        for (origin, log) in self.logs[..worker.origin].iter().enumerate() {
            match &self.workers[log.slot] {
                Some(worker) if worker.origin == origin => {}
                Some(_) => worker.news.push_back(News::OriginDead(origin)),
                None => worker.news.extend([News::OriginDead(origin), News::SlotDead(log.slot)]),
            }
        }
        self.tell(&[News::SlotAlive(slot)]);
        self.workers[slot] = Some(worker);
    }

    fn tell(&mut self, news: &[News]) {
        for worker in self.workers.iter_mut().flatten() {
            worker.news.extend(news);
        }
    }

    /// Runs the simulation to its end, with all news delivered before every round; in each, some worker must train
    /// until all samples are done.
    fn finish(&mut self) {
        loop {
            self.hear_all();
            let done = self.workers.iter().flatten().all(|worker| worker.plan.is_complete());
            let mut stepped = false;
            for slot in 0..self.shared.slots {
                stepped |= self.step(slot);
                if self.instant {
                    self.hear_all();
                }
            }
            assert_ne!(
                done, stepped,
                "the workers wait for each other, or train samples that are done"
            );
            if done {
                return;
            }
        }
    }

    /// Returns, for each shard, the number of times that each of its samples was trained, and the number of workers
    /// that trained it.
    fn times(&self) -> Vec<(Vec<usize>, usize)> {
        let mut times = vec![vec![0; self.shared.labels.len()]; self.shared.epochs as usize];
        let mut origins = BTreeSet::new();
        for (origin, log) in self.logs.iter().enumerate() {
            for (indices, advances) in &log.minibatches {
                for &sample in indices {
                    times[advances[0].shard.epoch as usize][sample as usize] += 1;
                }
                origins.extend(advances.iter().map(|advance| (advance.shard, origin)));
            }
        }
        let mut shards = Vec::new();
        for (times, epoch) in times.iter().zip(0..) {
            let plan = self.shared.shard_plan(epoch);
            for shard in 0..plan.shard_count() {
                let samples = plan.samples(shard).iter();
                let shard = ShardId { epoch, shard };
                let origins = origins.range((shard, 0)..=(shard, usize::MAX)).count();
                shards.push((samples.map(|&sample| times[sample as usize]).collect(), origins));
            }
        }
        shards
    }
}

fn speeds() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(1u32..20, 8)
}

proptest! {
    #[test]
    fn slots_that_hear_at_once_train_every_sample_exactly_once(
        shared in shared_plans(),
        speeds in speeds(),
        events in events(false),
    ) {
        let mut cluster = Cluster::new(shared, speeds, true);
        cluster.run(&events);
        prop_assert!(cluster.times().iter().all(|(times, _)| times.iter().all(|&times| times == 1)));
    }

    #[test]
    fn so_they_do_when_workers_die_and_come_back(
        shared in shared_plans(),
        speeds in speeds(),
        events in events(true),
    ) {
        let mut cluster = Cluster::new(shared, speeds, true);
        cluster.run(&events);
        prop_assert!(cluster.times().iter().all(|(times, _)| times.iter().all(|&times| times == 1)));
    }

    /// Tests the bound on repeated work: a worker never trains a sample twice, so a further worker at a shard costs one
    /// shard at most.
    #[test]
    fn slots_that_hear_late_train_every_sample_and_repeat_a_shard_per_double_claim(
        shared in shared_plans(),
        speeds in speeds(),
        events in any::<bool>().prop_flat_map(events),
    ) {
        let mut cluster = Cluster::new(shared, speeds, false);
        cluster.run(&events);
        for (times, origins) in cluster.times() {
            prop_assert!(times.iter().all(|times| (1..=origins).contains(times)));
        }
    }

    #[test]
    fn the_same_events_give_the_same_minibatches(
        shared in shared_plans(),
        speeds in speeds(),
        events in events(true),
    ) {
        let minibatches = || {
            let mut cluster = Cluster::new(shared.clone(), speeds.clone(), false);
            cluster.run(&events);
            cluster.logs.into_iter().map(|log| log.minibatches).collect::<Vec<_>>()
        };
        prop_assert_eq!(minibatches(), minibatches());
    }
}

/// Two slots step in turn, one ten times as fast: it should end with ten times the work.
#[test]
fn work_goes_to_those_who_are_fast() {
    let shared = super::tests::shared(vec![0; 4400], 2, 2, 5);
    let mut cluster = Cluster::new(shared, vec![10, 1], true);
    let events: Vec<Event> = (0..1760).map(Event::Step).collect();
    cluster.run(&events);
    let counts: Vec<usize> = cluster.logs.iter().map(|log| log.minibatches.len()).collect();
    assert!((155..=165).contains(&counts[1]), "{counts:?}");
}
