//! Stages and images whose files instructions use.

use crate::Instruction;

impl Instruction {
    /// Stages and images whose files it uses, as they are written.
    pub fn froms(&self) -> Vec<&str> {
        match self {
            Self::Copy(copy) => copy.from.as_deref().into_iter().collect(),
            Self::Run(run) => run.mounts.iter().filter_map(|mount| bound_from(mount)).collect(),
            _ => Vec::new(),
        }
    }
}

/// The stage or image of a bind mount, which is the default type.
pub(crate) fn bound_from(mount: &str) -> Option<&str> {
    let value = |name: &str| mount.split(',').find_map(|part| part.trim().strip_prefix(name));
    value("from=").filter(|from| !from.is_empty() && value("type=").is_none_or(|kind| kind == "bind"))
}
