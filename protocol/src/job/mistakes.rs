//! Collection of the mistakes in a job while it is checked.

use std::path::Path;

use super::key::JobKey;
use super::keys::CheckedKeys;
use super::loss::{ClassWeights, Loss};
use super::model::ModelSpec;
use super::{Density, Exchange, JobDraft, JobError, Keep, Threshold};
use crate::weights::lattice::{STEPS_PER_UNIT, Tau};

/// Mistakes found in a job so far, collected so that people see all of them at once.
pub(super) struct Mistakes(pub(super) Vec<JobError>);

impl Mistakes {
    pub(super) fn add<T>(&mut self, key: &'static str, message: String) -> Option<T> {
        self.0.push(JobError { key, message });
        None
    }

    /// Checks the value of one key, and records a mistake if the value is invalid.
    pub(super) fn check<K: JobKey>(&mut self, key: &'static str, written: Option<K::Draft>) -> Option<K::Value> {
        match K::check(written) {
            Ok(value) => Some(value),
            Err(message) => self.add(key, message),
        }
    }

    /// Reads a job's exchange strategy, and records a mistake if it is invalid. `says_threshold` is the name of the key
    /// (`tau` or `density`) by which the job sets the size τ of one weight change; it is a mistake if the strategy has
    /// no τ.
    pub(super) fn exchange(
        &mut self,
        text: &str,
        threshold: Option<Threshold>,
        says_threshold: Option<&'static str>,
    ) -> Option<Exchange> {
        // A mistake in the threshold is recorded already; the text may hold another one.
        let checked = threshold.unwrap_or(Threshold::Density(Density::Fraction(1.0)));
        match (Exchange::from_text(text, checked), says_threshold) {
            (Err(error), _) => self.add("exchange", error),
            (Ok(exchange), Some(key)) if exchange.threshold().is_none() => {
                self.add(key, format!("the exchange {exchange} has no τ: leave {key} out"))
            }
            (Ok(exchange), _) => threshold.map(|_| exchange),
        }
    }

    /// Records a mistake for each of these settings (`from`, `keep` with the best weights, a target) that the
    /// job gives, because a network that is spread over nodes (`--exchange layers`) cannot have them.
    pub(super) fn spread(&mut self, draft: &JobDraft, keep: Keep) {
        let whole = "needs the whole network on one node, but --exchange layers splits the network over nodes: leave \
             this setting out";
        for (key, is_said) in [
            ("from", draft.from.is_some()),
            ("keep", keep == Keep::Best),
            ("target_accuracy", draft.target_accuracy.is_some()),
            ("target_loss", draft.target_loss.is_some()),
        ] {
            if is_said {
                self.add::<()>(key, format!("{key} {whole}"));
            }
        }
    }

    /// Records the mistake that a network of Python code is to be spread over nodes (`--exchange layers`).
    pub(super) fn uncut(&mut self, file: &Path) {
        let message = format!(
            "the layers of {} are Python code, which cannot be cut: choose another exchange than layers",
            file.display()
        );
        self.add::<()>("model", message);
    }

    /// Records the mistakes of a job whose samples are those of a module's own `data()`: the model is no module, or a
    /// setting changes the loss or the samples, which the module's code computes.
    pub(super) fn of_module_data(&mut self, keys: &CheckedKeys) {
        if keys.model.as_ref().and_then(ModelSpec::module).is_none() {
            let message = "the data 'module' is made by the function data() in a model's Python file, but the model is \
                           no such file: name one with --model py:FILE, or other data with --data";
            self.add::<()>("data", message.into());
            return;
        }
        let has_loss = keys.loss.is_some_and(|loss| loss != Loss::Auto);
        let has_weights = keys
            .class_weights
            .as_ref()
            .is_some_and(|weights| *weights != ClassWeights::Equal);
        let smooths = keys.label_smoothing.is_some_and(|smoothing| smoothing > 0.0);
        let augments = keys.augment.is_some_and(|augment| !augment.is_none());
        for (key, is_said) in [
            ("loss", has_loss),
            ("class_weights", has_weights),
            ("label_smoothing", smooths),
            ("augment", augments),
        ] {
            if is_said {
                let message = format!(
                    "{key} is for data that Tau reads, but the model's file has data() and loss(): \
                                       leave this setting out, and do the same in those functions"
                );
                self.add::<()>(key, message);
            }
        }
    }

    pub(super) fn tau(&mut self, tau: f64) -> Option<Threshold> {
        let smallest = 1.0 / f64::from(STEPS_PER_UNIT);
        if tau >= smallest && tau <= f64::from(Tau::MAX.value()) {
            Some(Threshold::Fixed(Tau::nearest(tau)))
        } else {
            self.add(
                "tau",
                format!("tau must be at least 2^-20 (about {smallest:.1e}) and below 16, not {tau}"),
            )
        }
    }
}
