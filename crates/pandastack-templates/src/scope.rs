//! Variables and configuration of a stage, as its instructions change them. Pure.

use std::collections::BTreeMap;

use pandastack_dockerfile::{Command, ExpandError, Healthcheck, Instruction, expand};
use pandastack_types::api::ImageConfig;

/// Where programs are looked for when nothing else is said.
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

/// What instructions of a stage see and change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    /// What the image says.
    pub(crate) config: ImageConfig,
    /// `ARG`s that are declared here, with their values.
    args: BTreeMap<String, String>,
    escape: Option<char>,
}

/// `ARG`s before the first `FROM`, and what the caller gave.
#[derive(Debug, Clone, Default)]
pub(crate) struct Globals {
    pub(crate) declared: BTreeMap<String, String>,
    pub(crate) given: BTreeMap<String, String>,
    pub(crate) escape: Option<char>,
}

impl Globals {
    /// Evaluates the `ARG`s before the first `FROM`.
    pub(crate) fn declare(&mut self, args: &[(String, Option<String>)]) -> Result<(), ExpandError> {
        for (name, default) in args {
            let value = match self.given.get(name) {
                Some(given) => Some(given.clone()),
                None => default.as_ref().map(|text| self.expand(text)).transpose()?,
            };
            if let Some(value) = value {
                self.declared.insert(name.clone(), value);
            }
        }
        Ok(())
    }

    /// Expands what a `FROM` says.
    pub(crate) fn expand(&self, text: &str) -> Result<String, ExpandError> {
        expand(text, self.escape.unwrap_or('\\'), &|name| match name {
            "TARGETPLATFORM" | "BUILDPLATFORM" => Some("linux/amd64".to_owned()),
            "TARGETARCH" | "BUILDARCH" => Some("amd64".to_owned()),
            "TARGETOS" | "BUILDOS" => Some("linux".to_owned()),
            name => self.declared.get(name).cloned(),
        })
    }
}

impl Scope {
    pub(crate) fn new(config: ImageConfig, escape: char) -> Self {
        Self { config, args: BTreeMap::new(), escape: Some(escape) }
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

    /// Expands several.
    pub(crate) fn expand_all(&self, texts: &[String]) -> Result<Vec<String>, ExpandError> {
        texts.iter().map(|text| self.expand(text)).collect()
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

    /// Does what an instruction says about configuration; false if it says something else.
    pub(crate) fn configure(&mut self, step: &Instruction, globals: &Globals) -> Result<bool, ExpandError> {
        match step {
            Instruction::Env(pairs) => {
                // All values of one instruction see what was before it.
                let before = self.clone();
                for (name, value) in pairs {
                    self.config.env.insert(before.expand(name)?, before.expand(value)?);
                }
            }
            Instruction::Arg(args) => self.declare(args, globals)?,
            Instruction::Label(pairs) => {
                for (name, value) in pairs {
                    let (name, value) = (self.expand(name)?, self.expand(value)?);
                    self.config.labels.insert(name, value);
                }
            }
            Instruction::User(user) => self.config.user = Some(self.expand(user)?),
            Instruction::Cmd(command) => self.config.cmd = Some(self.argv(command)),
            Instruction::Entrypoint(command) => {
                // The arguments that an image had belong to its own entrypoint.
                (self.config.entrypoint, self.config.cmd) = (Some(self.argv(command)), None);
            }
            Instruction::Expose(ports) => {
                for port in self.expand_all(ports)? {
                    if !self.config.ports.contains(&port) {
                        self.config.ports.push(port);
                    }
                }
            }
            Instruction::Volume(paths) => {
                let paths = self.expand_all(paths)?;
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
                self.args.insert(name.clone(), value);
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

    fn scope_after(text: &str, given: &[(&str, &str)]) -> Scope {
        let file = pandastack_dockerfile::parse(text).unwrap();
        let given = given.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let mut globals = Globals { given, ..Globals::default() };
        for step in &file.args {
            let Instruction::Arg(args) = &step.instruction else { panic!() };
            globals.declare(args).unwrap();
        }
        let mut scope = Scope::new(ImageConfig::default(), file.escape);
        for step in &file.stages[0].steps {
            scope.configure(&step.instruction, &globals).unwrap();
        }
        scope
    }

    #[test]
    fn variables_as_docker_evaluates_them() {
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
    fn an_arg_before_from_is_unknown_unless_it_is_declared_again() {
        let scope = scope_after("ARG V=1\nFROM base\nENV A=x$V\n", &[]);
        assert_eq!(scope.config.env["A"], "x");
    }

    #[test]
    fn directories_and_commands() {
        let scope = scope_after(
            "FROM base\nWORKDIR /a\nWORKDIR b/../c\nCMD echo hi\nSHELL [\"/bin/bash\", \"-c\"]\n\
             ENTRYPOINT run\n\
             EXPOSE 80 80 443\nUSER app:app\nMAINTAINER me\n",
            &[],
        );
        let config = &scope.config;
        assert_eq!(config.workdir.as_deref(), Some("/a/c"));
        assert_eq!(config.cmd, None, "an entrypoint drops the command");
        assert_eq!(config.entrypoint.clone().unwrap(), ["/bin/bash", "-c", "run"]);
        assert_eq!(
            (config.ports.clone(), config.user.as_deref()),
            (vec!["80".into(), "443".into()], Some("app:app"))
        );
        assert_eq!(config.labels["maintainer"], "me");
        assert_eq!((scope.absolute("../x"), scope.absolute("/../y/")), ("/a/x".to_owned(), "/y".to_owned()));
    }
}
