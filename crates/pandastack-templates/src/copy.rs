//! `COPY` and `ADD`: files of the context or of another stage, selected and packed in the context machine.

use std::collections::HashSet;

use pandastack_dockerfile::CopyStep;
use pandastack_sandboxes::machine::Machine;
use pandastack_types::api::SetAttributes;
use serde::Serialize;

use crate::build::Build;
use crate::build_error::BuildError;
use crate::context::{self, CONTEXT_DIR, CopiedDir, SelectedFiles, Selection};
use crate::key;
use crate::machines::{self, UNPACK_WAIT};
use crate::scope::Scope;
use crate::stage::Head;
use crate::step::Outcome;

/// Directory in which archives are packed.
pub(crate) const OUT_DIR: &str = "/srv/out";

/// Directory in the machine's memory that shows the numbers of a user.
const OWNED_DIR: &str = "/run/pandastack-owner";

/// Directory of what `ADD` fetched and unpacked.
const ADDED_DIR: &str = "/srv/added";

/// Copies, unless an earlier build did.
pub(crate) async fn run(
    build: &mut Build<'_>,
    head: &mut Head,
    step: &CopyStep,
) -> Result<Outcome, BuildError> {
    let wanted = CopySpec::of(&head.scope, step)?;
    let from = match &wanted.from {
        Some(name) => Some(build.stage_of(name)?),
        None => None,
    };
    // The key of another stage determines its files; files of the context are hashed.
    let sum = match from {
        Some(stage) => build.head(stage)?.key.clone(),
        None => {
            if !wanted.sources.is_empty() {
                build.note_files_used();
            }
            let context = context::open(build.templates, build.record).await?;
            context::select(&context, &wanted.selection(CONTEXT_DIR, true, "")).await?.sum
        }
    };
    let text =
        serde_json::to_string(&wanted.described()).map_err(|error| BuildError::new(error.to_string()))?;
    let key = key::step(&head.key, &["COPY", &text, &sum]);
    if head.restore(build, &key).await? {
        head.key = key;
        return Ok(Outcome::Cached);
    }
    let context = context::open(build.templates, build.record).await?;
    let root = root_of(build, &context, wanted.from.as_deref(), &wanted.sources).await?;
    let machine = head.machine(build).await?;
    let is_dir = wanted.dest_is_dir() || machine.stat(&wanted.dest).await?.is_some_and(|entry| entry.is_dir);
    let selected = context::select(&context, &wanted.selection(&root, is_dir, OUT_DIR)).await?;
    let directory = match is_dir || selected.is_tree {
        true => wanted.dest.clone(),
        false => wanted.dest.rsplit_once('/').map_or("/", |(above, _)| above).to_owned(),
    };
    let directory = if directory.is_empty() { "/".to_owned() } else { directory };
    unpack(machine, &context, &selected, &directory, wanted.owner.as_deref()).await?;
    if selected.archives.is_empty() {
        machine.make_dir_of(&wanted.dest, wanted.owner.as_deref(), build.time_left()?).await?;
    }
    head.save(build, &key, &format!("COPY {}", wanted.dest)).await?;
    head.key = key;
    Ok(Outcome::Ran)
}

/// The directory of the context machine that sources are below. Those of another stage are copied there
/// first.
pub(crate) async fn root_of(
    build: &mut Build<'_>,
    context: &Machine,
    from: Option<&str>,
    sources: &[String],
) -> Result<String, BuildError> {
    let Some(name) = from else { return Ok(CONTEXT_DIR.to_owned()) };
    let stage = build.stage_of(name)?;
    let mut other = build.take_head(stage)?;
    let root = fetch_sources(build, context, &mut other, stage, sources).await;
    build.put_head(stage, other);
    root
}

/// Unpacks packed files into a directory of a stage's machine. They belong to `owner`, else to their own.
pub(crate) async fn unpack(
    machine: &Machine,
    context: &Machine,
    selected: &SelectedFiles,
    directory: &str,
    owner: Option<&str>,
) -> Result<(), BuildError> {
    let below = |path: &str| format!("{}/{path}", directory.trim_end_matches('/'));
    let directories = context::directories(context, selected).await?;
    let replaced = match machine.stat(directory).await? {
        Some(_) => existing(machine, directory, &directories).await?,
        None => {
            // Else the first archive's owner would get it.
            machine.make_dir_of(directory, Some(owner_of(owner, "")), UNPACK_WAIT).await?;
            Vec::new()
        }
    };
    for archive in &selected.archives {
        let content = context.read(&archive.path).await?;
        machine.unpack_of(directory, owner_of(owner, &archive.owner), content, UNPACK_WAIT).await?;
    }
    for entry in replaced {
        let (user, group) = match owner_of(owner, &entry.owner).split_once(':') {
            Some((user, group)) => (user.to_owned(), group.to_owned()),
            None => ids_of(machine, owner_of(owner, &entry.owner)).await?,
        };
        let attributes = SetAttributes {
            mode: Some(format!("{:04o}", entry.mode)),
            user: Some(user),
            group: Some(group),
            ..SetAttributes::default()
        };
        machine.set_attributes(&below(&entry.path), &attributes).await?;
    }
    for (path, mode) in &selected.special {
        machine.set_mode(&below(path), *mode).await?;
    }
    Ok(())
}

/// The wanted owner, else the one in an archive, else root.
fn owner_of<'a>(wanted: Option<&'a str>, own: &'a str) -> &'a str {
    wanted.unwrap_or(if own.is_empty() { "0:0" } else { own })
}

/// Numbers of a user and its own group: those of a directory that is made for it.
async fn ids_of(machine: &Machine, user: &str) -> Result<(String, String), BuildError> {
    machine.make_dir_of(OWNED_DIR, Some(user), UNPACK_WAIT).await?;
    let made = machine.stat(OWNED_DIR).await?;
    machine.remove(OWNED_DIR, UNPACK_WAIT).await?;
    let made = made.ok_or_else(|| BuildError::new(format!("the owner `{user}` cannot be looked up")))?;
    Ok((made.uid.to_string(), made.gid.to_string()))
}

/// The copied directories that exist at the destination. Unpacking does not change them, but a copy sets
/// their mode and owner, as if they were new.
async fn existing<'a>(
    machine: &Machine,
    directory: &str,
    copied: &'a [CopiedDir],
) -> Result<Vec<&'a CopiedDir>, BuildError> {
    let (mut found, mut missing) = (Vec::new(), HashSet::new());
    for entry in copied {
        let above = entry.path.rsplit_once('/').map(|(above, _)| above);
        let is_there = above.is_none_or(|above| !missing.contains(above))
            && machine
                .stat(&format!("{}/{}", directory.trim_end_matches('/'), entry.path))
                .await?
                .is_some_and(|entry| entry.is_dir && entry.link_target.is_none());
        match is_there {
            true => found.push(entry),
            false => {
                missing.insert(entry.path.as_str());
            }
        }
    }
    Ok(found)
}

/// Copies the sources of another stage into the context machine.
async fn fetch_sources(
    build: &Build<'_>,
    context: &Machine,
    other: &mut Head,
    stage: usize,
    sources: &[String],
) -> Result<String, BuildError> {
    let machine = other.machine(build).await?;
    let mut root = String::new();
    for source in sources {
        // The part before the first pattern is a directory.
        let parts: Vec<&str> = source.split('/').filter(|part| !part.is_empty()).collect();
        let fixed =
            parts.iter().take_while(|part| !part.contains(['*', '?', '['])).copied().collect::<Vec<_>>();
        root = context::copy_tree(context, machine, stage, &format!("/{}", fixed.join("/"))).await?;
    }
    Ok(root)
}

/// A copy instruction, with variables expanded.
struct CopySpec {
    add: bool,
    from: Option<String>,
    sources: Vec<String>,
    urls: Vec<String>,
    /// Expected digest of the file at the URL.
    checksum: Option<String>,
    heredocs: Vec<(String, String)>,
    exclude: Vec<String>,
    parents: bool,
    keep_links: bool,
    owner: Option<String>,
    mode: Option<u32>,
    /// Absolute; with a slash at its end if it was written so.
    dest: String,
    slash: bool,
}

impl CopySpec {
    fn of(scope: &Scope, step: &CopyStep) -> Result<Self, BuildError> {
        let sources = scope.expand_all(&step.sources)?;
        let (urls, sources): (Vec<String>, Vec<String>) = sources.into_iter().partition(|one| is_url(one));
        if let Some(url) = urls.iter().find(|url| !step.add || !is_fetched(url)) {
            let hint = if step.add { "fetch it with RUN" } else { "use ADD, or fetch it with RUN" };
            return Err(BuildError::new(format!("cannot copy from `{url}`; {hint}")));
        }
        let checksum = step.checksum.as_ref().map(|sum| scope.expand(sum)).transpose()?;
        if let Some(sum) = checksum.as_ref().filter(|sum| !sum.starts_with("sha256:")) {
            return Err(BuildError::new(format!("--checksum={sum} is not a digest, such as sha256:...")));
        }
        if checksum.is_some() && (urls.len() != 1 || !sources.is_empty()) {
            return Err(BuildError::new("--checksum needs one URL, and no other source"));
        }
        let mut heredocs = Vec::new();
        for heredoc in &step.heredocs {
            let body = if heredoc.expand { scope.expand_text(&heredoc.body)? } else { heredoc.body.clone() };
            heredocs.push((heredoc.name.clone(), body));
        }
        let mode = step.chmod.as_ref().map(|mode| scope.expand(mode)).transpose()?;
        let mode = mode.map(|mode| match u32::from_str_radix(&mode, 8) {
            Ok(bits) if bits <= 0o7777 => Ok(bits),
            _ => Err(BuildError::new(format!("--chmod={mode} is not an octal mode, such as 755"))),
        });
        let dest = scope.expand(&step.dest)?;
        Ok(Self {
            from: step.from.clone(),
            add: step.add,
            checksum,
            sources,
            urls,
            heredocs,
            exclude: scope.expand_all(&step.exclude)?,
            parents: step.parents,
            keep_links: step.keep_links,
            owner: step.chown.as_ref().map(|owner| scope.expand(owner)).transpose()?.map(machines::owner_of),
            mode: mode.transpose()?,
            slash: dest.ends_with('/') || dest == "." || dest.ends_with("/."),
            dest: scope.absolute(&dest),
        })
    }

    fn dest_is_dir(&self) -> bool {
        self.slash
            || self.dest == "/"
            || self.sources.len() + self.urls.len() + self.heredocs.len() > 1
            || self.parents
    }

    /// Everything that the result depends on, besides the files, whose sum tells a link from what it leads
    /// to.
    fn described(&self) -> impl Serialize + use<'_> {
        let files = (&self.sources, &self.urls, &self.exclude, &self.heredocs, self.add);
        (files, &self.from, &self.dest, &self.owner, self.mode, self.slash, self.parents)
    }

    fn selection(&self, root: &str, dest_is_dir: bool, out: &str) -> Selection {
        Selection {
            root: root.to_owned(),
            is_context: self.from.is_none(),
            sources: self.sources.clone(),
            urls: self.urls.clone(),
            checksum: self.checksum.clone(),
            unpack: self.add,
            scratch: ADDED_DIR.to_owned(),
            heredocs: self.heredocs.clone(),
            exclude: self.exclude.clone(),
            parents: self.parents,
            keep_links: self.keep_links,
            preserve: (self.from.is_some() || self.add) && self.owner.is_none(),
            mode: self.mode,
            dest_is_dir,
            file_name: self.dest.rsplit('/').next().unwrap_or_default().to_owned(),
            out: out.to_owned(),
        }
    }
}

fn is_url(source: &str) -> bool {
    source.contains("://") || source.starts_with("git@")
}

/// Whether a URL means a file, not a repository.
fn is_fetched(url: &str) -> bool {
    let is_repository = url.split(['#', '?']).next().is_some_and(|path| path.ends_with(".git"));
    (url.starts_with("https://") || url.starts_with("http://")) && !is_repository
}

#[cfg(test)]
mod tests {
    use pandastack_dockerfile::Instruction;
    use pandastack_types::api::ImageConfig;

    use super::*;

    fn wanted(line: &str) -> CopySpec {
        parsed(line).unwrap()
    }

    fn parsed(line: &str) -> Result<CopySpec, BuildError> {
        let file = pandastack_dockerfile::parse(&format!("FROM base\n{line}\n")).unwrap();
        let Instruction::Copy(step) = &file.stages[0].steps[0].instruction else { panic!("{line}") };
        let mut config = ImageConfig::default();
        config.env.insert("NAME".to_owned(), "panda".to_owned());
        CopySpec::of(&Scope::new(config, file.escape), step)
    }

    #[test]
    fn only_add_fetches_and_only_files() {
        let url = "https://a.test/$NAME.tar.gz";
        assert_eq!(wanted(&format!("ADD {url} b /x/")).urls, ["https://a.test/panda.tar.gz"]);
        assert_eq!(
            wanted(&format!("ADD --checksum=sha256:00 {url} /x")).checksum.as_deref(),
            Some("sha256:00")
        );
        for (line, part) in [
            ("COPY https://a.test/b /x", "use ADD"),
            ("ADD https://a.test/b.git#main /x", "fetch it with RUN"),
            ("ADD git@a.test:b /x", "fetch it with RUN"),
            ("ADD file:///etc/passwd /x", "fetch it with RUN"),
            ("ADD --checksum=md5:00 https://a.test/b /x", "is not a digest"),
            ("ADD --checksum=sha256:00 https://a.test/b c /x/", "one URL"),
        ] {
            let refused = parsed(line).err().unwrap();
            assert!(refused.message.contains(part), "{line}: {}", refused.message);
        }
    }

    #[test]
    fn copy_sources_and_options_are_distinguished() {
        let text = |line| serde_json::to_string(&wanted(line).described()).unwrap();
        assert_ne!(text("COPY --exclude=b a /x"), text("COPY a b /x"));
        assert_ne!(text("ADD a.tar /x"), text("COPY a.tar /x"));
        assert_ne!(text("COPY --chown=a x /y"), text("COPY --from=a x /y"));
        assert_eq!(text("COPY a /x"), text("COPY a /x"));
    }

    #[test]
    fn a_heredoc_keeps_its_quotes() {
        let step = wanted("COPY <<config.json /etc/\n{\"name\": \"$NAME\", \"it's\": true}\nconfig.json");
        assert_eq!(step.heredocs[0].1, "{\"name\": \"panda\", \"it's\": true}\n");
    }

    #[test]
    fn a_numeric_owner_implies_the_same_group() {
        for (given, expect) in [("65532", "65532:65532"), ("1:2", "1:2"), ("app", "app"), ("app:1", "app:1")]
        {
            assert_eq!(wanted(&format!("COPY --chown={given} a /x")).owner.as_deref(), Some(expect));
        }
    }
}
