//! Checks of the operator's settings for guests: certificates, and mirrors as this host reaches them.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use pandastack_types::chain;
use pandastack_types::guests::{GuestSettings, MirrorKind, MirrorUrl};
use pandastack_types::network::{Ceiling, NetworkPolicy};

use super::finding::Finding;
use crate::commands::runtime::block_on;
use crate::guest_settings::read_certificates;
use crate::settings::Settings;

/// Time for a mirror to answer.
const MIRROR_WAIT: Duration = Duration::from_secs(10);
/// Certificates that expire sooner get a warning.
const EXPIRY_WARNING_DAYS: i64 = 30;

/// Runs the checks. Without settings there are none.
pub(super) fn all(settings: &Settings) -> Result<Vec<Finding>> {
    let options = &settings.guests;
    let mut findings = Vec::new();
    let mut guests =
        GuestSettings { ca_bundle: None, mirrors: options.mirrors.clone(), allow: options.allow.clone() };
    if let Some(path) = &options.ca_bundle {
        match read_certificates(path) {
            Ok(pem) => {
                findings.push(certificates(path, &pem, Timestamp::now()));
                guests.ca_bundle = Some(pem);
            }
            Err(error) => findings.push(Finding::fail(
                "guests: certificates",
                error.to_string(),
                "correct `ca_bundle` in [guests] (--guest-ca-bundle)",
            )),
        }
    }
    let ceiling = Ceiling {
        slots: settings.subnet.parse().ok(),
        reachable_private: settings.reachable_private.clone(),
        guest_allow: guests.allow.clone(),
        mirrors: guests.mirror_hosts(),
        mail: settings.mail.into(),
    };
    let mirrors = block_on(async {
        let checks = guests.mirrors.iter().map(|(kind, url)| mirror(*kind, url, &guests, &ceiling));
        Ok(futures::future::join_all(checks).await)
    })?;
    findings.extend(mirrors);
    Ok(findings)
}

/// Checks the dates of certificates that could be read.
fn certificates(path: &Path, pem: &str, now: Timestamp) -> Finding {
    let name = "guests: certificates";
    let found = pandastack_http::certificates(pem).unwrap_or_default();
    let ends: Vec<Timestamp> = found.iter().filter_map(|der| not_after(der)).collect();
    let Some(first) = ends.iter().min().copied().filter(|_| ends.len() == found.len()) else {
        return Finding::fail(name, format!("{}: cannot read the dates", path.display()), "check the file");
    };
    let (count, path) = (found.len(), path.display());
    let day = first.strftime("%Y-%m-%d");
    if first <= now {
        return Finding::fail(
            name,
            format!("{path}: a certificate expired on {day}"),
            "replace it, then restart the agent",
        );
    }
    if first.as_second() - now.as_second() < EXPIRY_WARNING_DAYS * 24 * 3600 {
        let remedy = "add its successor to the file, then restart the agent";
        return Finding::warn(name, format!("{path}: a certificate expires on {day}"), remedy);
    }
    let noun = if count == 1 { "certificate" } else { "certificates" };
    Finding::ok(name, format!("{path}: {count} {noun}, valid until {day}"))
}

/// Calls a mirror as a guest would, and checks that guests may.
async fn mirror(kind: MirrorKind, url: &MirrorUrl, guests: &GuestSettings, ceiling: &Ceiling) -> Finding {
    let name = format!("guests: {} mirror", kind.as_str());
    let (host, port) = (url.host(), url.port());
    let addresses: Vec<SocketAddr> = match tokio::net::lookup_host((host.as_str(), port)).await {
        Ok(found) => found.collect(),
        Err(error) => {
            let detail = format!("{}: cannot resolve {host}: {error}", url.as_str());
            return Finding::fail(&name, detail, "check the name and the name servers of this host");
        }
    };
    let closed = |address: &Ipv4Addr| {
        !NetworkPolicy::all().permits(Some(&host), SocketAddrV4::new(*address, port), ceiling)
    };
    let addresses: Vec<Ipv4Addr> = addresses
        .iter()
        .filter_map(|address| match address {
            SocketAddr::V4(address) => Some(*address.ip()),
            SocketAddr::V6(_) => None,
        })
        .collect();
    if addresses.is_empty() {
        let detail = format!("{}: {host} has no IPv4 address", url.as_str());
        return Finding::fail(&name, detail, "give it one; guests have no IPv6");
    }
    if let Some(address) = addresses.iter().find(|address| closed(address)) {
        let detail = format!("{}: guests cannot reach {address}:{port}", url.as_str());
        let remedy = match address.is_loopback() {
            true => {
                "move the mirror to another machine; guests never reach services of their host".to_owned()
            }
            false => format!("add \"{address}:{port}\" to `allow` in [guests] (--guest-allow)"),
        };
        return Finding::fail(&name, detail, remedy);
    }
    match call(url, guests).await {
        Ok(status) => Finding::ok(&name, format!("{} responds with {status}", url.as_str())),
        Err(error) => Finding::fail(
            &name,
            format!("{} does not respond: {}", url.as_str(), chain(&error)),
            "check the address, and that `ca_bundle` in [guests] has its authority",
        ),
    }
}

/// Any response shows that the mirror is reachable: registries need not serve their root.
async fn call(url: &MirrorUrl, guests: &GuestSettings) -> reqwest::Result<u16> {
    let authorities = guests.ca_bundle.as_deref().map(pandastack_http::certificates);
    let authorities = authorities.and_then(Result::ok).unwrap_or_default();
    let client = pandastack_http::builder_trusting(&authorities).timeout(MIRROR_WAIT).build()?;
    let response = client.get(format!("{}/", url.as_str())).send().await?;
    Ok(response.status().as_u16())
}

/// The end of a certificate's validity (RFC 5280, 4.1).
fn not_after(der: &[u8]) -> Option<Timestamp> {
    let (_, certificate, _) = element(der)?;
    let (_, mut fields, _) = element(certificate)?;
    // The version is optional; then come serial number, signature algorithm and issuer.
    if fields.first() == Some(&0xa0) {
        fields = element(fields)?.2;
    }
    for _ in 0..3 {
        fields = element(fields)?.2;
    }
    let (_, validity, _) = element(fields)?;
    let (_, _, rest) = element(validity)?;
    let (tag, time, _) = element(rest)?;
    let digits = std::str::from_utf8(time).ok()?.strip_suffix('Z')?;
    let (year, rest) = match tag {
        0x17 => {
            let year: i16 = digits.get(..2)?.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, digits.get(2..)?)
        }
        0x18 => (digits.get(..4)?.parse().ok()?, digits.get(4..)?),
        _ => return None,
    };
    let part = |at: usize| rest.get(at..at + 2)?.parse::<i8>().ok();
    let time = DateTime::new(year, part(0)?, part(2)?, part(4)?, part(6)?, part(8)?, 0).ok()?;
    time.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
}

/// Tag and content of the first DER element, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0usize, |length, byte| (length << 8) | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    const VALID: &str = include_str!("../../../tests/data/ca.pem");
    const EXPIRED: &str = include_str!("../../../tests/data/expired.pem");

    fn check(pem: &str, now: &str) -> Finding {
        certificates(Path::new("/etc/ca.pem"), pem, now.parse().unwrap())
    }

    #[test]
    fn certificate_dates_are_checked() {
        let both = format!("{VALID}{EXPIRED}");
        for (pem, now, verdict) in [
            (VALID, "2027-01-01T00:00:00Z", Verdict::Ok),
            (EXPIRED, "2020-01-01T12:00:00Z", Verdict::Warn),
            (EXPIRED, "2027-01-01T00:00:00Z", Verdict::Fail),
            (both.as_str(), "2027-01-01T00:00:00Z", Verdict::Fail),
            ("", "2027-01-01T00:00:00Z", Verdict::Fail),
        ] {
            let found = check(pem, now);
            assert_eq!(found.verdict, verdict, "{found:?}");
        }
        assert!(check(EXPIRED, "2027-01-01T00:00:00Z").detail.contains("2020-01-02"));
    }

    #[test]
    fn parsing_damaged_certificates_never_panics() {
        let der = pandastack_http::certificates(VALID).unwrap().remove(0);
        assert!(not_after(&der).is_some());
        for length in 0..der.len().min(200) {
            not_after(&der[..length]);
            let mut damaged = der.to_vec();
            damaged[length] ^= 0x80;
            not_after(&damaged);
        }
        assert_eq!(element(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }

    async fn answer_once(listener: tokio::net::TcpListener) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = vec![0; 1024];
        let _ = stream.read(&mut head).await.unwrap();
        stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    }

    #[tokio::test]
    async fn mirrors_must_respond_and_be_reachable_for_guests() {
        let guests = GuestSettings::default();
        let check = async |url: &str, ceiling: &Ceiling| {
            mirror(MirrorKind::Pip, &url.parse().unwrap(), &guests, ceiling).await
        };
        let closed = check("https://10.7.0.5:8443/simple", &Ceiling::default()).await;
        assert_eq!(closed.verdict, Verdict::Fail);
        assert!(closed.remedy.unwrap().contains("\"10.7.0.5:8443\""));
        let loopback = check("http://127.0.0.1/simple", &Ceiling::default()).await;
        assert!(loopback.remedy.unwrap().contains("another machine"));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url: MirrorUrl = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let (status, ()) = tokio::join!(call(&url, &guests), answer_once(listener));
        assert_eq!(status.unwrap(), 404);
        assert!(call(&url, &guests).await.is_err(), "nobody listens any more");
    }
}
