//! What a person sees while a run goes on: a bar with the numbers that matter.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::notice::Redirected;
use crate::output::Audience;

/// The numbers beside the bar.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbers {
    pub(crate) loss: Option<f64>,
    pub(crate) accuracy: Option<f64>,
    pub(crate) samples_per_second: f64,
    pub(crate) tau: f64,
    pub(crate) density: f64,
}

/// A progress bar on standard error; nothing where that is no terminal, or no people are told.
pub(crate) struct View {
    bar: ProgressBar,
    /// What is said meanwhile goes above the bar.
    _redirected: Option<Redirected>,
}

impl View {
    pub(crate) fn new(samples: u64, audience: Audience) -> Self {
        let target = match audience {
            Audience::People => ProgressDrawTarget::stderr(),
            Audience::Scripts | Audience::Nobody => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(samples), target);
        // The template is a constant of ours; a plain bar is no reason to stop.
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3}% {elapsed}/{duration}  {msg}{prefix}") {
            bar.set_style(style);
        }
        let shown = (!bar.is_hidden()).then(|| bar.clone());
        Self {
            bar,
            _redirected: shown.map(|bar| Redirected::to(move |text| bar.suspend(|| eprintln!("{text}")))),
        }
    }

    /// Whether anybody sees it.
    pub(crate) fn is_shown(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Shows what is waited for, behind all else.
    pub(crate) fn waits(&self, reasons: &[String]) {
        let text = reasons.join("; ");
        self.bar.set_prefix(if text.is_empty() {
            text
        } else {
            format!("  waiting: {text}")
        });
    }

    /// A moving sign that work of unknown length goes on.
    pub(crate) fn busy(&self, what: &'static str) {
        self.bar.set_message(what);
        self.bar.enable_steady_tick(Duration::from_millis(100));
    }

    pub(crate) fn show(&self, samples: u64, numbers: Numbers) {
        let known = |value: Option<f64>| value.map_or("–".into(), |value| format!("{value:.4}"));
        self.bar.set_position(samples);
        self.bar.set_message(format!(
            "loss {}  accuracy {}  {:.0} samples/s  τ {:.2e}  density {:.1e}",
            known(numbers.loss),
            known(numbers.accuracy),
            numbers.samples_per_second,
            numbers.tau,
            numbers.density,
        ));
    }

    pub(crate) fn position(&self, samples: u64) {
        self.bar.set_position(samples);
    }

    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
