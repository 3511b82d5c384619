//! TLS with a certificate from files.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use bytes::Bytes;
use http::{HeaderMap, Version};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pandastack_edge::tls::{FileCertificates, Tls, TlsError};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::harness::{PATIENCE, TestEdge, host};

const NAME: &str = "edge.panda.test";

/// A certificate and its key, in files.
struct Files {
    _directory: tempfile::TempDir,
    chain: PathBuf,
    key: PathBuf,
    certificate: CertificateDer<'static>,
}

fn files() -> Files {
    let directory = tempfile::tempdir().unwrap();
    let (chain, key) = (directory.path().join("chain.pem"), directory.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).unwrap();
    fs::write(&chain, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    Files { _directory: directory, chain, key, certificate: made.cert.der().clone() }
}

/// A client that trusts this certificate alone and speaks this protocol alone.
fn connector(certificate: CertificateDer<'static>, protocol: &[u8]) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    TlsConnector::from(Arc::new(config))
}

#[tokio::test]
async fn http2_over_tls_reaches_a_preview() {
    let files = files();
    let certificates = FileCertificates::read(&files.chain, &files.key).unwrap();
    let mut edge = TestEdge::start_tls(Tls::new(Arc::new(certificates)).unwrap()).await;
    let told = |headers: HeaderMap| async move { headers["x-forwarded-proto"].to_str().unwrap().to_owned() };
    let (port, _) = edge.upstream(Router::new().fallback(told)).await;
    let name = ServerName::try_from(NAME).unwrap();
    let stream = connector(files.certificate, b"h2").connect(name, edge.connect().await).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let driver = tokio::spawn(connection);
    for _ in 0..2 {
        let request =
            http::Request::get(format!("https://{}/", host(port))).body(Full::<Bytes>::default()).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!((answer.version(), answer.status().as_u16()), (Version::HTTP_2, 200));
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "https");
    }
    driver.abort();
}

/// Returns whether a new connection gets this certificate.
async fn serves(edge: &TestEdge, certificate: &CertificateDer<'static>) -> bool {
    let name = ServerName::try_from(NAME).unwrap();
    connector(certificate.clone(), b"http/1.1").connect(name, edge.connect().await).await.is_ok()
}

#[tokio::test]
async fn a_renewed_certificate_is_served_without_a_restart() {
    let (served, next) = (files(), files());
    let certificates = FileCertificates::read(&served.chain, &served.key).unwrap();
    let edge = TestEdge::start_tls(Tls::new(Arc::new(certificates)).unwrap()).await;
    assert!(serves(&edge, &served.certificate).await);
    assert!(!serves(&edge, &next.certificate).await);
    fs::copy(&next.chain, &served.chain).unwrap();
    fs::copy(&next.key, &served.key).unwrap();
    let renewed = async {
        while !serves(&edge, &next.certificate).await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, renewed).await.expect("the new one");
    assert!(!serves(&edge, &served.certificate).await);
}

#[test]
fn mismatched_certificates_and_keys_are_rejected() {
    let (one, other) = (files(), files());
    let read = |chain: &PathBuf, key: &PathBuf| FileCertificates::read(chain, key).map(drop).unwrap_err();
    assert!(matches!(read(&one.chain, &other.key), TlsError::Mismatch(_)));
    let swapped = read(&one.chain, &one.chain);
    assert!(matches!(swapped, TlsError::Content { what: "private key", .. }), "{swapped}");
    let missing = read(&one.chain.with_file_name("nowhere.pem"), &one.key);
    assert!(matches!(missing, TlsError::File { .. }), "{missing}");
}
