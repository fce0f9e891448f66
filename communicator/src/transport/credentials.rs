//! A cluster's credentials: one key pair in one file, which all members hold.
//!
//! Every holder of the private key is a member; there is no authority, and there are no names and no dates. To revoke
//! credentials, make new ones.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use whole_file::OpenError;

use super::tls;

/// Name in the certificate. Members recognise each other by the key, so the name means nothing.
pub(super) const SUBJECT: &str = "tau.cluster";

/// Maximum length of a credentials file in bytes; a key pair takes two thousand.
const BYTES_MAX: u64 = 1 << 16;

/// A cluster's certificate and private key.
pub struct Credentials {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

/// Reason for which credentials could not be made, written or read.
#[derive(Debug, Error)]
pub enum CredentialsError {
    /// The key pair could not be made.
    #[error("the key pair could not be made: {0}")]
    Make(String),
    /// A credentials file was to be created at a path that exists already.
    #[error("{0} exists already, and credentials are never overwritten: give another name or remove it")]
    Exists(PathBuf),
    /// The operating system refused to read or write the file.
    #[error("{file} could not be {what}")]
    Io {
        file: PathBuf,
        /// The action that failed: `read` or `written`.
        what: &'static str,
        source: std::io::Error,
    },
    /// The file does not hold credentials.
    #[error("{file} does not hold a cluster's credentials: {why}; make some with 'tau credentials new FILE'")]
    NotCredentials {
        file: PathBuf,
        /// Sentence that says why the file does not hold credentials.
        why: String,
    },
    /// The file is a pipe, a device or a folder.
    #[error("{file} is {kind}: give a regular file that holds the cluster's credentials")]
    NotRegular {
        file: PathBuf,
        /// Kind of the file, which is not a regular one, with an article: for example `a folder`.
        kind: &'static str,
    },
    /// The credentials file may be read by other users than its owner.
    #[error("{file} can be read by others than its owner: make it private with 'chmod 600 {file}'")]
    NotPrivate { file: PathBuf },
}

impl Credentials {
    /// Draws a new key pair and writes it to a new file that only its owner can read.
    pub fn create(path: &Path) -> Result<Self, CredentialsError> {
        let text = Self::draw()?;
        write_private(path, text.as_bytes()).map_err(|source| match source.kind() {
            std::io::ErrorKind::AlreadyExists => CredentialsError::Exists(path.into()),
            _ => CredentialsError::Io {
                file: path.into(),
                what: "written",
                source,
            },
        })?;
        Self::read(path)
    }

    /// Draws credentials that are written nowhere, so that no other process can have them.
    pub(super) fn unknown() -> Result<Self, CredentialsError> {
        let text = Self::draw()?;
        Self::of_text(text.as_bytes()).map_err(|why| CredentialsError::Make(why.into()))
    }

    /// Draws a new key pair. Returns it as the text of a credentials file.
    fn draw() -> Result<String, CredentialsError> {
        let make = |error: rcgen::Error| CredentialsError::Make(error.to_string());
        let key = rcgen::KeyPair::generate().map_err(make)?;
        let parameters = rcgen::CertificateParams::new(vec![SUBJECT.into()]).map_err(make)?;
        let certificate = parameters.self_signed(&key).map_err(make)?;
        Ok(format!("{}{}", certificate.pem(), key.serialize_pem()))
    }

    fn of_text(text: &[u8]) -> Result<Self, &'static str> {
        let (certificates, keys) = (
            CertificateDer::pem_slice_iter(text),
            PrivateKeyDer::pem_slice_iter(text),
        );
        if certificates.count() > 1 || keys.count() > 1 {
            return Err("the file has more than one key pair");
        }
        let credentials = Self {
            certificate: CertificateDer::from_pem_slice(text).map_err(|_| "the file has no certificate")?,
            key: PrivateKeyDer::from_pem_slice(text).map_err(|_| "the file has no private key")?,
        };
        tls::server(&credentials)
            .map_err(|_| "the certificate and the private key in the file do not belong together")?;
        Ok(credentials)
    }

    /// Reads credentials from a file.
    pub fn read(path: &Path) -> Result<Self, CredentialsError> {
        let io = |source| CredentialsError::Io {
            file: path.into(),
            what: "read",
            source,
        };
        let file = whole_file::open(path).map_err(|error| match error {
            OpenError::NotRegular(kind) => CredentialsError::NotRegular {
                file: path.into(),
                kind,
            },
            OpenError::Io(source) => io(source),
        })?;
        if !is_private(&file).map_err(io)? {
            return Err(CredentialsError::NotPrivate { file: path.into() });
        }
        let mut text = Vec::new();
        file.take(BYTES_MAX + 1).read_to_end(&mut text).map_err(io)?;
        let read = if text.len() as u64 > BYTES_MAX {
            Err("the file is too long for credentials")
        } else {
            Self::of_text(&text)
        };
        read.map_err(|why| CredentialsError::NotCredentials {
            file: path.into(),
            why: why.into(),
        })
    }

    /// Returns the certificate and private key in as few bytes as possible: the certificate behind its length, and then
    /// the key.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let length = u16::try_from(self.certificate.len()).unwrap_or(u16::MAX);
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.certificate);
        bytes.extend_from_slice(self.key.secret_der());
        bytes
    }

    /// Decodes credentials from the bytes that [`Self::to_bytes`] returns; `None` if the bytes are invalid.
    #[must_use]
    pub fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk::<2>()?;
        let (certificate, key) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        Some(Self {
            certificate: certificate.to_vec().into(),
            key: PrivateKeyDer::try_from(key.to_vec()).ok()?,
        })
    }

    pub(super) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub(super) fn key(&self) -> &PrivateKeyDer<'static> {
        &self.key
    }
}

/// Prints the type's name, never the key.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

/// Writes a new file that is private from its first moment on. A file that could not be written whole is removed.
fn write_private(path: &Path, contents: &[u8]) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(contents)
        .and_then(|()| file.sync_all())
        .inspect_err(|_| {
            let _ = std::fs::remove_file(path);
        })
}

/// Returns true if only the owner of a file may read it. On systems without such rights every file counts as private.
fn is_private(file: &File) -> std::io::Result<bool> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let others = file.metadata()?.permissions().mode() & 0o077;
        Ok(others == 0)
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_come_back_from_their_file_and_are_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster.pem");
        let made = Credentials::create(&path).unwrap();
        let read = Credentials::read(&path).unwrap();
        assert_eq!(made.certificate(), read.certificate());
        assert_eq!(made.key(), read.key());
        let before = std::fs::read(&path).unwrap();
        assert!(matches!(Credentials::create(&path), Err(CredentialsError::Exists(_))));
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[cfg(unix)]
    #[test]
    fn others_must_not_read_them() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster.pem");
        Credentials::create(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(
            Credentials::read(&path),
            Err(CredentialsError::NotPrivate { .. })
        ));
    }

    #[test]
    fn other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert!(matches!(Credentials::read(&path), Err(CredentialsError::Io { .. })));
        write_private(&path, b"hello").unwrap();
        assert!(matches!(
            Credentials::read(&path),
            Err(CredentialsError::NotCredentials { .. })
        ));
    }

    #[cfg(unix)]
    #[test]
    fn only_one_pair_in_a_regular_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let refused = |name: &str, says: &str| {
            let error = Credentials::read(&at(name)).unwrap_err().to_string();
            assert!(error.contains(says), "{name}: {error}");
        };
        let texts = ["a", "b"].map(|name| {
            Credentials::create(&at(name)).unwrap();
            std::fs::read_to_string(at(name)).unwrap()
        });
        let (certificates, keys) = (0..2)
            .map(|pair| texts[pair].split_at(texts[pair].find("-----BEGIN PRIVATE").unwrap()))
            .collect::<(Vec<_>, Vec<_>)>();
        write_private(&at("both"), texts.concat().as_bytes()).unwrap();
        refused("both", "more than one key pair");
        write_private(&at("mixed"), format!("{}{}", certificates[0], keys[1]).as_bytes()).unwrap();
        refused("mixed", "do not belong together");
        write_private(&at("long"), &vec![b'#'; BYTES_MAX as usize + 1]).unwrap();
        refused("long", "too long");
        let made = std::process::Command::new("mkfifo")
            .arg("-m600")
            .arg(at("pipe"))
            .status();
        assert!(made.unwrap().success());
        refused("pipe", "is a pipe: give a regular file");
        refused(".", "is a folder");
    }

    #[test]
    fn a_key_is_never_printed() {
        let folder = tempfile::tempdir().unwrap();
        let credentials = Credentials::create(&folder.path().join("cluster.pem")).unwrap();
        assert_eq!(format!("{credentials:?}"), "Credentials { .. }");
    }
}
