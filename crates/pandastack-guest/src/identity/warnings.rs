//! Steps of an identity that failed without failing the whole.

/// Failed steps that are only reported.
#[derive(Debug, Default)]
pub(super) struct Warnings(Vec<String>);

impl Warnings {
    /// Records that a step failed, if it did.
    pub(super) fn note<E: std::fmt::Display>(&mut self, what: &str, result: Result<(), E>) {
        if let Err(error) = result {
            self.0.push(format!("could not {what}: {error}"));
        }
    }

    pub(super) fn into_list(self) -> Vec<String> {
        self.0
    }
}
