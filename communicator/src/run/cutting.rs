//! Choice of the layers at which a model is cut among nodes of different speed. Pure.

use protocol::job::model::{Layout, Partition};
use protocol::job::{Cut, Job, PipelineSpec};
use protocol::wire::control::Offer;

use crate::usage::{Workers, check_memory};

/// Ratio of the fastest node's speed to the slowest one's below which nodes count as equally fast. Speed is measured in
/// a moment in which other processes may use the machine, so small differences mean nothing.
const ALIKE: f64 = 2.0;

/// Returns the cut of a model into pipeline stages with which all nodes of a pipeline take about equally long. Offers
/// are ordered by pipeline and, within each pipeline, by stage. Returns `None`, which means groups of layers of equal
/// size, if the nodes are equally fast or one could not hold its stage.
pub(super) fn by_speed(job: &Job, offers: &[&Offer]) -> Option<Cut> {
    let pipelines = job.exchange.pipelines()?;
    let (stages, slices) = (pipelines.stages()?, usize::from(pipelines.slices));
    // All nodes that hold slices of a group wait for the slowest of them.
    let speed = |group: usize| {
        let holders = (0..).zip(offers).filter(|(at, _)| at % stages / slices == group);
        holders.map(|(_, offer)| offer.speed).min().unwrap_or(0) as f64
    };
    let speeds: Vec<f64> = (0..stages / slices).map(speed).collect();
    let slowest = speeds.iter().copied().fold(f64::INFINITY, f64::min);
    let fastest = speeds.iter().copied().fold(0.0, f64::max);
    if slowest <= 0.0 || fastest < ALIKE * slowest {
        return None;
    }
    let data = &offers.first()?.data;
    let layout = Layout::new(&job.model, data.input, data.target.outputs()).ok()?;
    let cut = Partition::by_speed(&layout, pipelines.slices, &speeds).ok()?;
    let partition = Partition::new(layout, &PipelineSpec { cut, ..*pipelines }).ok()?;
    let part = (job.step_samples() as usize).div_ceil(usize::from(pipelines.micro));
    let fits = |(at, offer): (usize, &&Offer)| {
        let workers = Workers {
            count: 1,
            speed: offer.speed,
            memory_bytes: offer.memory_bytes,
            gpu_bytes: offer.gpu_bytes,
        };
        check_memory(job, &partition.stage(at % stages).layout, workers).is_ok()
    };
    (partition.fits_messages(part) && offers.iter().enumerate().all(fits)).then_some(cut)
}

#[cfg(test)]
mod tests {
    use protocol::job::JobDraft;
    use protocol::job::data::DataInfo;
    use protocol::job::model::Shape;
    use protocol::job::target::TargetInfo;
    use protocol::weights::digest::Digest;

    use super::*;

    fn job(exchange: &str) -> Job {
        let draft = JobDraft {
            model: Some("dense 512, relu, dense 512, relu, dense 512, relu, dense 512, relu, dense".into()),
            exchange: Some(exchange.into()),
            ..JobDraft::default()
        };
        draft.resolve().unwrap()
    }

    fn offer(speed: u64) -> Offer {
        Offer {
            weights: 0,
            data: DataInfo {
                hash: [0; 32],
                input: Shape::Flat(512),
                target: TargetInfo::Classes(10),
                train: 10,
                test: 2,
                validation: 0,
                most_frequent: 1,
                code: None,
            },
            digest: Digest::default(),
            workers: 1,
            groups: 2,
            speed,
            memory_bytes: Some(64 << 30),
            gpu_bytes: None,
        }
    }

    fn cut(exchange: &str, offers: &[Offer]) -> Option<String> {
        let job = job(exchange);
        let cut = by_speed(&job, &offers.iter().collect::<Vec<_>>())?;
        let pipelines = job.exchange.pipelines()?;
        Some(PipelineSpec { cut, ..*pipelines }.to_string())
    }

    #[test]
    fn who_is_faster_gets_more() {
        let of = |speeds: &[u64]| {
            cut(
                "layers:groups=2",
                &speeds.iter().copied().map(offer).collect::<Vec<_>>(),
            )
        };
        assert_eq!(of(&[100, 150]), None, "nodes of similar speed get equal stages");
        assert_eq!(of(&[0, 900]), None, "speeds that are not all known do not count");
        // Layers 0, 2, 4 and 6 are the large ones.
        assert_eq!(of(&[100, 300]).as_deref(), Some("layers:cuts=2"));
        assert_eq!(of(&[300, 100]).as_deref(), Some("layers:cuts=6"));
        assert_eq!(of(&[9_000, 100]).as_deref(), Some("layers:cuts=8"));
        // The slowest node of each group counts.
        assert_eq!(of(&[100, 300, 900, 310]).as_deref(), Some("layers:cuts=2"));
        assert_eq!(of(&[100, 300, 900, 110]), None);
    }

    #[test]
    fn slices_of_a_group_wait_for_the_slowest() {
        let offers = [300, 310, 100, 900].map(offer);
        let found = cut("layers:groups=2,slices=2", &offers);
        assert_eq!(found.as_deref(), Some("layers:cuts=6,slices=2"));
    }

    #[test]
    fn nobody_gets_more_than_it_can_hold() {
        let small = |bytes| Offer {
            memory_bytes: Some(bytes),
            ..offer(900)
        };
        assert!(cut("layers:groups=2", &[small(1 << 30), offer(100)]).is_some());
        assert_eq!(cut("layers:groups=2", &[small(100 << 20), offer(100)]), None);
        let gpu = Offer {
            gpu_bytes: Some(100 << 20),
            ..offer(900)
        };
        assert_eq!(cut("layers:groups=2", &[gpu, offer(100)]), None);
    }
}
