//! The modules of a crate: the file of each, its definitions, and the paths in its code.
//!
//! Left out: test-only code (`#[cfg(test)]`), visibilities (`pub(in path)`), and what macros expand
//! to. Paths in the arguments of a macro are read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, UseTree};

use super::tokens;

/// A module, in a file of its own or inline.
#[derive(Debug, Default)]
pub struct Module {
    /// The file that holds its code.
    pub file: PathBuf,
    /// Index of the parent module; `None` for the root of the crate.
    pub parent: Option<usize>,
    /// Child modules, by name.
    pub children: BTreeMap<String, usize>,
    /// Names that it defines, other than child modules.
    pub items: BTreeSet<String>,
    /// Names that its `use` declarations bring into scope.
    pub imports: Vec<Import>,
    /// Paths in its code.
    pub mentions: Vec<Mention>,
}

/// A name that a `use` declaration brings into scope.
#[derive(Debug, PartialEq, Eq)]
pub struct Import {
    /// The name in this module; `None` for a glob.
    pub name: Option<String>,
    /// Path that the name refers to.
    pub mention: Mention,
}

/// A path in code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mention {
    pub segments: Vec<String>,
    pub line: usize,
}

/// Reads all modules of the crate with this root file. The first one is the root.
pub fn read(root: &Path) -> Result<Vec<Module>> {
    let mut modules = Vec::new();
    let dir = root.parent().unwrap_or(Path::new("")).to_owned();
    read_file(&mut modules, root, None, &dir)?;
    Ok(modules)
}

/// Reads a file and its children. `dir` is where the files of its children are.
fn read_file(modules: &mut Vec<Module>, file: &Path, parent: Option<usize>, dir: &Path) -> Result<usize> {
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let parsed = syn::parse_file(&text).with_context(|| format!("parse {}", file.display()))?;
    read_items(modules, file, parent, dir, &parsed.items)
}

fn read_items(
    modules: &mut Vec<Module>,
    file: &Path,
    parent: Option<usize>,
    dir: &Path,
    items: &[Item],
) -> Result<usize> {
    let index = modules.len();
    let mut module = Module { file: file.to_owned(), parent, ..Module::default() };
    module.items = items.iter().filter(|item| !is_test_only(attributes(item))).filter_map(name_of).collect();
    let mut collector = Collector { module: &mut module, children: Vec::new() };
    items.iter().for_each(|item| collector.visit_item(item));
    let children = collector.children;
    modules.push(module);
    for child in children {
        let name = child.ident.to_string();
        let child = read_child(modules, file, index, dir, child)?;
        modules[index].children.insert(name, child);
    }
    Ok(index)
}

fn read_child(
    modules: &mut Vec<Module>,
    file: &Path,
    parent: usize,
    dir: &Path,
    child: &ItemMod,
) -> Result<usize> {
    let name = child.ident.to_string();
    let name = name.trim_start_matches("r#");
    let inner = dir.join(name);
    if let Some((_, items)) = &child.content {
        return read_items(modules, file, Some(parent), &inner, items);
    }
    if let Some(path) = path_attribute(&child.attrs) {
        let beside = file.parent().unwrap_or(Path::new("")).join(path);
        let dir = beside.parent().unwrap_or(Path::new("")).to_owned();
        return read_file(modules, &beside, Some(parent), &dir);
    }
    for candidate in [dir.join(format!("{name}.rs")), inner.join("mod.rs")] {
        if candidate.is_file() {
            return read_file(modules, &candidate, Some(parent), &inner);
        }
    }
    bail!("find the file of module `{name}`, declared in {}", file.display());
}

/// Collects the contents of one module, without its child modules.
struct Collector<'a, 'ast> {
    module: &'a mut Module,
    children: Vec<&'ast ItemMod>,
}

impl<'ast> Visit<'ast> for Collector<'_, 'ast> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test_only(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test_only(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        self.children.push(module);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if item.leading_colon.is_none() {
            flatten(&item.tree, &mut Vec::new(), &mut self.module.imports);
        }
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            let line = path.segments.first().map_or(0, |segment| segment.ident.span().start().line);
            self.module.mentions.push(Mention { segments, line });
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.module.mentions.extend(tokens::mentions(call.tokens.clone()));
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if attribute.path().is_ident("doc") {
            return;
        }
        match &attribute.meta {
            syn::Meta::List(list) => {
                self.module.mentions.extend(tokens::mentions(list.tokens.clone()));
            }
            meta => visit::visit_meta(self, meta),
        }
    }
}

fn flatten(tree: &UseTree, prefix: &mut Vec<String>, imports: &mut Vec<Import>) {
    let mut push = |name: Option<String>, last: Option<String>, line: usize| {
        let segments = prefix.iter().cloned().chain(last).collect();
        imports.push(Import { name, mention: Mention { segments, line } });
    };
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, imports);
            prefix.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            push(prefix.last().cloned(), None, name.ident.span().start().line);
        }
        UseTree::Name(name) => {
            let ident = name.ident.to_string();
            push(Some(ident.clone()), Some(ident), name.ident.span().start().line);
        }
        UseTree::Rename(rename) => {
            let last = (rename.ident != "self").then(|| rename.ident.to_string());
            push(Some(rename.rename.to_string()), last, rename.ident.span().start().line);
        }
        UseTree::Glob(glob) => push(None, None, glob.star_token.spans[0].start().line),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, prefix, imports)),
    }
}

fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns whether an item exists in tests alone: `#[cfg(test)]`, or `#[cfg(all(test, ...))]`.
fn is_test_only(attributes: &[Attribute]) -> bool {
    let configurations = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    let lists = configurations.filter_map(|attribute| attribute.meta.require_list().ok());
    lists.map(|list| list.tokens.to_string().replace(' ', "")).any(|condition| {
        let all = condition.strip_prefix("all(").and_then(|rest| rest.strip_suffix(')'));
        all.unwrap_or(&condition).split(',').any(|part| part == "test")
    })
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.path().is_ident("path"))?;
    let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
    match &pair.value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
        _ => None,
    }
}
