//! How a run ended, for people and for scripts.

use std::fmt::Write as _;

use protocol::measured::{Evaluation, Moment};
use protocol::stats::{Finished, ratio};
use protocol::wire::control::{RunResult, RunStatus};
use protocol::wire::run_beat::StopReason;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::failure::Failure;
use crate::{output, quantity};

/// The last line of a run.
pub(crate) fn finished(status: &RunStatus, result: &RunResult, model: String) -> Finished {
    let stats = &result.stats;
    let nodes = result.participants.len() + result.missing.len();
    // A single node counts as having one peer, to which its batches would have gone.
    let peers = nodes.saturating_sub(1).max(1) as u64;
    let steps = stats.batches + stats.held_back;
    let bytes_dense = steps * result.weights * size_of::<f32>() as u64 * peers;
    let processes = || result.usage.iter().flat_map(|node| &node.processes);
    let ended = Moment {
        samples: result.samples,
        seconds: result.seconds,
    };
    let last = Evaluation::of(ended, result.scores);
    Finished {
        event: "finished",
        run: status.run.to_string(),
        ended: now(),
        accuracy: result.scores.accuracy,
        loss: result.scores.loss,
        epochs: ratio(result.samples as f64, status.train as f64),
        samples: result.samples,
        repeated_samples: result.repeated,
        residual_lost: stats.residual_lost,
        seconds: result.seconds,
        samples_per_second: ratio(result.samples as f64, result.seconds),
        nodes: result.participants.len(),
        participants: result.participants.clone(),
        missing: result.missing.clone(),
        replicas_agree: result.agree,
        digest: result.digest.to_string(),
        bytes_sent: result.bytes_sent,
        bytes_dense,
        compression: ratio(bytes_dense as f64, result.bytes_sent as f64),
        density: stats.density(result.weights),
        exchange_share: stats.exchange_share(),
        waited_share: stats.waited_share(),
        direction_share: stats.direction_share(),
        wire_sent: result.usage.iter().map(|node| node.wire_out).sum(),
        cpu_seconds: processes().map(|one| one.cpu_seconds).sum(),
        memory_peak_bytes: processes().map(|one| one.memory_peak_bytes).max().unwrap_or(0),
        disk_read_bytes: processes().map(|one| one.disk_read_bytes).sum(),
        disk_write_bytes: processes().map(|one| one.disk_write_bytes).sum(),
        usage: result.usage.clone(),
        evaluations: result.course.evaluations().iter().copied().chain([last]).collect(),
        reason: result.stop.map_or("trained", StopReason::name),
        model,
    }
}

/// The moment in words that people and programs read, to the second.
fn now() -> String {
    let now = OffsetDateTime::now_utc();
    let whole = now.replace_nanosecond(0).unwrap_or(now);
    whole.format(&Rfc3339).unwrap_or_default()
}

/// What stopped a run before all its samples were trained, for people.
fn why_early(reason: &str) -> Option<&'static str> {
    match reason {
        "stopped" => Some("it was stopped"),
        "target_reached" => Some("its target is reached, and the model is the one that was measured"),
        "time_up" => Some("its time was up"),
        "others_ended" => Some("the others had ended it"),
        _ => None,
    }
}

/// For people: what came out, what it cost, and where it is.
fn text(finished: &Finished) -> String {
    let Finished {
        samples,
        samples_per_second,
        ..
    } = finished;
    let mut text = format!(
        "accuracy {}, loss {:.4} on held-out samples\n{} samples in {} ({} samples/s) by {}\n",
        quantity::accuracy(finished.accuracy),
        finished.loss,
        quantity::count(*samples as f64),
        quantity::seconds(finished.seconds),
        quantity::count(*samples_per_second),
        quantity::of(finished.nodes, "node")
    );
    let (sent, dense) = (finished.bytes_sent as f64, finished.bytes_dense as f64);
    let _ = write!(text, "{} of changes", quantity::bytes(sent));
    // Of small models there is nothing to save.
    if finished.compression >= 2.0 {
        let times = quantity::count(finished.compression);
        let _ = write!(text, " instead of {} ({times} times less)", quantity::bytes(dense));
    }
    let shares = [
        ("exchange", finished.exchange_share),
        ("waiting for others' rounds", finished.waited_share),
        ("orthogonal updates", finished.direction_share),
    ];
    let shares = shares.iter().filter(|(_, share)| *share >= 0.005);
    let shares: Vec<String> = shares
        .map(|(what, share)| format!("{what} {}", quantity::share(*share)))
        .collect();
    if !shares.is_empty() {
        let _ = write!(text, "; of workers' time: {}", shares.join(", "));
    }
    text.push('\n');
    if let Some(why) = why_early(finished.reason) {
        let _ = writeln!(text, "{why}");
    }
    if !finished.missing.is_empty() {
        let _ = writeln!(text, "missing: {}", finished.missing.join(", "));
    }
    let agree = if finished.replicas_agree {
        "replicas agree"
    } else {
        "REPLICAS DISAGREE"
    };
    let _ = writeln!(
        text,
        "{agree}, digest {}; model saved as {}",
        finished.digest, finished.model
    );
    text
}

/// Says how a run ended, to people or to scripts.
pub(crate) fn report(finished: &Finished, json: bool) -> Result<(), Failure> {
    if json {
        output::line(finished);
    } else {
        output::text(&text(finished));
    }
    if finished.replicas_agree {
        Ok(())
    } else {
        Err(Failure::Disagreed)
    }
}
