//! What a person sees while a run goes on: a bar with the numbers that matter.

use std::cell::Cell;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::notice::{self, Redirected};
use crate::output::Audience;
use crate::quantity;

/// The numbers beside the bar.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbers {
    pub(crate) loss: Option<f64>,
    pub(crate) accuracy: Option<f64>,
    pub(crate) samples_per_second: f64,
}

/// How often people are told how far a run is where a bar cannot be drawn, as in a log.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// A bar that fits the width, and a sign of life where it is not known how much there is to do.
const BAR: &str = "{wide_bar} {percent:>3}% {elapsed} of {duration}  {msg}{prefix}";
const SIGN: &str = "{spinner} {elapsed}  {msg}{prefix}";

/// A progress bar on standard error; a line now and then where that is no terminal; nothing where no people are told.
pub(crate) struct View {
    bar: ProgressBar,
    /// When people without a terminal were told last.
    told: Option<Cell<Instant>>,
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
        if let Ok(style) = ProgressStyle::with_template(if samples > 0 { BAR } else { SIGN }) {
            bar.set_style(style);
        }
        let told = bar.is_hidden() && audience == Audience::People;
        let shown = (!bar.is_hidden()).then(|| bar.clone());
        Self {
            bar,
            told: told.then(|| Cell::new(Instant::now())),
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
        let numbers = format!(
            "training loss {}  held-out accuracy {}  {} samples/s",
            known(numbers.loss),
            known(numbers.accuracy),
            quantity::count(numbers.samples_per_second),
        );
        if let Some(told) = self.told.as_ref().filter(|told| told.get().elapsed() >= LINE_EVERY) {
            told.set(Instant::now());
            let done = samples as f64 / self.bar.length().unwrap_or(0).max(1) as f64;
            notice::say(&format!("{}  {numbers}", quantity::share(done)));
        }
        self.bar.set_message(numbers);
    }

    pub(crate) fn position(&self, samples: u64) {
        self.bar.set_position(samples);
    }

    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
