//! The table of figures. Each number about the work of a node or worker that records and results contain is declared
//! once, in [`figures!`] at the end of this file. Fields, JSON, bounds on the wire, sources and everything that
//! Prometheus, the terminal, the live page, reports of studies and `docs/metrics.md` show of figures follow from that
//! table.

use serde::{Deserialize, Serialize};

use super::figure::{Applies, Figure, Measure, Unit, counter, gauge};
use super::{LogNotice, PeerRecord, WorkerStats};
use crate::bounded::BoundedVec;
use crate::reasons::waiting::WaitingFor;
use crate::stats::measured::{Evaluation, NodeUsage, ProcessUsage, number_or_null};

/// The work of the workers of a node or run in an interval, from which figures are computed.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// Statistics of all workers of the node or run over the last interval, which lasts `seconds`.
    pub recent: &'a WorkerStats,
    /// Statistics of all workers of the node or run since the start of the run.
    pub total: &'a WorkerStats,
    /// Length, in seconds, of the interval that `recent` covers.
    pub seconds: f64,
    /// Number of the model's weights.
    pub weights: u64,
}

/// Declares figures. A line under `record` has the form
/// `field: Type => SHOWN, workers |work| VALUE, result told, exchange told, serde(…);`
/// where everything after the type is optional. `SHOWN` is made by functions of `figure.rs`; without it the field is
/// not a figure. `workers` computes the field's value from the workers' sums, and `result` also the whole run's value
/// for its result; `exchange` copies the value from [`ExchangeFigures`]; the node fills in other fields. A line under
/// `result` is a figure of results only. The order of lines is that of JSON and of the wire.
macro_rules! figures {
    (
        record { $(
            #[doc = $meaning:literal]
            $field:ident: $type:ty $(=> $shown:expr
                $(, workers $work:expr $(, result $result:ident)?)? $(, exchange $exchange:ident)?
                $(, serde($($serde:tt)*))?)?;
        )+ }
        result { $(
            #[doc = $run_meaning:literal]
            $run_field:ident: $run_type:ty => $run_shown:expr, usage $usage:expr;
        )+ }
    ) => {
        /// Record of one node's state and statistics for one second.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct StatsRecord {
            $(
                #[doc = $meaning]
                $($(#[serde($($serde)*)])?)?
                pub $field: $type,
            )+
        }

        /// The figures of a node's record that the exchange of batches provides.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct ExchangeFigures {
            $($($(
                #[doc = $meaning]
                pub $field: if_given!($exchange, $type),
            )?)?)+
        }

        /// The figures of a whole run, such as times, bytes and samples, as its result reports them.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct RunFigures {
            $($($($(
                #[doc = $meaning]
                pub $field: if_given!($result, $type),
            )?)?)?)+
            $(
                #[doc = $run_meaning]
                pub $run_field: $run_type,
            )+
        }

        /// The figures of a node's record, in the order of its fields.
        pub const FIGURES: &[Figure<StatsRecord>] = &[$($(
            Figure {
                name: stringify!($field),
                meaning: $meaning.trim_ascii(),
                of: |record| record.$field.value(),
                ..$shown
            },
        )?)+];

        /// All figures of a whole run's result, in the order of the fields of [`RunFigures`]; views of results go
        /// through this list.
        pub const RUN_FIGURES: &[Figure<RunFigures>] = &[
            $($($($(if_given!($result, Figure {
                name: stringify!($field),
                meaning: $meaning.trim_ascii(),
                of: |run| run.$field.value(),
                ..$shown
            }),)?)?)?)+
            $(Figure {
                name: stringify!($run_field),
                meaning: $run_meaning.trim_ascii(),
                of: |run| run.$run_field.value(),
                ..$run_shown
            },)+
        ];

        impl StatsRecord {
            /// Fills in the record's figures that come from the workers' statistics and from the exchange.
            pub fn take(&mut self, work: &Work<'_>, exchange: &ExchangeFigures) {
                $($(
                    $(
                        self.$field = computed(work, $work);
                    )?
                    $(self.$field = if_given!($exchange, exchange.$field);)?
                )?)+
            }

            /// Takes those figures of an earlier record of the same node whose last values stay meaningful into this
            /// newer record. It is needed once the node has left the exchange of its run, which resets its figures.
            pub fn keep(&mut self, before: &Self) {
                $($(
                    let figure: Figure<Self> = $shown;
                    if figure.lasts {
                        self.$field = Measure::kept(before.$field, self.$field);
                    }
                )?)+
            }
        }

        impl RunFigures {
            /// Computes the figures of a run from the work of all its workers and the usage of its nodes.
            #[must_use]
            pub fn of(work: &Work<'_>, nodes: &[NodeUsage]) -> Self {
                Self {
                    $($($($($field: if_given!($result, computed(work, $work)),)?)?)?)+
                    $($run_field: computed(nodes, $usage),)+
                }
            }
        }
    };
}

impl Figure<StatsRecord> {
    /// Returns true if the figure is meaningful for this record of a node. `is_one_of_several`: the run has several
    /// nodes.
    #[must_use]
    pub fn applies_to(&self, record: &StatsRecord, is_one_of_several: bool) -> bool {
        match self.applies {
            Applies::Always => true,
            Applies::SeveralNodes => is_one_of_several,
            Applies::Gpus => record.gpu_memory_bytes > 0,
            Applies::Rounds => record.round > 0,
            Applies::Known => (self.of)(record).is_some(),
            Applies::NonZero => (self.of)(record).is_some_and(|value| value != 0.0),
        }
    }
}

fn computed<S: ?Sized, T>(source: &S, value: fn(&S) -> T) -> T {
    value(source)
}

fn processes(nodes: &[NodeUsage]) -> impl Iterator<Item = &ProcessUsage> {
    nodes.iter().flat_map(|node| &node.processes)
}

figures! {
    record {
        /// Time at which the reporting node received the record, by its own clock, in seconds since 1970
        time: f64;
        /// Name of the node
        node: String;
        /// Id of the run; empty if there is none
        run: String;
        /// Phase of the node's run
        state: String;
        /// Samples trained per second, in the last second
        samples_per_second: f64 => gauge("tau_samples_per_second", Unit::SamplesPerSecond).titled("speed")
            .column("smp/s", "samples/s", 1).sorts().on_page(),
            workers |work| work.recent.samples as f64 / work.seconds;
        /// Samples trained by the node in this run
        samples: u64 => counter("tau_samples", Unit::Samples).titled("trained").column("smp", "samples", 16),
            workers |work| work.total.samples;
        /// Trained samples of the whole run that the node knows of; those trained twice count twice
        ledger_samples: u64 => counter("tau_run_samples", Unit::Samples);
        /// Seconds since the first step of the run that the node knows of
        seconds: f64;
        /// Mean training loss of the last second
        loss: Option<f64> => gauge("tau_training_loss", Unit::Loss).lasting().titled("training loss")
            .column("loss", "loss", 3).sorts().on_page(),
            workers |work| work.recent.mean_loss();
        /// Newest accuracy on validation (or else test) samples
        accuracy: Option<f64> => gauge("tau_held_out_accuracy", Unit::Quality).lasting().titled("eval accuracy")
            .column("acc%", "accuracy %", 4).only(Applies::Known);
        /// Newest mean absolute error of predicted numbers, in their own units
        mae: Option<f64> => gauge("tau_held_out_mae", Unit::Target).lasting().titled("eval error").only(Applies::NonZero);
        /// Size of one weight change; none if batches are dense
        tau: f64 => gauge("tau_threshold", Unit::WeightChange).lasting().titled("τ").column("τ", "τ", 11),
            workers |work| work.total.tau;
        /// Share of the weights that a batch changes
        density: f64 => gauge("tau_density", Unit::Density).titled("density").column("den%", "density %", 10),
            workers |work| work.recent.density(work.weights), result told;
        /// Bytes of batches received from other nodes
        bytes_in: u64 => counter("tau_received_bytes", Unit::Bytes).titled("received").column("in", "in B/s", 7).rate()
            .only(Applies::SeveralNodes).on_page();
        /// Bytes of batches sent to other nodes
        bytes_out: u64 => counter("tau_sent_bytes", Unit::Bytes).titled("sent").column("out", "out B/s", 6).rate()
            .only(Applies::SeveralNodes).on_page();
        /// Bytes that sending every step's gradient as f32 to every peer would have taken
        bytes_dense: u64 => counter("tau_dense_bytes", Unit::Bytes);
        /// Age of others' gradients on arrival, in rounds of batches
        staleness: f64 => gauge("tau_staleness_rounds", Unit::Rounds).titled("staleness").column("stale", "staleness", 9)
            .sorts().on_page(),
            workers |work| work.total.staleness;
        /// Batches that peers have and the node has not applied
        frontier_lag: u64 => gauge("tau_lag_batches", Unit::Batches).titled("lag").column("lag", "lag", 5).sorts().on_page(),
            exchange told;
        /// Digest (checksum of the weights) of the node's ledger, its exact replica
        digest: String;
        /// Batches waiting to be sent
        queue: u64 => gauge("tau_queue_batches", Unit::Batches).titled("queue").column("que", "queue", 14).on_page();
        /// Share of the last second in which emission was paused
        paused_share: f64 => gauge("tau_paused_share", Unit::Share).titled("emission paused");
        /// Share of the workers' time that the exchange takes
        exchange_share: f64 => gauge("tau_exchange_share", Unit::Share).titled("exchange").column("ex%", "exchange %", 13)
            .only(Applies::SeveralNodes).on_page(),
            workers |work| work.recent.exchange_share(), result told;
        /// Newest round that a worker has reached
        round: u64 => gauge("tau_round", Unit::Rounds).titled("rounds").only(Applies::Rounds).on_page(), exchange told;
        /// Rounds for which the node waited in vain for another worker
        late: u64 => counter("tau_late_rounds", Unit::Rounds).titled("late rounds").only(Applies::Rounds).on_page(),
            exchange told;
        /// Rounds that reached the node as one sum
        bundled: u64 => counter("tau_bundled_rounds", Unit::Rounds).titled("bundled rounds").only(Applies::Rounds).on_page(),
            exchange told;
        /// Rounds whose batches came one by one, because their sum did not come
        given_up: u64 => counter("tau_given_up_rounds", Unit::Rounds).titled("given-up rounds").only(Applies::Rounds).on_page(),
            exchange told;
        /// Seconds in which the node received, added up, applied and passed on what is exchanged
        adding_seconds: f64 => counter("tau_adding_seconds", Unit::Seconds).titled("adding up").only(Applies::Rounds),
            exchange told;
        /// Share of the workers' time spent waiting for rounds
        waited_share: f64 => gauge("tau_waited_share", Unit::Share).titled("waiting for rounds").column("wt%", "waited %", 17)
            .studied("waited").on_page(),
            workers |work| work.recent.waited_share(), result told;
        /// Share of the workers' time that orthogonal updates take
        direction_share: f64 => gauge("tau_direction_share", Unit::Share).titled("orthogonal updates").only(Applies::NonZero)
            .on_page(),
            workers |work| work.recent.direction_share(), result told;
        /// Bytes received over all sockets since the run began, including encryption, control messages and handshakes
        wire_in: u64 => counter("tau_wire_received_bytes", Unit::Bytes).titled("on the wire, in");
        /// Bytes sent over all sockets since the run began, including encryption, control messages and handshakes
        wire_out: u64 => counter("tau_wire_sent_bytes", Unit::Bytes).titled("on the wire, out");
        /// Processor cores kept busy
        cpu: f64 => gauge("tau_cpu_cores", Unit::Cores).titled("cores busy").column("cpu", "cores", 8).sorts().on_page();
        /// Memory of the node and its workers
        memory_bytes: u64 => gauge("tau_memory_bytes", Unit::Bytes).titled("memory").column("mem", "memory B", 12).on_page();
        /// GPUs kept busy
        gpu: f64 => gauge("tau_gpu_busy", Unit::Gpus).titled("GPUs busy").column("gpu", "GPUs", 15).only(Applies::Gpus).on_page(),
            workers |work| work.recent.gpu.as_secs_f64() / work.seconds;
        /// Memory of GPUs in use
        gpu_memory_bytes: u64 => gauge("tau_gpu_memory_bytes", Unit::Bytes).titled("GPU memory").column("gmem", "GPU mem B", 18)
            .only(Applies::Gpus).on_page(),
            workers |work| work.total.gpu_memory;
        /// Norm of the changes that workers have learned and not sent
        residual_norm: f64 => gauge("tau_residual_norm", Unit::Norm).titled("residual norm"),
            workers |work| work.total.residual_norm, serde(deserialize_with = "number_or_null");
        /// Norm of the changes that were lost with workers that died
        residual_lost: f64 => gauge("tau_residual_lost", Unit::Norm).titled("residual lost").only(Applies::NonZero),
            workers |work| work.total.residual_lost, serde(deserialize_with = "number_or_null");
        /// Samples of the whole run that were trained more than once, after a partition or the death of a node
        repeated_samples: u64 => counter("tau_repeated_samples", Unit::Samples).titled("trained twice").only(Applies::NonZero),
            exchange told;
        /// Newest evaluation, from the node that measured the model
        evaluation: Option<Evaluation>;
        /// Evaluations that the node has made since its last record, oldest first
        evaluations: Vec<Evaluation>;
        /// Use of the machine by each of the node's processes since the run began there
        processes: Vec<ProcessUsage>;
        /// Things that the node waits for, to begin or to end the run: each text follows "waiting for"
        waiting: BoundedVec<WaitingFor, { StatsRecord::WAITING_MAX }>;
        /// Log notices (sentences for people) of the node since its last record
        said: BoundedVec<LogNotice, { StatsRecord::SAID_MAX }>;
        /// Bytes and batches exchanged with each peer
        peers: Vec<PeerRecord>;
    }
    result {
        /// Bytes sent over the sockets of all nodes, including encryption, control messages and handshakes
        wire_sent: u64 => gauge("", Unit::Bytes).studied("sent"), usage |nodes| nodes.iter().map(|node| node.wire_out).sum();
        /// Processor time of all nodes' and workers' processes while the run trained
        cpu_seconds: f64 => gauge("", Unit::Seconds).studied("CPU time"),
            usage |nodes| processes(nodes).map(|one| one.cpu_seconds).sum();
        /// Peak memory of the process that used most
        memory_peak_bytes: u64 => gauge("", Unit::Bytes).studied("memory"),
            usage |nodes| processes(nodes).map(|one| one.memory_peak_bytes).max().unwrap_or(0);
        /// Bytes that all processes read from disks while the run trained
        disk_read_bytes: u64 => gauge("", Unit::Bytes), usage |nodes| processes(nodes).map(|one| one.disk_read_bytes).sum();
        /// Bytes that all processes wrote to disks while the run trained
        disk_write_bytes: u64 => gauge("", Unit::Bytes), usage |nodes| processes(nodes).map(|one| one.disk_write_bytes).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that a value's JSON has exactly these fields in this order.
    fn has_fields(value: &impl Serialize, names: &str) {
        let text = serde_json::to_string(value).unwrap();
        let places: Vec<_> = names
            .split(' ')
            .map(|name| text.find(&format!("\"{name}\":")))
            .collect();
        assert!(places.is_sorted() && !places.contains(&None), "{text}");
        let json = serde_json::to_value(value).unwrap();
        assert_eq!(json.as_object().unwrap().len(), places.len(), "{text}");
    }

    #[test]
    fn the_json_of_records_and_results_keeps_its_fields_in_order() {
        has_fields(
            &StatsRecord::default(),
            "time node run state samples_per_second samples ledger_samples seconds loss accuracy mae tau density bytes_in \
             bytes_out bytes_dense staleness frontier_lag digest queue paused_share exchange_share round late bundled \
             given_up adding_seconds waited_share direction_share wire_in wire_out cpu memory_bytes gpu gpu_memory_bytes \
             residual_norm residual_lost repeated_samples evaluation evaluations processes waiting said peers",
        );
        has_fields(
            &RunFigures::default(),
            "density exchange_share waited_share direction_share wire_sent cpu_seconds memory_peak_bytes disk_read_bytes \
             disk_write_bytes",
        );
    }

    #[test]
    fn figures_have_different_names_and_titles() {
        fn differ<'a>(names: impl Iterator<Item = &'a str>) {
            let mut names: Vec<&str> = names.collect();
            names.sort_unstable();
            let all = names.len();
            names.dedup();
            assert!(all > 0 && all == names.len(), "{names:?}");
        }
        differ(FIGURES.iter().map(|figure| figure.name));
        differ(FIGURES.iter().map(|figure| figure.prometheus));
        differ(FIGURES.iter().filter_map(|figure| figure.title));
        differ(FIGURES.iter().filter_map(|figure| Some(figure.column?.title)));
        differ(RUN_FIGURES.iter().filter_map(|figure| figure.study));
    }

    #[test]
    fn every_number_of_a_record_but_its_times_is_a_figure() {
        let record = StatsRecord {
            loss: Some(0.5),
            accuracy: Some(0.5),
            mae: Some(0.5),
            ..StatsRecord::default()
        };
        let json = serde_json::to_value(record).unwrap();
        let numbers = json.as_object().unwrap().iter().filter(|(_, value)| value.is_number());
        let missing: Vec<&String> = numbers
            .map(|(name, _)| name)
            .filter(|name| FIGURES.iter().all(|figure| figure.name != *name))
            .collect();
        assert_eq!(missing, ["seconds", "time"]);
    }

    #[test]
    fn a_node_that_has_left_keeps_its_lasting_figures() {
        let before = StatsRecord {
            samples: 100,
            late: 3,
            loss: Some(0.5),
            tau: 0.1,
            samples_per_second: 50.0,
            wire_out: 10,
            ..StatsRecord::default()
        };
        let mut record = StatsRecord {
            wire_out: 20,
            ..StatsRecord::default()
        };
        record.keep(&before);
        let wanted = StatsRecord {
            samples_per_second: 0.0,
            wire_out: 20,
            ..before
        };
        assert_eq!(record, wanted);
    }
}
