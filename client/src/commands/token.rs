//! `tau token`: prints a cluster's addresses and credentials as one line, for machines that join it.

use communicator::transport::Credentials;

use super::access;
use crate::args::TokenFlags;
use crate::failure::Failure;
use crate::output::{self, notice};
use crate::runtime;
use crate::settings::token::Token;

pub(crate) fn run(arguments: &TokenFlags) -> Result<(), Failure> {
    let file = access::credentials(arguments.credentials.as_deref())?
        .ok_or_else(|| Failure::input("give the cluster's credentials with --credentials FILE"))?;
    let credentials = Credentials::read(&file).map_err(Failure::bad)?;
    let nodes = access::cluster_nodes(&arguments.cluster)?;
    let found = runtime::run_async(access::resolve(&nodes))?;
    notice::say(
        "this token gives full access to the cluster, so keep it secret: pass it to 'tau join', or to --cluster of \
         other commands",
    );
    if found.iter().all(|address| address.ip().is_loopback()) {
        notice::say(
            "all addresses in the token are loopback addresses: to use it on other machines, give an address that \
             they can reach",
        );
    }
    output::text(&format!("{}\n", Token::text(&nodes, &credentials)));
    Ok(())
}
