//! Result of a run: its record for scripts, its text for people.

use protocol::reasons::texts;
use std::fmt::Write as _;

use protocol::job::Keep;
use protocol::job::loss::ClassWeights;
use protocol::stats::measured::{Evaluation, Moment, Scores};
use protocol::stats::{Applies, Finished, RUN_FIGURES, RunFigures, Unit, Work, ratio};
use protocol::wire::control::{RunResult, RunStatus};
use protocol::wire::run_beat::StopReason;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::failure::Failure;
use crate::output::{self, notice, printable, quantity};
use crate::run::interrupt;
use crate::settings::chosen;
use crate::timeline::missing;

/// Builds the result of a finished run, which is the last line of its output and the content of `result.json`.
pub(crate) fn finished(status: &RunStatus, result: &RunResult, model: String) -> Finished {
    let stats = &result.stats;
    let nodes = result.participants.len() + missing(result).len();
    let bytes_dense = stats.bytes_dense(result.weights, nodes);
    let work = Work {
        recent: stats,
        total: stats,
        seconds: result.seconds,
        weights: result.weights,
    };
    let ended = Moment {
        samples: result.samples,
        seconds: result.seconds,
    };
    let last = Evaluation::of(ended, result.scores.clone());
    Finished {
        event: "finished",
        run: status.run.to_string(),
        ended: now(),
        accuracy: result.scores.accuracy,
        base_rate: result.base_rate.map(|base| base.rate),
        r2: result.scores.mae.and(result.scores.accuracy),
        mae: result.scores.mae,
        loss: result.scores.loss,
        named: result.scores.named.clone(),
        epochs: ratio(result.samples as f64, status.train as f64),
        samples: result.samples,
        repeated_samples: result.repeated,
        residual_lost: stats.residual_lost,
        seconds: result.seconds,
        samples_per_second: ratio(
            result.samples.saturating_sub(result.samples_before) as f64,
            result.seconds,
        ),
        nodes: result.participants.len(),
        participants: result.participants.clone(),
        missing: missing(result),
        left_out: texts(&result.left_out),
        replicas_agree: result.agree,
        digest: result.digest.to_string(),
        bytes_sent: result.bytes_sent,
        bytes_dense,
        compression: ratio(bytes_dense as f64, result.bytes_sent as f64),
        figures: RunFigures::of(&work, &result.usage),
        usage: result.usage.clone(),
        evaluations: result.course.evaluations().iter().cloned().chain([last]).collect(),
        chosen: chosen::settings(status),
        succeeds: status.succeeds.map(|run| run.to_string()),
        reason: result.stop.map_or("trained", StopReason::name),
        patience: status.job.patience,
        kept: brought_back(result).filter(|_| status.job.keep == Keep::Best),
        warnings: result
            .base_rate
            // Unequal class weights trade accuracy for that of rare classes, so accuracy alone would warn without
            // reason.
            .filter(|_| status.job.class_weights == ClassWeights::Equal)
            .and_then(|base| base.warning(result.scores.accuracy?))
            .or_else(|| result.scores.warning())
            .into_iter()
            .collect(),
        model,
    }
}

/// Returns the evaluation whose weights a run with `--keep best` returned to: that with the lowest loss, or `None` if
/// those are the last weights.
fn brought_back(result: &RunResult) -> Option<Evaluation> {
    let measured = result.course.evaluations().iter();
    let best = measured.min_by(|one, other| one.loss.total_cmp(&other.loss))?;
    // The last weights were evaluated when all samples were trained, or never.
    (best.samples < result.samples).then(|| best.clone())
}

/// Returns the present time as RFC 3339 in UTC, to the second.
fn now() -> String {
    let now = OffsetDateTime::now_utc();
    let whole = now.replace_nanosecond(0).unwrap_or(now);
    whole.format(&Rfc3339).unwrap_or_default()
}

/// Returns the reason for which a run ended before all its samples were trained, as a sentence for people.
fn why_early(reason: &str, patience: Option<u32>) -> Option<String> {
    match reason {
        "stopped" => Some("the run was stopped before all samples were trained".into()),
        "target_reached" => Some("the run reached its target; the model has the weights that reached it".into()),
        "patience_over" => {
            let evaluations = quantity::of(patience.unwrap_or(1) as usize, "evaluation");
            Some(format!(
                "the run stopped early: no lower validation loss in {evaluations}"
            ))
        }
        "time_up" => Some("the run reached the time limit of --max-seconds".into()),
        "others_ended" => Some("the other nodes had ended the run".into()),
        _ => None,
    }
}

/// Describes the quality of a model for people: accuracy (formatted by `written`) beside its base rate and loss or, for
/// a model that predicts numbers, R² with the mean absolute error and loss. A model without an accuracy has its loss
/// only. The numbers that the user's code has measured follow.
pub(crate) fn how_good(scores: &Scores, base_rate: Option<f64>, written: impl Fn(f64) -> String) -> String {
    let &Scores {
        accuracy,
        loss,
        mae,
        ref named,
    } = scores;
    let mut text = match (accuracy, mae) {
        (None, _) => String::new(),
        (Some(accuracy), None) => {
            let guessing = |rate| format!(" (always guessing the most frequent class: {})", written(rate));
            let beside = base_rate.map_or_else(String::new, guessing);
            format!("accuracy {}{beside}, ", written(accuracy))
        }
        (Some(accuracy), Some(mae)) => format!("R² {accuracy:.4}, mean absolute error {mae:.4}, "),
    };
    let _ = write!(text, "loss {loss:.4}");
    for (name, number) in named.iter() {
        let _ = write!(text, ", {} {}", printable::line(name), quantity::number(number));
    }
    text
}

/// Formats the bytes of weight changes that a run sent, compared with those of full gradients.
fn changes(finished: &Finished) -> String {
    let sent = quantity::bytes(finished.bytes_sent as f64);
    // For small models there is no saving to report.
    if finished.compression < 2.0 {
        return format!("{sent} of weight changes sent");
    }
    let (dense, times) = (finished.bytes_dense as f64, quantity::count(finished.compression));
    format!(
        "{sent} of weight changes sent instead of {} of gradients ({times} times less)",
        quantity::bytes(dense)
    )
}

/// Returns a remark if the evaluation loss has grown since its minimum while training went on, and the model has the
/// last weights rather than the best.
fn overfitted(finished: &Finished) -> Option<String> {
    /// Rise of the evaluation loss, relative to its minimum, that counts as noise and not as overfitting: losses on few
    /// samples vary this much from one evaluation to the next.
    const NOISE: f64 = 0.05;
    if finished.kept.is_some() {
        return None;
    }
    let lowest = finished.evaluations.iter().filter(|one| one.loss.is_finite());
    let lowest = lowest.min_by(|one, other| one.loss.total_cmp(&other.loss))?;
    let has_grown = finished.loss > (1.0 + NOISE) * lowest.loss.max(0.0);
    (has_grown && lowest.samples < finished.samples).then(|| {
        format!(
            "evaluation loss was lowest after epoch {:.1} ({:.4}) and has grown to {:.4} since: use --keep best to \
             keep the weights with the lowest loss",
            ratio(lowest.samples as f64 * finished.epochs, finished.samples as f64),
            lowest.loss,
            finished.loss
        )
    })
}

/// Formats the result of a run for people: its quality, its cost and the path of the model.
fn text(finished: &Finished) -> String {
    let scores = Scores {
        accuracy: finished.accuracy,
        loss: finished.loss,
        mae: finished.mae,
        named: finished.named.clone(),
    };
    let mut text = format!(
        "{} on test samples\n{} samples in {} ({} samples/s) by {}\n",
        how_good(&scores, finished.base_rate, quantity::accuracy),
        quantity::count(finished.samples as f64),
        quantity::seconds(finished.seconds),
        quantity::count(finished.samples_per_second),
        quantity::of(finished.nodes, "node")
    );
    // A single node sends nothing.
    let alone = finished.nodes + finished.missing.len() <= 1;
    let mut cost = Vec::new();
    if !alone {
        cost.push(changes(finished));
    }
    let shares = RUN_FIGURES.iter().filter_map(|figure| {
        let applies = figure.unit == Unit::Share && !(alone && figure.applies == Applies::SeveralNodes);
        let share = (figure.of)(&finished.figures).filter(|share| applies && *share >= 0.005)?;
        Some((figure.title?, share))
    });
    let shares: Vec<String> = shares
        .map(|(what, share)| format!("{what} {}", quantity::share(share)))
        .collect();
    if !shares.is_empty() {
        cost.push(format!("share of the workers' time: {}", shares.join(", ")));
    }
    if !cost.is_empty() {
        let _ = writeln!(text, "{}", cost.join("; "));
    }
    if let Some(remark) = overfitted(finished) {
        let _ = writeln!(text, "{remark}");
    }
    for warning in &finished.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    if let Some(why) = why_early(finished.reason, finished.patience) {
        let _ = writeln!(text, "{why}");
    }
    if let Some(kept) = &finished.kept {
        let _ = writeln!(
            text,
            "the model has the best weights that were evaluated: after {} samples, with a validation loss of {:.4}",
            quantity::count(kept.samples as f64),
            kept.loss
        );
    }
    if !finished.missing.is_empty() {
        let _ = writeln!(text, "nodes missing at the end: {}", finished.missing.join(", "));
    }
    for reason in &finished.left_out {
        let _ = writeln!(text, "left out of the run: {reason}");
    }
    let agree = if finished.replicas_agree {
        "replicas agree"
    } else {
        "REPLICAS DISAGREE: nodes ended with different weights"
    };
    let _ = writeln!(
        text,
        "{agree}, digest {}; model saved as {}",
        finished.digest, finished.model
    );
    text
}

/// Prints the result of a run, to people or to scripts, and fails if the replicas (the nodes' copies of the model)
/// disagree.
pub(crate) fn report(finished: &Finished, json: bool) -> Result<(), Failure> {
    if json {
        output::line(finished);
        // Scripts that read only the numbers would miss the warnings, so warnings are printed for people too.
        for warning in &finished.warnings {
            notice::say(&format!("warning: {warning}"));
        }
    } else {
        output::text(&output::fitted(&text(finished), &std::io::stdout()));
    }
    interrupt::result_told(finished.replicas_agree && !output::is_lost());
    if finished.replicas_agree {
        Ok(())
    } else {
        Err(Failure::Disagreed)
    }
}

#[cfg(test)]
mod tests {
    use protocol::bounded::BoundedVec;
    use protocol::ids::RunId;
    use protocol::job::JobDraft;
    use protocol::stats::WorkerStats;
    use protocol::stats::measured::Course;
    use protocol::stats::named::NamedNumbers;
    use protocol::weights::digest::Digest;
    use protocol::wire::control::Phase;

    use super::*;

    /// Builds the result of a run by `participants` with these evaluation losses, one after each epoch.
    fn ended(participants: &[&str], missing: &[&str], losses: &[f64]) -> Finished {
        const TRAIN: u64 = 100;
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        let scores = |loss| Scores {
            accuracy: Some(0.9),
            loss,
            mae: None,
            named: NamedNumbers::default(),
        };
        let mut course = Course::default();
        let (last, before) = losses.split_last().unwrap();
        for (samples, &loss) in (1..).map(|epoch| epoch * TRAIN).zip(before) {
            let seconds = samples as f64;
            course.add(Evaluation::of(Moment { samples, seconds }, scores(loss)));
        }
        let status = RunStatus {
            run: RunId(7),
            phase: Phase::Ended,
            job: Box::new(JobDraft::default().resolve().unwrap()),
            train: TRAIN,
            workers: 3,
            chosen: BoundedVec::default(),
            succeeds: None,
            successor: None,
            outcome: None,
            waiting: BoundedVec::default(),
        };
        let result = RunResult {
            participants: names(participants),
            missing: names(missing),
            left_out: BoundedVec::default(),
            agree: true,
            digest: Digest::default(),
            scores: scores(*last),
            base_rate: None,
            stats: WorkerStats::default(),
            samples: TRAIN * losses.len() as u64,
            samples_before: 0,
            repeated: 0,
            weights: 10,
            seconds: 1.0,
            bytes_sent: 1000,
            usage: Vec::new(),
            course,
            stop: None,
            model: "model.safetensors".into(),
        };
        let mut finished = finished(&status, &result, "model.safetensors".into());
        finished.figures.exchange_share = 0.8;
        finished
    }

    #[test]
    fn a_node_that_came_back_and_agreed_is_not_missing() {
        let finished = ended(&["alpha", "gamma"], &["beta", "gamma"], &[0.5]);
        assert_eq!(finished.missing, ["beta"]);
    }

    #[test]
    fn a_node_alone_has_exchanged_nothing() {
        let several = text(&ended(&["alpha", "beta"], &[], &[0.5]));
        assert!(
            several.contains("1.0 kB of weight changes sent; share of the workers' time: exchange 80 %"),
            "{several}"
        );
        let alone = text(&ended(&["alpha"], &[], &[0.5]));
        assert!(!alone.contains("changes") && !alone.contains("exchange"), "{alone}");
    }

    #[test]
    fn a_held_out_loss_that_has_grown_is_remarked_on() {
        let remark = |losses: &[f64]| overfitted(&ended(&["alpha"], &[], losses));
        assert_eq!(
            remark(&[0.5, 0.4, 0.45, 0.48]).unwrap(),
            "evaluation loss was lowest after epoch 2.0 (0.4000) and has grown to 0.4800 since: use --keep best to \
             keep the weights with the lowest loss"
        );
        assert_eq!(remark(&[0.5, 0.4]), None);
        let mut best = ended(&["alpha"], &[], &[0.5, 0.4, 0.48]);
        best.kept = best.evaluations.get(1).cloned();
        assert_eq!(overfitted(&best), None, "the model has the best weights already");
        assert_eq!(remark(&[0.4, 0.41]), None, "a rise within the noise is not remarked on");
        assert_eq!(remark(&[f64::NAN, f64::NAN]), None);
    }

    #[test]
    fn a_model_without_accuracy_is_judged_by_its_loss() {
        let mut finished = ended(&["alpha"], &[], &[2.5]);
        finished.accuracy = None;
        finished.base_rate = Some(0.1);
        let text = text(&finished);
        assert!(text.starts_with("loss 2.5000 on test samples\n"), "{text}");
        let json = serde_json::to_value(&finished).unwrap();
        assert_eq!(json.get("accuracy"), Some(&serde_json::Value::Null));
    }

    #[test]
    fn named_numbers_follow_the_loss() {
        let mut finished = ended(&["alpha"], &[], &[2.5]);
        let json = serde_json::to_value(&finished).unwrap();
        assert!(json.get("named").is_none());
        finished.named = NamedNumbers::new([("perplexity", 12.1825), ("\u{1b}[1m", 0.00025)]).unwrap();
        let text = text(&finished);
        let first = text.lines().next().unwrap();
        assert!(
            first.ends_with("loss 2.5000, perplexity 12.1825, \\u{1b}[1m 2.5e-4 on test samples"),
            "{text}"
        );
        let json = serde_json::to_value(&finished).unwrap();
        assert_eq!(json["named"]["perplexity"], 12.1825);
    }

    #[test]
    fn the_json_of_a_result_keeps_its_fields_in_order() {
        let figures: Vec<&str> = RUN_FIGURES.iter().map(|figure| figure.name).collect();
        let names = format!(
            "event run ended accuracy base_rate loss epochs samples repeated_samples residual_lost seconds \
             samples_per_second nodes participants missing left_out replicas_agree digest bytes_sent bytes_dense \
             compression {} usage evaluations chosen reason warnings model",
            figures.join(" ")
        );
        let finished = ended(&["alpha"], &[], &[0.5]);
        let text = serde_json::to_string(&finished).unwrap();
        let places: Vec<_> = names
            .split(' ')
            .map(|name| text.find(&format!("\"{name}\":")))
            .collect();
        assert!(places.is_sorted() && !places.contains(&None), "{text}");
        let json = serde_json::to_value(&finished).unwrap();
        assert_eq!(json.as_object().unwrap().len(), places.len(), "{text}");
    }
}
