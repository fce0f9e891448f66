//! A module in Rust: one of Tau's own networks behind the interface of foreign code, which proves the interface without
//! an interpreter. Its own samples are those of a dataset that it is given.

use std::sync::Arc;
use std::time::Duration;

use dfdx::prelude::Cpu;
use protocol::job::model::{Layout, ModelSpec, initial_counts};
use protocol::weights::lattice::weight_of;

use super::{
    Minibatch, Module, ModuleData, ModuleFailure, ModuleHost, ModuleNetwork, ModuleSource, ModuleTensor, Rows,
};
use crate::dataset::{Answers, Dataset};
use crate::machine::parallel::Threads;
use crate::model::network::{ForwardPass, Network};
use crate::model::ops::loss::eval_sums;
use crate::model::ops::{self, CpuLayer, MeanLoss, Parameters, Pass, Seed, Statistics, from_rows, values};
use crate::model::program::{ImageOrder, Program};
use crate::model_file::UntrainedTensor;
use crate::task::objective::Objective;

/// Number of classes of all data in these tests.
pub(super) const CLASSES: usize = 10;

/// Interpreter whose code is the text of a model's layers, after the line that marks it.
#[derive(Debug, Default)]
pub(super) struct Native {
    /// Dataset whose samples are the modules' own; `None` if they have none.
    pub(super) data: Option<Arc<Dataset>>,
}

impl ModuleHost for Native {
    fn load(&self, source: &ModuleSource) -> Result<Arc<dyn Module>, ModuleFailure> {
        let text = String::from_utf8_lossy(&source.code);
        let model: ModelSpec = text.lines().last().unwrap().parse().map_err(ModuleFailure)?;
        let data = self.data.clone().filter(|_| source.input.is_none());
        let input = source.input.or_else(|| data.as_ref().map(|data| data.input));
        let layout = Layout::new(&model, input.unwrap(), CLASSES);
        let layout = layout.map_err(|error| ModuleFailure(error.to_string()))?;
        Ok(Arc::new(NativeModule {
            layout,
            seed: source.seed,
            data,
        }))
    }

    fn longest_call(&self) -> Option<Duration> {
        None
    }

    fn whereabouts(&self) -> Option<String> {
        None
    }
}

struct NativeModule {
    layout: Layout,
    seed: u64,
    data: Option<Arc<Dataset>>,
}

impl Module for NativeModule {
    fn tensors(&self) -> Result<Vec<ModuleTensor>, ModuleFailure> {
        let tensors = self.layout.tensors.iter();
        Ok(tensors
            .map(|tensor| ModuleTensor {
                key: tensor.key.clone(),
                dims: tensor.dims.clone(),
                by_adam: false,
            })
            .collect())
    }

    fn data(&self) -> Result<ModuleData, ModuleFailure> {
        let data = self.data.as_ref().unwrap();
        Ok(ModuleData {
            classes: data.train.labels().to_vec(),
            test: data.test.len(),
            hash: *data.hash.as_bytes(),
        })
    }

    fn seal(&self) -> Result<[u8; 32], ModuleFailure> {
        Ok([7; 32])
    }

    fn first_weights(&self, weights: &mut [f32]) -> Result<(), ModuleFailure> {
        for (weight, count) in weights.iter_mut().zip(initial_counts(&self.layout, self.seed)) {
            *weight = weight_of(count);
        }
        Ok(())
    }

    fn network(&self, threads: usize) -> Result<Box<dyn ModuleNetwork>, ModuleFailure> {
        let network = |program| ops::network(program, Threads(threads));
        let program = Program::new(&self.layout, ImageOrder::BySample);
        Ok(Box::new(NativeNetwork {
            evaluates: network(program.clone().for_evaluation()),
            trains: network(program),
            under_way: None,
            data: self.data.clone(),
        }))
    }
}

struct NativeNetwork {
    trains: Network<CpuLayer>,
    evaluates: Network<CpuLayer>,
    /// The last forward pass, with the weights and the key that it was made with.
    under_way: Option<(ForwardPass<CpuLayer>, Pass)>,
    data: Option<Arc<Dataset>>,
}

impl NativeNetwork {
    /// Returns the inputs of the module's own samples at these positions, and their loss.
    fn own_samples(&self, positions: &[u32]) -> (Vec<f32>, MeanLoss) {
        let data = self.data.as_ref().unwrap();
        let trained = data.train.len() as u32;
        let (samples, from) = if positions[0] < trained {
            (&data.train, 0)
        } else {
            (&data.test, trained)
        };
        let indices: Vec<u32> = positions.iter().map(|position| position - from).collect();
        let (mut inputs, mut answers) = (Vec::new(), Answers::default());
        samples.gather(&indices, &mut inputs, &mut answers);
        let objective = Objective::of(&data.target);
        (inputs, MeanLoss { objective, answers })
    }
}

// SAFETY: dfdx's tapes hold `Rc`s, which never leave this network, and a network is used by one thread at a time.
unsafe impl Send for NativeNetwork {}

#[expect(clippy::needless_pass_by_value, reason = "errors are mapped by this function")]
fn failed(error: impl ToString) -> ModuleFailure {
    ModuleFailure(error.to_string())
}

fn tensor(rows: Rows<'_>) -> Result<ops::Rows, ModuleFailure> {
    let width = rows.values.len() / rows.samples;
    from_rows(&Cpu::default(), rows.samples, width, rows.values.to_vec()).map_err(failed)
}

impl ModuleNetwork for NativeNetwork {
    fn forward(&mut self, weights: &[f32], rows: Rows<'_>, key: u64) -> Result<Vec<f32>, ModuleFailure> {
        let parameters = Parameters::new(&Cpu::default(), weights.to_vec()).map_err(failed)?;
        let lent = parameters.lend_gradient(Vec::new()).map_err(failed)?;
        let pass = Pass::new(parameters, key, Statistics::Minibatch);
        let forward = self.trains.forward_taped(&pass, tensor(rows)?, lent).map_err(failed)?;
        let outputs = values(&forward.outputs).to_vec();
        self.under_way = Some((forward, pass));
        Ok(outputs)
    }

    fn backward(&mut self, output_gradient: &[f32], gradient: &mut [f32]) -> Result<(), ModuleFailure> {
        let (forward, pass) = self.under_way.take().expect("forward comes first");
        let seed = Seed::new(output_gradient.to_vec(), 0.0, vec![0.0; gradient.len()]);
        let descent = forward.backward(&seed, &pass).map_err(failed)?;
        let all = pass.parameters.take_gradient(descent.gradients).map_err(failed)?;
        gradient.copy_from_slice(&all);
        Ok(())
    }

    fn infer(&mut self, weights: &[f32], rows: Rows<'_>) -> Result<Vec<f32>, ModuleFailure> {
        let parameters = Parameters::new(&Cpu::default(), weights.to_vec()).map_err(failed)?;
        let pass = Pass::new(parameters, 0, Statistics::Given(Arc::default()));
        let outputs = self.evaluates.forward(&pass, tensor(rows)?).map_err(failed)?;
        Ok(values(&outputs).to_vec())
    }

    fn step(
        &mut self,
        weights: &[f32],
        positions: &[u32],
        key: u64,
        gradient: &mut [f32],
    ) -> Result<f32, ModuleFailure> {
        let (inputs, loss) = self.own_samples(positions);
        let rows = Rows {
            values: &inputs,
            samples: positions.len(),
        };
        let mut outputs = self.forward(weights, rows, key)?;
        let mean = loss.replace_by_gradient(&mut outputs);
        self.backward(&outputs, gradient)?;
        Ok(mean)
    }

    fn measure(&mut self, weights: &[f32], positions: &[u32]) -> Result<Vec<(String, f64)>, ModuleFailure> {
        let (inputs, loss) = self.own_samples(positions);
        let rows = Rows {
            values: &inputs,
            samples: positions.len(),
        };
        let outputs = self.infer(weights, rows)?;
        let sums = eval_sums(&loss.objective, &outputs, &loss.answers);
        let samples = positions.len() as f64;
        let accuracy = sums.correct as f64 / samples;
        Ok(vec![
            ("loss".into(), sums.loss / samples),
            ("accuracy".into(), accuracy),
        ])
    }

    fn settle(&mut self) -> Result<bool, ModuleFailure> {
        Ok(false)
    }

    fn observe(&mut self, _: &[f32], _: Minibatch<'_>) -> Result<(), ModuleFailure> {
        unreachable!()
    }

    fn untrained(&mut self, _: &[f32]) -> Result<Vec<UntrainedTensor>, ModuleFailure> {
        Ok(Vec::new())
    }
}
