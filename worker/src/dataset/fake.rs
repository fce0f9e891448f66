//! Meaningless data for simulations.

use protocol::job::model::Shape;

use super::samples::Values;
use super::{Answers, ContentHash, Dataset, DatasetError, NumberTarget, Samples, Scaling, Target};

impl Dataset {
    /// Returns samples whose one number, and also the number to predict, is their index: so a simulation can tell
    /// samples apart.
    pub fn fake(train: usize, test: usize) -> Result<Self, DatasetError> {
        let samples = |count: usize| {
            let indices: Vec<f32> = (0..count).map(|index| index as f32).collect();
            let answers = Answers::Numbers {
                width: 1,
                values: indices.clone(),
            };
            Samples::new(1, Values::Floats(indices), answers)
        };
        let (input, train, test) = (Shape::Flat(1), samples(train), samples(test));
        let target = Target::Numbers(vec![NumberTarget {
            name: "index".into(),
            mean: 0.0,
            deviation: 1.0,
        }]);
        Ok(Self {
            hash: ContentHash::of(input, None, &[], &target, [&train, &test])?,
            input,
            target,
            columns: None,
            encodings: Vec::new(),
            scaling: Scaling::Standard {
                mean: vec![0.0],
                deviation: vec![1.0],
            },
            train,
            test,
            remarks: Vec::new(),
        })
    }
}
