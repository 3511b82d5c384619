//! A keyed async mutex; unused entries are dropped.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A keyed async mutex; unused entries are dropped.
pub struct KeyedMutex<K>(Mutex<HashMap<K, Weak<tokio::sync::Mutex<()>>>>);

impl<K> Default for KeyedMutex<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Hash + Eq> KeyedMutex<K> {
    /// The mutex of a key.
    pub fn of(&self, thing: K) -> Arc<tokio::sync::Mutex<()>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = all.get(&thing).and_then(Weak::upgrade) {
            return turn;
        }
        all.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        all.insert(thing, Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_locked_once_and_unused_entries_are_dropped() {
        let turns = KeyedMutex::default();
        let first = turns.of("a");
        assert!(Arc::ptr_eq(&first, &turns.of("a")));
        assert!(!Arc::ptr_eq(&first, &turns.of("b")));
        drop(first);
        turns.of("c");
        assert_eq!(turns.0.lock().unwrap().len(), 1);
    }
}
