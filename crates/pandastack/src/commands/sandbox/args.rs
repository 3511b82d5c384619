//! Arguments that several commands share.

/// One sandbox.
#[derive(Debug, clap::Args)]
pub struct SandboxArg {
    /// Sandbox ID, unique ID prefix or name
    pub id: String,
}

/// Arguments of `hibernate`.
#[derive(Debug, clap::Args)]
pub struct HibernateArgs {
    #[command(flatten)]
    pub sandboxes: SandboxArgs,
    /// Keep only the disk; the sandbox boots when it wakes
    #[arg(long)]
    pub disk_only: bool,
}

/// Several sandboxes.
#[derive(Debug, clap::Args)]
pub struct SandboxArgs {
    /// Sandbox IDs, unique ID prefixes or names
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<String>,
}
