//! The user's configuration file, which names the usual cluster and its credentials.
//!
//! Flags override environment variables, which override this file. It is read only if one of its settings is not given
//! otherwise.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::toml_error;
use crate::failure::Failure;

/// Contents of the user's configuration file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConfigFile {
    /// Addresses of the cluster's nodes, from the user's configuration file.
    #[serde(default, deserialize_with = "one_or_several")]
    pub(crate) cluster: Vec<String>,
    /// Path of the cluster's credentials in the user's configuration file; a relative path starts at that file's
    /// folder.
    pub(crate) credentials: Option<PathBuf>,
}

impl ConfigFile {
    /// Reads the user's configuration file. Returns empty settings if there is none.
    pub(crate) fn read() -> Result<Self, Failure> {
        match path(std::env::var_os("XDG_CONFIG_HOME"), std::env::var_os("HOME")) {
            Some(path) => Self::read_from(&path),
            None => Ok(Self::default()),
        }
    }

    fn read_from(path: &Path) -> Result<Self, Failure> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => {
                return Err(Failure::input(format!(
                    "cannot read the configuration file {}: {error}; repair or remove the file",
                    path.display()
                )));
            }
        };
        let mut read: Self = toml::from_str(&text).map_err(|error| {
            let why = toml_error::sentence(&text, &error);
            Failure::input(format!("the configuration file {} is not valid: {why}", path.display()))
        })?;
        if let (Some(file), Some(folder)) = (&mut read.credentials, path.parent()) {
            *file = folder.join(&*file);
        }
        Ok(read)
    }
}

/// Returns the path of the user's configuration file, if the user has a configuration folder. Relative paths in
/// `XDG_CONFIG_HOME` are ignored, as the XDG specification demands.
fn path(xdg: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |text: OsString| Some(PathBuf::from(text)).filter(|path| path.is_absolute());
    let folder = xdg
        .and_then(absolute)
        .or_else(|| Some(home.and_then(absolute)?.join(".config")))?;
    Some(folder.join("tau/config.toml"))
}

/// Deserialises the nodes' addresses in the user's configuration file: one, several separated by commas, or a list.
fn one_or_several<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "'cluster' must be an address in quotes or a list of addresses: [\"192.168.1.10:7700\"]"
    )]
    enum Given {
        One(String),
        Several(Vec<String>),
    }
    Ok(match Given::deserialize(deserializer)? {
        Given::One(text) => text.split(',').map(|part| part.trim().to_owned()).collect(),
        Given::Several(texts) => texts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<ConfigFile, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        std::fs::write(&path, text).unwrap();
        let read = ConfigFile::read_from(&path).map_err(|failure| failure.reasons().join("; "))?;
        // The folder has another name in each run of the test.
        let credentials = read.credentials.map(|file| match file.strip_prefix(folder.path()) {
            Ok(file) => Path::new("HERE").join(file),
            Err(_) => file,
        });
        Ok(ConfigFile { credentials, ..read })
    }

    #[test]
    fn a_cluster_is_one_address_or_several_and_paths_start_at_the_file() {
        let read = |text| read(text).unwrap();
        assert_eq!(read("cluster = \"a:1\"").cluster, ["a:1"]);
        assert_eq!(read("cluster = \"a:1, b:2\"").cluster, ["a:1", "b:2"]);
        assert_eq!(read("cluster = [\"a:1\", \"b:2\"]").cluster, ["a:1", "b:2"]);
        let credentials = |text| read(text).credentials.unwrap();
        assert_eq!(credentials("credentials = \"c.pem\""), Path::new("HERE/c.pem"));
        assert_eq!(credentials("credentials = \"/c.pem\""), Path::new("/c.pem"));
        assert_eq!(read(""), ConfigFile::default());
        assert_eq!(
            ConfigFile::read_from(Path::new("/nowhere/config.toml")).unwrap(),
            ConfigFile::default()
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, says) in [
            ("clutser = \"a:1\"", "clutser"),
            ("\ncluster = 7", "line 2: 'cluster' must be an address in quotes"),
            ("credentials = [", "line 1"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(says) && refused.contains("config.toml"), "{refused}");
        }
    }

    #[test]
    fn the_file_is_where_the_user_keeps_such_files() {
        let some = |text: &str| Some(OsString::from(text));
        let at = |text: &str| Some(PathBuf::from(text));
        assert_eq!(path(some("/x"), some("/home/u")), at("/x/tau/config.toml"));
        assert_eq!(path(None, some("/home/u")), at("/home/u/.config/tau/config.toml"));
        assert_eq!(path(some("x"), some("/home/u")), at("/home/u/.config/tau/config.toml"));
        assert_eq!(path(some(""), None), None);
    }
}
