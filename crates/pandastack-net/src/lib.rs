//! Network slots: namespaces, taps, veth pairs, nftables rules.
