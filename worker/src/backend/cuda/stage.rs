//! A stage of a network on a GPU. Activations and gradients of other stages pass over the bus to and from the host.

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
use super::layers::{CudaLayer, Pass, Statistics, StepKey};
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

/// A trainer of one pipeline stage on a GPU.
pub type CudaStageTrainer = Replica<CudaBackend<StageModel<CudaLayers>>>;

impl CudaStageTrainer {
    /// Makes a trainer of a worker's pipeline stage on a GPU. Its own and shared weights both begin as `counts`: the
    /// initial weights as multiples of the step between two neighbouring values. `micro_batch` is the largest number of
    /// samples in a micro-batch.
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
        // Without micro-batches, no gradients are summed.
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

/// Some consecutive layers (a layer range) of a worker's pipeline stage on a GPU: all of their neurons, or the slice of
/// them that the worker holds.
pub struct CudaLayers {
    number: usize,
    program: Program,
    objective: Objective,
    /// Indices of the layers' weights among all weights of the pipeline stage.
    weights: Range<usize>,
    /// Largest number of samples in a micro-batch.
    micro_batch: usize,
    /// Micro-batches after their forward and before their backward pass, by `(step, micro-batch)`. Each has a model of
    /// its own for its activations, and keeps the weights that it used.
    under_way: BTreeMap<(u64, u16), UnderWay>,
    /// Models (layers with buffers) that no micro-batch uses at present.
    free: Vec<CudaModel>,
    /// Layers and buffers for evaluation samples, made when the first samples arrive.
    forward: Option<CudaModel>,
    /// Buffer for a micro-batch's gradient before the gradient is added to that of the whole minibatch.
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

    /// Returns layers and buffers that no other micro-batch uses, with room for `samples` samples.
    fn model(&mut self, samples: usize) -> Result<CudaModel, GpuError> {
        if samples > self.micro_batch {
            self.micro_batch = samples;
            self.free.clear();
        }
        if let Some(model) = self.free.pop() {
            return Ok(model);
        }
        // A model beside another one shares the buffers that only one backward pass at a time needs.
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

    /// Puts a model's buffers back for reuse after its micro-batch is done.
    fn leave(&mut self, model: CudaModel) {
        if model.minibatch() >= self.micro_batch {
            self.free.push(model);
        }
    }

    /// Returns the number of samples that these inputs hold.
    fn samples(&self, inputs: &[f32]) -> usize {
        inputs.len() / self.program.input.numbers().max(1)
    }

    /// Returns the address at which a micro-batch's backward pass writes its gradient: the minibatch's gradient itself
    /// or, in mode `Add`, a buffer that is added to it afterwards.
    fn written(&self, write_mode: WriteMode, gradient: DeviceAddress<f32>) -> DeviceAddress<f32> {
        match write_mode {
            WriteMode::Overwrite => gradient,
            WriteMode::Add => self.summand.at(),
        }
    }

    /// Completes a micro-batch after its backward pass was launched: in mode `Add`, adds its gradient to that of the
    /// whole minibatch. Returns the gradients of its inputs, fetched from the GPU.
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
            // SAFETY: both arrays have all weights of the stage, which include the weights of these layers.
            unsafe {
                self.gpu
                    .launch(&self.gpu.kernels.add_ways, Grid::each(count), arguments)?;
            }
        }
        // The first layer range needs no input gradients, but must wait like the others.
        let (samples, numbers) = *inputs.shape();
        let wanted = if self.number == 0 { 0 } else { samples * numbers };
        let input_gradients = (*slot(&mut descent.gradients, inputs)?).into();
        // SAFETY: if they are wanted, the first layer has written one gradient for each input.
        unsafe { self.border.fetch(input_gradients, wanted) }
    }
}

impl Layers for CudaLayers {
    type Weights = Weights;
    type Shared = Array<f32>;
    type Gradient = DeviceAddress<f32>;
    /// Weight gradients whose computation is postponed: none, because the GPU computes them faster than messages
    /// travel.
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
        // SAFETY: the last layer writes `rows * columns` numbers.
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
        // SAFETY: the model has room for the output gradients of a micro-batch; their number was checked above.
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
        // SAFETY: the model has room for the samples of a micro-batch; the number of labels was checked above.
        unsafe {
            self.border.send_numbers(&inputs, model.x())?;
            self.border.send(labels.into_iter(), model.labels())?;
        }
        let written = self.written(write_mode, *gradient);
        let (inputs, descent) =
            model.descend_part(weights.parameters(), written, (samples, share), StepKey::Known(key))?;
        let input_gradients = self.finish(&inputs, descent, write_mode, *gradient)?;
        // SAFETY: the array holds one loss per sample.
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

    /// Runs the layers on evaluation samples in full precision: results must not depend on the precision used in
    /// training.
    fn infer(&mut self, weights: &Weights, inputs: Vec<f32>) -> Result<Vec<f32>, TrainError> {
        let samples = self.samples(&inputs);
        let model = match self.forward.take() {
            Some(model) if model.minibatch() >= samples => model,
            _ => {
                let program = self.program.clone().for_evaluation();
                CudaModel::new(&self.gpu, &program, &self.objective, samples, Purpose::Evaluation)?
            }
        };
        // SAFETY: the model has room for this many samples.
        unsafe { self.border.send_numbers(&inputs, model.x())? };
        let forward = || model.logits(weights.parameters(), samples, Statistics::Minibatch);
        let (outputs, each) = self.gpu.products.in_full(forward)?;
        // SAFETY: the last layer writes `each` numbers per sample.
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

/// The start of a backward pass in a stage that has no loss: output gradients from the next stage replace those of a
/// loss.
#[derive(Clone)]
struct Seed {
    /// Address of the gradients at the stage's outputs, which the next stage has sent.
    output_gradients: DeviceAddress<f32>,
    /// Address at which the gradient of the stage's weights is written.
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
