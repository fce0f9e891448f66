//! `tau credentials new`: creates the credentials file of a new cluster.

use std::path::Path;

use communicator::transport::Credentials;

use crate::failure::Failure;
use crate::output::notice;

pub(crate) fn new(file: &Path) -> Result<(), Failure> {
    Credentials::create(file).map_err(Failure::bad)?;
    let file = file.display();
    notice::say(&format!(
        "{file} holds the credentials of a new cluster: copy the file to every node, and keep it secret"
    ));
    Ok(())
}
