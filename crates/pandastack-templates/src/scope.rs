//! Variables and configuration of a stage, as its instructions change them. Pure.

use std::collections::BTreeMap;

use pandastack_dockerfile::{Command, ExpandError, Healthcheck, Instruction, expand, expand_text};
use pandastack_types::api::ImageConfig;

/// Default search path of programs.
pub(crate) const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const SHELL_DEFAULT: [&str; 2] = ["/bin/sh", "-c"];
/// `ARG`s that have a value, or may be given one, without being declared.
const PREDEFINED: [&str; 8] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "NO_PROXY",
    "no_proxy",
    "ALL_PROXY",
    "FTP_PROXY",
];

/// `ARG`s that describe the machines; a stage sees them once it declares them.
const PLATFORM: [(&str, &str); 8] = [
    ("BUILDPLATFORM", "linux/amd64"),
    ("BUILDOS", "linux"),
    ("BUILDARCH", "amd64"),
    ("BUILDVARIANT", ""),
    ("TARGETPLATFORM", "linux/amd64"),
    ("TARGETOS", "linux"),
    ("TARGETARCH", "amd64"),
    ("TARGETVARIANT", ""),
];
/// Bytes of all variables, labels, ports and volumes of a stage, and of the words of one instruction.
/// Beyond it: the build fails.
const SCOPE_BYTES_MAX: usize = 256 * 1024;

/// Variables and configuration that instructions of a stage read and change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    /// Process settings of the image.
    pub(crate) config: ImageConfig,
    /// `ARG`s that are declared here, with their values.
    args: BTreeMap<String, String>,
    escape: Option<char>,
    /// Bytes of variables, labels, ports and volumes.
    bytes: usize,
    /// `CMD` was set in this stage, so that its `ENTRYPOINT` keeps it.
    cmd_is_set: bool,
}

/// `ARG`s before the first `FROM`, and the caller's values.
#[derive(Debug, Clone, Default)]
pub(crate) struct Globals {
    pub(crate) declared: BTreeMap<String, String>,
    pub(crate) given: BTreeMap<String, String>,
    pub(crate) escape: Option<char>,
    bytes: usize,
}

/// Adds to the bytes of a scope, up to their limit.
fn charge(bytes: &mut usize, more: usize) -> Result<(), ExpandError> {
    *bytes += more;
    match *bytes > SCOPE_BYTES_MAX {
        true => Err(ExpandError::TooLong(SCOPE_BYTES_MAX)),
        false => Ok(()),
    }
}

/// Sets a variable or label and counts its bytes.
fn put(
    map: &mut BTreeMap<String, String>,
    bytes: &mut usize,
    name: String,
    value: String,
) -> Result<(), ExpandError> {
    let (name_bytes, value_bytes) = (name.len(), value.len());
    if let Some(before) = map.insert(name, value) {
        *bytes = bytes.saturating_sub(name_bytes + before.len());
    }
    charge(bytes, name_bytes + value_bytes)
}

impl Globals {
    /// Scope of a build: the caller's `ARG`s and the platform's own.
    pub(crate) fn new(given: BTreeMap<String, String>, escape: char) -> Self {
        let value = |(name, own): (&str, &str)| {
            let value = given.get(name).cloned().unwrap_or_else(|| own.to_owned());
            (name.to_owned(), value)
        };
        let declared = PLATFORM.map(value).into();
        Self { declared, given, escape: Some(escape), bytes: 0 }
    }

    /// Evaluates the `ARG`s before the first `FROM`.
    pub(crate) fn declare(&mut self, args: &[(String, Option<String>)]) -> Result<(), ExpandError> {
        for (name, default) in args {
            let value = match self.given.get(name) {
                Some(given) => Some(given.clone()),
                None => default.as_ref().map(|text| self.expand(text)).transpose()?,
            };
            if let Some(value) = value {
                put(&mut self.declared, &mut self.bytes, name.clone(), value)?;
            }
        }
        Ok(())
    }

    /// Expands the text of a `FROM`.
    pub(crate) fn expand(&self, text: &str) -> Result<String, ExpandError> {
        expand(text, self.escape.unwrap_or('\\'), &|name| self.declared.get(name).cloned())
    }
}

impl Scope {
    pub(crate) fn new(config: ImageConfig, escape: char) -> Self {
        let pairs = config.env.iter().chain(&config.labels).map(|(name, value)| name.len() + value.len());
        let words = config.ports.iter().chain(&config.volumes).map(String::len);
        let bytes = pairs.chain(words).sum();
        Self { config, args: BTreeMap::new(), escape: Some(escape), bytes, cmd_is_set: false }
    }

    /// The same for another stage that starts from this one.
    pub(crate) fn branch(&self) -> Self {
        Self { cmd_is_set: false, ..self.clone() }
    }

    /// The value of a variable: `ENV` before `ARG`.
    fn lookup(&self, name: &str) -> Option<String> {
        let known = self.config.env.get(name).or_else(|| self.args.get(name)).cloned();
        known.or_else(|| (name == "PATH").then(|| PATH_DEFAULT.to_owned()))
    }

    /// Expands a word.
    pub(crate) fn expand(&self, text: &str) -> Result<String, ExpandError> {
        expand(text, self.escape.unwrap_or('\\'), &|name| self.lookup(name))
    }

    /// Expands the text of a heredoc.
    pub(crate) fn expand_text(&self, text: &str) -> Result<String, ExpandError> {
        expand_text(text, &|name| self.lookup(name))
    }

    /// Expands several.
    pub(crate) fn expand_all(&self, texts: &[String]) -> Result<Vec<String>, ExpandError> {
        let mut bytes = 0;
        let expanded = |text: &String| {
            let word = self.expand(text)?;
            charge(&mut bytes, word.len()).map(|()| word)
        };
        texts.iter().map(expanded).collect()
    }

    /// The environment of a command: `ARG`s below `ENV`.
    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        let mut env = self.args.clone();
        env.extend(self.config.env.clone());
        env
    }

    /// A command as a program and its arguments.
    pub(crate) fn argv(&self, command: &Command) -> Vec<String> {
        match command {
            Command::Exec(words) => words.clone(),
            Command::Shell(text) => {
                let mut argv = self.config.shell.clone();
                if argv.is_empty() {
                    argv = SHELL_DEFAULT.map(str::to_owned).to_vec();
                }
                argv.push(text.clone());
                argv
            }
        }
    }

    /// Command that `CMD` or `ENTRYPOINT` sets; `[]` sets none.
    fn command(&self, command: &Command) -> Option<Vec<String>> {
        Some(self.argv(command)).filter(|argv| !argv.is_empty())
    }

    /// An absolute path: relative ones start at the working directory.
    pub(crate) fn absolute(&self, path: &str) -> String {
        let workdir = self.config.workdir.as_deref().unwrap_or("/");
        let joined = if path.starts_with('/') { path.to_owned() } else { format!("{workdir}/{path}") };
        let mut parts: Vec<&str> = Vec::new();
        for part in joined.split('/') {
            match part {
                "" | "." => {}
                ".." => drop(parts.pop()),
                part => parts.push(part),
            }
        }
        format!("/{}", parts.join("/"))
    }

    /// Applies a configuration instruction; returns `false` for any other instruction.
    pub(crate) fn configure(&mut self, step: &Instruction, globals: &Globals) -> Result<bool, ExpandError> {
        match step {
            Instruction::Env(pairs) => {
                // All values of one instruction see the variables from before it.
                let before = self.clone();
                for (name, value) in pairs {
                    let (name, value) = (before.expand(name)?, before.expand(value)?);
                    put(&mut self.config.env, &mut self.bytes, name, value)?;
                }
            }
            Instruction::Arg(args) => self.declare(args, globals)?,
            Instruction::Label(pairs) => {
                for (name, value) in pairs {
                    let (name, value) = (self.expand(name)?, self.expand(value)?);
                    put(&mut self.config.labels, &mut self.bytes, name, value)?;
                }
            }
            Instruction::User(user) => self.config.user = Some(self.expand(user)?),
            Instruction::Cmd(command) => {
                (self.config.cmd, self.cmd_is_set) = (self.command(command), true);
            }
            Instruction::Entrypoint(command) => {
                self.config.entrypoint = self.command(command);
                // The arguments that an image had belong to its own entrypoint; those of this stage stay.
                if !self.cmd_is_set {
                    self.config.cmd = None;
                }
            }
            Instruction::Expose(ports) => {
                for port in self.expand_all(ports)? {
                    let port = if port.contains('/') { port } else { port + "/tcp" };
                    if !self.config.ports.contains(&port) {
                        charge(&mut self.bytes, port.len())?;
                        self.config.ports.push(port);
                    }
                }
            }
            Instruction::Volume(paths) => {
                let paths = self.expand_all(paths)?;
                charge(&mut self.bytes, paths.iter().map(String::len).sum())?;
                self.config.volumes.extend(paths);
            }
            Instruction::Shell(words) => self.config.shell.clone_from(words),
            Instruction::StopSignal(signal) => self.config.stop_signal = Some(self.expand(signal)?),
            Instruction::Healthcheck(Healthcheck::None) => self.config.healthcheck = None,
            Instruction::Healthcheck(Healthcheck::Command { command, .. }) => {
                self.config.healthcheck = Some(self.argv(command));
            }
            Instruction::Maintainer(name) => {
                self.config.labels.insert("maintainer".to_owned(), name.clone());
            }
            Instruction::Workdir(path) => {
                let path = self.expand(path)?;
                self.config.workdir = Some(self.absolute(&path));
                return Ok(false);
            }
            Instruction::Run(_) | Instruction::Copy(_) => return Ok(false),
        }
        Ok(true)
    }

    fn declare(&mut self, args: &[(String, Option<String>)], globals: &Globals) -> Result<(), ExpandError> {
        for (name, default) in args {
            let given = globals.given.get(name).or_else(|| match default {
                Some(_) => None,
                None => globals.declared.get(name),
            });
            let value = match (given, default) {
                (Some(given), _) => Some(given.clone()),
                (None, Some(text)) => Some(self.expand(text)?),
                (None, None) => None,
            };
            if let Some(value) = value {
                put(&mut self.args, &mut self.bytes, name.clone(), value)?;
            }
        }
        Ok(())
    }

    /// Takes the `ARG`s that need no declaration.
    pub(crate) fn predefine(&mut self, globals: &Globals) {
        let given = globals.given.iter().filter(|(name, _)| PREDEFINED.contains(&name.as_str()));
        self.args.extend(given.map(|(name, value)| (name.clone(), value.clone())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn try_scope(text: &str, given: &[(&str, &str)]) -> Result<Scope, ExpandError> {
        let file = pandastack_dockerfile::parse(text).unwrap();
        let given = given.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let mut globals = Globals::new(given, file.escape);
        for step in &file.args {
            let Instruction::Arg(args) = &step.instruction else { panic!() };
            globals.declare(args)?;
        }
        let mut scope = Scope::new(ImageConfig::default(), file.escape);
        for step in &file.stages[0].steps {
            scope.configure(&step.instruction, &globals)?;
        }
        Ok(scope)
    }

    fn scope_after(text: &str, given: &[(&str, &str)]) -> Scope {
        try_scope(text, given).unwrap()
    }

    #[test]
    fn dockerfile_stage_expansion_is_limited() {
        let doubling = "ARG A=$A$A\n".repeat(36);
        let arg = format!("ARG A={}", "x".repeat(60_000));
        let wide = |word: &str, with: &str| {
            let words: String =
                (0..200).map(|number| format!(" {}", with.replace('#', &number.to_string()))).collect();
            format!("FROM base\n{arg}\n{word}{words}\n")
        };
        for text in [
            format!("ARG A=xxxxxxxxxxxxxxxx\n{doubling}FROM base\n"),
            format!("FROM base\nARG A=xxxxxxxxxxxxxxxx\n{doubling}"),
            format!("{arg}\nARG B=$A\nARG C=$A\nARG D=$A\nARG E=$A\nFROM base\n"),
            format!("FROM base\n{arg}\nENV B=$A\nENV C=$A\nENV D=$A\nENV E=$A\n"),
            wide("ENV", "K#=$A"),
            wide("LABEL", "K#=$A"),
            wide("VOLUME", "/#$A"),
            wide("EXPOSE", "#$A"),
        ] {
            let began = std::time::Instant::now();
            let refused = try_scope(&text, &[]);
            assert!(matches!(refused, Err(ExpandError::TooLong(_))), "{:.40}", text);
            assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:.40}", text);
        }
        let many = format!("FROM base\n{arg}\n{}", "ENV B=$A\n".repeat(400));
        assert!(try_scope(&many, &[]).is_ok(), "a variable that is set again is counted once");
    }

    #[test]
    fn platform_arguments_are_set_where_declared() {
        let scope =
            scope_after("FROM base\nARG TARGETARCH\nARG TARGETVARIANT\nENV A=$TARGETARCH-$TARGETOS\n", &[]);
        assert_eq!(scope.config.env["A"], "amd64-");
        assert_eq!(scope.environment()["TARGETVARIANT"], "");
        let globals = Globals::new(BTreeMap::new(), '\\');
        assert_eq!(globals.expand("$BUILDPLATFORM").as_deref(), Ok("linux/amd64"));
        let given = scope_after("FROM base\nARG TARGETARCH\n", &[("TARGETARCH", "arm64")]);
        assert_eq!(given.environment()["TARGETARCH"], "arm64");
    }

    #[test]
    fn an_entrypoint_drops_only_an_inherited_command() {
        let mut scope = scope_after("FROM base\nCMD [\"a\"]\nENTRYPOINT [\"b\"]\n", &[]);
        assert_eq!(scope.config.cmd.as_deref(), Some(&["a".to_owned()][..]));
        let entrypoint = Instruction::Entrypoint(Command::Exec(vec!["c".to_owned()]));
        let globals = Globals::new(BTreeMap::new(), '\\');
        scope = scope.branch();
        scope.configure(&entrypoint, &globals).unwrap();
        assert_eq!(scope.config.cmd, None);
        let reset = scope_after("FROM base\nCMD a\nENTRYPOINT b\nCMD []\nENTRYPOINT []\n", &[]);
        assert_eq!((reset.config.cmd, reset.config.entrypoint), (None, None));
    }

    #[test]
    fn variables_are_evaluated_like_docker() {
        let scope = scope_after(
            "ARG V=1\nFROM base\nARG V\nARG W=w$V\nENV A=$W PATH=/x:$PATH\nENV A=new B=$A\nARG A=arg\n",
            &[("W", "given")],
        );
        let env = scope.environment();
        assert_eq!((env["V"].as_str(), env["W"].as_str()), ("1", "given"));
        assert_eq!(
            (env["A"].as_str(), env["B"].as_str()),
            ("new", "given"),
            "B sees A as it was before its line"
        );
        assert_eq!(env["PATH"], format!("/x:{PATH_DEFAULT}"));
    }

    #[test]
    fn an_arg_before_from_is_unset_until_redeclared() {
        let scope = scope_after("ARG V=1\nFROM base\nENV A=x$V\n", &[]);
        assert_eq!(scope.config.env["A"], "x");
    }

    #[test]
    fn workdir_and_command_instructions_set_the_image_config() {
        let scope = scope_after(
            "FROM base\nWORKDIR /a\nWORKDIR b/../c\nCMD echo hi\nSHELL [\"/bin/bash\", \"-c\"]\n\
             ENTRYPOINT run\n\
             EXPOSE 80 80 443\nUSER app:app\nMAINTAINER me\n",
            &[],
        );
        let config = &scope.config;
        assert_eq!(config.workdir.as_deref(), Some("/a/c"));
        assert_eq!(config.cmd.clone().unwrap(), ["/bin/sh", "-c", "echo hi"]);
        assert_eq!(config.entrypoint.clone().unwrap(), ["/bin/bash", "-c", "run"]);
        assert_eq!(
            (config.ports.clone(), config.user.as_deref()),
            (vec!["80/tcp".into(), "443/tcp".into()], Some("app:app"))
        );
        assert_eq!(config.labels["maintainer"], "me");
        assert_eq!((scope.absolute("../x"), scope.absolute("/../y/")), ("/a/x".to_owned(), "/y".to_owned()));
    }
}
