//! `COPY` and `ADD`: files of the context or of another stage, selected and packed in the context machine.

use pandastack_dockerfile::CopyStep;
use pandastack_sandboxes::machine::Machine;
use serde::Serialize;

use crate::build::Build;
use crate::build_error::BuildError;
use crate::context::{self, CONTEXT_DIR, Selection};
use crate::key;
use crate::machines::{self, UNPACK_WAIT};
use crate::scope::Scope;
use crate::stage::Head;
use crate::step::Outcome;

/// Directory in which archives are packed.
const OUT_DIR: &str = "/srv/out";

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
    let root = match from {
        Some(stage) => {
            let mut other = build.take_head(stage)?;
            let brought = fetch_sources(build, &context, &mut other, stage, &wanted.sources).await;
            build.put_head(stage, other);
            brought?
        }
        None => CONTEXT_DIR.to_owned(),
    };
    let machine = head.machine(build).await?;
    let is_dir = wanted.dest_is_dir() || machine.stat(&wanted.dest).await?.is_some_and(|entry| entry.is_dir);
    let selected = context::select(&context, &wanted.selection(&root, is_dir, OUT_DIR)).await?;
    let directory = match is_dir || selected.is_tree {
        true => wanted.dest.clone(),
        false => wanted.dest.rsplit_once('/').map_or("/", |(above, _)| above).to_owned(),
    };
    let directory = if directory.is_empty() { "/".to_owned() } else { directory };
    for archive in &selected.archives {
        let owner = match (&wanted.owner, archive.owner.as_str()) {
            (Some(owner), _) => owner.as_str(),
            (None, "") => "0:0",
            (None, owner) => owner,
        };
        let content = context.read(&archive.path).await?;
        machine.unpack_of(&directory, owner, content, UNPACK_WAIT).await?;
    }
    for (path, mode) in &selected.special {
        let path = format!("{}/{path}", directory.trim_end_matches('/'));
        machine.set_mode(&path, *mode).await?;
    }
    if selected.archives.is_empty() {
        machine.make_dir_of(&wanted.dest, wanted.owner.as_deref(), build.time_left()?).await?;
    }
    head.save(build, &key, &format!("COPY {}", wanted.dest)).await?;
    head.key = key;
    Ok(Outcome::Ran)
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
    /// Digest of what the URL has.
    checksum: Option<String>,
    heredocs: Vec<(String, String)>,
    exclude: Vec<String>,
    parents: bool,
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

    /// Everything that the result depends on, besides the files.
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
