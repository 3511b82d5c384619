//! Number of samples, and the platform to measure.

use std::path::Path;

use pandastack_client::Client;

/// Number of samples.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Wakes of each kind.
    pub wakes: u32,
    /// Pushes of the Vite app, each beside a build by hand.
    pub pushes: u32,
    /// Seconds of requests per way, and the number of rounds with both ways after an uncounted one.
    pub load_seconds: u64,
    pub load_turns: u32,
    /// Deployments under load.
    pub deploys: u32,
}

impl Plan {
    /// Minutes on an emulated machine.
    pub const QUICK: Plan = Plan { wakes: 10, pushes: 5, load_seconds: 4, load_turns: 9, deploys: 20 };
    /// For publication.
    pub const FULL: Plan = Plan { wakes: 40, pushes: 20, load_seconds: 10, load_turns: 15, deploys: 20 };
}

/// The deployment to measure.
pub struct Setup<'a> {
    /// The platform.
    pub client: &'a Client,
    /// Address and port of its edge.
    pub edge: &'a str,
    /// Data directory of the platform.
    pub data_dir: &'a Path,
    /// First address of its network.
    pub network: std::net::Ipv4Addr,
}
