//! Maps template names between E2B and this platform.

/// E2B's names of templates that have another name here.
const ALIASES: [(&str, &str); 2] =
    [("code-interpreter-v1", "code-interpreter"), ("code-interpreter-beta", "code-interpreter")];

/// A template's name on this platform, without namespace and tag.
pub(super) fn template_name(given: &str) -> String {
    let name = given.rsplit_once('/').map_or(given, |(_, name)| name);
    let name = name.split_once(':').map_or(name, |(name, _)| name);
    let alias = ALIASES.iter().find(|(theirs, _)| *theirs == name);
    alias.map_or(name, |(_, ours)| ours).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_templates_are_understood() {
        for (given, name) in [
            ("base", "base"),
            ("code-interpreter-v1", "code-interpreter"),
            ("team/base:latest", "base"),
            ("mine:v2", "mine"),
        ] {
            assert_eq!(template_name(given), name, "{given}");
        }
    }
}
