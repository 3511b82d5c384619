//! Ids, API types, error codes and the sandbox state machine.
