//! A worker's part in a lane: it computes the gradient of its own neurons, and everything else comes from the others.

mod gathering;
mod layers;
mod measuring;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use protocol::augment::Augment;
use protocol::measured::Scores;
use protocol::model::{Layout, Partition, Portion, Stretch};
use protocol::optimiser::Rule;
use protocol::rng::splitmix64;
use protocol::wire::flow::{Flow, FlowWord, Lead};

use crate::backend::cpu::{CpuBackend, Slopes};
use crate::backend::replica::{Replica, step_key};
use crate::dataset::{Answers, Dataset};
use crate::lane::{Content, Lane, LaneWord};
use crate::learning::muon::Parts;
use crate::objective::{Objective, Task};
use crate::ops::{MeanLoss, Parameters, Threads};
use crate::train_error::TrainError;
use crate::views;
use gathering::{Gathering, added_up, columns, side_by_side};
use layers::{Layers, Returned};
use measuring::Measuring;

/// Trains a portion of a network on the CPU.
pub type PortionTrainer = Replica<CpuBackend<PortionModel>>;

/// What a worker holds of a network, and the way to the others.
pub struct PortionModel {
    lane: Lane,
    portion: Portion,
    /// How the network is divided.
    stretches: Vec<Stretch>,
    /// Numbers of one sample that pass between two workers, at most.
    widest: usize,
    /// What this worker has of the stretches, in order.
    held: Vec<Layers>,
    /// What has come of parts, for whole stretches to go there and back.
    there: Gathering<(u64, u16, u8)>,
    back: Gathering<(u64, u16, u8)>,
    /// Pieces that this worker has made for itself.
    own: VecDeque<Piece>,
    /// Pieces that belong to a later minibatch than can be gone on with now.
    later: Vec<Piece>,
    /// Held-out samples that came in the middle of a minibatch.
    measured_later: Vec<Flow>,
    /// What an evaluation is made with, while one passes through.
    measuring: Measuring,
    dataset: Arc<Dataset>,
    augment: Augment,
    loss: MeanLoss,
    /// What a trained model is judged by.
    judged_by: Objective,
    /// Into how many parts a minibatch is cut.
    parts: usize,
    /// What decides dropout in the minibatches that this worker leads.
    seed: u64,
    /// The gradients of parts, added up.
    sum: Vec<f32>,
}

/// Numbers that have come, what they are for, and which portion made them.
struct Piece {
    content: Content,
    from: usize,
    numbers: Vec<f32>,
}

/// What is known of a minibatch on its way back.
struct Way<'a> {
    parameters: &'a Parameters,
    gradient: &'a mut Vec<f32>,
    lead: &'a Lead,
    /// How often a part has come back through a stretch.
    done: usize,
    loss: f32,
}

impl PortionModel {
    /// What this worker holds.
    pub fn new(
        task: Task,
        judged_by: Objective,
        partition: &Partition,
        lane: Lane,
        parts: usize,
        threads: Threads,
    ) -> Self {
        let Task {
            dataset,
            objective,
            augment,
        } = task;
        let portion = partition.portion(usize::from(lane.portion()));
        let own = portion.stretches.iter();
        Self {
            held: own.map(|own| Layers::new(partition, &portion, own, threads)).collect(),
            stretches: partition.stretches().to_vec(),
            widest: partition.widest(),
            portion,
            there: Gathering::default(),
            back: Gathering::default(),
            own: VecDeque::new(),
            later: Vec::new(),
            measured_later: Vec::new(),
            measuring: Measuring::default(),
            lane,
            dataset,
            augment,
            loss: MeanLoss {
                objective,
                answers: Answers::default(),
            },
            judged_by,
            parts: parts.max(1),
            seed: 0,
            sum: Vec::new(),
        }
    }

    /// Begins the minibatches that this worker is to lead and has not begun yet.
    fn lead(&mut self, parameters: &Parameters) -> Result<(), TrainError> {
        for told in self.lane.take_told() {
            let lead = Lead {
                key: step_key(self.seed, told.step),
                parts: self.parts.min(told.samples.len()).max(1) as u16,
                ..told
            };
            self.lane.begin(lead.clone())?;
            self.send_there(&lead, parameters)?;
        }
        Ok(())
    }

    /// Cuts a minibatch, and sends all parts on their way. All who hold neurons of the first layers do so.
    fn send_there(&mut self, lead: &Lead, parameters: &Parameters) -> Result<(), TrainError> {
        for part in 0..lead.parts {
            let (own, key) = (part_of(lead, part), part_key(lead, part));
            let inputs = views::gathered(&self.dataset, self.augment, own, key, &mut self.loss.answers);
            self.go_there(lead, (part, 0), parameters, inputs)?;
        }
        Ok(())
    }

    /// Gives up what is under way, between two steps. Who waits for an answer is told that there is none.
    fn lose_lane(&mut self) -> Result<(), TrainError> {
        self.clear();
        match self.lane.lost() {
            TrainError::LaneBroken => Ok(()),
            error => Err(error),
        }
    }

    /// Forgets what is under way.
    fn clear(&mut self) {
        self.held.iter_mut().for_each(Layers::clear);
        self.there.clear();
        self.back.clear();
        self.own.clear();
        self.later.clear();
        self.measured_later.clear();
        self.measuring = Measuring::default();
    }

    /// Where what this worker holds of a stretch is among all that it holds.
    fn held(&self, stretch: u8) -> Option<usize> {
        self.held.iter().position(|one| one.number == usize::from(stretch))
    }

    fn is_last(&self, stretch: u8) -> bool {
        usize::from(stretch) + 1 == self.stretches.len()
    }

    /// The stretch before one.
    fn before(&self, stretch: u8) -> Option<&Stretch> {
        self.stretches.get(usize::from(stretch).checked_sub(1)?)
    }

    /// How many numbers somebody can have for this worker, if that can be at all.
    fn numbers_of(&self, content: &Content, from: usize) -> Option<usize> {
        let rows = |step, part| {
            let lead = self.lane.begun(step).filter(|lead| part < lead.parts)?;
            Some(part_of(lead, part).len())
        };
        match *content {
            Content::Begun { .. } => Some(0),
            Content::There { step, part, stretch } => {
                self.held(stretch)?;
                Some(rows(step, part)? * self.before(stretch)?.share(from)?.len())
            }
            Content::Back {
                step, part, stretch, ..
            } => {
                self.held(stretch)?;
                let after = self.stretches.get(usize::from(stretch) + 1)?;
                let own = self.stretches[usize::from(stretch)].share(self.portion.number)?;
                after.holders().contains(&from).then_some(rows(step, part)? * own.len())
            }
            Content::Measure(_) | Content::Judged(_) => None,
        }
    }

    /// Whether something that has come can be for this worker. What cannot is not kept.
    fn is_sound(&self, content: &Content, flow: &Flow) -> bool {
        let numbers = self.numbers_of(content, usize::from(flow.head.from));
        matches!(content, Content::Begun { .. })
            || numbers.is_some_and(|count| flow.numbers.len() == count * size_of::<f32>())
    }

    /// What has come, if it can be for this worker.
    fn read(&self, content: Content, flow: &Flow) -> Option<Piece> {
        let from = usize::from(flow.head.from);
        let numbers = match content {
            Content::Begun { .. } => Vec::new(),
            _ => flow.numbers(self.numbers_of(&content, from)?).ok()?,
        };
        Some(Piece { content, from, numbers })
    }

    /// Takes part in a minibatch until all its parts have been here and back.
    fn follow(&mut self, way: &mut Way<'_>) -> Result<(), TrainError> {
        self.own.extend(self.later.drain(..));
        while way.done < usize::from(way.lead.parts) * self.held.len() {
            if let Some(piece) = self.own.pop_front() {
                self.take(way, piece)?;
                continue;
            }
            let (content, flow) = self.lane.wait()?;
            // Who leads may be through with a minibatch that this worker is not through with, and have all measured.
            if matches!(content, Content::Measure(_)) && !self.lane.leads() {
                self.measured_later.push(flow);
                continue;
            }
            match self.read(content, &flow) {
                Some(piece) => self.take(way, piece)?,
                None => return Err(self.lane.lost()),
            }
        }
        Ok(())
    }

    /// Goes on with a piece, as soon as all that it needs is there.
    fn take(&mut self, way: &mut Way<'_>, piece: Piece) -> Result<(), TrainError> {
        let (step, ahead) = match piece.content {
            Content::Begun { step } => (step, self.lane.ahead()),
            Content::There { step, stretch, .. } if !self.is_last(stretch) => (step, self.lane.ahead()),
            // Where it would become a gradient, each minibatch has its turn.
            Content::There { step, .. } | Content::Back { step, .. } => (step, 0),
            Content::Measure(_) | Content::Judged(_) => return Err(self.lane.lost()),
        };
        if step > way.lead.step + ahead as u64 {
            self.later.push(piece);
            return Ok(());
        }
        let Some(lead) = self.lane.begun(step).cloned() else {
            // It was given up meanwhile.
            return Ok(());
        };
        let Piece { content, from, numbers } = piece;
        match content {
            Content::Begun { .. } if self.held(0).is_some() => self.send_there(&lead, way.parameters),
            Content::There { part, stretch, .. } => {
                let Some(before) = self.before(stretch) else {
                    return Err(self.lane.lost());
                };
                let shares = before.shares().to_vec();
                let at = (from - before.holders().start, shares.len());
                match self.there.take((step, part, stretch), at, numbers) {
                    None => Ok(()),
                    Some(pieces) if self.is_last(stretch) => self.judge(way, part, side_by_side(pieces, &shares)),
                    Some(pieces) => {
                        self.go_there(&lead, (part, stretch), way.parameters, side_by_side(pieces, &shares))
                    }
                }
            }
            Content::Back {
                part, stretch, loss, ..
            } => {
                let after = self.stretches[usize::from(stretch) + 1].holders();
                match self
                    .back
                    .take((step, part, stretch), (from - after.start, after.len()), numbers)
                {
                    None => Ok(()),
                    Some(pieces) => self.go_back(way, (part, stretch), loss, added_up(pieces)),
                }
            }
            _ => Ok(()),
        }
    }

    /// A part goes through the layers of a stretch, and on to all who need what they make of it.
    fn go_there(
        &mut self,
        lead: &Lead,
        (part, stretch): (u16, u8),
        parameters: &Parameters,
        inputs: Vec<f32>,
    ) -> Result<(), TrainError> {
        let (Some(at), step) = (self.held(stretch), lead.step) else {
            return Err(self.lane.lost());
        };
        let outputs = self.held[at].there((step, part), parameters, part_key(lead, part), inputs)?;
        let stretch = stretch + 1;
        let from = self.portion.number;
        for to in self.stretches[usize::from(stretch)].holders() {
            if to == from {
                self.own.push_back(Piece {
                    content: Content::There { step, part, stretch },
                    from,
                    numbers: outputs.to_vec(),
                });
            } else {
                self.lane
                    .send(to as u8, FlowWord::There { step, part, stretch }, outputs)?;
            }
        }
        Ok(())
    }

    /// The last layers turn a part round.
    fn judge(&mut self, way: &mut Way<'_>, part: u16, inputs: Vec<f32>) -> Result<(), TrainError> {
        let stretch = (self.stretches.len() - 1) as u8;
        let Some(at) = self.held(stretch) else {
            return Err(self.lane.lost());
        };
        let own = part_of(way.lead, part);
        self.dataset.train.answers().gather(own, &mut self.loss.answers);
        let memory = std::mem::take(way.gradient);
        let key = part_key(way.lead, part);
        let returned = self.held[at].judge(way.parameters, key, inputs, &self.loss, memory)?;
        self.returned(way, (part, stretch), returned)
    }

    /// Slopes have come for all that a stretch has made of a part.
    fn go_back(
        &mut self,
        way: &mut Way<'_>,
        (part, stretch): (u16, u8),
        loss: f32,
        slopes: Vec<f32>,
    ) -> Result<(), TrainError> {
        let Some(at) = self.held(stretch) else {
            return Err(self.lane.lost());
        };
        let memory = std::mem::take(way.gradient);
        match self.held[at].back((way.lead.step, part), slopes, loss, memory)? {
            Some(returned) => self.returned(way, (part, stretch), returned),
            None => Err(self.lane.lost()),
        }
    }

    /// A part has come back through a stretch: its gradient is added up, and its slopes go on.
    fn returned(
        &mut self,
        way: &mut Way<'_>,
        (part, stretch): (u16, u8),
        returned: Returned,
    ) -> Result<(), TrainError> {
        let Returned { loss, slopes, gradient } = returned;
        *way.gradient = gradient;
        self.send_back(way.lead.step, (part, stretch), loss, &slopes)?;
        way.done += 1;
        let share = part_of(way.lead, part).len() as f32 / way.lead.samples.len() as f32;
        let Some(held) = self.held.iter().find(|one| one.number == usize::from(stretch)) else {
            return Err(self.lane.lost());
        };
        // A part has one loss, however often it comes here.
        if self.held.first().is_some_and(|first| first.number == held.number) {
            way.loss += if way.lead.parts == 1 { loss } else { share * loss };
        }
        if way.lead.parts > 1 {
            for range in &held.weights {
                let slopes = &way.gradient[range.clone()];
                for (sum, slope) in self.sum[range.clone()].iter_mut().zip(slopes) {
                    *sum += share * slope;
                }
            }
        }
        Ok(())
    }

    /// Sends slopes to all who have made a piece of what they are for.
    fn send_back(
        &mut self,
        step: u64,
        (part, stretch): (u16, u8),
        loss: f32,
        slopes: &[f32],
    ) -> Result<(), TrainError> {
        let Some(at) = usize::from(stretch).checked_sub(1) else {
            return Ok(());
        };
        let (before, stretch) = (&self.stretches[at], at as u8);
        let from = self.portion.number;
        for (to, share) in before.holders().zip(before.shares()) {
            let piece = columns(slopes, before.outputs(), share);
            if to == from {
                self.own.push_back(Piece {
                    content: Content::Back {
                        step,
                        part,
                        stretch,
                        loss,
                    },
                    from,
                    numbers: piece.into_owned(),
                });
            } else {
                let word = FlowWord::Back {
                    step,
                    part,
                    stretch,
                    loss,
                };
                self.lane.send(to as u8, word, &piece)?;
            }
        }
        Ok(())
    }

    fn minibatch(&mut self, parameters: &Parameters, lead: &Lead, gradient: &mut Vec<f32>) -> Result<f32, TrainError> {
        let mut way = Way {
            parameters,
            gradient,
            lead,
            done: 0,
            loss: 0.0,
        };
        self.follow(&mut way)?;
        let loss = way.loss;
        if lead.parts > 1 {
            std::mem::swap(gradient, &mut self.sum);
        }
        Ok(loss)
    }
}

/// The samples of a part.
fn part_of(lead: &Lead, part: u16) -> &[u32] {
    let (all, parts) = (lead.samples.len(), usize::from(lead.parts.max(1)));
    let border = |part: usize| all * part / parts;
    &lead.samples[border(usize::from(part))..border(usize::from(part) + 1)]
}

/// What decides dropout in a part: in a minibatch that is not cut, what would on one machine.
fn part_key(lead: &Lead, part: u16) -> u64 {
    if lead.parts == 1 {
        lead.key
    } else {
        splitmix64(lead.key ^ u64::from(part))
    }
}

impl PortionTrainer {
    /// A trainer of the portion that a worker holds, whose copies both are the given weights.
    pub fn in_lane(
        model: PortionModel,
        whole: &Layout,
        counts: &[i32],
        rule: Rule,
        dropout_seed: u64,
        threads: Threads,
    ) -> Result<Self, TrainError> {
        let portion = model.portion.clone();
        let model = PortionModel {
            seed: dropout_seed,
            ..model
        };
        let parts = |muon| Parts::new(whole, muon).of_portion(&portion);
        let backend = CpuBackend::of(model, &portion.layout, counts, rule, parts, threads)?;
        Self::on(backend, rule, dropout_seed)
    }
}

impl Slopes for PortionModel {
    fn gradient(
        &mut self,
        parameters: &Parameters,
        samples: &[u32],
        _key: u64,
        gradient: &mut Vec<f32>,
    ) -> Result<f32, TrainError> {
        let weights = parameters.values().len();
        let begun = self.lead(parameters);
        let lead = begun.and_then(|()| self.lane.next_lead().cloned().ok_or(TrainError::LaneBroken));
        let loss = lead.and_then(|lead| {
            debug_assert_eq!(lead.samples, samples, "minibatches are done in their order");
            self.sum.clear();
            self.sum.resize(if lead.parts > 1 { weights } else { 0 }, 0.0);
            self.minibatch(parameters, &lead, gradient)
        });
        // Whatever became of it, memory stays what it was.
        gradient.resize(weights, 0.0);
        if loss.is_ok() {
            self.lane.led();
            for flow in std::mem::take(&mut self.measured_later) {
                self.lane.put_back(flow);
            }
        } else {
            self.clear();
        }
        loss
    }

    fn lane(&mut self) -> Option<&mut Lane> {
        Some(&mut self.lane)
    }

    fn hear(&mut self, word: LaneWord, shared: &[f32]) -> Result<(), TrainError> {
        match self.lane.hear(word) {
            Ok(Some((Content::Measure(measured), flow))) => self.measure_on(measured, &flow, shared),
            Ok(Some((content, flow))) if self.is_sound(&content, &flow) => {
                self.lane.keep(content, flow);
                Ok(())
            }
            Ok(Some(_)) => self.lose_lane(),
            Ok(None) => Ok(()),
            // What is broken between two steps is called together again.
            Err(TrainError::LaneBroken) => {
                self.clear();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn measure(&mut self, shared: &[f32]) -> Result<Option<Scores>, TrainError> {
        self.measure_all(shared).map(Some)
    }
}
