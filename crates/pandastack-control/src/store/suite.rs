//! What every store must do, run on each backend.
