//! A stage of a network on a GPU. What comes from others and goes to them passes over the bus.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::Range;
use std::rc::Rc;

use dfdx::prelude::{Cpu, Gradients, HasShape};
use protocol::job::model::StageSlice;
use protocol::job::optimiser::Rule;

use super::address::DeviceAddress;
use super::backend::CudaBackend;
use super::border::Border;
use super::dataset::words;
use super::error::GpuError;
use super::gpu::{Gpu, Grid};
use super::kernels::AddWays;
use super::layers::{CudaLayer, Pass, Statistics};
use super::memory::Array;
use super::model::{CudaModel, Purpose};
use super::tensor_address::{TensorAddress, place_of, slot, tensor_at};
use super::weights::Weights;
use crate::backend::replica::Replica;
use crate::learning::muon::MuonBlocks;
use crate::model::network::{Descent, ForwardPass};
use crate::model::ops::MeanLoss;
use crate::model::ops::matmul::WriteMode;
use crate::model::program::{ImageOrder, InputGradient, Program};
use crate::model::tape::{Activations, Forward, Neighbours, Operation};
use crate::stage::{Layers, Membership, Returned, StageModel};
use crate::task::objective::Objective;
use crate::trainer::TrainError;

/// Trains a stage of a network on a GPU.
pub type CudaStageTrainer = Replica<CudaBackend<StageModel<CudaLayers>>>;

impl CudaStageTrainer {
    /// A trainer of the stage that a worker holds, whose copies both are the given weights, for micro-batches of minibatches
    /// of so many samples.
    pub fn in_pipeline(
        gpu: Gpu,
        membership: Membership,
        counts: &[i32],
        rule: Rule,
        micro_batch: usize,
    ) -> Result<Self, TrainError> {
        let gpu = Rc::new(gpu);
        let (stage, seed) = (membership.stage(), membership.dropout_seed);
        let whole = membership.partition.whole().clone();
        let parts = |muon| MuonBlocks::new(&whole, muon).of_stage(&stage);
        let objective = membership.task.objective.clone();
        // Where minibatches are not cut, nothing is added up.
        let summand = if membership.micro_batches > 1 {
            stage.layout.weights
        } else {
            0
        };
        let summand = Rc::new(Array::zeros(&gpu, summand)?);
        let model = || {
            StageModel::new(membership, |partition, stage, own| {
                let program = Program::of_layer_range(partition, stage, own, ImageOrder::ByChannel);
                let made = CudaLayers::new(&gpu, own, program, objective.clone(), micro_batch, &summand);
                made.map_err(TrainError::from)
            })
        };
        let backend = CudaBackend::of(&gpu, model, &stage.layout, counts, rule, parts)?;
        Self::on(backend, rule, seed)
    }
}

/// What a worker holds of a layer range, on a GPU.
pub struct CudaLayers {
    number: usize,
    program: Program,
    objective: Objective,
    /// Which weights of the stage are those of these layers.
    weights: Range<usize>,
    /// The most samples that a micro-batch has.
    micro_batch: usize,
    /// Micro-batches that have gone forward, by the step of their minibatch. Each has a model for itself, in which its
    /// activations lie, and keeps the weights that it went with.
    under_way: BTreeMap<(u64, u16), UnderWay>,
    /// Models that no micro-batch is in.
    free: Vec<CudaModel>,
    /// What evaluation samples go through, once there were any.
    forward: Option<CudaModel>,
    /// The gradient of a micro-batch that is to be added to another's.
    summand: Rc<Array<f32>>,
    border: Border,
    gpu: Rc<Gpu>,
}

struct UnderWay {
    forward: ForwardPass<CudaLayer>,
    pass: Pass,
    model: CudaModel,
    _weights: Weights,
}

impl CudaLayers {
    fn new(
        gpu: &Rc<Gpu>,
        own: &StageSlice,
        program: Program,
        objective: Objective,
        micro_batch: usize,
        summand: &Rc<Array<f32>>,
    ) -> Result<Self, GpuError> {
        Ok(Self {
            number: own.number,
            weights: program.weights(),
            program,
            objective,
            micro_batch,
            under_way: BTreeMap::new(),
            free: Vec::new(),
            forward: None,
            summand: Rc::clone(summand),
            border: Border::new(gpu)?,
            gpu: Rc::clone(gpu),
        })
    }

    /// A model for a micro-batch of so many samples that no other micro-batch is in.
    fn model(&mut self, samples: usize) -> Result<CudaModel, GpuError> {
        if samples > self.micro_batch {
            self.micro_batch = samples;
            self.free.clear();
        }
        if let Some(model) = self.free.pop() {
            return Ok(model);
        }
        // What only one way back at a time needs they have in common.
        let mut others = self.under_way.values().map(|other| &other.model);
        if let Some(other) = others.find(|other| other.minibatch() >= self.micro_batch) {
            return other.beside();
        }
        let wanted = if self.number == 0 {
            InputGradient::NotNeeded
        } else {
            InputGradient::Needed
        };
        let purpose = Purpose::Passing(wanted);
        CudaModel::new(&self.gpu, &self.program, &self.objective, self.micro_batch, purpose)
    }

    /// No micro-batch is in a model any more.
    fn leave(&mut self, model: CudaModel) {
        if model.minibatch() >= self.micro_batch {
            self.free.push(model);
        }
    }

    /// How many samples such numbers are.
    fn samples(&self, inputs: &[f32]) -> usize {
        inputs.len() / self.program.input.numbers().max(1)
    }

    /// Where the gradient of a micro-batch is written, given what is to become of what others have written.
    fn written(&self, write_mode: WriteMode, gradient: DeviceAddress<f32>) -> DeviceAddress<f32> {
        match write_mode {
            WriteMode::Overwrite => gradient,
            WriteMode::Add => self.summand.at(),
        }
    }

    /// A micro-batch's gradient was launched: adds it to the others' if it is to be, and fetches the gradients at what had
    /// come in.
    fn finish(
        &mut self,
        inputs: &Activations<TensorAddress>,
        mut descent: Descent<TensorAddress>,
        write_mode: WriteMode,
        gradient: DeviceAddress<f32>,
    ) -> Result<Vec<f32>, GpuError> {
        if write_mode == WriteMode::Add {
            let (from, count) = (self.weights.start, self.weights.len());
            let sum = gradient.plus(from);
            let arguments = AddWays {
                one: sum,
                other: self.summand.at().plus(from),
                y: sum,
                total: count as u32,
                relu: 0,
            };
            // SAFETY: both have all weights of the stage, of which these are some.
            unsafe {
                self.gpu
                    .launch(&self.gpu.kernels.add_ways, Grid::each(count), arguments)?;
            }
        }
        // Nobody wants gradients at samples, but they are waited for as others are.
        let (samples, numbers) = *inputs.shape();
        let wanted = if self.number == 0 { 0 } else { samples * numbers };
        let input_gradients = (*slot(&mut descent.gradients, inputs)?).into();
        // SAFETY: where they are wanted the first layer has written the gradient of so many numbers that have come in.
        unsafe { self.border.fetch(input_gradients, wanted) }
    }
}

impl Layers for CudaLayers {
    type Weights = Weights;
    type Shared = Array<f32>;
    type Gradient = DeviceAddress<f32>;
    /// The device computes a gradient of weights in less time than gradients are on their way.
    type Deferred = Infallible;

    fn number(&self) -> usize {
        self.number
    }

    fn forward(
        &mut self,
        micro_batch: (u64, u16),
        weights: &Weights,
        key: u64,
        inputs: Vec<f32>,
    ) -> Result<Cow<'_, [f32]>, TrainError> {
        let samples = self.samples(&inputs);
        let model = self.model(samples)?;
        // SAFETY: the model has room for a micro-batch.
        unsafe { self.border.send_numbers(&inputs, model.x())? };
        let (forward, pass) = model.forward(weights.parameters(), samples, key)?;
        let (rows, columns) = *forward.outputs.shape();
        // SAFETY: the last layer writes so many numbers.
        let outputs = unsafe { self.border.fetch(place_of(&forward.outputs), rows * columns)? };
        let under_way = UnderWay {
            forward,
            pass,
            model,
            _weights: weights.clone(),
        };
        if let Some(replaced) = self.under_way.insert(micro_batch, under_way) {
            self.leave(replaced.model);
        }
        Ok(Cow::Owned(outputs))
    }

    fn backward(
        &mut self,
        micro_batch: (u64, u16),
        (output_gradients, loss): (Vec<f32>, f32),
        write_mode: WriteMode,
        gradient: &mut DeviceAddress<f32>,
    ) -> Result<Option<Returned<Infallible>>, TrainError> {
        let Some(under_way) = self.under_way.remove(&micro_batch) else {
            return Ok(None);
        };
        let UnderWay {
            forward,
            pass,
            model,
            _weights,
        } = under_way;
        let (rows, columns) = *forward.outputs.shape();
        if output_gradients.len() != rows * columns {
            return Ok(None);
        }
        let seed = Seed {
            output_gradients: model.output_gradients(),
            gradient: self.written(write_mode, *gradient),
        };
        // SAFETY: the model has room for the gradients of a micro-batch's outputs, of which there are so many.
        unsafe { self.border.send_numbers(&output_gradients, seed.output_gradients)? };
        let inputs = forward.inputs.clone();
        let descent = forward.backward(&seed, &pass).map_err(TrainError::from)?;
        let input_gradients = self.finish(&inputs, descent, write_mode, *gradient)?;
        self.leave(model);
        let deferred = Vec::new();
        Ok(Some(Returned {
            loss,
            input_gradients,
            deferred,
        }))
    }

    fn run_loss_head(
        &mut self,
        (weights, key, inputs): (&Weights, u64, Vec<f32>),
        (loss, share): (&MeanLoss, f32),
        write_mode: WriteMode,
        gradient: &mut DeviceAddress<f32>,
    ) -> Result<Returned<Infallible>, TrainError> {
        let samples = self.samples(&inputs);
        let model = self.model(samples)?;
        let labels = words(&loss.answers);
        assert!(
            labels.len() <= model.labels_max(),
            "a micro-batch has more labels than the model has room for"
        );
        // SAFETY: the model has room for a micro-batch and its labels.
        unsafe {
            self.border.send_numbers(&inputs, model.x())?;
            self.border.send(labels.into_iter(), model.labels())?;
        }
        let written = self.written(write_mode, *gradient);
        let (inputs, descent) = model.descend_part(weights.parameters(), written, (samples, share), key)?;
        let input_gradients = self.finish(&inputs, descent, write_mode, *gradient)?;
        // SAFETY: each sample has a loss.
        let losses = unsafe { self.border.fetch(model.losses(), samples)? };
        self.leave(model);
        let sum: f64 = losses.into_iter().map(f64::from).sum();
        Ok(Returned {
            loss: (sum / samples as f64) as f32,
            input_gradients,
            deferred: Vec::new(),
        })
    }

    fn compute_deferred(&self, deferred: Infallible, _: WriteMode, _: &mut DeviceAddress<f32>) {
        match deferred {}
    }

    /// In full: what is told of a model must not depend on the precision that it is trained in.
    fn infer(&mut self, weights: &Weights, inputs: Vec<f32>) -> Result<Vec<f32>, TrainError> {
        let samples = self.samples(&inputs);
        let model = match self.forward.take() {
            Some(model) if model.minibatch() >= samples => model,
            _ => {
                let program = self.program.clone().for_evaluation();
                CudaModel::new(&self.gpu, &program, &self.objective, samples, Purpose::Evaluation)?
            }
        };
        // SAFETY: the model has room for so many samples.
        unsafe { self.border.send_numbers(&inputs, model.x())? };
        let forward = || model.logits(weights.parameters(), samples, Statistics::Minibatch);
        let (outputs, each) = self.gpu.products.in_full(forward)?;
        // SAFETY: the last layer writes so many numbers.
        let outputs = unsafe { self.border.fetch(outputs, samples * each)? };
        self.forward = Some(model);
        Ok(outputs)
    }

    fn copied(&self, shared: &Array<f32>) -> Result<Weights, TrainError> {
        let mut array = Array::zeros(&self.gpu, shared.len())?;
        array.copy_from(&self.gpu, shared)?;
        Ok(Weights::new(array, shared.len())?)
    }

    fn clear(&mut self) {
        for (_, UnderWay { model, .. }) in std::mem::take(&mut self.under_way) {
            self.leave(model);
        }
    }
}

/// Where a network goes on elsewhere: gradients that have come back from there, in place of a loss.
#[derive(Clone)]
struct Seed {
    /// Where they lie.
    output_gradients: DeviceAddress<f32>,
    /// Where the gradient of the stage's weights is to be written.
    gradient: DeviceAddress<f32>,
}

impl Operation<()> for Seed {
    type Unit = TensorAddress;
    type Pass = Pass;
    type Saved = ();
    type Error = GpuError;

    fn forward(&self, _: &Pass, _: &Activations<TensorAddress>, _: bool) -> Forward<Self, ()> {
        Ok((tensor_at(self.output_gradients, ())?, ()))
    }

    fn backward(
        &self,
        Pass(pass): &Pass,
        around: Neighbours<'_, TensorAddress, ()>,
        (): (),
        gradients: &mut Gradients<TensorAddress, Cpu>,
    ) -> Result<(), GpuError> {
        *pass.parameters.gradient(gradients)? = vec![self.gradient.into()];
        *slot(gradients, around.x)? = self.output_gradients.into();
        Ok(())
    }
}
