use super::*;
use crate::job::JobDraft;
use crate::job::model::{Shape, initial_counts};

fn layout(model: &str, input: Shape) -> Layout {
    Layout::new(&model.parse().unwrap(), input, 10).unwrap()
}

fn pipelines(text: &str) -> PipelineSpec {
    let draft = JobDraft {
        exchange: Some(format!("layers:{text}")),
        ..JobDraft::default()
    };
    *draft.resolve().unwrap().exchange.pipelines().unwrap()
}

const DEEP: &str = "dense 30, relu, dense 20, dropout 0.1, relu, dense 20, relu, dense 20, relu, dense 20, relu, dense";

#[test]
fn stages_are_the_whole_model_and_begin_as_it_does() {
    let image = Shape::Image {
        channels: 2,
        height: 8,
        width: 8,
    };
    let blocks = "conv 4 3x3 pad 1, relu, residual [ conv 8 3x3 pad 1 stride 2, groupnorm 2 ], relu, maxpool 2, dense 7, relu, dense";
    for (model, input) in [(DEEP, Shape::Flat(9)), (blocks, image)] {
        let whole = layout(model, input);
        let counts = initial_counts(&whole, 5);
        for (groups, slices) in [(2, 1), (3, 1), (4, 1), (1, 2), (1, 3), (2, 2), (2, 4)] {
            let cut = pipelines(&format!("groups={groups},slices={slices}"));
            let partition = Partition::new(whole.clone(), &cut).unwrap();
            assert_eq!(partition.len(), groups * slices);
            assert_eq!(partition.first_digest(5), Digest::of_counts(&counts));
            let mut digest = Digest::default();
            let mut seen = vec![0; whole.weights];
            for stage in partition.stages() {
                let own = stage.initial_counts(5);
                assert_eq!(own.len(), stage.layout.weights);
                assert!(!own.is_empty());
                digest += stage.digest(&own);
                for (tensor, place) in stage.tensors() {
                    assert_eq!(
                        own[tensor.range()],
                        counts[place..][..tensor.elements()],
                        "{}",
                        tensor.key
                    );
                    seen[place..][..tensor.elements()]
                        .iter_mut()
                        .for_each(|seen| *seen += 1);
                }
                for own in &stage.layer_ranges {
                    let layer_range = &partition.layer_ranges()[own.number];
                    let last = &stage.layout.layers[own.layers.clone()].last().unwrap();
                    assert_eq!(layer_range.share(stage.number).unwrap().len(), last.output.elements());
                }
            }
            assert!(seen.iter().all(|&seen| seen == 1), "{model}: {groups}, {slices}");
            assert_eq!(digest, Digest::of_counts(&counts));
            let outputs: Vec<usize> = partition.layer_ranges().iter().map(LayerRange::outputs).collect();
            assert_eq!(outputs.last(), Some(&10));
        }
    }
}

#[test]
fn slices_are_neurons_and_channels_and_the_last_layer_is_whole() {
    let image = Shape::Image {
        channels: 1,
        height: 8,
        width: 8,
    };
    let whole = layout(
        "dropout 0.1, conv 6 3x3, relu, maxpool 2, flatten, dense 5, tanh, dense",
        image,
    );
    let partition = Partition::new(whole, &pipelines("slices=2")).unwrap_err();
    assert_eq!(partition, PartitionError::Undecided);
    let whole = layout(
        "dropout 0.1, conv 6 3x3, relu, maxpool 2, flatten, dense 5, tanh, dense",
        image,
    );
    let partition = Partition::new(whole, &pipelines("groups=1,slices=2")).unwrap();
    let shares: Vec<_> = partition
        .layer_ranges()
        .iter()
        .map(|one| one.shares().to_vec())
        .collect();
    assert_eq!(
        shares,
        [vec![0..27, 27..54], vec![0..2, 2..5], std::iter::once(0..10).collect()]
    );
    let second = partition.stage(1);
    let sizes = second
        .tensors()
        .map(|(tensor, _)| (tensor.key.as_str(), tensor.dims.clone()));
    assert_eq!(
        sizes.collect::<Vec<_>>(),
        [
            ("1.bias", vec![3]),
            ("1.weight", vec![3, 1, 3, 3]),
            ("5.bias", vec![3]),
            ("5.weight", vec![3, 54])
        ]
    );
    let outputs: Vec<usize> = second.layout.layers.iter().map(|one| one.output.elements()).collect();
    assert_eq!(outputs, [64, 108, 108, 27, 27, 3, 3]);
    assert_eq!(partition.widest(), 27);
    let first = partition.stage(0);
    assert_eq!(first.layer_ranges.len(), 3);
    assert_eq!(first.layer_ranges[1].before, 5);
}

#[test]
fn a_stage_knows_where_its_layers_weights_lie() {
    let whole = layout(DEEP, Shape::Flat(9));
    let partition = Partition::new(whole, &pipelines("cuts=5+11")).unwrap();
    let stage = partition.stage(1);
    assert_eq!((stage.layer_ranges[0].before, stage.layout.layers.len()), (5, 6));
    let keys: Vec<&str> = stage.layout.tensors.iter().map(|tensor| tensor.key.as_str()).collect();
    assert_eq!(keys, ["5.bias", "5.weight", "7.bias", "7.weight", "9.bias", "9.weight"]);
    let first = &stage.layout.layers[0];
    assert_eq!(first.parameters, Some((20..420, 0..20)));
}

#[test]
fn groups_are_as_equal_as_can_be() {
    let whole = layout("dense 40, relu, dense 40, relu, dense 40, relu, dense", Shape::Flat(40));
    let partition = Partition::new(whole, &pipelines("groups=3")).unwrap();
    let layers: Vec<_> = partition.groups.clone();
    assert_eq!(
        layers,
        [0..2, 2..4, 4..7],
        "the small last layer must join the group of the layer before it"
    );
}

#[test]
fn what_cannot_be_cut_is_refused_with_a_sentence() {
    let refused = |model: &str, cut: &str| {
        Partition::new(layout(model, Shape::Flat(9)), &pipelines(cut))
            .unwrap_err()
            .to_string()
    };
    let few = refused("dense 5, relu, dense", "groups=3");
    assert!(
        few.contains("3 groups need at least 3 layers with weights, but the model has 2"),
        "{few}"
    );
    let wrong = refused(DEEP, "cuts=1");
    assert!(
        wrong.contains("no group can begin at layer 1") && wrong.contains("2, 5, 7, 9, 11"),
        "{wrong}"
    );
    assert!(refused("dense 5, batchnorm, relu, dense", "groups=2").contains("groupnorm"));
    let whole = refused(DEEP, "cuts=11,slices=2");
    assert!(
        whole.contains("no group can begin at layer 11") && whole.ends_with("weights: 2, 5, 7, 9"),
        "{whole}"
    );
    let narrow = refused("dense 8, relu, dense 1, relu, dense", "groups=2,slices=2");
    assert!(
        narrow.contains("no layer of group 2 can be divided into 2 slices"),
        "{narrow}"
    );
    let deep = format!("{}, dense", vec!["dense 2"; 256].join(", "));
    assert_eq!(refused(&deep, "groups=1,slices=2"), PartitionError::TooDeep.to_string());
}
