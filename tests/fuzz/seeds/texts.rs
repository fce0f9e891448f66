//! Texts that people write (jobs, data sources, models), for the corpus.

use crate::engine::add_to_corpus;

pub(super) fn texts() {
    let full = "data = \"idx:images\"\nmodel = \"conv 8 3x3, relu, flatten, dense 10\"\nepochs = 3\nminibatch = 32\n\
        optimiser = \"sgd:0.05,momentum=0.9,nesterov\"\nclip = 2.5\nlr_schedule = \"cosine:warmup=0.1\"\n\
        tau = 0.0078125\nsplit = \"class\"\nbalanced = true\nexchange = \"strom\"\ntarget_accuracy = 0.97\ntarget_loss = 0.125\n\
        max_seconds = 60.5\ncheckpoint_every = 10\nseed = 42\n";
    let short = "density = 1e-3 # few\noptimiser = 'adam:0.002'\nlr_schedule = \"step:every=0.25,factor=0.5\"\n\
        clip = \"none\"\nsplit = \"equal\"\n";
    for (name, text) in [("full", full), ("short", short), ("empty", "")] {
        add_to_corpus("job", name, text.as_bytes());
    }
    for (name, text) in [
        ("builtin", "builtin:mnist"),
        ("idx", "idx:some/folder"),
        ("csv", "csv:iris.csv"),
        ("csv-options", "csv:iris.csv?label=-2&test=1e-3"),
        ("csv-name", "csv:ir?label=a=b"),
    ] {
        add_to_corpus("data", name, text.as_bytes());
    }
    for (name, text) in [
        ("perceptron", "dense 512, relu, dense 128, tanh, dense 3"),
        (
            "network",
            "conv 8 3x3, relu, conv 4 5x5 stride 2 pad 1, gelu, maxpool 2, avgpool 3, dropout 0.25, flatten, dense 3",
        ),
        ("smallest", "dense 3"),
        ("padded", "conv 2 3x3 pad 7 stride 3,sigmoid , flatten,dense 3"),
    ] {
        add_to_corpus("model", name, text.as_bytes());
    }
}
