//! Messages and framing between agent and guest.
