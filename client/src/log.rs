//! Logs on standard error, where each line names its node and run.
//!
//! Lines that appear by default are also kept as log notices for the node's records, so that every watcher of the
//! cluster sees them. `TAU_LOG` sets the level (`TAU_LOG=info`), and `TAU_LOG_FORMAT=json` the format.

use std::fmt;
use std::io::IsTerminal;

use communicator::log_context::{self, NEWS};
use communicator::log_notices;
use protocol::stats::Severity;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

/// Default filter of log lines. `ractor_cluster` is off, because it logs normal events as warnings and, at lower
/// levels, whole messages.
const FILTER: &str = "warn,ractor=off,ractor_cluster=off";

/// Starts logging. `tells_news`: normal events are logged too, as for a node that a person has started; nodes of a
/// local cluster log problems only.
pub(crate) fn init(tells_news: bool) {
    let filter: Result<Targets, _> = match std::env::var("TAU_LOG") {
        Ok(asked) => format!("ractor=error,ractor_cluster=error,{asked}").parse(),
        Err(_) if tells_news => format!("{FILTER},{NEWS}=info").parse(),
        // The outcome of a run is reported once, by the process that started the run.
        Err(_) => format!("{FILTER},{NEWS}=off").parse(),
    };
    let json = std::env::var("TAU_LOG_FORMAT").is_ok_and(|format| format == "json");
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        // Colours are for people; in files and pipes they would be in the way.
        .with_ansi(std::io::stderr().is_terminal())
        // Otherwise a closed standard error would be reported on standard error, which panics.
        .log_internal_errors(false)
        .event_format(LogFormat { json })
        .with_filter(filter.unwrap_or_else(|_| FILTER.parse().expect("the standard filter is valid")));
    let kept = Targets::new()
        .with_default(Level::WARN)
        .with_target(NEWS, Level::INFO)
        .with_target("ractor", tracing::level_filters::LevelFilter::OFF);
    Registry::default()
        .with(lines)
        .with(NoticeLayer.with_filter(kept))
        .init();
}

/// Log layer that turns a node's log events into notices. The node's next record carries them to everyone who watches
/// the run.
struct NoticeLayer;

impl<S: Subscriber> Layer<S> for NoticeLayer {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        if log_context::node().is_none() {
            return;
        }
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        let severity = match *event.metadata().level() {
            Level::ERROR => Severity::Error,
            Level::WARN => Severity::Warning,
            _ => Severity::News,
        };
        log_notices::keep(severity, fields.sentence());
    }
}

struct LogFormat {
    json: bool,
}

impl<S, N> FormatEvent<S, N> for LogFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let level = event.metadata().level();
        if self.json {
            let mut fields = Fields(Map::new());
            // First, so that an event's own fields cannot replace those that follow.
            event.record(&mut fields);
            fields.put("time", time);
            fields.put("level", level.to_string());
            if let Some(node) = log_context::node() {
                fields.put("node", node);
            }
            if let Some(run) = log_context::run() {
                fields.put("run", run.to_string());
            }
            return writeln!(writer, "{}", Value::Object(fields.0));
        }
        write!(writer, "{time} {level:>5}")?;
        if let Some(node) = log_context::node() {
            write!(writer, " {node}")?;
        }
        if let Some(run) = log_context::run() {
            write!(writer, " {run}")?;
        }
        write!(writer, " ")?;
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// The fields of a log event, as JSON.
struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, key: &str, value: impl Into<Value>) {
        self.0.insert(key.into(), value.into());
    }

    /// Returns the log event's message, followed by its other fields in parentheses.
    fn sentence(mut self) -> String {
        let text = |value: Value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let message = self.0.remove("message").map(text).unwrap_or_default();
        // The `event` field is for programs, and repeats the message.
        self.0.remove("event");
        let others = self.0.into_iter().map(|(key, value)| format!("{key} {}", text(value)));
        let others: Vec<String> = others.collect();
        if others.is_empty() {
            message
        } else {
            format!("{message} ({})", others.join(", "))
        }
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field.name(), format!("{value:?}"));
    }
}
