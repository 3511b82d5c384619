//! The format of archived objects: compressed, then encrypted in chunks.
//!
//! ```text
//!   head: "PSBK" | version 1 | 3 x 0 | time, 8 bytes, microseconds since 1970 | salt, 32 random bytes
//!   then chunks of the zstd frame: 64 KiB + 16 of tag each; only the last may be shorter, and only it has the last flag
//!   key of an object:   HKDF-SHA256(salt = head, secret = the archive's key, info = database 0 name), for AES-256-GCM
//!   nonce of a chunk:   7 x 0 | chunk's number, 4 bytes | 1 for the last chunk, else 0
//! ```
//!
//! Must hold: an opened object is identical to the object sealed under this name for this database.
//! A chunk that is changed, missing, moved or from another object is an error, and so is a changed
//! head, because the keys are derived from it. Every object has a key of its own, so the nonces can
//! count from zero.
//!
//! Out of scope: storing objects, and deriving the archive's key.

use std::io::Read;

use jiff::Timestamp;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};

const MAGIC: [u8; 4] = *b"PSBK";
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 48;
const SALT_BYTES: usize = 32;
const CHUNK_BYTES: usize = 64 * 1024;
const TAG_BYTES: usize = 16;
/// The zstd level: its default, where the next levels cost twice the time for a few percent.
const COMPRESSION_LEVEL: i32 = 3;

/// The secret of an archive. It is never printed.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// Creates a key from 32 unguessable bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// The context that an object is bound to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound<'a> {
    pub(crate) key: &'a Key,
    pub(crate) database: &'a str,
    pub(crate) name: &'a str,
}

/// An object that was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnsealedObject {
    /// The time that was sealed with it.
    pub(crate) time: Timestamp,
    pub(crate) plain: Vec<u8>,
}

/// Reason why an object cannot be sealed or opened.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The object has no valid header.
    #[error("it is not a sealed object; another program may have written it")]
    Foreign,
    /// A later version of this program wrote it.
    #[error("its format version is {0}, but this server reads version {VERSION}; upgrade the server")]
    Version(u8),
    /// Altered, cut short, moved, or sealed with another key.
    #[error("it was modified, truncated, copied from another name, or sealed with another key")]
    Altered,
    /// Larger than its kind may be.
    #[error("it holds more than {0} bytes")]
    TooLarge(usize),
    /// The system gives no random bytes, or compression failed.
    #[error("it could not be sealed")]
    System(#[source] std::io::Error),
}

/// Compresses and encrypts.
pub(crate) fn seal(bound: Bound<'_>, time: Timestamp, plain: &[u8]) -> Result<Vec<u8>, SealError> {
    let packed = zstd::bulk::compress(plain, COMPRESSION_LEVEL).map_err(SealError::System)?;
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&MAGIC);
    head[4] = VERSION;
    head[8..16].copy_from_slice(&time.as_microsecond().to_be_bytes());
    getrandom::fill(&mut head[HEAD_BYTES - SALT_BYTES..])
        .map_err(|error| SealError::System(std::io::Error::other(error)))?;
    let key = object_key(bound, &head)?;
    let chunks = packed.len().div_ceil(CHUNK_BYTES).max(1);
    let mut sealed = Vec::with_capacity(HEAD_BYTES + packed.len() + chunks * TAG_BYTES);
    sealed.extend_from_slice(&head);
    for number in 0..chunks {
        let begin = number * CHUNK_BYTES;
        let chunk = &packed[begin..packed.len().min(begin + CHUNK_BYTES)];
        let at = sealed.len();
        sealed.extend_from_slice(chunk);
        let nonce = nonce(number, number + 1 == chunks)?;
        let tag = key
            .seal_in_place_separate_tag(nonce, Aad::empty(), &mut sealed[at..])
            .map_err(|_| SealError::Altered)?;
        sealed.extend_from_slice(tag.as_ref());
    }
    Ok(sealed)
}

/// Decrypts and decompresses. More than `plain_max` bytes are an error.
pub(crate) fn open(
    bound: Bound<'_>,
    mut sealed: Vec<u8>,
    plain_max: usize,
) -> Result<UnsealedObject, SealError> {
    let (time, head) = read_head(&sealed)?;
    let key = object_key(bound, &head)?;
    let body = &mut sealed[HEAD_BYTES..];
    let chunks = body.len().div_ceil(CHUNK_BYTES + TAG_BYTES);
    if chunks == 0 {
        return Err(SealError::Altered);
    }
    let mut packed = Vec::with_capacity(body.len());
    for (number, chunk) in body.chunks_mut(CHUNK_BYTES + TAG_BYTES).enumerate() {
        let nonce = nonce(number, number + 1 == chunks)?;
        let plain = key.open_in_place(nonce, Aad::empty(), chunk).map_err(|_| SealError::Altered)?;
        packed.extend_from_slice(plain);
    }
    let limit = u64::try_from(plain_max).unwrap_or(u64::MAX).saturating_add(1);
    let mut plain = Vec::new();
    let decoder = zstd::stream::read::Decoder::new(packed.as_slice()).map_err(SealError::System)?;
    decoder.take(limit).read_to_end(&mut plain).map_err(|_| SealError::Altered)?;
    if plain.len() > plain_max {
        return Err(SealError::TooLarge(plain_max));
    }
    Ok(UnsealedObject { time, plain })
}

fn read_head(sealed: &[u8]) -> Result<(Timestamp, [u8; HEAD_BYTES]), SealError> {
    let head = *sealed.first_chunk::<HEAD_BYTES>().ok_or(SealError::Foreign)?;
    if head[..4] != MAGIC {
        return Err(SealError::Foreign);
    }
    if head[4] != VERSION {
        return Err(SealError::Version(head[4]));
    }
    let [.., a, b, c, d, e, f, g, h] = *head.first_chunk::<16>().ok_or(SealError::Foreign)?;
    let micros = i64::from_be_bytes([a, b, c, d, e, f, g, h]);
    Ok((Timestamp::from_microsecond(micros).map_err(|_| SealError::Altered)?, head))
}

fn object_key(bound: Bound<'_>, head: &[u8]) -> Result<LessSafeKey, SealError> {
    let secret = Salt::new(HKDF_SHA256, head).extract(&bound.key.0);
    let info = [bound.database.as_bytes(), &[0], bound.name.as_bytes()];
    let key = secret.expand(&info, &AES_256_GCM).map_err(|_| SealError::Altered)?;
    Ok(LessSafeKey::new(UnboundKey::from(key)))
}

fn nonce(number: usize, last: bool) -> Result<Nonce, SealError> {
    let number = u32::try_from(number).map_err(|_| SealError::TooLarge(CHUNK_BYTES * (u32::MAX as usize)))?;
    let mut nonce = [0; 12];
    nonce[7..11].copy_from_slice(&number.to_be_bytes());
    nonce[11] = u8::from(last);
    Ok(Nonce::assume_unique_for_key(nonce))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN_MAX: usize = 1 << 20;

    fn bound<'a>(key: &'a Key, database: &'a str, name: &'a str) -> Bound<'a> {
        Bound { key, database, name }
    }

    fn time() -> Timestamp {
        Timestamp::from_microsecond(1_790_000_000_123_456).unwrap()
    }

    /// Bytes that do not compress, so that there are several chunks.
    fn noise(bytes: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let step = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u8
        };
        (0..bytes).map(step).collect()
    }

    fn sealed(plain: &[u8]) -> Vec<u8> {
        seal(bound(&Key::new([7; 32]), "db", "wal/x"), time(), plain).unwrap()
    }

    fn reopen(sealed: Vec<u8>) -> Result<UnsealedObject, SealError> {
        open(bound(&Key::new([7; 32]), "db", "wal/x"), sealed, PLAIN_MAX)
    }

    #[test]
    fn sealed_chunks_round_trip_at_size_boundaries() {
        for bytes in [0, 1, CHUNK_BYTES - 64, CHUNK_BYTES, CHUNK_BYTES * 2, CHUNK_BYTES * 3 + 1] {
            let plain = noise(bytes);
            assert_eq!(reopen(sealed(&plain)).unwrap(), UnsealedObject { time: time(), plain }, "{bytes}");
        }
    }

    #[test]
    fn sealed_objects_are_bound_to_name_database_and_key() {
        let (key, other) = (Key::new([7; 32]), Key::new([8; 32]));
        for wrong in [
            bound(&key, "db", "wal/y"),
            bound(&key, "dc", "wal/x"),
            bound(&other, "db", "wal/x"),
            bound(&key, "d", "b\0wal/x"),
        ] {
            assert!(matches!(open(wrong, sealed(b"row"), PLAIN_MAX), Err(SealError::Altered)), "{wrong:?}");
        }
    }

    #[test]
    fn reordered_or_missing_chunks_fail_to_open() {
        let whole = sealed(&noise(CHUNK_BYTES * 3));
        let step = CHUNK_BYTES + TAG_BYTES;
        let chunk =
            |number: usize| whole[HEAD_BYTES + number * step..HEAD_BYTES + (number + 1) * step].to_vec();
        let (head, tail) = (whole[..HEAD_BYTES].to_vec(), whole[HEAD_BYTES + 3 * step..].to_vec());
        let joined = |parts: &[Vec<u8>]| [std::slice::from_ref(&head), parts].concat().concat();
        assert!(reopen(joined(&[chunk(0), chunk(1), chunk(2), tail.clone()])).is_ok());
        assert!(reopen(joined(&[chunk(1), chunk(0), chunk(2), tail.clone()])).is_err());
        assert!(reopen(joined(&[chunk(0), chunk(2), tail.clone()])).is_err());
        assert!(reopen(joined(&[chunk(0), chunk(1), chunk(2)])).is_err());
        assert!(reopen(joined(&[])).is_err());
    }

    #[test]
    fn oversized_and_newer_sealed_data_is_rejected() {
        let plain = noise(1000);
        let of = |max| open(bound(&Key::new([7; 32]), "db", "wal/x"), sealed(&plain), max);
        assert!(of(1000).is_ok());
        assert!(matches!(of(999), Err(SealError::TooLarge(999))));
        let mut newer = sealed(&plain);
        newer[4] = 2;
        assert!(matches!(reopen(newer), Err(SealError::Version(2))));
        assert!(matches!(reopen(b"PSBK".to_vec()), Err(SealError::Foreign)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_plaintext_round_trips(plain in proptest::collection::vec(any::<u8>(), 0..4096)) {
            prop_assert_eq!(reopen(sealed(&plain)).unwrap().plain, plain);
        }

        #[test]
        fn any_bit_flip_is_found(bytes in 0_usize..200_000, at in any::<prop::sample::Index>(), bit in 0_u8..8) {
            let mut altered = sealed(&noise(bytes));
            let at = at.index(altered.len());
            altered[at] ^= 1 << bit;
            prop_assert!(reopen(altered).is_err());
        }

        #[test]
        fn any_truncation_is_detected(bytes in 0_usize..200_000, at in any::<prop::sample::Index>()) {
            let mut cut = sealed(&noise(bytes));
            let at = at.index(cut.len());
            cut.truncate(at);
            prop_assert!(reopen(cut).is_err());
        }
    }
}
