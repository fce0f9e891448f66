//! A saved model that computes outputs: its layers by this program, or its code (a module) by a Python interpreter.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use protocol::job::target::TargetInfo;
use worker::dataset::{Answers, Samples};
use worker::evaluate::{evaluate, evaluate_by, predict};
use worker::machine::parallel::Threads;
use worker::model::evaluation::{Evaluation, MINIBATCH};
use worker::model_file::{self, Model};
use worker::module::{self, Rows};
use worker::task::objective::Objective;

use super::interpreter;
use crate::failure::Failure;

/// A saved model that computes outputs of samples.
pub(crate) struct SavedModel {
    pub(crate) model: Model,
    threads: Threads,
    /// Process that computes, if the model is a module.
    process: Option<ModuleProcess>,
}

impl SavedModel {
    /// Reads a model file. The code of a module is the file `source`, which the user names: no file decides what is run.
    pub(crate) fn open(
        path: &Path,
        source: Option<&Path>,
        python: Option<&Path>,
        threads: Threads,
    ) -> Result<Self, Failure> {
        let Some(source) = source else {
            let model = model_file::load_to_compute(path).map_err(Failure::bad)?;
            let process = None;
            return Ok(Self {
                model,
                threads,
                process,
            });
        };
        let model = model_file::load(path).map_err(Failure::bad)?;
        if model.job.model.module().is_none() {
            return Err(Failure::input(format!(
                "{} is a model of layers, which needs no code: leave --model-source out",
                path.display()
            )));
        }
        let python = interpreter::find(python)?;
        let process = ModuleProcess::start(&python, path, source, &model, threads)?;
        Ok(Self {
            model,
            threads,
            process: Some(process),
        })
    }

    /// Computes the outputs of all samples, in their order, and passes those of each to `go_on` until it returns false.
    pub(crate) fn predict(&mut self, samples: &Samples, mut go_on: impl FnMut(&[f32]) -> bool) -> Result<(), Failure> {
        let Some(process) = &mut self.process else {
            let Model {
                layout,
                weights,
                statistics,
                ..
            } = &self.model;
            let (weights, statistics) = (weights.clone(), statistics.clone());
            let each = |rows: &[f32]| rows.chunks_exact(layout.outputs()).all(&mut go_on);
            return predict::predict(layout, weights, statistics, samples, self.threads, each).map_err(Failure::work);
        };
        let (mut inputs, mut answers) = (Vec::new(), Answers::default());
        let indices: Vec<u32> = (0..samples.len() as u32).collect();
        for minibatch in indices.chunks(MINIBATCH) {
            samples.gather(minibatch, &mut inputs, &mut answers);
            let rows = Rows {
                values: &inputs,
                samples: minibatch.len(),
            };
            let outputs = process.outputs(rows)?;
            if !outputs.chunks_exact(outputs.len() / minibatch.len()).all(&mut go_on) {
                break;
            }
        }
        Ok(())
    }

    /// Evaluates the model on samples. `go_on` is as for [`evaluate`].
    pub(crate) fn evaluate(
        &mut self,
        samples: &Samples,
        go_on: impl FnMut(&Evaluation) -> bool,
    ) -> Result<Evaluation, Failure> {
        let Model {
            layout,
            weights,
            statistics,
            job,
            metadata,
            ..
        } = &self.model;
        let objective = Objective::for_evaluation(job, &metadata.target);
        if let Some(process) = &mut self.process {
            return evaluate_by(samples, &objective, MINIBATCH, |rows| process.outputs(rows), go_on);
        }
        let (weights, statistics) = (weights.clone(), statistics.clone());
        evaluate(layout, weights, statistics, samples, &objective, self.threads, go_on).map_err(Failure::work)
    }
}

/// Process of a Python interpreter that computes outputs of a module. It ends when its standard input ends.
struct ModuleProcess {
    source: PathBuf,
    target: TargetInfo,
    child: Child,
    /// Standard input of the process; `None` once it is to end.
    to: Option<ChildStdin>,
    from: ChildStdout,
}

impl ModuleProcess {
    fn start(python: &Path, path: &Path, source: &Path, model: &Model, threads: Threads) -> Result<Self, Failure> {
        let sides: Vec<String> = model.metadata.input.dims().iter().map(ToString::to_string).collect();
        let mut child = Command::new(python)
            .args(["-I", "-m", "tau.outputs"])
            .args([path, source])
            .args([sides.join(","), threads.0.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Failure::work)?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        Ok(Self {
            source: source.into(),
            target: model.metadata.target.info(),
            child,
            to,
            from: from.ok_or_else(|| Failure::Failed("the interpreter has no standard output".into()))?,
        })
    }

    /// Computes the outputs of some samples, row by row.
    fn outputs(&mut self, rows: Rows<'_>) -> Result<Vec<f32>, Failure> {
        let outputs = self.exchange(rows).map_err(|_| {
            // The process has said why on standard error, which is that of this program.
            Failure::Failed(format!("{} gives no outputs: its code failed", self.source.display()))
        })?;
        module::checked(self.target, outputs, rows.samples)
            .map_err(|error| Failure::Failed(format!("{}: {error}", self.source.display())))
    }

    fn exchange(&mut self, rows: Rows<'_>) -> io::Result<Vec<f32>> {
        let to = self.to.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut message = (rows.samples as u64).to_ne_bytes().to_vec();
        message.extend(rows.values.iter().flat_map(|value| value.to_ne_bytes()));
        to.write_all(&message)?;
        to.flush()?;
        let mut count = [0; 8];
        self.from.read_exact(&mut count)?;
        let mut bytes = Vec::new();
        let bytes_wanted = u64::from_ne_bytes(count);
        (&mut self.from).take(bytes_wanted).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != bytes_wanted {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (floats, _) = bytes.as_chunks::<4>();
        Ok(floats.iter().map(|&bytes| f32::from_ne_bytes(bytes)).collect())
    }
}

impl Drop for ModuleProcess {
    fn drop(&mut self) {
        drop(self.to.take());
        // Code that hangs must not outlive this command.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
