//! The templates that come with the platform, embedded in the program.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use crate::lock::Lock;
use crate::recipe::{Recipe, Source};

macro_rules! template {
    ($name:literal, $npm:expr) => {
        (
            include_str!(concat!("../../../templates/", $name, "/template.toml")),
            include_str!(concat!("../../../templates/", $name, "/lock.toml")),
            $npm,
        )
    };
}

/// Recipe, lock, npm lock. Parents stand before their children.
const SOURCES: &[(&str, &str, &str)] = &[
    template!("base", include_str!("../../../templates/base/npm-lock.json")),
    template!("code-interpreter", ""),
    template!("postgres-16", include_str!("../../../templates/postgres-16/npm-lock.json")),
    template!("agent", include_str!("../../../templates/agent/npm-lock.json")),
    template!("browser", include_str!("../../../templates/browser/npm-lock.json")),
    template!("docker", ""),
    template!("claude-agent", ""),
];

static CATALOG: LazyLock<Vec<Recipe>> = LazyLock::new(|| {
    let parse = |&(recipe, lock, npm): &(&str, &str, &str)| Recipe::parse(recipe, Lock::parse(lock, npm)?);
    let recipes: Result<Vec<_>, _> = SOURCES.iter().map(parse).collect();
    // Part of this program, and parsed by a test.
    recipes.expect("the embedded templates are well formed")
});

/// Every template of the product; parents stand before their children.
pub fn catalog() -> &'static [Recipe] {
    &CATALOG
}

/// The template that clients mean by `name_or_alias`.
pub fn find(name_or_alias: &str) -> Option<&'static Recipe> {
    catalog().iter().find(|recipe| recipe.answers_to(name_or_alias))
}

/// The environment of everything that runs in a machine of `recipe`: its own entries over its parents'.
pub fn effective_environment(recipe: &Recipe) -> BTreeMap<String, String> {
    let mut environment = match &recipe.from {
        Source::Template(parent) => find(parent).map(effective_environment).unwrap_or_default(),
        Source::Debian(_) => BTreeMap::new(),
    };
    environment.extend(recipe.environment.clone());
    environment
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_template_parses_and_names_are_unique() {
        let names: Vec<&String> = catalog().iter().flat_map(|r| r.aliases.iter().chain([&r.name])).collect();
        let unique: HashSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len(), "{names:?}");
    }

    #[test]
    fn embedded_templates_match_their_directories() {
        let templates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../templates");
        for recipe in catalog() {
            assert_eq!(&Recipe::read(&templates.join(&recipe.name)).unwrap(), recipe);
        }
    }

    #[test]
    fn parent_templates_come_before_their_children() {
        for (position, recipe) in catalog().iter().enumerate() {
            if let Source::Template(parent) = &recipe.from {
                assert!(
                    catalog()[..position].iter().any(|r| &r.name == parent),
                    "{} before {parent}",
                    recipe.name
                );
            }
        }
    }

    #[test]
    fn every_package_of_a_recipe_is_locked() {
        for recipe in catalog() {
            for package in &recipe.debian.packages {
                assert!(recipe.lock.debian.contains_key(package), "{}: {package} is not locked", recipe.name);
            }
            for package in &recipe.python.packages {
                assert!(recipe.lock.python.contains_key(package), "{}: {package} is not locked", recipe.name);
            }
            for package in recipe.npm.packages.keys() {
                let entry = format!("\"node_modules/{package}\"");
                assert!(recipe.lock.npm.contains(&entry), "{}: {package} is not locked", recipe.name);
            }
        }
    }

    #[test]
    fn files_are_placed_from_locked_packages() {
        for recipe in catalog() {
            for place in &recipe.npm.place {
                let parts = if place.from.starts_with('@') { 2 } else { 1 };
                let package = place.from.split('/').take(parts).collect::<Vec<_>>().join("/");
                let entry = format!("\"node_modules/{package}\"");
                assert!(recipe.lock.npm.contains(&entry), "{}: {package} is not locked", recipe.name);
            }
        }
    }

    #[test]
    fn a_template_extends_its_parents_environment() {
        let environment = effective_environment(find("code-interpreter").unwrap());
        assert_eq!(environment.get("MPLBACKEND").map(String::as_str), Some("Agg"));
        assert_eq!(environment.get("LANG").map(String::as_str), Some("C.UTF-8"));
    }

    #[test]
    fn documented_templates_are_in_the_catalog() {
        assert_eq!(find("ubuntu-24.04").map(|r| r.name.as_str()), Some("base"));
        let base = find("base").unwrap();
        assert_eq!((base.cpu, base.memory_mib, base.disk_gib), (1, 512, 8));
        let interpreter = find("code-interpreter").unwrap();
        assert_eq!((interpreter.cpu, interpreter.memory_mib, interpreter.disk_gib), (1, 1024, 8));
        assert!(find("no-such-template").is_none());
    }
}
