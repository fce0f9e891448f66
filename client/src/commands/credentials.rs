//! `tau credentials new`: make a cluster's credentials.

use std::path::Path;

use communicator::transport::Credentials;

use crate::failure::Failure;
use crate::notice;

pub(crate) fn new(file: &Path) -> Result<(), Failure> {
    Credentials::create(file).map_err(Failure::bad)?;
    let file = file.display();
    notice::say(&format!(
        "{file} holds a new cluster's credentials: copy it to every node, and to nobody else"
    ));
    Ok(())
}
