//! The line on the run as a whole.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Stylize;
use ratatui::text::Line;

use super::fit::fitting;
use super::nodes::Nodes;
use super::units::{percent, precise};

const GAP: &str = "  ";
/// So much of a run's name tells it from others.
const RUN_WIDTH: usize = 8;

pub(super) fn draw(nodes: &Nodes, total: Option<u64>, frame: &mut Frame, area: Rect) {
    let parts = parts(nodes, total);
    let sizes: Vec<(usize, u8)> = parts.iter().map(|(text, rank)| (text.chars().count(), *rank)).collect();
    let kept = fitting(&sizes, GAP.len(), area.width.into());
    let texts = parts
        .iter()
        .zip(kept)
        .filter(|(_, kept)| *kept)
        .map(|((text, _), _)| text.as_str());
    let line = Line::from(texts.collect::<Vec<_>>().join(GAP));
    frame.render_widget(line.bold(), area);
}

/// Each with a rank: the highest are left out first.
fn parts(nodes: &Nodes, total: Option<u64>) -> Vec<(String, u8)> {
    if nodes.len() == 0 {
        return vec![("No news from the cluster yet.".into(), 0), ("q leaves".into(), 1)];
    }
    let mut parts = Vec::new();
    if !nodes.run().is_empty() {
        let run: String = nodes.run().chars().take(RUN_WIDTH).collect();
        parts.push((format!("run {run}"), 3));
    }
    let samples = nodes.samples();
    let done = match total {
        Some(total) if total > 0 => {
            let share = percent(samples as f64 / total as f64, 0);
            format!(
                "{} of {} samples ({share}%)",
                precise(samples as f64),
                precise(total as f64)
            )
        }
        _ => format!("{} samples", precise(samples as f64)),
    };
    parts.push((done, 0));
    parts.push((format!("{}/s", precise(nodes.samples_per_second())), 1));
    if let Some(accuracy) = nodes.accuracy() {
        parts.push((format!("accuracy {accuracy:.4}"), 2));
    }
    parts.push(("q leaves".into(), 4));
    parts
}
