//! `tau page`: a run that is over in a browser, as it was at any second.

use std::sync::Arc;

use serde::Serialize;

use crate::args::{PageArguments, RunPage};
use crate::contact::Contact;
use crate::failure::Failure;
use crate::http::Secret;
use crate::output::Audience;
use crate::page::{Flags, Model, Page, Replay};
use crate::watching::{Source, Watch};
use crate::{commands, interrupt, notice, output};

#[derive(Serialize)]
struct PageEvent<'a> {
    event: &'static str,
    url: &'a str,
}

pub(crate) fn run(arguments: &PageArguments) -> Result<(), Failure> {
    let folder = &arguments.folder;
    let replay = Replay::open(folder)
        .map_err(|why| Failure::input(format!("{} is not the folder of a run: {why}", folder.display())))?;
    interrupt::watch()?;
    commands::run_async(async {
        let flags = Flags {
            address: commands::own_address("--listen", &arguments.listen).await?,
            own: None,
            secret: Secret::draw()?,
            may_stop: false,
            model: Model::OfNode,
        };
        let page = Page::past(flags, replay).await?;
        announce(&page, arguments.json);
        if !arguments.json {
            notice::say("Ctrl-C stops serving the page");
        }
        interrupt::wait().await;
        Ok(())
    })
}

/// Serves the page of a run that this client follows, if one is wanted.
pub(crate) async fn of_run(
    flags: &RunPage,
    contact: &Arc<Contact>,
    audience: Audience,
) -> Result<Option<Page>, Failure> {
    let Some(text) = &flags.page else {
        return Ok(None);
    };
    let flags = Flags {
        address: commands::own_address("--page", text).await?,
        own: None,
        secret: Secret::draw()?,
        // Whoever may start runs may end them.
        may_stop: true,
        model: Model::of_client(),
    };
    let page = Page::live(flags, Watch::start(Source::Cluster(Arc::clone(contact)))).await?;
    announce(&page, audience == Audience::Scripts);
    Ok(Some(page))
}

/// Says where a page is.
pub(crate) fn announce(page: &Page, json: bool) {
    if json {
        output::line(&PageEvent {
            event: "page",
            url: &page.url,
        });
    } else {
        notice::say(&format!("the page is at {}", page.url));
    }
}
