//! Trained models, for the corpus.

use protocol::job::JobDraft;
use protocol::job::model::{Layout, Shape, initial_counts};
use protocol::weights::digest::Digest;
use protocol::weights::lattice::weight_of;
use worker::dataset::{ColumnNames, Known, Scaling, Target};
use worker::model_file::{self, Metadata, Numbers};

use super::values::frontier;
use crate::engine::add_to_corpus;
use crate::files::stage_file;

pub(super) fn model_files() {
    let scaling = |columns| Scaling::Standard {
        mean: vec![1.5; columns],
        deviation: vec![0.1; columns],
    };
    let image = Shape::Image {
        channels: 1,
        height: 5,
        width: 4,
    };
    for (name, model, input, scaling) in [
        ("perceptron", "dense 4, relu, dense 2", Shape::Flat(3), scaling(3)),
        (
            "block",
            "residual [ conv 2 3x3 pad 1 nobias, batchnorm ], groupnorm 2, dense",
            image,
            Scaling::Unit,
        ),
        ("network", "conv 2 3x3, relu, flatten, dense 2", image, Scaling::Unit),
    ] {
        let draft = JobDraft {
            model: Some(model.into()),
            ..JobDraft::default()
        };
        let job = draft.resolve().unwrap();
        let layout = Layout::new(&job.model, input, 2).unwrap();
        let counts = initial_counts(&layout, 1);
        let weights: Vec<f32> = counts.iter().copied().map(weight_of).collect();
        let target = Target::Classes(["no", "yes"].map(String::from).to_vec());
        let digest = Digest::of_counts(&counts);
        let columns = matches!(input, Shape::Flat(_)).then(|| ColumnNames {
            features: ["x", "y", "z"].map(String::from).to_vec(),
            labels: vec!["answer".into()],
        });
        let known = Known {
            input,
            target: &target,
            columns: columns.as_ref(),
            encodings: &[],
            scaling: &scaling,
        };
        let metadata = Metadata::new(&job, known, &frontier(), digest);
        let file = tempfile::NamedTempFile::new().unwrap();
        let numbers = Numbers {
            layout: &layout,
            weights: &weights,
            statistics: &vec![0.5; layout.measured()],
            untrained: &[],
        };
        model_file::save(file.path(), numbers, &metadata).unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        add_to_corpus("model_file", name, &bytes);
    }
    add_to_corpus("stages", "first", &stage_file(0));
}
