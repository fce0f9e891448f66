//! One worker of a pipeline, to whom things come in an order that was written down.

use super::*;

/// A worker of a pipeline whose others are scripted.
fn among(job: &Job, data: &Arc<Dataset>, stage: u8) -> CpuStageTrainer {
    let pipelines = job.exchange.pipelines().unwrap();
    let partition = Partition::new(layout_for(job, data).unwrap(), pipelines).unwrap();
    let place = StageAddress { pipeline: 0, stage };
    let (stages, in_flight) = (partition.len() as u8, pipelines.in_flight(1));
    let pipeline = Pipeline::new(place, stages, in_flight, 1, data.train.len());
    let counts = partition.stage(usize::from(stage)).initial_counts(job.seed);
    let membership = Membership::of_job(job, data, partition, pipeline);
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

/// Goes on with a minibatch of which everything has come.
fn compute(trainer: &mut CpuStageTrainer) {
    while trainer.advance().unwrap() != Advance::Done {
        assert!(trainer.stage().is_computing(), "the minibatch was given up");
    }
}

/// What others have made of a minibatch may come on a shorter way than the leader's announcement of it.
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

/// The leader may end while a piece of a later minibatch has come, be started again and lead that minibatch anew: it has other
/// weights by then.
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
            // It has begun with the minibatch when they come.
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
