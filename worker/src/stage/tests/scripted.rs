//! Tests of one worker of a pipeline, whose messages come in a scripted order.

use super::*;

/// Creates one worker of a pipeline whose other workers are played by the test.
fn among(job: &Job, data: &Arc<Dataset>, stage: u8) -> CpuStageTrainer {
    let pipelines = job.exchange.pipelines().unwrap();
    let partition = Partition::new(layout_for(job, data).unwrap(), pipelines).unwrap();
    let place = StageAddress { pipeline: 0, stage };
    let (stages, in_flight) = (partition.len() as u8, pipelines.in_flight(1));
    let pipeline = Pipeline::new(place, stages, in_flight, 1, data.train.len());
    let counts = partition.stage(usize::from(stage)).initial_counts(job.seed);
    let membership = Membership::of_job(job, data, partition, pipeline).unwrap();
    CpuStageTrainer::in_pipeline(membership, &counts, job.optimiser.rule, Threads(1)).unwrap()
}

fn lead_of(step: u64) -> Lead {
    Lead {
        step,
        micro_batches: 1,
        samples: samples(step),
        ..Lead::default()
    }
}

/// Computes a minibatch of which all messages have come, until its gradient is complete.
fn compute(trainer: &mut CpuStageTrainer) {
    while trainer.advance().unwrap() != Advance::Done {
        assert!(trainer.stage().is_computing(), "the minibatch was given up");
    }
}

/// Tests that a minibatch is trained whose activations come on a shorter path than the leader's announcement of it.
#[test]
fn a_minibatch_whose_parts_come_before_the_leaders_announcement_is_trained() {
    let data = dataset();
    let job = job("dense 24, tanh, dense", "sgd:0.05", 2, 1);
    let mut trainer = among(&job, &data, 1);
    let head = |message| FlowHead {
        pipeline: 0,
        to: 1,
        from: 0,
        generation: 7,
        body: message,
    };
    let hear = |trainer: &mut CpuStageTrainer, flow| trainer.stage_mut().hear(PipelineEvent::Flow(flow));
    hear(&mut trainer, Flow::without_numbers(head(FlowBody::Join)));
    for step in 1..4 {
        let lead = lead_of(step);
        let there = FlowBody::Forward {
            step,
            micro_batch: 0,
            layer_range: 1,
        };
        hear(
            &mut trainer,
            Flow::with(head(there), &vec![0.5; 24 * lead.samples.len()]),
        );
        hear(
            &mut trainer,
            Flow::without_numbers(head(FlowBody::Lead(Box::new(lead.clone())))),
        );
        compute(&mut trainer);
        let report = trainer.step(&lead.samples, control(&job, step), &mut Vec::new());
        assert!(report.is_ok(), "{step}: {:?}", report.err());
    }
}

/// Creates the second of three workers, which has joined and begun this step's minibatch; one more may be in flight.
fn in_the_middle(job: &Job, data: &Arc<Dataset>, step: u64) -> CpuStageTrainer {
    let mut trainer = among(job, data, 1);
    let lead = Lead { step, ..lead_of(1) };
    hear(&mut trainer, 0, FlowBody::Join, &[]);
    hear(&mut trainer, 0, FlowBody::Lead(Box::new(lead)), &[]);
    assert_eq!(trainer.advance().unwrap(), Advance::Worked);
    trainer
}

fn job_in_the_middle() -> Job {
    job_ahead("dense 24, tanh, dense 16, tanh, dense", "sgd:0.05", 3, 1, 1)
}

/// Passes a pipeline message of generation 7 to the worker under test, the second of the pipeline.
fn hear(trainer: &mut CpuStageTrainer, from: u8, body: FlowBody, numbers: &[f32]) {
    let head = FlowHead {
        pipeline: 0,
        to: 1,
        from,
        generation: 7,
        body,
    };
    let flow = Flow::with(head, numbers);
    trainer.stage_mut().hear(PipelineEvent::Flow(flow));
}

/// Passes a micro-batch's activations to the worker under test.
fn hear_forward(trainer: &mut CpuStageTrainer, step: u64) {
    let forward = FlowBody::Forward {
        step,
        micro_batch: 0,
        layer_range: 1,
    };
    hear(trainer, 0, forward, &vec![0.5; 24 * samples(1).len()]);
}

/// Passes a micro-batch's gradients back to the worker under test.
fn hear_backward(trainer: &mut CpuStageTrainer, step: u64) {
    let backward = FlowBody::Backward {
        step,
        micro_batch: 0,
        layer_range: 1,
        loss: 1.0,
    };
    hear(trainer, 2, backward, &vec![0.5; 16 * samples(1).len()]);
}

/// Runs a micro-batch forward and back through the worker under test; its weight gradient is not complete yet.
fn come_back(trainer: &mut CpuStageTrainer, step: u64) {
    hear_forward(trainer, step);
    hear_backward(trainer, step);
    while !trainer.stage().progress.as_ref().unwrap().is_back() {
        assert_eq!(trainer.advance().unwrap(), Advance::Worked);
    }
}

/// Tests that a minibatch that has come back is trained whatever comes meanwhile: other workers count it as trained,
/// and its samples are not trained again.
#[test]
fn a_minibatch_that_has_come_back_is_trained_whatever_is_heard_meanwhile() {
    let (data, job) = (dataset(), job_in_the_middle());
    for step in [1, u64::MAX] {
        let mut trainer = in_the_middle(&job, &data, step);
        come_back(&mut trainer, step);
        trainer.stage_mut().hear(PipelineEvent::Broken);
        compute(&mut trainer);
        trainer.step(&samples(1), control(&job, step), &mut Vec::new()).unwrap();
        assert_eq!(trainer.stage_mut().take_held(), [PipelineEvent::Broken]);
    }
}

/// Tests that messages that come after a minibatch has come back are kept for later, within limits.
#[test]
fn more_messages_than_belong_to_the_minibatches_in_flight_are_not_held() {
    let (data, job) = (dataset(), job_in_the_middle());
    let mut trainer = in_the_middle(&job, &data, 1);
    come_back(&mut trainer, 1);
    let max = trainer.stage().pipeline().kept_max();
    for _ in 0..max + 10 {
        hear(&mut trainer, 0, FlowBody::Ready, &[]);
    }
    let held = trainer.stage_mut().take_held();
    assert_eq!(held.len(), max + 1);
    assert_eq!(held.back(), Some(&PipelineEvent::Broken));
}

#[test]
fn numbers_that_come_twice_give_the_pipeline_up() {
    let mut trainer = in_the_middle(&job_in_the_middle(), &dataset(), 1);
    hear_forward(&mut trainer, 1);
    hear_forward(&mut trainer, 1);
    // The minibatch has no samples for the second worker; then both messages come.
    let advanced: Vec<_> = (0..3).map(|_| trainer.advance().unwrap()).collect();
    assert!(!trainer.stage().is_computing(), "{advanced:?}");
}

/// Tests that no state of a dead leader's minibatch is used: a leader may end while a message for a later minibatch has
/// come, be started again and lead that minibatch anew, with other weights.
#[test]
fn nothing_of_an_earlier_attempt_is_gone_on_with() {
    let data = dataset();
    let job = job_of(
        "dense 24, tanh, dense 16, tanh, dense",
        "sgd:0.05",
        "groups=2,slices=2,micro=1,ahead=1",
    );
    let own_after = |stale: f32| {
        let mut trainer = among(&job, &data, 2);
        let flow = |generation, from, message, numbers: Vec<f32>| {
            let head = FlowHead {
                pipeline: 0,
                to: 2,
                from,
                generation,
                body: message,
            };
            Flow::with(head, &numbers)
        };
        let message = |generation, message| flow(generation, 0, message, Vec::new());
        let there = |generation, step, layer_range, from, number: f32| {
            let micro_batch = 0;
            // Half of 24 neurons, or of 16.
            let width = if layer_range == 1 { 12 } else { 8 };
            let numbers = vec![number; width * lead_of(step).samples.len()];
            flow(
                generation,
                from,
                FlowBody::Forward {
                    step,
                    micro_batch,
                    layer_range,
                },
                numbers,
            )
        };
        let lead = |generation, step| message(generation, FlowBody::Lead(Box::new(lead_of(step))));
        let hear = |trainer: &mut CpuStageTrainer, flow| trainer.stage_mut().hear(PipelineEvent::Flow(flow));
        let step = |trainer: &mut CpuStageTrainer, step: u64, come: Vec<Flow>| {
            // The minibatch has begun when the messages come.
            assert_eq!(trainer.advance().unwrap(), Advance::Worked);
            for flow in come {
                hear(trainer, flow);
            }
            compute(trainer);
            trainer
                .step(&samples(step), control(&job, step), &mut Vec::new())
                .unwrap();
        };
        for said in [message(7, FlowBody::Join), lead(7, 1), lead(7, 2)] {
            hear(&mut trainer, said);
        }
        let first = [(1, 0), (1, 1), (2, 3)].map(|(layer_range, from)| there(7, 1, layer_range, from, 0.25));
        let early = [there(7, 2, 1, 0, stale), message(7, FlowBody::End { done: 1 })];
        step(&mut trainer, 1, early.into_iter().chain(first).collect());
        for said in [message(8, FlowBody::Join), lead(8, 2)] {
            hear(&mut trainer, said);
        }
        let second = [(1, 1), (1, 0), (2, 3)].map(|(layer_range, from)| there(8, 2, layer_range, from, 0.5));
        step(&mut trainer, 2, second.into());
        trainer.backend().read(Array::Own).unwrap().into_owned()
    };
    assert!(own_after(0.1) == own_after(0.9));
}
