//! `tau page`: shows a past run in a browser, as it was at any second.

use crate::args::PageArguments;
use crate::failure::Failure;
use crate::http::{self, Secret};
use crate::output::notice;
use crate::run::interrupt;
use crate::runtime;
use crate::views::page::{self, Flags, Model, Page, Replay};

pub(crate) fn run(arguments: &PageArguments) -> Result<(), Failure> {
    let folder = &arguments.folder;
    let replay = Replay::open(folder)
        .map_err(|why| Failure::input(format!("{} is not the folder of a run: {why}", folder.display())))?;
    interrupt::watch()?;
    runtime::run_async(async {
        let flags = Flags {
            address: http::own_address("--listen", &arguments.listen).await?,
            own: None,
            secret: Secret::draw()?,
            may_stop: false,
            model: Model::OfNode,
        };
        let page = Page::past(flags, replay).await?;
        page::announce(&page, arguments.json);
        if !arguments.json {
            notice::say("Ctrl-C stops serving the page");
        }
        interrupt::wait().await;
        Ok(())
    })
}
