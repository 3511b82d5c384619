//! Packets before a session. Each is a length, a code and the code's contents.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::limits::STARTUP_BYTES_MAX;

const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;
const CANCEL_REQUEST: u32 = 80_877_102;
/// Version 3.0. Newer minor versions are negotiated down to it.
pub(crate) const VERSION_3: u32 = 196_608;
/// Parameters with this start are extensions of the protocol; none is known here.
const EXTENSION_START: &str = "_pq_.";

/// The first packet of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Packet {
    /// The client requests TLS.
    Tls,
    /// The client requests GSSAPI encryption, which is not offered.
    Gss,
    /// The client cancels a query of another connection.
    Cancel { process: i32, secret: i32 },
    /// The client requests a session.
    Startup(Startup),
}

/// Parameters of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Startup {
    /// Parameters by name: `user`, `database`, `options` and settings.
    pub(crate) parameters: BTreeMap<String, String>,
    /// Extensions of a client that requested a newer version than 3.0.
    pub(crate) newer: Option<Vec<String>>,
}

/// Reason why a packet is not a startup packet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartupError {
    #[error("the connection was closed before startup")]
    Ended(#[from] std::io::Error),
    #[error("invalid startup packet of {0} bytes; the client may use another protocol")]
    Length(u32),
    #[error(
        "protocol version {major}.{minor} is not supported; use a client that supports 3.0 (PostgreSQL 7.4 \
         or later)"
    )]
    Version { major: u32, minor: u32 },
    #[error("the startup packet is malformed")]
    Malformed,
}

/// Reads one packet and not a byte more: what follows may belong to TLS.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Result<Packet, StartupError> {
    let length = stream.read_u32().await?;
    let body_bytes = usize::try_from(length).ok().and_then(|length| length.checked_sub(4));
    let body_bytes = body_bytes
        .filter(|bytes| (4..=STARTUP_BYTES_MAX).contains(bytes))
        .ok_or(StartupError::Length(length))?;
    let mut body = vec![0; body_bytes];
    stream.read_exact(&mut body).await?;
    parse(&body)
}

fn parse(body: &[u8]) -> Result<Packet, StartupError> {
    let (code, rest) = split_u32(body).ok_or(StartupError::Malformed)?;
    match code {
        SSL_REQUEST => Ok(Packet::Tls),
        GSS_REQUEST => Ok(Packet::Gss),
        CANCEL_REQUEST => {
            let (process, rest) = split_u32(rest).ok_or(StartupError::Malformed)?;
            let (secret, _) = split_u32(rest).ok_or(StartupError::Malformed)?;
            Ok(Packet::Cancel { process: process.cast_signed(), secret: secret.cast_signed() })
        }
        version if version >> 16 == 3 => parse_parameters(rest, version).map(Packet::Startup),
        version => Err(StartupError::Version { major: version >> 16, minor: version & 0xffff }),
    }
}

fn split_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (first, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*first), rest))
}

fn parse_parameters(bytes: &[u8], version: u32) -> Result<Startup, StartupError> {
    let mut words = bytes.split(|byte| *byte == 0);
    let mut parameters = BTreeMap::new();
    loop {
        let text = |word: Option<&[u8]>| String::from_utf8(word?.to_vec()).ok();
        let name = text(words.next()).ok_or(StartupError::Malformed)?;
        if name.is_empty() {
            break;
        }
        let value = text(words.next()).ok_or(StartupError::Malformed)?;
        parameters.insert(name, value);
    }
    let mut extensions = Vec::new();
    parameters.retain(|name, _| {
        let is_extension = name.starts_with(EXTENSION_START);
        if is_extension {
            extensions.push(name.clone());
        }
        !is_extension
    });
    let newer = (version != VERSION_3 || !extensions.is_empty()).then_some(extensions);
    Ok(Startup { parameters, newer })
}

impl Startup {
    /// The packet for the server, always of version 3.0.
    pub(crate) fn encode(&self) -> Bytes {
        let mut packet = BytesMut::new();
        packet.put_u32(0);
        packet.put_u32(VERSION_3);
        for (name, value) in &self.parameters {
            for word in [name, value] {
                packet.put_slice(word.as_bytes());
                packet.put_u8(0);
            }
        }
        packet.put_u8(0);
        let length = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        packet[..4].copy_from_slice(&length.to_be_bytes());
        packet.freeze()
    }

    /// The reply to a client that requested a newer version than 3.0: the supported version.
    pub(crate) fn negotiation(&self) -> Option<Bytes> {
        let extensions = self.newer.as_ref()?;
        let mut message = BytesMut::new();
        message.put_u8(b'v');
        message.put_u32(0);
        message.put_u32(VERSION_3);
        message.put_u32(u32::try_from(extensions.len()).unwrap_or(u32::MAX));
        for name in extensions {
            message.put_slice(name.as_bytes());
            message.put_u8(0);
        }
        let length = u32::try_from(message.len() - 1).unwrap_or(u32::MAX);
        message[1..5].copy_from_slice(&length.to_be_bytes());
        Some(message.freeze())
    }
}

/// A request to end the query of a backend.
pub(crate) fn encode_cancel(process: i32, secret: i32) -> [u8; 16] {
    let mut packet = [0; 16];
    let words = [16, CANCEL_REQUEST, process.cast_unsigned(), secret.cast_unsigned()];
    for (to, word) in packet.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_be_bytes());
    }
    packet
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_bytes(bytes: &[u8]) -> Result<Packet, StartupError> {
        read(&mut &bytes[..]).await
    }

    #[tokio::test]
    async fn startup_packet_kinds_are_distinguished() {
        assert_eq!(read_bytes(&[0, 0, 0, 8, 4, 210, 22, 47]).await.unwrap(), Packet::Tls);
        assert_eq!(read_bytes(&[0, 0, 0, 8, 4, 210, 22, 48]).await.unwrap(), Packet::Gss);
        let cancel = Packet::Cancel { process: -1, secret: 7 };
        assert_eq!(read_bytes(&encode_cancel(-1, 7)).await.unwrap(), cancel);
    }

    #[tokio::test]
    async fn a_startup_packet_round_trips() {
        let parameters = [("user", "app"), ("database", "app"), ("options", "-c a=b")];
        let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let startup = Startup { parameters, newer: None };
        assert_eq!(read_bytes(&startup.encode()).await.unwrap(), Packet::Startup(startup));
    }

    #[tokio::test]
    async fn newer_versions_and_extensions_are_negotiated_down() {
        let mut packet = Startup::default().encode().to_vec();
        packet[7] = 2;
        let Packet::Startup(startup) = read_bytes(&packet).await.unwrap() else { panic!("no startup") };
        let negotiation = startup.negotiation().unwrap();
        assert_eq!(&negotiation[..], [b'v', 0, 0, 0, 12, 0, 3, 0, 0, 0, 0, 0, 0]);
        assert!(Startup::default().negotiation().is_none());
    }

    #[tokio::test]
    async fn invalid_input_is_rejected() {
        assert!(matches!(read_bytes(b"GET / HTTP/1.1\r\n").await, Err(StartupError::Length(_))));
        assert!(matches!(read_bytes(&[0, 0, 0, 4]).await, Err(StartupError::Length(4))));
        assert!(matches!(
            read_bytes(&[0, 0, 0, 8, 0, 2, 0, 0]).await,
            Err(StartupError::Version { major: 2, .. })
        ));
        assert!(matches!(read_bytes(&[0, 0, 0, 9, 0, 3, 0, 0, b'u']).await, Err(StartupError::Malformed)));
        assert!(matches!(read_bytes(&[0, 0, 0, 12, 4]).await, Err(StartupError::Ended(_))));
        let long = (STARTUP_BYTES_MAX as u32 + 5).to_be_bytes();
        assert!(matches!(read_bytes(&long).await, Err(StartupError::Length(_))));
    }
}
