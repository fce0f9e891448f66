//! `tau train`: starts a cluster on this machine, trains, saves the model and reports the result.

use crate::args::Train;
use crate::failure::Failure;
use crate::local::run::{LocalRun, OnFailure};
use crate::output::{Audience, notice};
use crate::run::out_folder::OutFolder;
use crate::run::{ending, interrupt};
use crate::runtime;
use crate::settings::job_file;
use crate::views::page;

pub(crate) fn run(arguments: Train) -> Result<(), Failure> {
    let json = arguments.json;
    let job = job_file::read(arguments.job, arguments.file.as_deref())?;
    let run = LocalRun::check(job, &arguments.compute, arguments.nodes)?;
    let out = OutFolder::check(&arguments.out)?;
    interrupt::watch()?;
    notice::say(&run.said);
    if let Some(crowded) = &run.crowded {
        notice::say(&format!("note: {crowded}"));
    }
    let (finished, cluster) =
        runtime::run_async(run.run(&out, Audience::of(json), OnFailure::Rescue, &arguments.page))?;
    let told = ending::report(&finished, json);
    drop(cluster);
    page::report::keep(&finished);
    told
}
