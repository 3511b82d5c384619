//! The join secret, in generations.
//!
//! The first secret is the whole content of its file. Once it has been rotated, the file lists the
//! generations:
//!
//! ```text
//!   pandastack-secrets 1
//!   1 retired  <hex>
//!   2 accepted <hex>
//!   3 current  <hex>
//! ```
//!
//! ```text
//!   staged -> current -> accepted -> retired
//! ```
//!
//! Must hold: numbers count from 1 without a gap, exactly one generation is current, and none is
//! ever removed: secrets that only their owner can replace (backups, generated deploy keys) are
//! derived from the first.

use std::fmt::Write as _;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};

/// Shortest secret of a generation.
pub const SECRET_BYTES_MIN: usize = 32;
/// Generations that a file can have: sealed values name theirs in one byte.
pub const GENERATIONS_MAX: usize = u8::MAX as usize;
/// First line of a file with generations.
const HEADER: &str = "pandastack-secrets 1";

/// State of a generation, which decides its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GenerationState {
    /// Accepted, but not used to sign or seal yet: other processes may not have it.
    Staged,
    /// Signs and seals.
    Current,
    /// Accepted, but no longer used to sign or seal.
    Accepted,
    /// Signatures and credentials made with it are refused.
    Retired,
}

impl GenerationState {
    const ALL: [Self; 4] = [Self::Staged, Self::Current, Self::Accepted, Self::Retired];

    /// The name in the file and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Staged => "staged",
            Self::Current => "current",
            Self::Accepted => "accepted",
            Self::Retired => "retired",
        }
    }
}

/// One generation of the secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Generation {
    /// Counts from 1.
    pub number: u8,
    /// State of the generation.
    pub state: GenerationState,
    pub(crate) key: Vec<u8>,
}

impl std::fmt::Debug for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} (secret)", self.number, self.state.as_str())
    }
}

/// The join secret of a running control server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretStatus {
    /// Its generations, oldest first.
    pub generations: Vec<GenerationStatus>,
    /// The generation that every row of the database is sealed with; absent while they are being sealed.
    pub rows_sealed_with: Option<u8>,
    /// Rows that this request sealed.
    #[serde(default)]
    pub rows_sealed: u64,
}

/// One generation of the secret, without the secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GenerationStatus {
    /// Counts from 1.
    pub generation: u8,
    /// State of the generation.
    pub state: GenerationState,
    /// Identifies the generation.
    pub fingerprint: String,
}

/// All generations, oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRing(Vec<Generation>);

/// Reason why a secret file cannot be used or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The secret is too short to be one.
    #[error(
        "the join secret is shorter than {SECRET_BYTES_MIN} bytes; generate one with `pandastack join-secret`"
    )]
    Weak,
    /// A line is not a generation.
    #[error("line {0} is not `<generation> <state> <hex>`; restore the file from a backup")]
    Line(usize),
    /// A generation is missing, or more or less than one is current.
    #[error("the generations do not count from 1 to one that is current; restore the file from a backup")]
    Incomplete,
    /// The earlier rotation was not finished.
    #[error("generation {0} is still accepted; end it first with `pandastack secrets rotate --finish`")]
    Unfinished(u8),
    /// No rotation is in progress.
    #[error("no earlier generation is accepted; there is nothing to finish")]
    Finished,
    /// The number of generations is at its maximum.
    #[error("the file has {GENERATIONS_MAX} generations, which is the most that it can have")]
    Full,
}

impl SecretRing {
    /// A ring with one generation.
    pub fn new(secret: &[u8]) -> Result<Self, RingError> {
        if secret.len() < SECRET_BYTES_MIN {
            return Err(RingError::Weak);
        }
        Ok(Self(vec![Generation { number: 1, state: GenerationState::Current, key: secret.to_vec() }]))
    }

    /// Reads the content of a file.
    pub fn parse(text: &str) -> Result<Self, RingError> {
        let text = text.trim();
        let Some(list) = text.strip_prefix(HEADER) else { return Self::new(text.as_bytes()) };
        let lines = list.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let read = lines.map(|(at, line)| generation(line).ok_or(RingError::Line(at + 1)));
        let generations: Vec<Generation> = read.collect::<Result<_, _>>()?;
        if generations.iter().any(|one| one.key.len() < SECRET_BYTES_MIN) {
            return Err(RingError::Weak);
        }
        let current = generations.iter().position(|one| one.state == GenerationState::Current);
        let current = current.ok_or(RingError::Incomplete)?;
        let in_order = generations.iter().enumerate().all(|(at, one)| {
            let fits = match one.state {
                GenerationState::Staged => at == current + 1,
                GenerationState::Current => at == current,
                GenerationState::Accepted | GenerationState::Retired => at < current,
            };
            fits && usize::from(one.number) == at + 1
        });
        in_order.then_some(Self(generations)).ok_or(RingError::Incomplete)
    }

    /// The content of a file with these generations.
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEADER}\n");
        for one in &self.0 {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{} {} {}", one.number, one.state.as_str(), HEXLOWER.encode(&one.key));
        }
        text
    }

    /// All generations, oldest first.
    pub fn generations(&self) -> &[Generation] {
        &self.0
    }

    /// The generation that signs and seals.
    pub fn current(&self) -> &Generation {
        // A ring is never made without one.
        self.0.iter().find(|one| one.state == GenerationState::Current).unwrap_or(&self.0[0])
    }

    /// The first generation.
    pub fn first(&self) -> &Generation {
        &self.0[0]
    }

    /// One generation by its number.
    pub fn generation(&self, number: u8) -> Option<&Generation> {
        self.0.iter().find(|one| one.number == number)
    }

    /// Generations whose signatures are accepted: the current one first, then the others, newest first.
    pub fn active(&self) -> impl Iterator<Item = &Generation> {
        let current = self.current();
        let others = self
            .0
            .iter()
            .rev()
            .filter(move |one| one.number != current.number && one.state != GenerationState::Retired);
        std::iter::once(current).chain(others)
    }

    /// Adds a generation that is accepted but not used yet.
    pub fn stage(&mut self, secret: &[u8]) -> Result<(), RingError> {
        if let Some(open) = self.0.iter().find(|one| one.state == GenerationState::Accepted) {
            return Err(RingError::Unfinished(open.number));
        }
        if secret.len() < SECRET_BYTES_MIN {
            return Err(RingError::Weak);
        }
        let number = u8::try_from(self.0.len() + 1).map_err(|_| RingError::Full)?;
        self.0.push(Generation { number, state: GenerationState::Staged, key: secret.to_vec() });
        Ok(())
    }

    /// Whether a generation is staged.
    pub fn has_staged(&self) -> bool {
        self.0.iter().any(|one| one.state == GenerationState::Staged)
    }

    /// Makes the staged generation current; the one before it stays accepted.
    pub fn activate(&mut self) {
        if !self.has_staged() {
            return;
        }
        for one in &mut self.0 {
            one.state = match one.state {
                GenerationState::Staged => GenerationState::Current,
                GenerationState::Current => GenerationState::Accepted,
                other => other,
            };
        }
    }

    /// Retires the generations before the current one.
    pub fn finish(&mut self) -> Result<(), RingError> {
        let mut accepted = self.0.iter_mut().filter(|one| one.state == GenerationState::Accepted).peekable();
        accepted.peek().ok_or(RingError::Finished)?;
        accepted.for_each(|one| one.state = GenerationState::Retired);
        Ok(())
    }
}

fn generation(line: &str) -> Option<Generation> {
    let mut words = line.split_whitespace();
    let (number, state, key) = (words.next()?, words.next()?, words.next()?);
    let state = GenerationState::ALL.into_iter().find(|one| one.as_str() == state)?;
    let key = HEXLOWER.decode(key.as_bytes()).ok()?;
    let number = number.parse().ok().filter(|_| words.next().is_none())?;
    Some(Generation { number, state, key })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(ring: &SecretRing) -> Vec<&'static str> {
        ring.generations().iter().map(|one| one.state.as_str()).collect()
    }

    #[test]
    fn secret_generations_rotate_in_order() {
        let mut ring = SecretRing::parse(&"a1".repeat(32)).unwrap();
        assert_eq!(ring.current().key, "a1".repeat(32).into_bytes());
        assert_eq!(ring.finish(), Err(RingError::Finished));
        ring.stage(&[2; 32]).unwrap();
        assert_eq!((states(&ring), ring.current().number), (vec!["current", "staged"], 1));
        assert_eq!(ring.active().map(|one| one.number).collect::<Vec<_>>(), [1, 2]);
        ring.activate();
        assert_eq!(states(&ring), ["accepted", "current"]);
        assert_eq!(ring.active().map(|one| one.number).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(ring.stage(&[3; 32]), Err(RingError::Unfinished(1)));
        ring.finish().unwrap();
        assert_eq!(ring.active().map(|one| one.number).collect::<Vec<_>>(), [2]);
        ring.stage(&[3; 32]).unwrap();
        assert_eq!(states(&ring), ["retired", "current", "staged"]);
        assert_eq!(SecretRing::parse(&ring.to_text()).unwrap(), ring);
    }

    #[test]
    fn a_malformed_secret_ring_is_refused() {
        let line = |number: u8, state: &str| format!("{number} {state} {}\n", "ab".repeat(32));
        let file = |lines: &[String]| SecretRing::parse(&format!("{HEADER}\n{}", lines.concat()));
        assert!(file(&[line(1, "retired"), line(2, "current")]).is_ok());
        for lines in [
            vec![],
            vec![line(2, "current")],
            vec![line(1, "accepted")],
            vec![line(1, "current"), line(2, "current")],
            vec![line(1, "current"), line(3, "staged")],
            vec![line(1, "current"), line(2, "retired")],
            vec![line(1, "staged"), line(2, "current")],
        ] {
            assert_eq!(file(&lines), Err(RingError::Incomplete), "{lines:?}");
        }
        assert_eq!(file(&["1 current".to_owned()]), Err(RingError::Line(2)));
        assert_eq!(file(&["1 current abab".to_owned()]), Err(RingError::Weak));
        assert_eq!(SecretRing::parse("short"), Err(RingError::Weak));
    }
}
