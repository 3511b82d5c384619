//! Templates of the platform, as reported by the hosts that have them.

use std::collections::BTreeSet;

use pandastack_agent_client::AgentClient;
use pandastack_types::api::Template;

use crate::hosts::Hosts;
use crate::placement::PlacementRefused;

/// The platform's own templates.
pub trait PlatformTemplates: Send + Sync {
    /// All of them, merged by name: the best status any host has.
    fn list(&self) -> Vec<Template>;

    /// Returns whether a template of that name or alias exists.
    fn contains(&self, name: &str) -> bool;

    /// Keys of the images that hosts make for a template: one, or several while hosts are being
    /// upgraded.
    fn image_keys(&self, name: &str) -> BTreeSet<String>;

    /// The template's own name, and the host that should bake it.
    fn place_bake(&self, name: &str) -> Result<(String, AgentClient), PlacementRefused>;

    /// Agents that may have bakes: agents that reported recently.
    fn agents(&self) -> Vec<AgentClient>;
}

impl PlatformTemplates for Hosts {
    fn list(&self) -> Vec<Template> {
        self.templates()
    }

    fn contains(&self, name: &str) -> bool {
        self.has_template(name)
    }

    fn image_keys(&self, name: &str) -> BTreeSet<String> {
        Hosts::image_keys(self, name)
    }

    fn place_bake(&self, name: &str) -> Result<(String, AgentClient), PlacementRefused> {
        Hosts::place_bake(self, name)
    }

    fn agents(&self) -> Vec<AgentClient> {
        self.clients().into_iter().map(|(_, client)| client).collect()
    }
}
