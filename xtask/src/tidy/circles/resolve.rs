//! Resolves a path to the file that it leads to.
//!
//! A path leads to the file that defines its item: re-exports and globs are followed. Items that a
//! macro defines cannot be found, so a path to one leads to the last module on its way.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::modules::{self, Module};

/// Resolves paths of one crate.
#[derive(Debug)]
pub struct Resolver {
    modules: Vec<Module>,
}

/// Target of a name in a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Module(usize),
    /// An item that this module defines.
    Item(usize),
    /// An item of another crate.
    Elsewhere,
}

/// Lookups in progress, so that circles of re-exports end.
type VisitedItems = BTreeSet<(usize, String)>;

impl Resolver {
    /// Reads the crate with this root file.
    pub fn read(root: &Path) -> Result<Self> {
        Ok(Self { modules: modules::read(root)? })
    }

    /// Every path that leads to a file of the crate: where it stands, where it leads, and its line.
    pub fn references(&self) -> Vec<(PathBuf, PathBuf, usize)> {
        let mut references = Vec::new();
        for (index, module) in self.modules.iter().enumerate() {
            let mut note = |target: Option<Target>, line: usize| {
                if let Some(Target::Module(found) | Target::Item(found)) = target {
                    references.push((module.file.clone(), self.modules[found].file.clone(), line));
                }
            };
            for mention in module.imports.iter().map(|import| &import.mention) {
                note(self.resolve(index, &mention.segments, &mut VisitedItems::new()), mention.line);
            }
            for mention in &module.mentions {
                let target = match mention.segments.as_slice() {
                    // The name was imported, is defined here, or came with a glob.
                    [name] => self.in_globs(index, name, &mut VisitedItems::new()),
                    segments => self.resolve(index, segments, &mut VisitedItems::new()),
                };
                note(target, mention.line);
            }
        }
        references
    }

    fn resolve(&self, module: usize, segments: &[String], seen: &mut VisitedItems) -> Option<Target> {
        let (first, mut rest) = segments.split_first()?;
        let mut current = match first.as_str() {
            "crate" => 0,
            "self" => module,
            "super" => self.modules[module].parent?,
            name => match self.lookup(module, name, rest.is_empty(), seen)? {
                Target::Module(found) => found,
                target => return Some(target),
            },
        };
        while let Some((name, after)) = rest.split_first() {
            rest = after;
            if name == "super" {
                current = self.modules[current].parent?;
                continue;
            }
            match self.lookup(current, name, rest.is_empty(), seen) {
                Some(Target::Module(found)) => current = found,
                Some(Target::Item(found)) => return Some(Target::Item(found)),
                Some(Target::Elsewhere) | None => return Some(Target::Item(current)),
            }
        }
        Some(Target::Module(current))
    }

    /// Looks a name up in a module. A module and a function may share a name: the last name of a
    /// path is the function.
    fn lookup(&self, module: usize, name: &str, is_last: bool, seen: &mut VisitedItems) -> Option<Target> {
        let Module { children, items, imports, .. } = &self.modules[module];
        let child = children.get(name).map(|child| Target::Module(*child));
        if child.is_some() && !is_last {
            return child;
        }
        if items.contains(name) {
            return Some(Target::Item(module));
        }
        if !seen.insert((module, name.to_owned())) {
            return child;
        }
        let import = imports.iter().find(|import| import.name.as_deref() == Some(name));
        let imported = import
            .map(|import| self.resolve(module, &import.mention.segments, seen).unwrap_or(Target::Elsewhere));
        imported.or(child).or_else(|| self.in_globs(module, name, seen))
    }

    /// Looks a name up in the modules whose names this one imports all together.
    fn in_globs(&self, module: usize, name: &str, seen: &mut VisitedItems) -> Option<Target> {
        let globs = self.modules[module].imports.iter().filter(|import| import.name.is_none());
        globs.into_iter().find_map(|glob| match self.resolve(module, &glob.mention.segments, seen)? {
            Target::Module(found) if found != module => self.lookup(found, name, true, seen),
            _ => None,
        })
    }
}
