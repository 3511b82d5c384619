//! Secrets in rows are sealed: encrypted with keys from the join secret, which is in no database.
//!
//! ```text
//!   sealed bytes:  1 | generation, 1 byte | nonce, 12 random bytes | ciphertext | tag, 16 bytes
//!   in JSON:       ["sealed", "<base64 of that>"], where no secret that is not sealed is two texts
//!   key:           for AES-256-GCM, derived from the generation, table, workspace, row and field
//!   bound to:      the same
//! ```
//!
//! Must hold: a value opens only in the row and field that it was sealed for. Every field of every row has
//! a key of its own, so random nonces do not repeat in practice. Unsealed values, as in rows of an earlier
//! version, are read unchanged; [`super::sealed_columns`] seals them at the next start.

use data_encoding::{BASE64, HEXLOWER};
use pandastack_types::link::LinkKey;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use serde::Serialize;
use serde_json::{Value, json};

use super::corrupt;
use super::rows::to_json;
use super::sealed_columns::Column;
use crate::{Result, StoreError};

/// First byte of sealed bytes. No JSON starts with it.
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 2;
/// First element of a sealed value in JSON.
const MARK: &str = "sealed";
/// Prefix of a sealed value in a column: no JSON string contains an unescaped quote.
const MARK_IN_TEXT: &str = "[\"sealed\",";

/// Target of a schedule whose own was lost with the join secret. The name resolves nowhere.
const LOST: &str = "https://target-lost-with-the-server-secret.invalid/";

/// Reason why a value cannot be sealed or opened.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The secret file is older than the row.
    #[error(
        "it is sealed with generation {0} of the join secret, which this server does not have; restore \
         `link-secret` from a backup"
    )]
    Generation(u8),
    /// Changed, moved from another row, or sealed with another secret.
    #[error("it was changed, moved from another row, or sealed with another secret")]
    Altered,
    /// The system gives no random bytes.
    #[error("no random bytes are available")]
    NoRandom,
}

/// Location of a value: table, workspace, row and field.
#[derive(Debug, Clone, Copy)]
pub(super) struct SealedField<'a> {
    pub(super) table: &'a str,
    pub(super) workspace: &'a str,
    pub(super) row: &'a str,
    pub(super) field: &'a str,
}

/// A row with a column that has secrets.
pub(super) trait SealedRow {
    /// The column.
    const COLUMN: &'static Column;
    /// The workspace, the row's id and the column's text.
    fn parts(&mut self) -> (&str, String, &mut String);
}

/// Implements [`SealedRow`] for rows with an id, a workspace and a specification.
macro_rules! sealed_row {
    ($row:ty, $column:ident) => {
        impl super::seal::SealedRow for $row {
            const COLUMN: &'static super::sealed_columns::Column = &super::sealed_columns::$column;
            fn parts(&mut self) -> (&str, String, &mut String) {
                (&self.workspace_id, self.id.clone(), &mut self.spec)
            }
        }
    };
}
pub(super) use sealed_row;

/// Seals and opens secrets.
#[derive(Clone)]
pub(super) struct Sealer(LinkKey);

impl Sealer {
    pub(super) fn new(secret: &LinkKey) -> Self {
        Self(secret.clone())
    }

    /// The generation that values are sealed with.
    pub(super) fn generation(&self) -> u8 {
        self.0.current_generation()
    }

    /// A record as its column keeps it, with its secrets sealed.
    pub(super) fn to_json(
        &self,
        column: &'static Column,
        workspace: &str,
        row: &str,
        value: &impl Serialize,
    ) -> Result<String> {
        let mut value = serde_json::to_value(value).map_err(corrupt(column.what))?;
        self.seal_fields(column, workspace, row, &mut value).map_err(corrupt(column.what))?;
        to_json(column.what, &value)
    }

    /// A row as a record, with its secrets opened.
    pub(super) fn record<R: SealedRow, T: TryFrom<R, Error = StoreError>>(&self, mut row: R) -> Result<T> {
        let (workspace, id, text) = row.parts();
        if text.contains(MARK_IN_TEXT) {
            *text = self.opened(R::COLUMN, workspace, &id, text)?;
        }
        T::try_from(row)
    }

    /// Rows as records.
    pub(super) fn records<R: SealedRow, T: TryFrom<R, Error = StoreError>>(
        &self,
        rows: impl IntoIterator<Item = R>,
    ) -> Result<Vec<T>> {
        rows.into_iter().map(|row| self.record(row)).collect()
    }

    fn opened(&self, column: &'static Column, workspace: &str, row: &str, text: &str) -> Result<String> {
        let mut value: Value = serde_json::from_str(text).map_err(corrupt(column.what))?;
        self.open_fields(column, workspace, row, &mut value).map_err(corrupt(column.what))?;
        to_json(column.what, &value)
    }

    /// The column's text sealed with the current generation; `None` if it is so already.
    pub(super) fn resealed(
        &self,
        column: &'static Column,
        workspace: &str,
        row: &str,
        text: &str,
    ) -> Result<Option<String>> {
        let mut value: Value = serde_json::from_str(text).map_err(corrupt(column.what))?;
        let current = self.generation();
        let is_current = |field: &Value| generation_of(field) == Some(current);
        let stale = column
            .fields
            .iter()
            .any(|path| field(&mut value, path).is_some_and(|field| is_secret(field) && !is_current(field)));
        if !stale {
            return Ok(None);
        }
        self.open_fields(column, workspace, row, &mut value).map_err(corrupt(column.what))?;
        self.seal_fields(column, workspace, row, &mut value).map_err(corrupt(column.what))?;
        to_json(column.what, &value).map(Some)
    }

    /// The column's text without secrets that cannot be opened; `None` if all can be.
    pub(super) fn readable(
        &self,
        column: &'static Column,
        workspace: &str,
        row: &str,
        text: &str,
    ) -> Result<Option<String>> {
        let mut value: Value = serde_json::from_str(text).map_err(corrupt(column.what))?;
        let mut changed = false;
        for path in column.fields {
            let Some(sealed) = field(&mut value, path).and_then(|field| sealed_bytes(field)) else {
                continue;
            };
            let place = SealedField { table: column.table, workspace, row, field: path };
            if self.open(place, &sealed).is_err() {
                changed = true;
                remove(&mut value, path);
            }
        }
        changed.then(|| to_json(column.what, &value)).transpose()
    }

    fn seal_fields(
        &self,
        column: &Column,
        workspace: &str,
        row: &str,
        value: &mut Value,
    ) -> std::result::Result<(), SealError> {
        for path in column.fields {
            let Some(plain) = field(value, path).filter(|plain| is_secret(plain)) else { continue };
            let place = SealedField { table: column.table, workspace, row, field: path };
            let sealed = self.seal(place, plain.to_string().as_bytes())?;
            *plain = Value::from(vec![MARK.to_owned(), BASE64.encode(&sealed)]);
        }
        Ok(())
    }

    fn open_fields(
        &self,
        column: &Column,
        workspace: &str,
        row: &str,
        value: &mut Value,
    ) -> std::result::Result<(), SealError> {
        for path in column.fields {
            let Some(sealed) = field(value, path) else { continue };
            let Some(bytes) = sealed_bytes(sealed) else { continue };
            let place = SealedField { table: column.table, workspace, row, field: path };
            let plain = self.open(place, &bytes)?;
            *sealed = serde_json::from_slice(&plain).map_err(|_| SealError::Altered)?;
        }
        Ok(())
    }

    /// Seals bytes for a place.
    pub(super) fn seal(
        &self,
        place: SealedField<'_>,
        plain: &[u8],
    ) -> std::result::Result<Vec<u8>, SealError> {
        let generation = self.generation();
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| SealError::NoRandom)?;
        let mut sealed = [&[VERSION, generation][..], &nonce, plain].concat();
        let start = HEAD_BYTES + NONCE_LEN;
        let tag = self
            .key(place, generation)?
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(place.name(generation)),
                &mut sealed[start..],
            )
            .map_err(|_| SealError::Altered)?;
        sealed.extend_from_slice(tag.as_ref());
        Ok(sealed)
    }

    /// Opens bytes that were sealed for a place.
    pub(super) fn open(
        &self,
        place: SealedField<'_>,
        sealed: &[u8],
    ) -> std::result::Result<Vec<u8>, SealError> {
        let (&[version, generation], rest) = sealed.split_first_chunk().ok_or(SealError::Altered)?;
        let (nonce, body) = rest.split_first_chunk::<NONCE_LEN>().ok_or(SealError::Altered)?;
        if version != VERSION {
            return Err(SealError::Altered);
        }
        let (key, mut body) = (self.key(place, generation)?, body.to_vec());
        let (nonce, aad) = (Nonce::assume_unique_for_key(*nonce), Aad::from(place.name(generation)));
        let plain = key.open_in_place(nonce, aad, &mut body).map_err(|_| SealError::Altered)?;
        Ok(plain.to_vec())
    }

    fn key(&self, place: SealedField<'_>, generation: u8) -> std::result::Result<LessSafeKey, SealError> {
        let SealedField { table, workspace, row, field } = place;
        let digits = self.0.derive_with(generation, "sealed value", &[table, workspace, row, field]);
        let digits = digits.ok_or(SealError::Generation(generation))?;
        let bytes = HEXLOWER.decode(digits.as_bytes()).map_err(|_| SealError::Altered)?;
        let key = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| SealError::Altered)?;
        Ok(LessSafeKey::new(key))
    }
}

impl SealedField<'_> {
    /// The place as associated data.
    fn name(&self, generation: u8) -> Vec<u8> {
        let mut name = vec![VERSION, generation];
        for part in [self.table, self.workspace, self.row, self.field] {
            name.extend((part.len() as u64).to_be_bytes());
            name.extend(part.as_bytes());
        }
        name
    }
}

/// Whether bytes are sealed rather than JSON of an earlier version.
pub(super) fn is_sealed(bytes: &[u8]) -> bool {
    bytes.first() == Some(&VERSION)
}

/// The field at a path such as `options.alert`; the whole value for an empty one.
fn field<'a>(value: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    if path.is_empty() {
        return Some(value);
    }
    path.split('.').try_fold(value, |value, name| value.get_mut(name))
}

/// Removes a field whose content is lost.
fn remove(value: &mut Value, path: &str) {
    let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
    match (path, field(value, parent).and_then(Value::as_object_mut)) {
        // A schedule needs a target.
        ("target", Some(fields)) => {
            drop(fields.insert(name.to_owned(), json!({ "type": "http", "url": LOST })))
        }
        (_, Some(fields)) => drop(fields.remove(name)),
        // The whole column.
        (_, None) => *value = json!({}),
    }
}

/// Whether there is something to keep secret.
fn is_secret(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    }
}

fn sealed_bytes(value: &Value) -> Option<Vec<u8>> {
    match value.as_array()?.as_slice() {
        [Value::String(mark), Value::String(text)] if mark == MARK => BASE64.decode(text.as_bytes()).ok(),
        _ => None,
    }
}

fn generation_of(value: &Value) -> Option<u8> {
    sealed_bytes(value)?.get(1).copied()
}

#[cfg(test)]
mod tests;
