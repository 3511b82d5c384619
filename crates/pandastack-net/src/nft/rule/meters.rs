//! Conditions that count packets, bytes, connections and addresses; and logging.

use std::time::Duration;

use libc::{NFT_CMP_EQ, NFT_CT_STATUS, NFT_PAYLOAD_NETWORK_HEADER, NFT_REG_1};

use super::Rule;
use crate::nft::SetName;

/// Connection status bit: a packet of it has passed every chain.
const IPS_CONFIRMED: u32 = 1 << 3;

impl Rule {
    /// Adds the destination address to the set for `remembered`, and matches if the set is full: a
    /// set of N addresses admits N in this time.
    pub(crate) fn not_among_recent(self, set: SetName, remembered: Duration) -> Self {
        const ADD: u32 = 0;
        const INVERTED: u32 = 1;
        let millis = u64::try_from(remembered.as_millis()).unwrap_or(u64::MAX);
        self.payload(NFT_PAYLOAD_NETWORK_HEADER, 16, 4).expression("dynset", |a| {
            a.text(1, set.0);
            a.number(2, set.1);
            a.number(3, ADD);
            a.number(4, NFT_REG_1 as u32);
            a.bytes(6, &millis.to_be_bytes());
            a.number(9, INVERTED);
        })
    }

    /// Matches at most `packets` a second, with a burst of as many.
    pub(crate) fn at_most_per_second(self, packets: u64) -> Self {
        self.expression("limit", |a| {
            a.bytes(1, &packets.to_be_bytes());
            a.bytes(2, &1u64.to_be_bytes());
            a.number(3, u32::try_from(packets).unwrap_or(u32::MAX));
        })
    }

    /// Matches packets beyond `bytes` per second, with a burst of as many.
    pub(crate) fn more_than_bytes_per_second(self, bytes: u64) -> Self {
        const BYTES: u32 = 1;
        const OVER: u32 = 1;
        self.expression("limit", |a| {
            a.bytes(1, &bytes.to_be_bytes());
            a.bytes(2, &1u64.to_be_bytes());
            a.number(3, u32::try_from(bytes).unwrap_or(u32::MAX));
            a.number(4, BYTES);
            a.number(5, OVER);
        })
    }

    /// Matches packets beyond `packets` per minute, with a burst of as many.
    pub(crate) fn more_than_per_minute(self, packets: u32) -> Self {
        const PACKETS: u32 = 0;
        const OVER: u32 = 1;
        self.expression("limit", |a| {
            a.bytes(1, &u64::from(packets).to_be_bytes());
            a.bytes(2, &60u64.to_be_bytes());
            a.number(3, packets);
            a.number(4, PACKETS);
            a.number(5, OVER);
        })
    }

    /// Matches the first packet of a connection, before any packet of it has passed. Datagrams
    /// without a reply stay "new".
    pub(crate) fn begins_connection(self) -> Self {
        self.connection(NFT_CT_STATUS).mask(IPS_CONFIRMED.to_ne_bytes()).compare(NFT_CMP_EQ, &[0; 4])
    }

    /// Matches if the namespace has more than `count` connections.
    pub(crate) fn more_connections_than(self, count: u32) -> Self {
        const OVER: u32 = 1;
        self.expression("connlimit", |a| {
            a.number(1, count);
            a.number(2, OVER);
        })
    }

    /// Logs the first bytes of the packet with a prefix to a log group, and continues with the next
    /// expression.
    pub(crate) fn log_to(self, group: u16, bytes: u32, word: &str) -> Self {
        self.expression("log", |a| {
            a.bytes(1, &group.to_be_bytes());
            if !word.is_empty() {
                a.text(2, word);
            }
            a.number(3, bytes);
        })
    }
}
