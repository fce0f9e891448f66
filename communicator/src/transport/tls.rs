//! TLS with pinned credentials: each side accepts exactly the certificate that it holds itself.

use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};

use super::credentials::{Credentials, CredentialsError};
use super::security::Security;

/// Purpose of a connection: small control messages, or bulk data such as batches and models. Both sides agree on it
/// within the handshake, so that one port serves both purposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// Control plane: small messages between nodes, and between a client and a node.
    Control,
    /// Data plane: batches, snapshots, repairs and models.
    Data,
}

impl Plane {
    const ALL: [Self; 2] = [Self::Control, Self::Data];

    /// Returns the name under which TLS's handshake agrees on the plane, with the version of its protocol.
    fn protocol(self) -> &'static [u8] {
        match self {
            Self::Control => b"tau-control/2",
            Self::Data => b"tau-data/1",
        }
    }

    /// Returns the first byte of a plain-text connection, which names the plane that the connection is for.
    pub(super) fn byte(self) -> u8 {
        match self {
            Self::Control => b'c',
            Self::Data => b'd',
        }
    }

    pub(super) fn of_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|plane| plane.byte() == byte)
    }

    pub(super) fn of_protocol(name: Option<&[u8]>) -> Option<Self> {
        Self::ALL.into_iter().find(|plane| Some(plane.protocol()) == name)
    }
}

/// Returns the TLS acceptor for these credentials; `None` if plain text is spoken.
pub(crate) fn acceptor(security: &Security) -> Result<Option<TlsAcceptor>, Error> {
    match security {
        Security::Credentials(credentials) => Ok(Some(TlsAcceptor::from(server(credentials)?))),
        Security::Insecure => Ok(None),
    }
}

/// Returns a TLS acceptor that refuses every connection, because it asks for credentials that no process holds. It is
/// for a listener that a library opens and that is never to be used.
pub(crate) fn locked() -> Result<TlsAcceptor, CredentialsError> {
    let config = server(&Credentials::unknown()?).map_err(|error| CredentialsError::Make(error.to_string()))?;
    Ok(TlsAcceptor::from(config))
}

/// Returns the TLS configuration of the side that is dialled.
pub(super) fn server(credentials: &Credentials) -> Result<Arc<ServerConfig>, Error> {
    let pinned = Pinned::new(credentials);
    let mut config = ServerConfig::builder_with_provider(Arc::clone(&pinned.provider))
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(pinned))
        .with_single_cert(vec![credentials.certificate().clone()], credentials.key().clone_key())?;
    config.alpn_protocols = Plane::ALL.map(|plane| plane.protocol().to_vec()).into();
    // Connections last for hours: TLS resumption would save nothing, and keep state for strangers.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Returns the TLS configuration of the side that dials.
pub(super) fn client(credentials: &Credentials, plane: Plane) -> Result<Arc<ClientConfig>, Error> {
    let pinned = Pinned::new(credentials);
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&pinned.provider))
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(pinned))
        .with_client_auth_cert(vec![credentials.certificate().clone()], credentials.key().clone_key())?;
    config.alpn_protocols = vec![plane.protocol().to_vec()];
    Ok(Arc::new(config))
}

/// Certificate verifier that accepts one certificate and checks that the other side holds its key. Names and dates play
/// no part, so a machine with a wrong clock can still join.
#[derive(Debug)]
struct Pinned {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl Pinned {
    fn new(credentials: &Credentials) -> Self {
        Self {
            certificate: credentials.certificate().clone(),
            provider: Arc::new(aws_lc_rs::default_provider()),
        }
    }

    fn check(&self, certificate: &CertificateDer<'_>, chain: &[CertificateDer<'_>]) -> Result<(), Error> {
        if *certificate == self.certificate && chain.is_empty() {
            Ok(())
        } else {
            Err(CertificateError::UnknownIssuer.into())
        }
    }

    fn verify_tls13(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Returns the error for a signature of TLS 1.2. The traits of rustls ask for a check of such signatures, but no
/// version older than 1.3 is ever offered.
fn only_tls13() -> Error {
    Error::General("only TLS 1.3 is supported".into())
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(certificate, chain).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_tls13(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(certificate, chain).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(only_tls13())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_tls13(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}
