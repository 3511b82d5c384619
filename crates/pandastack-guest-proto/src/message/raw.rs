//! Special strings: paths that are not UTF-8, and values that must not be printed.

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A path as the guest's kernel sees it: any bytes. On the wire a string, or `{"hex": "..."}` when the
/// bytes are not UTF-8.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RawPath(Vec<u8>);

impl RawPath {
    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// For display: bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn to_string_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

impl From<&str> for RawPath {
    fn from(path: &str) -> Self {
        Self(path.as_bytes().to_vec())
    }
}

impl From<String> for RawPath {
    fn from(path: String) -> Self {
        Self(path.into_bytes())
    }
}

impl From<Vec<u8>> for RawPath {
    fn from(path: Vec<u8>) -> Self {
        Self(path)
    }
}

impl std::fmt::Debug for RawPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.to_string_lossy(), f)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PathForm<'a> {
    Text(#[serde(borrow)] std::borrow::Cow<'a, str>),
    Hex { hex: String },
}

impl Serialize for RawPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => PathForm::Text(text.into()),
            Err(_) => PathForm::Hex { hex: HEXLOWER.encode(&self.0) },
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match PathForm::deserialize(deserializer)? {
            PathForm::Text(text) => Ok(Self(text.into_owned().into_bytes())),
            PathForm::Hex { hex } => HEXLOWER_PERMISSIVE
                .decode(hex.as_bytes())
                .map(Self)
                .map_err(|_| D::Error::custom("a path's hex digits are not valid")),
        }
    }
}

/// A value that `Debug` hides.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The value itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for Secret {
    fn from(value: T) -> Self {
        Self(value.into())
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[secret]")
    }
}

/// Random bytes that `Debug` hides; hex digits on the wire.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Entropy(Vec<u8>);

impl Entropy {
    /// The bytes.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Entropy {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl std::fmt::Debug for Entropy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "[{} random bytes]", self.0.len())
    }
}

impl Serialize for Entropy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&HEXLOWER.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Entropy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        HEXLOWER_PERMISSIVE
            .decode(text.as_bytes())
            .map(Self)
            .map_err(|_| D::Error::custom("the entropy is not hex digits"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_utf8_paths_round_trip() {
        for bytes in [&b"/plain"[..], "/\u{1F43C} panda".as_bytes(), b"/bad\xff\xfe\n", b""] {
            let path = RawPath::from(bytes.to_vec());
            let json = serde_json::to_string(&path).unwrap();
            assert_eq!(serde_json::from_str::<RawPath>(&json).unwrap(), path, "{json}");
        }
    }

    #[test]
    fn secrets_are_not_printed() {
        let printed = format!("{:?} {:?}", Secret::from("hunter2"), Entropy::from(vec![7; 32]));
        assert_eq!(printed, "[secret] [32 random bytes]");
    }

    #[test]
    fn hex_accepts_both_cases_and_rejects_other_characters() {
        let read = |text: &str| serde_json::from_value::<Entropy>(text.into()).ok();
        assert_eq!(read("00ffA5"), Some(Entropy(vec![0, 0xff, 0xa5])));
        for bad in ["0", "0g", "é0", " 00", "00\n"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
