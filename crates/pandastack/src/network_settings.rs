//! Settings of the operator that limit every network policy: `[network]`.

use pandastack_types::network::{Cidr, Mail};
use serde::Deserialize;

/// The operator's limits over the network policies of all sandboxes.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkSection {
    /// Private networks that policies may open.
    pub reachable_private: Vec<Cidr>,
    /// Access to outbound mail ports.
    pub mail: Option<MailMode>,
}

/// Access to the ports of outbound mail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum MailMode {
    /// Open for network policies that name the port
    #[default]
    ByPolicy,
    /// Open for all sandboxes
    Open,
    /// Closed for all sandboxes
    Closed,
}

impl From<MailMode> for Mail {
    fn from(mode: MailMode) -> Self {
        match mode {
            MailMode::ByPolicy => Mail::ByPolicy,
            MailMode::Open => Mail::Open,
            MailMode::Closed => Mail::Closed,
        }
    }
}
