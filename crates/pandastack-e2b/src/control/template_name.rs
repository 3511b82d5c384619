//! Maps template names between E2B and this platform.

use pandastack_types::BuildId;

/// E2B's names of templates that have another name here.
const ALIASES: [(&str, &str); 2] =
    [("code-interpreter-v1", "code-interpreter"), ("code-interpreter-beta", "code-interpreter")];
/// The tag of a version that is named without one, as E2B calls it.
const DEFAULT_THERE: &str = "default";
/// The default tag of this platform.
pub(super) const DEFAULT_HERE: &str = "latest";

/// The template that text of these clients means: `namespace/name:tag`, or an id of [`template_id`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TemplateRef {
    /// Name on this platform.
    pub(super) name: String,
    /// Tag; `None` for the default one.
    pub(super) tag: Option<String>,
    /// The build that the id was issued for.
    pub(super) build: Option<BuildId>,
}

impl TemplateRef {
    pub(super) fn of(given: &str) -> Self {
        let given = given.rsplit_once('/').map_or(given, |(_, rest)| rest);
        let (name, tag) = given.split_once(':').map_or((given, None), |(name, tag)| (name, Some(tag)));
        let (name, build) = name.split_once('@').map_or((name, None), |(name, build)| (name, Some(build)));
        let alias = ALIASES.iter().find(|(theirs, _)| *theirs == name);
        Self {
            name: alias.map_or(name, |(_, ours)| ours).to_owned(),
            tag: tag.map(tag_here).filter(|tag| *tag != DEFAULT_HERE).map(str::to_owned),
            build: build.and_then(|build| build.parse().ok()),
        }
    }

    /// The name on this platform, with the tag.
    pub(super) fn native(&self) -> String {
        match &self.tag {
            Some(tag) => format!("{}:{tag}", self.name),
            None => self.name.clone(),
        }
    }
}

/// A template's name on this platform, without namespace and tag.
pub(super) fn template_name(given: &str) -> String {
    TemplateRef::of(given).name
}

/// The template id for a client that creates a build. Uploads name only the template, so this id
/// also identifies the build; everywhere else it identifies the template.
pub(super) fn template_id(name: &str, build: &BuildId) -> String {
    format!("{name}@{build}")
}

/// A tag of these clients on this platform.
pub(super) fn tag_here(tag: &str) -> &str {
    if tag == DEFAULT_THERE { DEFAULT_HERE } else { tag }
}

/// A tag of this platform as these clients know it.
pub(super) fn tag_there(tag: &str) -> &str {
    if tag == DEFAULT_HERE { DEFAULT_THERE } else { tag }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_names_map_to_native_names() {
        let build = BuildId::random();
        for (given, native) in [
            ("base", "base"),
            ("code-interpreter-v1", "code-interpreter"),
            ("team/base:latest", "base"),
            ("team/base:default", "base"),
            ("mine:v2", "mine:v2"),
            (template_id("mine", &build).as_str(), "mine"),
            (format!("{}:v2", template_id("mine", &build)).as_str(), "mine:v2"),
        ] {
            assert_eq!(TemplateRef::of(given).native(), native, "{given}");
        }
        assert_eq!(TemplateRef::of(&template_id("mine", &build)).build, Some(build));
        assert_eq!(TemplateRef::of("mine").build, None);
    }
}
