//! The `Host` header that programs in a sandbox see.

use serde::{Deserialize, Serialize};

/// What stands for the port of the preview.
const PORT: &str = "${PORT}";
/// Longest value. Names have at most 253 characters.
const BYTES_MAX: usize = 253 + ":65535".len();

/// A host name or address, with a port or `${PORT}` if it has one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, example = "localhost:${PORT}")]
pub struct HostHeader(String);

impl HostHeader {
    /// The header for requests to a port.
    pub fn for_port(&self, port: u16) -> String {
        self.0.replace(PORT, &port.to_string())
    }

    /// As it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for HostHeader {
    type Error = InvalidHostHeader;

    fn try_from(text: String) -> Result<Self, InvalidHostHeader> {
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text.as_str(), None),
        };
        let is_label = |label: &str| {
            let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            !label.is_empty() && label.bytes().all(is_letter)
        };
        let is_name = name.split('.').all(is_label);
        let is_port = |port: &str| {
            port == PORT
                || port.bytes().all(|byte| byte.is_ascii_digit())
                    && port.parse::<u16>().is_ok_and(|port| port > 0)
        };
        let is_valid = text.len() <= BYTES_MAX && is_name && port.is_none_or(is_port);
        if is_valid { Ok(Self(text)) } else { Err(InvalidHostHeader) }
    }
}

impl std::str::FromStr for HostHeader {
    type Err = InvalidHostHeader;

    fn from_str(text: &str) -> Result<Self, InvalidHostHeader> {
        text.to_owned().try_into()
    }
}

impl From<HostHeader> for String {
    fn from(host: HostHeader) -> Self {
        host.0
    }
}

/// A string that is not a `Host` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be a host name, such as `localhost` or `localhost:${{PORT}}`")]
pub struct InvalidHostHeader;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_the_preview_replaces_its_variable() {
        let header = |text: &str| text.parse::<HostHeader>().unwrap().for_port(3000);
        assert_eq!(header("localhost:${PORT}"), "localhost:3000");
        assert_eq!(header("app.example.com"), "app.example.com");
        assert_eq!(header("127.0.0.1:80"), "127.0.0.1:80");
    }

    #[test]
    fn only_host_names_are_host_headers() {
        let long = "a".repeat(BYTES_MAX + 1);
        for refused in [
            "",
            ":80",
            "a b",
            "a\r\nb: c",
            "a/b",
            "a:",
            "a:0",
            "a:+1",
            "a:x",
            "a:${PORT}0",
            "a..b",
            "${PORT}",
            &long,
        ] {
            assert_eq!(refused.parse::<HostHeader>(), Err(InvalidHostHeader), "{refused:?}");
        }
    }
}
