//! One logical line as an instruction.

use std::collections::HashSet;

use crate::ParseError;
use crate::froms::bound_from;
use crate::lines::LogicalLine;
use crate::words::split;

/// A command, as `RUN`, `CMD` and `ENTRYPOINT` take it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Text for the shell.
    Shell(String),
    /// A program and its arguments, written as a JSON array.
    Exec(Vec<String>),
}

/// A here-document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heredoc {
    /// Delimiter, which also ends it.
    pub name: String,
    /// Whether variables in the body are expanded; not if the name is quoted.
    pub expand: bool,
    /// Whether leading tabs are removed (`<<-`).
    pub strip_tabs: bool,
    /// Text of the body.
    pub body: String,
}

/// `RUN`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunStep {
    /// Command to run. Heredocs of the shell form are part of the text.
    pub command: Command,
    /// Values of `--mount`.
    pub mounts: Vec<String>,
    /// Value of `--network`.
    pub network: Option<String>,
}

/// `COPY` or `ADD`. Everything is unexpanded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopyStep {
    /// Whether this is `ADD`, which unpacks archives and fetches URLs.
    pub add: bool,
    /// Expected digest of what is fetched.
    pub checksum: Option<String>,
    /// Stage or image to copy from. Default: the build context.
    pub from: Option<String>,
    /// Owner.
    pub chown: Option<String>,
    /// Permissions.
    pub chmod: Option<String>,
    /// Patterns of excluded files.
    pub exclude: Vec<String>,
    /// Keep the parent directories of sources.
    pub parents: bool,
    /// Copy a source that is a link as a link. No flag of a Dockerfile sets this.
    pub keep_links: bool,
    /// Files, directories or patterns.
    pub sources: Vec<String>,
    /// Files whose content is in the Dockerfile.
    pub heredocs: Vec<Heredoc>,
    /// Destination.
    pub dest: String,
}

/// `HEALTHCHECK`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Healthcheck {
    /// `HEALTHCHECK NONE`.
    None,
    /// A command; the flags as written.
    Command {
        /// Command to run.
        command: Command,
        /// Such as `--interval=5s`.
        flags: Vec<String>,
    },
}

/// A parsed instruction. Values are unexpanded unless noted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Instruction {
    /// `RUN`: its text is for the shell, which expands it.
    Run(RunStep),
    /// `COPY` and `ADD`.
    Copy(CopyStep),
    /// `ENV`, in order.
    Env(Vec<(String, String)>),
    /// `ARG`, in order.
    Arg(Vec<(String, Option<String>)>),
    /// `LABEL`, in order.
    Label(Vec<(String, String)>),
    /// `WORKDIR`.
    Workdir(String),
    /// `USER`.
    User(String),
    /// `CMD`.
    Cmd(Command),
    /// `ENTRYPOINT`.
    Entrypoint(Command),
    /// `EXPOSE`.
    Expose(Vec<String>),
    /// `VOLUME`.
    Volume(Vec<String>),
    /// `SHELL`: the shell that runs the shell form.
    Shell(Vec<String>),
    /// `STOPSIGNAL`.
    StopSignal(String),
    /// `HEALTHCHECK`.
    Healthcheck(Healthcheck),
    /// `MAINTAINER`.
    Maintainer(String),
}

/// A parsed line: an instruction, or the beginning of a stage.
#[derive(Debug)]
pub(crate) enum Parsed {
    From { from: String, platform: Option<String>, name: Option<String> },
    Step(Instruction),
}

pub(crate) fn parse_line(line: LogicalLine, escape: char) -> Result<Parsed, ParseError> {
    let number = line.line;
    let (keyword, rest) = match line.text.split_once(char::is_whitespace) {
        Some((keyword, rest)) => (keyword.to_ascii_uppercase(), rest.trim().to_owned()),
        None => (line.text.to_ascii_uppercase(), String::new()),
    };
    let fail = |message: String| ParseError::new(number, message);
    if rest.is_empty() {
        return Err(fail(match KEYWORDS.contains(&keyword.as_str()) {
            true => format!("{keyword} has no argument"),
            false => unknown(&keyword),
        }));
    }
    let (flags, rest) = flags_of(&keyword, &rest);
    let takes_flags = matches!(keyword.as_str(), "FROM" | "RUN" | "COPY" | "ADD" | "HEALTHCHECK");
    if let (false, Some(flag)) = (takes_flags, flags.first()) {
        return Err(fail(format!("{keyword} has no flag `{flag}`")));
    }
    let step = match keyword.as_str() {
        "FROM" => return from(&flags, &rest).map_err(fail),
        "RUN" => run(&flags, &rest, line.heredocs).map(Instruction::Run),
        "COPY" | "ADD" => copy(&keyword, &flags, &rest, line.heredocs, escape).map(Instruction::Copy),
        "ENV" => pairs(&keyword, &rest, escape).map(Instruction::Env),
        "LABEL" => pairs(&keyword, &rest, escape).map(Instruction::Label),
        "ARG" => args(&rest, escape).map(Instruction::Arg),
        "WORKDIR" => Ok(Instruction::Workdir(rest)),
        "USER" => Ok(Instruction::User(rest)),
        "CMD" => Ok(Instruction::Cmd(command(&rest))),
        "ENTRYPOINT" => Ok(Instruction::Entrypoint(command(&rest))),
        "EXPOSE" => Ok(Instruction::Expose(split(&rest, escape))),
        "VOLUME" => Ok(Instruction::Volume(json_words(&rest).unwrap_or_else(|| split(&rest, escape)))),
        "SHELL" => match json_words(&rest).filter(|words| !words.is_empty()) {
            Some(words) => Ok(Instruction::Shell(words)),
            None => Err("SHELL takes a JSON array, such as SHELL [\"/bin/bash\", \"-c\"]".to_owned()),
        },
        "STOPSIGNAL" => Ok(Instruction::StopSignal(rest)),
        "HEALTHCHECK" => healthcheck(flags, &rest).map(Instruction::Healthcheck),
        "MAINTAINER" => Ok(Instruction::Maintainer(rest)),
        "ONBUILD" => {
            Err("ONBUILD is not supported; write the instruction in the Dockerfile that needs it".to_owned())
        }
        _ => Err(unknown(&keyword)),
    };
    step.map(Parsed::Step).map_err(fail)
}

const KEYWORDS: [&str; 18] = [
    "FROM",
    "RUN",
    "COPY",
    "ADD",
    "ENV",
    "LABEL",
    "ARG",
    "WORKDIR",
    "USER",
    "CMD",
    "ENTRYPOINT",
    "EXPOSE",
    "VOLUME",
    "SHELL",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "MAINTAINER",
    "ONBUILD",
];

fn unknown(keyword: &str) -> String {
    let shown: String = keyword.chars().take(40).collect();
    format!("unknown instruction `{shown}`")
}

/// The `--flags` at the beginning, and what follows them.
fn flags_of(keyword: &str, text: &str) -> (Vec<String>, String) {
    let mut flags = Vec::new();
    let mut rest = text.trim_start();
    // CMD --version is a command for the shell, not a flag.
    while rest.starts_with("--") && !matches!(keyword, "CMD" | "ENTRYPOINT") {
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (flag, after) = rest.split_at(end);
        if flag == "--" {
            break;
        }
        flags.push(flag.to_owned());
        rest = after.trim_start();
    }
    (flags, rest.to_owned())
}

/// A flag's name and value.
fn flag(text: &str) -> (&str, Option<&str>) {
    let text = text.trim_start_matches("--");
    text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)))
}

fn from(flags: &[String], rest: &str) -> Result<Parsed, String> {
    let mut platform = None;
    for given in flags {
        match flag(given) {
            ("platform", Some(value)) => platform = Some(value.to_owned()),
            _ => return Err(format!("FROM has no flag `{given}`")),
        }
    }
    let words: Vec<&str> = rest.split_whitespace().collect();
    let (from, name) = match words[..] {
        [from] => (from, None),
        [from, as_word, name] if as_word.eq_ignore_ascii_case("as") => {
            (from, Some(name.to_ascii_lowercase()))
        }
        _ => return Err("FROM takes one image and, after AS, a name".to_owned()),
    };
    let is_valid = |name: &String| {
        name.starts_with(|char: char| char.is_ascii_alphabetic())
            && name.chars().all(|char| char.is_ascii_alphanumeric() || "-_.".contains(char))
    };
    if let Some(name) = name.as_ref().filter(|name| !is_valid(name)) {
        return Err(format!("`{name}` is not a valid stage name; use letters, digits, `-`, `_` and `.`"));
    }
    Ok(Parsed::From { from: from.to_owned(), platform, name })
}

fn run(flags: &[String], rest: &str, heredocs: Vec<Heredoc>) -> Result<RunStep, String> {
    let (mut mounts, mut network) = (Vec::new(), None);
    for given in flags {
        match flag(given) {
            ("mount", Some(value)) => match bound_from(value).filter(|from| from.contains('$')) {
                Some(from) => {
                    return Err(format!("from={from} cannot have variables; name it by FROM ... AS"));
                }
                None => mounts.push(value.to_owned()),
            },
            ("network", Some(value)) => network = Some(value.to_owned()),
            ("security", Some("sandbox")) => {}
            _ => return Err(format!("RUN flag `{given}` is not supported")),
        }
    }
    if rest.is_empty() {
        return Err("RUN has no command".to_owned());
    }
    let command = match heredocs.as_slice() {
        [] => command(rest),
        // Just a heredoc: it is the script. With its first line as an interpreter, that runs it.
        [only] if is_just_heredoc(rest, only) => match only.body.starts_with("#!") {
            true => Command::Shell(script_file(&only.body)),
            false => Command::Shell(only.body.clone()),
        },
        all => {
            let mut text = rest.to_owned();
            for heredoc in all {
                text.push_str(&format!("\n{}{}", heredoc.body, heredoc.name));
            }
            Command::Shell(format!("{text}\n"))
        }
    };
    if command == Command::Exec(Vec::new()) {
        return Err("RUN has no command".to_owned());
    }
    Ok(RunStep { command, mounts, network })
}

fn is_just_heredoc(rest: &str, heredoc: &Heredoc) -> bool {
    let name = rest.trim_start_matches("<<").trim_start_matches('-').trim_matches(['"', '\'']);
    rest.starts_with("<<") && name == heredoc.name
}

/// Runs a script with an interpreter line: written to a file, run, removed.
fn script_file(body: &str) -> String {
    let mut end = "PANDASTACK_SCRIPT".to_owned();
    while body.lines().any(|line| line == end) {
        end.push('_');
    }
    format!(
        "f=$(mktemp) && cat > \"$f\" <<'{end}'\n{body}{end}\nchmod 700 \"$f\" && \"$f\"; c=$?; \
         rm -f \"$f\"; exit $c\n"
    )
}

fn copy(
    keyword: &str,
    flags: &[String],
    rest: &str,
    heredocs: Vec<Heredoc>,
    escape: char,
) -> Result<CopyStep, String> {
    let mut step = CopyStep { add: keyword == "ADD", ..CopyStep::default() };
    for given in flags {
        match (flag(given), step.add) {
            (("from", Some(value)), false) if value.contains('$') => {
                return Err(format!("--from={value} cannot have variables; name it by FROM ... AS"));
            }
            (("from", Some(value)), false) => step.from = Some(value.to_owned()),
            (("chown", Some(value)), _) => step.chown = Some(value.to_owned()),
            (("chmod", Some(value)), _) => step.chmod = Some(value.to_owned()),
            (("exclude", Some(value)), _) => step.exclude.push(value.to_owned()),
            (("checksum", Some(value)), true) => step.checksum = Some(value.to_owned()),
            (("parents", None | Some("true")), false) => step.parents = true,
            // Layers here are whole machines, so a link to an independent layer means a copy.
            (("link", None | Some("true" | "false")), _) => {}
            _ => return Err(format!("{keyword} flag `{given}` is not supported")),
        }
    }
    let mut words = json_words(rest).unwrap_or_else(|| split(rest, escape));
    let Some(dest) = words.pop().filter(|_| !words.is_empty()) else {
        return Err(format!("{keyword} needs a source and a destination"));
    };
    let names: HashSet<&str> = heredocs.iter().map(|heredoc| heredoc.name.as_str()).collect();
    let is_heredoc =
        |word: &String| word.starts_with("<<") && names.contains(word.trim_matches(['<', '-', '"', '\'']));
    words.retain(|word| !is_heredoc(word));
    step.sources = words;
    step.heredocs = heredocs;
    step.dest = dest;
    Ok(step)
}

/// `KEY=value` pairs, or the old form of one key and the rest of the line.
fn pairs(keyword: &str, rest: &str, escape: char) -> Result<Vec<(String, String)>, String> {
    let words = split(rest, escape);
    let first = words.first().map(String::as_str).unwrap_or_default();
    if !first.contains('=') {
        let Some((key, value)) = rest.split_once(char::is_whitespace) else {
            return Err(format!("{keyword} needs a value: {keyword} {rest}=VALUE"));
        };
        return Ok(vec![(key.to_owned(), value.trim().to_owned())]);
    }
    let pair = |word: &String| match word.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{word}` in {keyword} is not KEY=VALUE; quote values with spaces")),
    };
    words.iter().map(pair).collect()
}

fn args(rest: &str, escape: char) -> Result<Vec<(String, Option<String>)>, String> {
    let arg = |word: String| {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (word, None),
        };
        let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
        match !name.is_empty() && name.chars().all(is_name) {
            true => Ok((name, value)),
            false => Err(format!("`{name}` is not a valid ARG name")),
        }
    };
    split(rest, escape).into_iter().map(arg).collect()
}

fn healthcheck(flags: Vec<String>, rest: &str) -> Result<Healthcheck, String> {
    const FLAGS: [&str; 5] = ["interval", "timeout", "start-period", "start-interval", "retries"];
    if let Some(bad) = flags.iter().find(|given| !FLAGS.contains(&flag(given).0)) {
        return Err(format!("HEALTHCHECK has no flag `{bad}`"));
    }
    let (word, command_text) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    match word.to_ascii_uppercase().as_str() {
        "NONE" => Ok(Healthcheck::None),
        "CMD" if !["", "[]"].contains(&command_text.trim()) => {
            Ok(Healthcheck::Command { command: command(command_text.trim()), flags })
        }
        _ => Err("HEALTHCHECK takes NONE, or CMD and a command".to_owned()),
    }
}

/// The exec form if the text is a JSON array of strings, else the shell form. `[]` is an exec form, too: it
/// removes the command of an image.
fn command(text: &str) -> Command {
    match json_words(text) {
        Some(words) => Command::Exec(words),
        None => Command::Shell(text.to_owned()),
    }
}

fn json_words(text: &str) -> Option<Vec<String>> {
    text.starts_with('[').then(|| serde_json::from_str(text).ok()).flatten()
}
