//! Files that a step finds while it runs: `RUN --mount=type=bind`, and the empty directory of `type=tmpfs`.

use crate::build::Build;
use crate::build_error::BuildError;
use crate::context::{self, CONTEXT_DIR, Selection};
use crate::copy;
use crate::machines::UNPACK_WAIT;
use crate::scope::Scope;
use crate::stage::Head;

const BIND_OPTIONS: &str = "use type, from, source, target, readonly and readwrite";
const TMPFS_OPTIONS: &str = "use type and target";

/// A mount of type `bind` or `tmpfs`, of one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BindMount {
    /// As it was written.
    pub(crate) text: String,
    /// Stage or image that has the files; `None` for the context.
    from: Option<String>,
    /// File or directory that is mounted; `None` for an empty directory.
    source: Option<String>,
    /// Path at which the step finds the mount.
    pub(crate) target: String,
}

impl BindMount {
    /// Reads a mount of type `bind` or `tmpfs`.
    pub(crate) fn parse(scope: &Scope, text: &str, is_tmpfs: bool) -> Result<Self, BuildError> {
        let wrong = |part: &str, hint: &str| {
            BuildError::new(format!("`{part}` in RUN --mount={text} is not supported; {hint}"))
        };
        let (mut from, mut source, mut target) = (None, "".to_owned(), None);
        for part in text.split(',').map(str::trim) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            match (name, is_tmpfs) {
                ("type", _) => {}
                ("target" | "dst" | "destination", _) => target = Some(scope.absolute(value)),
                // The memory of the machine is its limit.
                ("size", true) => {}
                ("from", false) => from = Some(value.to_owned()).filter(|from| !from.is_empty()),
                ("source" | "src", false) if value.contains(['*', '?', '[']) => {
                    return Err(wrong(part, "name one file or directory"));
                }
                ("source" | "src", false) => source = value.to_owned(),
                // What a step writes into a mount is gone after it, so both mean the same.
                ("ro" | "readonly" | "rw" | "readwrite", false) => {}
                (_, true) => return Err(wrong(part, TMPFS_OPTIONS)),
                (_, false) => return Err(wrong(part, BIND_OPTIONS)),
            }
        }
        let Some(target) = target.filter(|target| target != "/") else {
            return Err(wrong(text, "name a directory or file with target=PATH"));
        };
        Ok(Self { text: text.to_owned(), from, source: (!is_tmpfs).then_some(source), target })
    }

    /// Hash of its files.
    pub(crate) async fn sum(&self, build: &Build<'_>) -> Result<String, BuildError> {
        match (&self.source, &self.from) {
            (None, _) => Ok(String::new()),
            // The key of another stage determines its files.
            (Some(_), Some(from)) => Ok(build.head(build.stage_of(from)?)?.key.clone()),
            (Some(source), None) => {
                build.note_files_used();
                let context = context::open(build.templates, build.record).await?;
                Ok(context::select(&context, &self.selection(CONTEXT_DIR, source, "", "")).await?.sum)
            }
        }
    }

    /// Writes its files to `directory/name` in the machine of a stage.
    pub(crate) async fn write(
        &self,
        build: &mut Build<'_>,
        head: &mut Head,
        directory: &str,
        name: &str,
    ) -> Result<(), BuildError> {
        let content = format!("{directory}/{name}");
        let Some(source) = &self.source else {
            let machine = head.machine(build).await?;
            machine.make_dir(&content, UNPACK_WAIT).await?;
            return Ok(machine.set_mode(&content, 0o1777).await?);
        };
        let context = context::open(build.templates, build.record).await?;
        let root = copy::root_of(build, &context, self.from.as_deref(), std::slice::from_ref(source)).await?;
        let selected = context::select(&context, &self.selection(&root, source, name, copy::OUT_DIR)).await?;
        let machine = head.machine(build).await?;
        let directory = match selected.is_tree {
            true => {
                machine.make_dir(&content, UNPACK_WAIT).await?;
                content.as_str()
            }
            false => directory,
        };
        copy::unpack(machine, &context, &selected, directory, None).await
    }

    /// A directory's files, or one file with another name.
    fn selection(&self, root: &str, source: &str, name: &str, out: &str) -> Selection {
        Selection {
            root: root.to_owned(),
            is_context: self.from.is_none(),
            sources: vec![source.to_owned()],
            preserve: self.from.is_some(),
            file_name: name.to_owned(),
            out: out.to_owned(),
            ..Selection::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use pandastack_types::api::ImageConfig;

    use super::*;

    fn read(text: &str, is_tmpfs: bool) -> Result<BindMount, String> {
        let config = ImageConfig { workdir: Some("/app".to_owned()), ..ImageConfig::default() };
        BindMount::parse(&Scope::new(config, '\\'), text, is_tmpfs).map_err(|error| error.message)
    }

    #[test]
    fn bind_mounts_of_a_step_are_read() {
        let file = read("type=bind,source=go.mod,target=go.mod", false).unwrap();
        assert_eq!((file.source.as_deref(), file.target.as_str()), (Some("go.mod"), "/app/go.mod"));
        let all = read("target=.,rw", false).unwrap();
        assert_eq!((all.source.as_deref(), all.target.as_str(), all.from), (Some(""), "/app", None));
        let stage = read("type=bind,from=build,src=/out,dst=/in,ro", false).unwrap();
        assert_eq!((stage.from.as_deref(), stage.source.as_deref()), (Some("build"), Some("/out")));
        let empty = read("type=tmpfs,target=/scratch,size=1g", true).unwrap();
        assert_eq!((empty.source, empty.target.as_str()), (None, "/scratch"));
    }

    #[test]
    fn unknown_options_of_bind_mounts_are_refused_by_name() {
        for (text, is_tmpfs, part) in [
            ("type=bind,source=a", false, "name a directory or file with target=PATH"),
            ("type=bind,target=/", false, "target=PATH"),
            ("type=bind,target=/x,uid=1", false, "`uid=1`"),
            ("type=bind,source=*.txt,target=/x", false, "name one file or directory"),
            ("type=tmpfs,target=/x,from=a", true, "`from=a`"),
        ] {
            let refused = read(text, is_tmpfs).unwrap_err();
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }
}
