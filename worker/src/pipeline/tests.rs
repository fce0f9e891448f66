use super::*;

/// A pipeline whose messages the test carries from worker to worker.
struct World {
    pipelines: Vec<Pipeline>,
    /// Messages on their way between the simulated workers of a pipeline.
    sent: VecDeque<Flow>,
    now: Duration,
}

impl World {
    fn new(stages: u8) -> Self {
        Self {
            pipelines: (0..stages).map(|stage| member(stage, stages)).collect(),
            sent: VecDeque::new(),
            now: Duration::ZERO,
        }
    }

    /// Creates a test pipeline whose workers have joined.
    fn whole(stages: u8) -> Self {
        let mut world = Self::new(stages);
        world.join();
        world.carry();
        world
    }

    /// Moves the messages that the workers want to send into the test's queue.
    fn collect(&mut self) {
        for pipeline in &mut self.pipelines {
            self.sent.extend(pipeline.take_outbox());
        }
    }

    /// Delivers all messages, and the messages that follow from them. Returns the stages whose minibatch broke
    /// meanwhile.
    fn carry(&mut self) -> Vec<u8> {
        let mut broken = Vec::new();
        loop {
            self.collect();
            let Some(flow) = self.sent.pop_front() else {
                return broken;
            };
            let to = flow.head.to;
            if self.hear(to.into(), PipelineEvent::Flow(flow)) == Heard::Broken {
                broken.push(to);
            }
        }
    }

    fn hear(&mut self, at: usize, event: PipelineEvent) -> Heard {
        let heard = self.pipelines[at].hear(event);
        self.collect();
        heard
    }

    fn join(&mut self) {
        self.now += 2 * JOIN_EVERY_MAX;
        self.pipelines[0].join(self.now);
    }

    fn lead(&mut self, step: u64) {
        let lead = Lead { step, ..minibatch() };
        self.pipelines[0].say_to_all(&FlowBody::Lead(Box::new(lead)));
    }

    fn led(&self) -> Vec<Option<u64>> {
        let pipelines = self.pipelines.iter().skip(1);
        pipelines
            .map(|pipeline| pipeline.next_lead().map(|lead| lead.step))
            .collect()
    }
}

/// Returns a minibatch of two samples out of a hundred, in two micro-batches.
fn minibatch() -> Lead {
    Lead {
        micro_batches: 2,
        samples: vec![0, 99],
        ..Lead::default()
    }
}

fn member(stage: u8, stages: u8) -> Pipeline {
    Pipeline::new(StageAddress { pipeline: 7, stage }, stages, 0, 5, 100)
}

#[test]
fn a_pipeline_is_whole_when_the_last_one_has_answered() {
    for stages in 2..5 {
        let mut world = World::new(stages);
        world.carry();
        assert!(world.pipelines.iter().all(|pipeline| !pipeline.is_whole()));
        world.join();
        world.carry();
        assert!(world.pipelines.iter().all(Pipeline::is_whole), "{stages}");
        world.lead(1);
        world.carry();
        assert_eq!(world.led(), vec![Some(1); usize::from(stages) - 1]);
    }
}

#[test]
fn who_was_started_again_breaks_the_attempt_and_is_called() {
    let mut world = World::whole(3);
    world.lead(1);
    world.carry();
    world.pipelines[2] = member(2, 3);
    assert_eq!(world.carry(), [0], "the leader must be told of the restart at once");
    assert!(!world.pipelines[0].is_whole());
    world.join();
    assert_eq!(world.carry(), [1], "the minibatch in flight must be given up");
    assert!(world.pipelines.iter().all(Pipeline::is_whole));
    assert_eq!(world.led(), [None, None]);
}

#[test]
fn what_is_of_another_attempt_is_over_and_its_sender_learns_that() {
    let mut world = World::whole(3);
    assert_eq!(world.hear(1, PipelineEvent::Broken), Heard::Broken);
    assert_eq!(world.carry(), [0], "the leader must be told of the broken connection");
    world.lead(4);
    assert_eq!(world.carry(), [0]);
    assert_eq!(world.led(), [None, Some(4)]);
    // A minibatch that was announced before the next generation began changes nothing in it.
    let old = world.pipelines[0].generation;
    world.join();
    assert_eq!(world.carry(), [2], "the minibatch in flight must be given up");
    let late = world.pipelines[0].head(1, old, FlowBody::Lead(Box::new(minibatch())));
    world.sent.push_back(Flow::without_numbers(late));
    assert_eq!(world.carry(), Vec::<u8>::new());
    assert!(world.pipelines.iter().all(Pipeline::is_whole));
    assert_eq!(world.led(), [None, None]);
}

#[test]
fn the_end_is_told_to_each_and_a_leader_after_it_takes_it_back() {
    let mut world = World::whole(3);
    assert!(world.pipelines.iter().all(|pipeline| !pipeline.is_over()));
    world.pipelines[0].close();
    // One of the followers is gone; the other hears the end all the same.
    world.pipelines[1] = member(1, 3);
    world.carry();
    assert!(world.pipelines[1].is_over() && world.pipelines[2].is_over());
    world.pipelines[0] = member(0, 3);
    world.join();
    world.carry();
    assert!(
        world.pipelines[2].is_over(),
        "a call alone must not reopen a pipeline that has ended"
    );
    world.lead(1);
    world.carry();
    assert!(!world.pipelines[1].is_over() && !world.pipelines[2].is_over());
}

#[test]
fn who_has_closed_is_called_and_not_led() {
    let mut world = World::new(2);
    world.pipelines[1].close();
    world.join();
    world.carry();
    assert!(
        world.pipelines[0].is_whole(),
        "a closed worker must still join, to help with measuring"
    );
    world.lead(1);
    assert_eq!(world.carry(), [0], "the leader must not be left waiting");
    assert_eq!(world.led(), [None]);
    assert!(
        world.pipelines[0].is_over(),
        "the leader must know that the pipeline has ended"
    );
}

#[test]
fn a_follower_whose_way_to_the_leader_is_broken_says_so_once() {
    let mut world = World::whole(2);
    for _ in 0..3 {
        assert_eq!(world.hear(1, PipelineEvent::Broken), Heard::Broken);
    }
    assert_eq!(world.sent.len(), 1);
}

#[test]
fn a_minibatch_that_no_leader_makes_is_not_taken() {
    let wrong: [fn(&mut Lead); 5] = [
        |lead| lead.samples.push(100),
        |lead| lead.samples.clear(),
        |lead| lead.micro_batches = 0,
        |lead| lead.micro_batches = 3,
        |lead| lead.learning_rate = f64::NAN,
    ];
    for change in wrong {
        let mut world = World::whole(3);
        let mut lead = minibatch();
        change(&mut lead);
        let told = FlowBody::Lead(Box::new(lead));
        world.pipelines[0].say_to_all(&told);
        assert_eq!(
            world.carry(),
            [1, 2, 0, 0],
            "the minibatch must be given up, and the leader must be told"
        );
        assert_eq!(world.led(), [None, None]);
    }
}

/// Tests that a worker ignores messages before it was asked to join, and after its pipeline broke.
#[test]
fn messages_of_no_generation_change_nothing() {
    let mut world = World::new(2);
    world.carry();
    let lead = FlowBody::Lead(Box::new(Lead { step: 1, ..minibatch() }));
    for (to, from, body) in [(0, 1, FlowBody::Ready), (1, 0, lead), (1, 0, FlowBody::Join)] {
        let mut head = world.pipelines[usize::from(from)].head(to, 0, body);
        head.from = from;
        let heard = world.hear(to.into(), PipelineEvent::Flow(Flow::without_numbers(head)));
        assert_eq!(heard, Heard::Nothing);
    }
    assert!(world.pipelines.iter().all(|pipeline| !pipeline.is_whole()));
    assert_eq!((world.led(), world.sent.len()), (vec![None], 0));
}

#[test]
fn only_the_leader_leads() {
    for (to, from) in [(0, 1), (2, 1)] {
        let mut world = World::whole(3);
        let lead = FlowBody::Lead(Box::new(Lead { step: 1, ..minibatch() }));
        world.pipelines[from].say(to, lead);
        assert!(world.carry().contains(&to));
        assert!(world.pipelines.iter().all(|pipeline| !pipeline.is_under_way()));
    }
}

/// Tests that a message that was on its way when its pipeline broke does no further harm, and that its sender is not
/// taken for one that has broken the protocol.
#[test]
fn a_leader_that_calls_hears_answers_alone() {
    let mut world = World::whole(2);
    let late = FlowBody::Lead(Box::new(Lead { step: 1, ..minibatch() }));
    let mut head = world.pipelines[0].head(0, world.pipelines[0].generation(), late);
    head.from = 1;
    assert_eq!(world.hear(0, PipelineEvent::Broken), Heard::Broken);
    assert_eq!(
        world.hear(0, PipelineEvent::Flow(Flow::without_numbers(head))),
        Heard::Nothing
    );
}

#[test]
fn steps_rise() {
    let mut world = World::whole(2);
    world.lead(5);
    assert!(world.carry().is_empty());
    world.lead(3);
    assert_eq!(world.carry(), [1, 0]);
}

#[test]
fn what_the_leader_has_given_up_is_given_up_by_all() {
    let mut world = World::whole(4);
    world.lead(1);
    world.pipelines[0].close();
    assert_eq!(world.carry(), [1, 2, 3]);
    assert_eq!(world.led(), [None, None, None]);
    assert!(world.pipelines.iter().skip(1).all(Pipeline::is_over));
}

/// Tests that a minibatch is completed by all although one of several workers with the same layers completes it before
/// another does.
#[test]
fn what_the_leader_is_through_with_is_gone_on_with_after_the_end() {
    let mut world = World::whole(2);
    for step in 1..3 {
        let lead = Lead { step, ..minibatch() };
        world.pipelines[0].begin(lead);
    }
    world.pipelines[0].led();
    world.pipelines[0].close();
    assert_eq!(world.carry(), Vec::<u8>::new());
    assert_eq!(world.led(), [Some(1)]);
    world.pipelines[1].led();
    assert_eq!(
        world.led(),
        [None],
        "minibatches in flight must not go on after the end"
    );
    assert!(world.pipelines[1].is_over());
}

#[test]
fn what_comes_before_the_leaders_word_of_it_waits() {
    let mut world = World::whole(3);
    let micro_batch = |step| FlowBody::Forward {
        step,
        micro_batch: 0,
        layer_range: 1,
    };
    for step in [2, 1] {
        world.pipelines[1].say(2, micro_batch(step));
    }
    world.carry();
    assert_eq!(world.pipelines[2].unannounced.len(), 2);
    for step in [1, 2] {
        let lead = FlowBody::Lead(Box::new(Lead { step, ..minibatch() }));
        let lead = Flow::without_numbers(world.pipelines[0].head(2, world.pipelines[0].generation, lead));
        let Heard::Begun { early, .. } = world.hear(2, PipelineEvent::Flow(lead)) else {
            panic!("the minibatch must begin");
        };
        let steps: Vec<_> = early.iter().map(|flow| flow.head.body.step()).collect();
        assert_eq!(steps, [Some(step)], "messages of another minibatch must wait for it");
    }
    // Messages for a completed minibatch are dropped, and more messages than an honest worker sends break the pipeline.
    world.pipelines[2].led();
    world.pipelines[1].say(2, micro_batch(1));
    assert_eq!(world.carry(), Vec::<u8>::new());
    assert!(world.pipelines[2].unannounced.is_empty());
    for _ in 0..=world.pipelines[2].kept_max() {
        world.pipelines[1].say(2, micro_batch(9));
    }
    assert_eq!(world.carry(), [2, 0]);
}

#[test]
fn who_is_not_through_with_the_last_minibatch_does_not_wait_for_who_has_given_it_up() {
    for (broken, before) in [(0, false), (1, false), (0, true), (1, true)] {
        let mut world = World::whole(3);
        world.pipelines[0].begin(Lead { step: 1, ..minibatch() });
        world.pipelines[0].led();
        if !before {
            world.pipelines[0].close();
        }
        world.carry();
        assert_eq!(world.led(), [Some(1), Some(1)]);
        assert_eq!(world.hear(broken, PipelineEvent::Broken), Heard::Broken);
        let mut broke = world.carry();
        if before {
            world.pipelines[0].close();
            broke.extend(world.carry());
        }
        assert!(broke.contains(&2), "{broke:?}");
        assert_eq!(world.led(), [None, None]);
    }
}

/// Tests messages that overtake each other: those from the leader and those that workers pass on take different paths.
#[test]
fn an_end_that_comes_after_the_next_call_breaks_nothing() {
    let mut world = World::whole(3);
    world.lead(1);
    world.carry();
    assert_eq!(world.hear(0, PipelineEvent::Stopping), Heard::Broken);
    world.pipelines[0].close();
    world.collect();
    let late = std::mem::take(&mut world.sent);
    world.join();
    world.carry();
    assert!(world.pipelines.iter().all(Pipeline::is_whole));
    world.sent.extend(late);
    assert_eq!(world.carry(), Vec::<u8>::new());
    assert!(
        world.pipelines.iter().all(Pipeline::is_whole),
        "the pipeline must stay complete for measuring"
    );
}

/// Tests that a leader does not answer endlessly: each message to an unreachable worker comes back from the node as the
/// event that the pipeline is broken.
#[test]
fn a_leader_that_has_ended_says_once_that_its_pipeline_is_broken() {
    let mut world = World::whole(3);
    world.pipelines[0].close();
    world.carry();
    for sent in [2, 0, 0] {
        world.hear(0, PipelineEvent::Broken);
        assert_eq!(std::mem::take(&mut world.sent).len(), sent);
    }
}
