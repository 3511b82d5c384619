//! The files of a source, as far as they were listed and read.

use std::collections::{BTreeMap, BTreeSet};

/// The files of a source: paths relative to its root, and the texts of some.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Paths of files, without `./`.
    pub files: BTreeSet<String>,
    /// Texts of the files that [`interesting`](crate::interesting) returned.
    pub texts: BTreeMap<String, String>,
}

impl View {
    pub(crate) fn has(&self, path: &str) -> bool {
        self.files.contains(path)
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// The first of these paths that exists.
    pub(crate) fn first<'a>(&self, paths: &[&'a str]) -> Option<&'a str> {
        paths.iter().find(|path| self.has(path)).copied()
    }
}
