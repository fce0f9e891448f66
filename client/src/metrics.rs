//! A node's own numbers in the form that Prometheus collects.
//!
//! Every node tells of itself: whoever collects asks each of them, and adds up.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use protocol::stats::StatsRecord;
use protocol::wire::control::NodeInfo;

use crate::failure::Failure;
use crate::http::{self, Answer, Secret, Server};
use crate::timeline::Timeline;
use crate::watching::Watch;

const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What only grows while a run goes on, and begins again with the next.
struct Count {
    name: &'static str,
    help: &'static str,
    of: fn(&StatsRecord) -> u64,
}

/// What goes up and down. What is not known is not told.
struct Level {
    name: &'static str,
    help: &'static str,
    of: fn(&StatsRecord) -> Option<f64>,
}

#[rustfmt::skip]
const COUNTS: [Count; 10] = [
    Count { name: "tau_samples", help: "Samples that this node has trained in the run", of: |record| record.samples },
    Count { name: "tau_run_samples", help: "Trained samples of the whole run that this node knows of", of: |record| record.ledger_samples },
    Count { name: "tau_repeated_samples", help: "Samples of the whole run that were trained more than once", of: |record| record.repeated_samples },
    Count { name: "tau_received_bytes", help: "Bytes of batches received from other nodes", of: |record| record.bytes_in },
    Count { name: "tau_sent_bytes", help: "Bytes of batches sent to other nodes", of: |record| record.bytes_out },
    Count { name: "tau_dense_bytes", help: "Bytes that sending every step's gradient as f32 to every peer would have taken", of: |record| record.bytes_dense },
    Count { name: "tau_wire_received_bytes", help: "Bytes received over all sockets, encryption included", of: |record| record.wire_in },
    Count { name: "tau_wire_sent_bytes", help: "Bytes sent over all sockets, encryption included", of: |record| record.wire_out },
    Count { name: "tau_late_rounds", help: "Rounds for which this node waited in vain for another worker", of: |record| record.late },
    Count { name: "tau_bundled_rounds", help: "Rounds that reached this node as one sum", of: |record| record.bundled },
];

#[rustfmt::skip]
const LEVELS: [Level; 20] = [
    Level { name: "tau_samples_per_second", help: "Samples trained per second, over the last second", of: |record| Some(record.samples_per_second) },
    Level { name: "tau_training_loss", help: "Mean training loss of the last second", of: |record| record.loss },
    Level { name: "tau_held_out_accuracy", help: "Newest accuracy on the validation samples, or the test samples if there are none; only with classes", of: |record| record.accuracy.filter(|_| record.mae.is_none()) },
    Level { name: "tau_held_out_r2", help: "Newest R\u{b2} on the validation samples, or the test samples if there are none; only with predicted numbers", of: |record| record.accuracy.filter(|_| record.mae.is_some()) },
    Level { name: "tau_held_out_mae", help: "Newest mean absolute error of the predicted numbers, in their own units", of: |record| record.mae },
    Level { name: "tau_held_out_loss", help: "Newest loss on the validation samples, or the test samples if there are none, as measured by this node", of: |record| record.evaluation.map(|evaluation| evaluation.loss) },
    Level { name: "tau_threshold", help: "Threshold \u{3c4} of the newest batch: the size of one weight change", of: |record| Some(record.tau) },
    Level { name: "tau_density", help: "Fraction of the weights that a batch changes", of: |record| Some(record.density) },
    Level { name: "tau_staleness_rounds", help: "Age of other workers' gradients on arrival, in rounds of one batch from every worker", of: |record| Some(record.staleness) },
    Level { name: "tau_lag_batches", help: "Batches that peers have and this node has not applied", of: |record| Some(record.frontier_lag as f64) },
    Level { name: "tau_queue_batches", help: "Batches waiting to be sent", of: |record| Some(record.queue as f64) },
    Level { name: "tau_exchange_share", help: "Share of the workers' time that the exchange took", of: |record| Some(record.exchange_share) },
    Level { name: "tau_waited_share", help: "Share of the workers' time in which they waited for other workers' rounds", of: |record| Some(record.waited_share) },
    Level { name: "tau_direction_share", help: "Share of the workers' time that orthogonal updates took", of: |record| Some(record.direction_share) },
    Level { name: "tau_round", help: "Newest round that a worker has reached; 0 without rounds", of: |record| Some(record.round as f64) },
    Level { name: "tau_paused_share", help: "Share of the last second in which emission was paused", of: |record| Some(record.paused_share) },
    Level { name: "tau_cpu_cores", help: "Cores kept busy by the node and its workers", of: |record| Some(record.cpu) },
    Level { name: "tau_memory_bytes", help: "Memory of the node and its workers", of: |record| Some(record.memory_bytes as f64) },
    Level { name: "tau_gpu_busy", help: "GPUs kept busy", of: |record| Some(record.gpu) },
    Level { name: "tau_gpu_memory_bytes", help: "Memory of GPUs in use", of: |record| Some(record.gpu_memory_bytes as f64) },
];

/// The states that a node can be in.
const STATES: [&str; 5] = ["idle", "preparing", "training", "settling", "finishing"];

/// Serves a node's numbers.
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

/// A node's numbers at one moment.
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
        for Level { name, help, of } in &LEVELS {
            if let Some(value) = of(&self.record).filter(|value| value.is_finite()) {
                level(name, help, value)?;
            }
        }
        for Count { name, help, of } in &COUNTS {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(of(&self.record)).encode(metric)?;
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
