//! The control plane: REST API, store, placement, auth, reapers.
