//! Formats the progress of a run or another task as one line of a given width. Pure.

use protocol::reasons::waiting::{WaitingFor, joined};
use std::time::Duration;

use crate::output::quantity;
use crate::output::text_layout::{cut, visible_parts};
use crate::timeline::Summary;

/// Interval at which the progress bar is redrawn and its spinner advances.
pub(crate) const TICK: Duration = Duration::from_millis(100);
const SIGNS: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];
const GAP: usize = 2;
/// Characters of the narrowest progress bar that is drawn; the bar is omitted where the line has less room.
const BAR_WIDTH_MIN: usize = 10;
/// Characters of the widest progress bar: more would not tell more.
const BAR_WIDTH_MAX: usize = 60;

/// State of a progress bar: amount of work, present task, newest figures and causes of waiting.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bar {
    /// Total amount of work of a progress bar, in samples for a run; 0 if it is not known.
    pub(crate) total: u64,
    pub(crate) done: u64,
    /// Name of a task of unknown length; a spinner takes the place of the bar.
    pub(crate) busy: Option<&'static str>,
    /// Newest figures of the run whose progress the bar shows; `None` for other tasks.
    pub(crate) run: Option<Summary>,
    /// Reasons why the run waits, such as a silent node, which the progress bar shows.
    pub(crate) waiting: Vec<WaitingFor>,
}

/// One piece of a progress line. Where the line is too narrow, pieces of the highest rank are omitted first.
struct BarSegment {
    text: String,
    rank: u8,
}

fn part(rank: u8, text: String) -> BarSegment {
    BarSegment { text, rank }
}

impl Bar {
    /// Returns the progress line, with its bar, after `elapsed` time, in at most `width` characters.
    pub(crate) fn line(&self, elapsed: Duration, width: usize) -> String {
        let mut parts = self.parts(elapsed);
        let drawn = self.busy.is_none() && self.total > 0;
        if drawn {
            parts.insert(0, part(3, " ".repeat(BAR_WIDTH_MIN)));
        } else {
            let sign = SIGNS[(elapsed.as_millis() / TICK.as_millis()) as usize % SIGNS.len()];
            parts.insert(0, part(0, sign.into()));
        }
        if let Some(waiting) = self.waiting() {
            // The text on why the run waits is cut rather than omitted, so that the pieces of rank 0 stay beside it.
            let needed = parts.iter().filter(|one| one.rank == 0);
            let needed: usize = needed.map(|one| one.text.chars().count() + GAP).sum();
            let room = width.saturating_sub(needed);
            if room >= BAR_WIDTH_MIN {
                parts.push(part(1, cut(&waiting, room)));
            }
        }
        let sizes: Vec<(usize, u8)> = parts.iter().map(|one| (one.text.chars().count(), one.rank)).collect();
        let kept = visible_parts(&sizes, GAP, width);
        let has_bar = drawn && kept[0];
        let mut texts: Vec<String> = parts
            .into_iter()
            .zip(kept)
            .filter(|(_, kept)| *kept)
            .map(|(one, _)| one.text)
            .collect();
        if has_bar {
            let used: usize = texts.iter().map(|text| text.chars().count() + GAP).sum();
            let spare = (width + GAP).saturating_sub(used);
            texts[0] = self.filled((BAR_WIDTH_MIN + spare).min(BAR_WIDTH_MAX));
        }
        texts.join(&" ".repeat(GAP))
    }

    /// Returns the whole progress line without the bar, for output that is no terminal.
    pub(crate) fn sentence(&self, elapsed: Duration) -> String {
        let parts = self.parts(elapsed).into_iter().map(|one| one.text);
        parts.chain(self.waiting()).collect::<Vec<_>>().join(&" ".repeat(GAP))
    }

    fn parts(&self, elapsed: Duration) -> Vec<BarSegment> {
        let clock = quantity::clock;
        let mut parts = Vec::new();
        if let Some(what) = self.busy {
            // The reason why the run waits tells more than the name of the task.
            let rank = if self.waiting.is_empty() { 0 } else { 3 };
            parts.push(part(rank, what.into()));
            parts.push(part(2, clock(elapsed.as_secs_f64())));
            return parts;
        }
        if self.total > 0 {
            parts.push(part(0, format!("{:>3.0} %", (100.0 * self.share()).floor())));
        }
        let (elapsed, left) = match &self.run {
            Some(run) => (run.elapsed, run.left),
            None => (elapsed.as_secs_f64(), self.left(elapsed.as_secs_f64())),
        };
        parts.push(part(
            2,
            match left {
                Some(left) => format!("{} of {}", clock(elapsed), clock(elapsed + left)),
                None => clock(elapsed),
            },
        ));
        if let Some(run) = &self.run {
            let known = |value: Option<f64>, text: fn(f64) -> String| value.map_or("–".into(), text);
            parts.push(part(
                5,
                format!("loss {}", known(run.loss, |loss| format!("{loss:.4}"))),
            ));
            let (metric, figure) = run.quality();
            let good = figure.map_or("–".into(), |figure| metric.text(figure));
            parts.push(part(4, format!("{} {good}", metric.name())));
            parts.push(part(
                6,
                format!("{} samples/s", quantity::count(run.samples_per_second)),
            ));
        }
        parts
    }

    fn waiting(&self) -> Option<String> {
        (!self.waiting.is_empty()).then(|| format!("waiting for {}", joined(&self.waiting)))
    }

    fn share(&self) -> f64 {
        (self.done as f64 / self.total.max(1) as f64).min(1.0)
    }

    /// Estimates the remaining seconds of a task from the average speed so far.
    fn left(&self, elapsed: f64) -> Option<f64> {
        let share = self.share();
        (share > 0.0).then(|| elapsed * (1.0 - share) / share)
    }

    fn filled(&self, width: usize) -> String {
        let full = (self.share() * width as f64).floor() as usize;
        "█".repeat(full) + &"░".repeat(width - full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::ZERO;

    fn training() -> Bar {
        Bar {
            total: 600_000,
            done: 210_000,
            run: Some(Summary {
                elapsed: 72.0,
                left: Some(128.0),
                loss: Some(0.12345),
                accuracy: Some(0.984),
                samples_per_second: 37_500.0,
                ..Summary::default()
            }),
            ..Bar::default()
        }
    }

    #[test]
    fn it_begins_empty() {
        let bar = Bar {
            total: 9,
            ..Bar::default()
        };
        assert_eq!(bar.line(START, 30), format!("{}    0 %  0:00", "░".repeat(17)));
        let nothing = Bar {
            total: 9,
            run: Some(Summary::default()),
            ..Bar::default()
        };
        let line = nothing.line(START, 80);
        assert!(
            line.ends_with("░    0 %  0:00  loss –  accuracy –  0 samples/s"),
            "{line}"
        );
    }

    #[test]
    fn a_run_without_accuracy_shows_its_evaluation_loss() {
        let mut bar = training();
        let run = bar.run.as_mut().unwrap();
        (run.accuracy, run.eval_loss) = (None, Some(2.5));
        let numbers = " 35 %  1:12 of 3:20  loss 0.1235  eval loss 2.5000  37\u{202f}500 samples/s";
        assert_eq!(bar.sentence(START), numbers);
    }

    fn silent() -> WaitingFor {
        WaitingFor::Silent {
            node: "vm-19d5".into(),
            silence: Duration::from_secs(12),
            limit: Duration::from_secs(30),
        }
    }

    #[test]
    fn what_matters_least_is_left_out_first_and_the_bar_takes_the_rest() {
        let numbers = " 35 %  1:12 of 3:20  loss 0.1235  accuracy 98.40 %  37\u{202f}500 samples/s";
        assert!(training().line(START, 120).ends_with(numbers));
        assert_eq!(training().line(START, 120).chars().count(), 120);
        assert_eq!(
            training().line(START, 57),
            "██████░░░░░░░░░░░░   35 %  1:12 of 3:20  accuracy 98.40 %"
        );
        assert_eq!(training().line(START, 20), " 35 %  1:12 of 3:20");
        assert_eq!(training().line(START, 7), " 35 %");
        assert_eq!(training().line(START, 2), "");
    }

    #[test]
    fn no_line_is_wider_than_it_may_be() {
        let waiting = vec![silent(); 3];
        let bars = [
            training(),
            Bar {
                waiting: waiting.clone(),
                ..training()
            },
            Bar {
                busy: Some("settling, evaluating and saving"),
                waiting,
                ..training()
            },
            Bar::default(),
            Bar { done: 99, ..training() },
            Bar {
                done: u64::MAX,
                ..training()
            },
        ];
        for width in 0..200 {
            for bar in &bars {
                let line = bar.line(START, width);
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
        }
    }

    #[test]
    fn what_is_waited_for_is_named_before_numbers_and_cut_rather_than_left_out() {
        let waiting = vec![silent()];
        let bar = Bar {
            busy: Some("settling"),
            waiting,
            ..training()
        };
        let line = bar.line(Duration::from_secs(7), 80);
        assert_eq!(
            line,
            "⠋  settling  0:07  waiting for vm-19d5, silent for 12 s, given up at 30 s"
        );
        assert_eq!(
            bar.line(START, 66),
            "⠋  0:00  waiting for vm-19d5, silent for 12 s, given up at 30 s"
        );
        assert_eq!(bar.line(START, 40), "⠋  waiting for vm-19d5, silent for 12 s…");
        assert_eq!(bar.line(START, 12), "⠋  0:00");
        let training = Bar { busy: None, ..bar };
        let line = training.line(START, 80);
        assert!(
            line.ends_with(" 35 %  1:12 of 3:20  waiting for vm-19d5, silent for 12 s, given up at 30 s"),
            "{line}"
        );
    }

    #[test]
    fn without_a_terminal_all_is_said_in_one_line() {
        let waiting = ["a", "b"].map(|text| WaitingFor::Told(text.into())).into();
        let said = Bar { waiting, ..training() }.sentence(START);
        let numbers = " 35 %  1:12 of 3:20  loss 0.1235  accuracy 98.40 %  37\u{202f}500 samples/s";
        assert_eq!(said, format!("{numbers}  waiting for a; b"));
        let busy = Bar {
            busy: Some("ending the run"),
            ..training()
        };
        assert_eq!(busy.sentence(Duration::from_secs(61)), "ending the run  1:01");
    }

    #[test]
    fn what_is_no_run_goes_on_as_fast_as_it_went() {
        let bar = Bar {
            total: 4,
            done: 1,
            ..Bar::default()
        };
        assert_eq!(bar.sentence(Duration::from_secs(10)), " 25 %  0:10 of 0:40");
    }
}
