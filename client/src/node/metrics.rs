//! A node's metrics in the format that Prometheus collects.
//!
//! Every node reports only about itself: a collector asks all nodes and adds up.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use protocol::stats::{FIGURES, StatsRecord, Unit};
use protocol::wire::control::NodeInfo;

use crate::failure::Failure;
use crate::http::{self, Answer, Secret, Server};
use crate::timeline::Timeline;
use crate::views::watching::Watch;

const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Name and help text that replace those of the accuracy in the metrics if the model predicts numbers.
const R2: (&str, &str) = ("tau_held_out_r2", "Newest R² on validation (or else test) samples");

/// Names of all states of a node, of which its metrics report one.
const STATES: [&str; 5] = ["idle", "preparing", "training", "settling", "finishing"];

/// Serves a node's metrics for Prometheus under `/metrics`.
pub(crate) async fn serve(
    address: SocketAddr,
    secret: Secret,
    watch: Arc<Watch>,
    info: &NodeInfo,
) -> Result<Server, Failure> {
    let info = Arc::new(info.clone());
    http::serve("--metrics", address, secret, move |question| {
        let (watch, info) = (Arc::clone(&watch), Arc::clone(&info));
        async move {
            if question.path != "/metrics" || question.acts {
                return Answer::nothing();
            }
            let numbers = Numbers::of(&watch.timeline.lock(), &info);
            numbers
                .text()
                .map_or_else(|_| Answer::nothing(), |text| Answer::of(TEXT, text))
        }
    })
    .await
}

/// A node's metrics at one moment.
#[derive(Debug)]
struct Numbers {
    name: String,
    version: String,
    device: String,
    record: StatsRecord,
    share: Option<f64>,
    heard: usize,
    silent: usize,
}

impl Numbers {
    fn of(timeline: &Timeline, info: &NodeInfo) -> Self {
        let own = timeline.nodes().iter().find(|node| node.record.node == info.name);
        let silent = timeline.nodes().iter().filter(|node| node.is_silent()).count();
        let device = own.and_then(|node| Some(node.member.as_ref()?.device.clone()));
        Self {
            name: info.name.clone(),
            version: info.version.to_string(),
            device: device.unwrap_or_default(),
            record: own.map(|node| node.record.clone()).unwrap_or_default(),
            share: timeline.summary().share,
            heard: timeline.nodes().len() - silent,
            silent,
        }
    }

    fn text(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut out = String::new();
        text::encode(&mut out, &registry)?;
        Ok(out)
    }
}

impl Collector for Numbers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut level = |name: &str, help: &str, value: f64| {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)
        };
        level(
            "tau_members_heard",
            "Members of the cluster that are not silent",
            self.heard as f64,
        )?;
        level(
            "tau_members_silent",
            "Members of the cluster that are silent",
            self.silent as f64,
        )?;
        if let Some(share) = self.share {
            level("tau_run_share", "Share of the run's samples that are trained", share)?;
        }
        if let Some(evaluation) = self.record.evaluation.as_ref().filter(|newest| newest.loss.is_finite()) {
            level(
                "tau_held_out_loss",
                "Newest loss on validation (or else test) samples, as measured by this node",
                evaluation.loss,
            )?;
        }
        for figure in FIGURES {
            // Unknown values are left out.
            let Some(value) = (figure.of)(&self.record).filter(|value| value.is_finite()) else {
                continue;
            };
            let (name, help) = if figure.unit == Unit::Quality && self.record.mae.is_some() {
                R2
            } else {
                (figure.prometheus, figure.meaning)
            };
            if figure.is_counter {
                let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
                ConstCounter::new(value).encode(metric)?;
            } else {
                let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(metric)?;
            }
        }
        let mut states = encoder.encode_descriptor(
            "tau_state",
            "State of the node: 1 for the current state, 0 for the others",
            None,
            MetricType::Gauge,
        )?;
        for state in STATES {
            let is = f64::from(u8::from(self.record.state == state));
            ConstGauge::new(is).encode(states.encode_family(&[("state", state)])?)?;
        }
        let labels = [
            ("node", &*self.name),
            ("version", &*self.version),
            ("device", &*self.device),
            ("run", &*self.record.run),
        ];
        let mut node = encoder.encode_descriptor(
            "tau_node",
            "Name, version, device and run of this node; always 1",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(1.0).encode(node.encode_family(&labels)?)
    }
}
