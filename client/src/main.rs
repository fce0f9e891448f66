//! `tau`: the command line.
//!
//! Exit codes: 0 finished, 1 failed, 2 wrong usage or input. With `--json`, standard output holds one object per line
//! and nothing else; messages for people go to standard error.

// These macros panic when the reader of a pipe has gone away; 'output' and 'notice' do not.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod args;
mod clock;
mod commands;
mod contact;
mod failure;
mod fleet;
mod http;
mod local;
mod log;
mod node;
mod output;
mod progress;
mod run;
mod runtime;
mod settings;
mod study;
mod sync;
mod timeline;
mod version;
mod views;

use std::process::ExitCode;

use clap::Parser;
use protocol::stats::Failed;

use crate::args::{Arguments, Command, CredentialsCommand};

fn main() -> ExitCode {
    // Before any thread exists, because it sets parameters of the allocator.
    worker::machine::memory::keep_freed_blocks();
    worker::model_file::outlive_file_limits();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    log::init(arguments.command.is_a_node());
    let (json, result) = match arguments.command {
        Command::Train(train) => (train.json, commands::train::run(*train)),
        Command::Credentials(CredentialsCommand::New { file }) => (false, commands::credentials::new(&file)),
        Command::Token(token) => (false, commands::token::run(&token)),
        Command::Seed(seed) => (seed.json, commands::node::run(&seed, &[])),
        Command::Join(join) => (join.seed.json, commands::node::run(&join.seed, &join.seeds)),
        Command::Up(up) => (false, commands::up::run(&up)),
        Command::Down(down) => (false, commands::down::run(&down)),
        Command::Doctor(doctor) => (doctor.json, commands::doctor::run(&doctor)),
        Command::Worker(worker) => (false, commands::worker::run(&worker)),
        Command::Start(start) => (start.json, commands::start::run(*start)),
        Command::Stats(stats) => (stats.json, commands::stats::run(&stats)),
        Command::Nodes(ask) => (ask.json, commands::nodes::run(&ask)),
        Command::Stop(ask) => (ask.json, commands::stop::run(&ask)),
        Command::Checkpoint(ask) => (ask.json, commands::checkpoint::run(&ask)),
        Command::Evaluate(evaluate) => (evaluate.json, commands::evaluate::run(&evaluate)),
        Command::Predict(predict) => (predict.json, commands::predict::run(&predict)),
        Command::Show(show) => (show.json, commands::show::run(&show)),
        Command::Export(export) => (false, commands::export::run(&export)),
        Command::Version => {
            output::text(&format!("tau {}\n", version::VERSION));
            (false, Ok(()))
        }
        Command::Completions { shell } => {
            commands::manual::completions(shell);
            (false, Ok(()))
        }
        Command::Man { dir } => (false, commands::manual::pages(&dir)),
        Command::Page(page) => (page.json, commands::page::run(&page)),
        Command::Study(study) => (study.json, commands::study::run(&study)),
        Command::Report(report) => (report.json, commands::report::run(&report)),
    };
    match result {
        Ok(()) if output::is_lost() => ExitCode::FAILURE,
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report(json);
            failure.exit_code()
        }
    }
}

/// Reports a usage error in clap's own words, with its hints. With `--json`, scripts also get a `failed` object.
fn refuse(error: &clap::Error) -> ExitCode {
    if let Err(lost) = error.print() {
        output::lose(&lost);
    }
    if error.use_stderr() && std::env::args().any(|argument| argument == "--json") {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        output::line(&Failed::because(first.trim_start_matches("error: ")));
    }
    match error.exit_code() {
        0 if output::is_lost() => ExitCode::FAILURE,
        code => ExitCode::from(code as u8),
    }
}
