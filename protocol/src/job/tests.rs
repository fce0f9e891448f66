use serde::{Deserialize, Serialize};

use super::*;
use crate::job::clip::Clip;
use crate::job::data::DataSpec;
use crate::job::split::Split;
use crate::stats::measured::Scores;
use crate::stats::named::NamedNumbers;
use crate::weights::lattice::Tau;

#[test]
fn a_network_that_is_spread_over_nodes_takes_nothing_that_needs_it_whole() {
    let draft = JobDraft {
        exchange: Some("layers:groups=2".into()),
        from: Some("old.safetensors".into()),
        keep: Some("best".into()),
        target_accuracy: Some(0.9),
        target_loss: Some(2.5),
        ..JobDraft::default()
    };
    let JobErrors(errors) = draft.resolve().unwrap_err();
    let keys: Vec<_> = errors.iter().map(|error| error.key).collect();
    assert_eq!(keys, ["from", "keep", "target_accuracy", "target_loss"]);
}

#[test]
fn a_run_reaches_all_of_its_targets_or_none() {
    let job = |accuracy: Option<f64>, loss: Option<f64>| {
        let draft = JobDraft {
            target_accuracy: accuracy,
            target_loss: loss,
            ..JobDraft::default()
        };
        draft.resolve().unwrap()
    };
    let scores = |accuracy, loss| Scores {
        accuracy,
        loss,
        mae: None,
        named: NamedNumbers::default(),
    };
    let accuracy = job(Some(0.9), None);
    assert!(accuracy.target_is_reached_by(&scores(Some(0.9), 7.0)));
    assert!(!accuracy.target_is_reached_by(&scores(Some(0.8), 0.0)));
    assert!(!accuracy.target_is_reached_by(&scores(None, 0.0)));
    let loss = job(None, Some(2.5));
    assert!(loss.target_is_reached_by(&scores(None, 2.5)) && loss.target_is_reached_by(&scores(Some(0.0), 2.0)));
    assert!(!loss.target_is_reached_by(&scores(Some(1.0), 2.6)));
    assert!(!loss.target_is_reached_by(&scores(Some(1.0), f64::NAN)));
    let both = job(Some(0.9), Some(2.5));
    assert!(both.target_is_reached_by(&scores(Some(0.9), 2.5)));
    assert!(!both.target_is_reached_by(&scores(Some(0.9), 2.6)) && !both.target_is_reached_by(&scores(None, 2.5)));
    assert!(!job(None, None).target_is_reached_by(&scores(Some(1.0), 0.0)));
    for with in [accuracy, loss, both] {
        assert!(with.decides_by_measurements());
        assert_eq!(with.evaluations_per_epoch(), 16);
    }
    assert!(!job(None, None).decides_by_measurements());
}

#[test]
fn nothing_at_all_is_the_default_job() {
    let job = JobDraft::default().resolve().unwrap();
    assert_eq!(job.data, DataSpec::BuiltinMnist);
    assert_eq!(
        job.exchange,
        Exchange::Strom(Threshold::Density(Density::Auto { bytes_max: None }))
    );
    assert_eq!(job.split, Split::Random);
}

#[test]
fn toml_flags_and_wire_are_one() {
    let text = r#"
        data = "idx:images"
        model = "conv 8 3x3, relu, flatten, dense 10"
        from = "old.safetensors"
        epochs = 3
        minibatch = 32
        accumulate = 4
        optimiser = "adam:0.002"
        clip = "2.5"
        lr_schedule = "cosine:warmup=0.1"
        tau = 0.0078125
        split = "class"
        balanced = true
        target_accuracy = 0.97
        target_loss = 0.125
        patience = 3
        keep = "best"
        max_seconds = 60
        checkpoint_every = 10
        give_up_after = 90
        seed = 42
    "#;
    let job = JobDraft::from_toml(text).unwrap().resolve().unwrap();
    assert_eq!(job.clip, Clip::Norm(2.5));
    let threshold = Threshold::Fixed(Tau::from_steps(8192).unwrap());
    assert_eq!(job.exchange, Exchange::Strom(threshold));
    let draft = JobDraft::from(&job);
    assert_eq!(draft.clone().resolve().unwrap(), job);
    assert_eq!(JobDraft::from_toml(&toml::to_string(&draft).unwrap()).unwrap(), draft);
    let wire = postcard::to_stdvec(&job).unwrap();
    assert_eq!(postcard::from_bytes::<Job>(&wire).unwrap(), job);
    // A job from the wire is checked like a job that a user writes.
    let forged = JobDraft {
        minibatch: Some(0),
        ..draft
    };
    assert!(postcard::from_bytes::<Job>(&postcard::to_stdvec(&forged).unwrap()).is_err());
}

#[test]
fn flags_win_over_the_file_and_the_file_over_defaults() {
    let file = JobDraft::from_toml("epochs = 9\nseed = 3\ntau = 0.5").unwrap();
    let flags = JobDraft {
        epochs: Some(2),
        density: Some("0.01".into()),
        ..JobDraft::default()
    };
    let job = flags.or(file).resolve().unwrap();
    assert_eq!((job.epochs, job.seed, job.minibatch), (2, 3, 64));
    assert_eq!(
        job.exchange,
        Exchange::Strom(Threshold::Density(Density::Fraction(0.01)))
    );
}

#[test]
fn every_mistake_is_reported() {
    let draft = JobDraft {
        data: Some("ftp:x".into()),
        model: Some("dense 10, magic".into()),
        from: Some(String::new()),
        epochs: Some(0),
        minibatch: Some(0),
        accumulate: Some(0),
        optimiser: Some("sgd:-1".into()),
        loss: Some("hinge".into()),
        class_weights: Some("0".into()),
        label_smoothing: Some(1.0),
        augment: Some("spin".into()),
        clip: Some("-2".into()),
        lr_schedule: Some("zigzag".into()),
        density: Some("1.5".into()),
        split: Some("half".into()),
        exchange: Some("gossip".into()),
        trainers: Some("0".into()),
        validation: Some("1".into()),
        target_accuracy: Some(97.0),
        target_loss: Some(0.0),
        evaluations: Some(0),
        patience: Some(0),
        keep: Some("all".into()),
        max_seconds: Some(0.0),
        checkpoint_every: Some(f64::NAN),
        give_up_after: Some(4.0),
        ..JobDraft::default()
    };
    let JobErrors(errors) = draft.resolve().unwrap_err();
    let mut keys: Vec<_> = errors.iter().map(|error| error.key).collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "accumulate",
            "augment",
            "checkpoint_every",
            "class_weights",
            "clip",
            "data",
            "density",
            "epochs",
            "evaluations",
            "exchange",
            "from",
            "give_up_after",
            "keep",
            "label_smoothing",
            "loss",
            "lr_schedule",
            "max_seconds",
            "minibatch",
            "model",
            "optimiser",
            "patience",
            "split",
            "target_accuracy",
            "target_loss",
            "trainers",
            "validation"
        ]
    );
    assert!(
        JobErrors(errors)
            .to_string()
            .contains("density: the density must be above 0 and at most 1, not 1.5")
    );
}

#[test]
fn density_and_tau_have_borders() {
    let density = |density| {
        JobDraft {
            density: Some(f64::to_string(&density)),
            ..JobDraft::default()
        }
        .resolve()
    };
    assert!(density(1.0).is_ok());
    assert!(density(0.0).is_err());
    assert!(density(f64::NAN).is_err());
    let tau = |tau| {
        JobDraft {
            tau: Some(tau),
            ..JobDraft::default()
        }
        .resolve()
    };
    assert!(tau(1e-6).is_ok());
    assert!(tau(1e-7).is_err());
    assert!(tau(16.0).is_err());
    let both = JobDraft {
        tau: Some(0.1),
        density: Some("0.1".into()),
        ..JobDraft::default()
    };
    assert!(both.resolve().is_err());
}

#[test]
fn a_clip_is_a_number_or_a_word() {
    for (text, clip) in [
        ("clip = 2.5", Clip::Norm(2.5)),
        ("clip = 3", Clip::Norm(3.0)),
        ("clip = \"none\"", Clip::Never),
        ("", Clip::Auto),
    ] {
        assert_eq!(JobDraft::from_toml(text).unwrap().resolve().unwrap().clip, clip);
    }
}

#[test]
fn unknown_keys_are_refused() {
    let error = JobDraft::from_toml("epoch = 3").unwrap_err().to_string();
    assert!(error.contains("epoch") && error.contains("epochs"), "{error}");
}

#[derive(PartialEq, Debug, Serialize, Deserialize)]
struct Told(#[serde(with = "as_text")] Box<Job>);

#[test]
fn a_text_that_is_too_long_to_be_told_is_a_mistake() {
    let named = |length: usize| JobDraft {
        data: Some(format!("csv:{}", "x".repeat(length))),
        ..JobDraft::default()
    };
    let longest = named(Job::TEXT_BYTES_MAX - 1000).resolve().unwrap();
    let errors = named(Job::TEXT_BYTES_MAX).resolve().unwrap_err();
    assert_eq!(errors.0[0].key, "data");
    assert!(errors.to_string().contains("shorten the job text"), "{errors}");

    let told = Told(Box::new(longest));
    let bytes = postcard::to_stdvec(&told).unwrap();
    assert_eq!(postcard::from_bytes::<Told>(&bytes).unwrap(), told);
    // A text that no program of this release writes: spaces make it too long, and nothing else is wrong.
    let text = " ".repeat(Job::TEXT_BYTES_MAX + 1);
    let bytes = postcard::to_stdvec(&text).unwrap();
    assert!(postcard::from_bytes::<Told>(&bytes).is_err());
    assert!(postcard::from_bytes::<Told>(&postcard::to_stdvec("  ").unwrap()).is_ok());
}

#[test]
fn only_a_strategy_with_a_tau_takes_one() {
    let job = |text: &str| JobDraft::from_toml(text).unwrap().resolve();
    let (mean, step) = (Some(RoundWeighting::Mean), RoundLength::Steps(1));
    for (text, topology, every, weighting) in [
        ("mesh:every=4", RoundTopology::Mesh, RoundLength::Steps(4), mean),
        ("mesh:every=4,mean", RoundTopology::Mesh, RoundLength::Steps(4), mean),
        ("mesh:every=4,async", RoundTopology::Mesh, RoundLength::Steps(4), None),
        ("mesh", RoundTopology::Mesh, RoundLength::Steps(16), mean),
        (
            "mesh:weighted,every=epoch",
            RoundTopology::Mesh,
            RoundLength::Epoch,
            Some(RoundWeighting::Weighted),
        ),
        (
            "mesh:every=64,best",
            RoundTopology::Mesh,
            RoundLength::Steps(64),
            Some(RoundWeighting::Best),
        ),
        ("server", RoundTopology::Server, step, mean),
        ("server:every=1,async", RoundTopology::Server, step, None),
        (
            "server:every=epoch,weighted",
            RoundTopology::Server,
            RoundLength::Epoch,
            Some(RoundWeighting::Weighted),
        ),
        ("ring-reduce", RoundTopology::RingReduce, step, mean),
        ("ring", RoundTopology::Ring, step, mean),
        ("ring:every=16", RoundTopology::Ring, RoundLength::Steps(16), mean),
        ("stepwise", RoundTopology::Stepwise, step, mean),
        ("stepwise:every=4", RoundTopology::Stepwise, RoundLength::Steps(4), mean),
        ("downpour", RoundTopology::Server, RoundLength::Epoch, mean),
        (
            "downpour:weighted",
            RoundTopology::Server,
            RoundLength::Epoch,
            Some(RoundWeighting::Weighted),
        ),
        (
            "best",
            RoundTopology::Server,
            RoundLength::Steps(64),
            Some(RoundWeighting::Best),
        ),
    ] {
        let rounds = job(&format!("exchange = \"{text}\"")).unwrap();
        assert_eq!(
            rounds.exchange,
            Exchange::Rounds(Rounds {
                topology,
                every,
                weighting
            })
        );
        assert_eq!(rounds.exchange.waits(), weighting.is_some());
        assert_eq!(JobDraft::from(&rounds).resolve(), Ok(rounds));
    }
    for (key, text) in [("density", "density = 0.1"), ("tau", "tau = 0.1")] {
        let JobErrors(errors) = job(&format!("exchange = \"mesh\"\n{text}")).unwrap_err();
        assert_eq!(errors[0].key, key);
        assert!(errors[0].message.contains("leave"), "{}", errors[0]);
    }
    for wrong in [
        "mesh:every=0",
        "mesh:every=0.2",
        "mesh:often",
        "mesh:every=run",
        "mesh:weighted,best",
        "mesh:best,async",
        "dense",
        "strom:every=2",
        "ring:async",
        "ring-reduce:async",
        "ring:every=epoch,often",
        "star",
        "stepwise:best",
        "stepwise:every=epoch",
        "stepwise:async",
    ] {
        let JobErrors(errors) = job(&format!("exchange = \"{wrong}\"")).unwrap_err();
        assert_eq!(errors[0].key, "exchange", "{wrong}");
    }
}

#[test]
fn a_strategy_is_called_by_its_shortest_name() {
    for (text, name) in [
        ("server:every=1", "server"),
        ("server:every=epoch,mean", "downpour"),
        ("server:every=epoch,weighted", "downpour:weighted"),
        ("server:every=epoch,first", "downpour:first"),
        ("server:every=64,best", "best"),
        ("server:every=64", "server:every=64"),
        ("server:every=16,best", "best:every=16"),
        ("best:every=epoch", "best:every=epoch"),
        ("ring:every=4,best", "ring:every=4,best"),
        ("stepwise:every=4", "stepwise:every=4"),
        ("mesh:every=16,async", "mesh:async"),
        ("ring:every=16", "ring:every=16"),
        ("strom", "strom"),
    ] {
        let draft = JobDraft::from_toml(&format!("exchange = \"{text}\"")).unwrap();
        let job = draft.resolve().unwrap();
        assert_eq!(job.exchange.to_string(), name);
        let again = JobDraft::from(&job).resolve().unwrap();
        assert_eq!(again.exchange, job.exchange);
    }
}

#[test]
fn a_run_that_is_gone_on_with_may_end_another_way_and_learns_as_before() {
    let job = JobDraft::from_toml("epochs = 5\ntau = 0.5\nseed = 3")
        .unwrap()
        .resolve()
        .unwrap();
    let changes = |text: &str| job.changed(JobDraft::from_toml(text).unwrap());
    let longer = changes("epochs = 40\npatience = 2\nkeep = \"best\"").unwrap();
    assert_eq!(
        longer,
        Job {
            epochs: 40,
            patience: Some(2),
            keep: Keep::Best,
            // Rows that were trained on do not become validation rows.
            validation: Validation::Test,
            ..job.clone()
        }
    );
    assert_eq!(changes("").unwrap(), job);
    let JobErrors(errors) = changes("seed = 4\nepochs = 9\nmodel = \"dense 3\"").unwrap_err();
    assert!(
        errors[0].message.starts_with("model, seed cannot be changed"),
        "{errors:?}"
    );
    assert!(changes("epochs = 0").is_err());
}

#[test]
fn a_step_of_many_minibatches_is_no_longer_than_the_longest_minibatch() {
    let job = |text: &str| JobDraft::from_toml(text).unwrap().resolve();
    assert_eq!(job("minibatch = 32\naccumulate = 4").unwrap().step_samples(), 128);
    assert_eq!(job("").unwrap().step_samples(), 64);
    let errors = job("minibatch = 65536\naccumulate = 2").unwrap_err();
    assert!(
        errors
            .to_string()
            .contains("accumulate: a step may have at most 65536 samples"),
        "{errors}"
    );
}

#[test]
fn a_run_that_is_gone_on_with_trains_on_the_same_rows() {
    let share = |said: &str, changes: &str| {
        let job = JobDraft::from_toml(said).unwrap().resolve().unwrap();
        let changed = job.changed(JobDraft::from_toml(changes).unwrap()).unwrap();
        (job.validation_share(), changed.validation_share())
    };
    assert_eq!(share("", "keep = \"best\""), (0.0, 0.0));
    assert_eq!(share("patience = 3", "patience = 5"), (0.1, 0.1));
    assert_eq!(share("keep = \"best\"", "keep = \"last\""), (0.1, 0.1));
    assert_eq!(share("validation = 0.3", "keep = \"best\""), (0.3, 0.3));
}
