//! Progress of long fetches and builds.

/// The steps a user sees. Not every build has every step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Another process builds the same artifact.
    WaitForOther,
    /// A prebuilt artifact is unpacked.
    Unpack,
    /// The kernel package is fetched and unpacked.
    Kernel,
    /// The parent template's image is copied.
    CopyParent,
    /// Debian packages are downloaded and installed.
    Debian,
    /// Python packages are downloaded and installed.
    Python,
    /// npm packages are downloaded and installed.
    Npm,
    /// Files are written and the recipe's commands run.
    Configure,
    /// The recipe's checks run.
    Verify,
    /// The image is trimmed, checked and put into the cache.
    Seal,
    /// The artifact is in the cache.
    Done,
}

impl Phase {
    /// A short human-readable name, in the imperative.
    pub fn label(self) -> &'static str {
        match self {
            Phase::WaitForOther => "wait for another build",
            Phase::Unpack => "unpack prebuilt archive",
            Phase::Kernel => "fetch kernel",
            Phase::CopyParent => "copy parent image",
            Phase::Debian => "install Debian packages",
            Phase::Python => "install Python packages",
            Phase::Npm => "install npm packages",
            Phase::Configure => "configure",
            Phase::Verify => "verify",
            Phase::Seal => "seal image",
            Phase::Done => "done",
        }
    }
}

/// A step of one artifact began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The artifact: a template's name, or `kernel`.
    pub subject: &'a str,
    /// The phase that starts now; the previous one has ended.
    pub phase: Phase,
    /// Human-readable detail. May be empty.
    pub detail: &'a str,
}

impl std::fmt::Display for Progress<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.subject, self.phase.label())?;
        if self.detail.is_empty() { Ok(()) } else { write!(f, " ({})", self.detail) }
    }
}

/// Called from the building thread at every step; must not block for long.
pub type ProgressFn<'a> = &'a (dyn Fn(Progress<'_>) + Sync);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_step_is_described_with_or_without_detail() {
        let mut step = Progress { subject: "base", phase: Phase::Npm, detail: "4 packages" };
        assert_eq!(step.to_string(), "base: install npm packages (4 packages)");
        (step.phase, step.detail) = (Phase::Seal, "");
        assert_eq!(step.to_string(), "base: seal image");
    }
}
