//! Header of the terminal view: progress of the run, its job, and notes such as its end.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;

use super::units::{loss, precise};
use crate::output::quality_metric::QualityMetric;
use crate::output::quantity;
use crate::output::text_layout::{cut, visible_parts};
use crate::timeline::{End, Summary, Timeline};

const GAP: &str = "  ";
/// Characters of a run's id that are shown, enough to tell it from others.
const RUN_WIDTH: usize = 8;

pub(super) fn draw(timeline: &Timeline, frame: &mut Frame, area: Rect) {
    let parts = parts(timeline);
    let sizes: Vec<(usize, u8)> = parts.iter().map(|(text, rank)| (text.chars().count(), *rank)).collect();
    let kept = visible_parts(&sizes, GAP.len(), area.width.into());
    let texts = parts
        .iter()
        .zip(kept)
        .filter(|(_, kept)| *kept)
        .map(|((text, _), _)| text.as_str());
    let first = Line::from(texts.collect::<Vec<_>>().join(GAP)).bold();
    let lines = [
        Some(first),
        timeline
            .facts()
            .map(|facts| Line::from(cut(&facts.job(), area.width.into()))),
    ];
    for (line, row) in lines.into_iter().flatten().zip(area.rows()) {
        frame.render_widget(line, row);
    }
}

/// Returns the parts of the terminal view's first line, each with its rank: parts of the highest rank are omitted
/// first.
fn parts(timeline: &Timeline) -> Vec<(String, u8)> {
    if timeline.nodes().len() == 0 {
        return vec![("no records from the cluster yet".into(), 0)];
    }
    let summary = timeline.summary();
    let mut parts = Vec::new();
    if timeline.run().is_empty() {
        parts.push(("no run".into(), 3));
    } else {
        let short: String = timeline.run().chars().take(RUN_WIDTH).collect();
        parts.push((format!("run {short}"), 4));
    }
    parts.push((summary.state.clone(), 1));
    if timeline.run().is_empty() {
        parts.push((quantity::of(timeline.nodes().len(), "node"), 2));
        return parts;
    }
    if let (Some(epoch), Some(facts)) = (summary.epoch, timeline.facts()) {
        // Rounded down, so that an epoch does not look finished before its end.
        parts.push((
            format!("epoch {:.1}/{}", (epoch * 10.0).floor() / 10.0, facts.epochs),
            3,
        ));
    }
    match summary.share {
        Some(share) => parts.push((format!("{:.0} %", (share * 100.0).floor()), 0)),
        None => parts.push((format!("{} samples", precise(summary.samples as f64)), 0)),
    }
    parts.push((time(&summary), 2));
    parts.push((format!("{} samples/s", precise(summary.samples_per_second)), 5));
    let (metric, figure) = summary.quality();
    if let Some(eval_loss) = summary.eval_loss.filter(|_| metric != QualityMetric::Loss) {
        parts.push((format!("eval loss {}", loss(eval_loss)), 8));
    }
    if let Some(figure) = figure {
        parts.push((format!("{} {}", metric.name(), metric.text(figure)), 6));
    }
    if let Some(best) = summary.best {
        parts.push((format!("best {}", metric.text(best)), 9));
    }
    // During training replicas differ by the batches under way, which would worry users without reason.
    if summary.replicas.of > 0 && summary.state != "training" {
        let replicas = &summary.replicas;
        parts.push((format!("{} of {} replicas equal", replicas.equal, replicas.of), 7));
    }
    parts
}

/// Formats the elapsed time of a run, with the expected total where it can be estimated.
fn time(summary: &Summary) -> String {
    let elapsed = quantity::clock(summary.elapsed);
    match summary.left {
        Some(left) => format!("{elapsed} of {}", quantity::clock(summary.elapsed + left)),
        None => elapsed,
    }
}

/// Returns the notes below the terminal view's header: the end of the run or the reasons why it waits, and a message to
/// the user.
pub(super) fn notes(timeline: &Timeline, said: Option<&str>) -> Vec<(String, Style)> {
    let mut notes = Vec::new();
    if let Some(facts) = timeline.facts() {
        if let Some(end) = &facts.end {
            let colour = if is_good(end) { Color::Green } else { Color::Red };
            notes.push((ending(end), Style::new().fg(colour).bold()));
        }
        let waiting = facts.waiting.iter();
        let waiting = waiting.map(|reason| (format!("waiting for {reason}"), Style::new().fg(Color::Yellow)));
        notes.extend(waiting);
    }
    notes.extend(said.map(|text| (text.into(), Style::new().bold())));
    notes
}

fn is_good(end: &End) -> bool {
    matches!(end, End::Finished { agree: true, .. })
}

fn ending(end: &End) -> String {
    match end {
        End::Failed { reason } => format!("failed: {reason}"),
        End::Finished {
            accuracy,
            mae,
            loss,
            agree,
            nodes,
            missing,
            model,
            ..
        } => {
            let all = nodes + missing.len();
            let agree = if *agree { "agree" } else { "DO NOT AGREE" };
            let missing = match &missing[..] {
                [] => String::new(),
                missing => format!("; missing: {}", missing.join(", ")),
            };
            let quality = accuracy.map_or_else(String::new, |accuracy| {
                let metric = QualityMetric::by(*mae);
                format!("{} {}, ", metric.name(), metric.text(accuracy))
            });
            format!(
                "finished: {quality}loss {loss:.4}, replicas {agree} ({nodes} of {all}{missing}); the contacted node \
                 saved the model as {model}: fetch it with 'tau start --attach'"
            )
        }
    }
}
