//! Dockerfiles of the usual kinds, and broken ones.

// A test that cannot continue fails; that is what these are for.
#![allow(clippy::unwrap_used)]

use pandastack_dockerfile::{Command, CopyStep, Dockerfile, Healthcheck, Instruction, RunStep, parse};

fn one(text: &str) -> Instruction {
    let file = parse(&format!("FROM base\n{text}\n")).unwrap();
    let [stage] = &file.stages[..] else { panic!("{file:?}") };
    let [step] = &stage.steps[..] else { panic!("{stage:?}") };
    assert_eq!(step.line, 2);
    step.instruction.clone()
}

fn run_text(text: &str) -> String {
    match one(text) {
        Instruction::Run(RunStep { command: Command::Shell(text), .. }) => text,
        other => panic!("{other:?}"),
    }
}

fn copied(text: &str) -> CopyStep {
    match one(text) {
        Instruction::Copy(copy) => copy,
        other => panic!("{other:?}"),
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

const PYTHON: &str = "\
# syntax=docker/dockerfile:1
FROM python:3.12-slim

# Dependencies first, for the cache.
WORKDIR /app
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY . .
ENV PYTHONUNBUFFERED=1 PORT=8000
EXPOSE 8000
USER nobody
CMD [\"python\", \"-m\", \"app\"]
";

#[test]
fn a_python_dockerfile_is_parsed() {
    let file = parse(PYTHON).unwrap();
    assert_eq!(
        (file.stages.len(), file.stages[0].line, file.stages[0].from.as_str()),
        (1, 2, "python:3.12-slim")
    );
    let steps = &file.stages[0].steps;
    let lines: Vec<usize> = steps.iter().map(|step| step.line).collect();
    assert_eq!(lines, [5, 6, 7, 8, 9, 10, 11, 12]);
    assert_eq!(steps[2].text, "RUN pip install --no-cache-dir -r requirements.txt");
    let env = [("PYTHONUNBUFFERED", "1"), ("PORT", "8000")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(steps[4].instruction, Instruction::Env(env.to_vec()));
    assert_eq!(steps[7].instruction, Instruction::Cmd(Command::Exec(words(&["python", "-m", "app"]))));
}

#[test]
fn a_two_stage_node_dockerfile_is_parsed() {
    let file = parse(
        "ARG NODE=20\nFROM node:${NODE} AS Build\nARG NODE\nRUN npm ci && npm run build\n\
         FROM nginx\nCOPY --from=build --chown=www:www /app/dist /usr/share/nginx/html\n",
    )
    .unwrap();
    assert_eq!(file.args.len(), 1);
    assert_eq!(file.stages[0].name.as_deref(), Some("build"));
    assert_eq!((file.stage("BUILD"), file.stage("1"), file.stage("2")), (Some(0), Some(1), None));
    let Instruction::Copy(copy) = &file.stages[1].steps[0].instruction else { panic!() };
    assert_eq!((copy.from.as_deref(), copy.chown.as_deref()), (Some("build"), Some("www:www")));
    assert_eq!((copy.sources.clone(), copy.dest.as_str()), (words(&["/app/dist"]), "/usr/share/nginx/html"));
}

#[test]
fn images_to_copy_from_are_listed_once_and_stages_are_not() {
    let file = parse(
        "FROM base AS one\nCOPY --from=nginx:1.27 /a /b\nCOPY --from=later a b\nCOPY --from=7 a b\n\
         FROM base AS later\nCOPY --from=ONE a b\nCOPY --from=nginx:1.27 /c /d\nCOPY --from=team/app a b\n",
    )
    .unwrap();
    let images = file.copied_images();
    let shown: Vec<_> = images.iter().map(|(image, step)| (*image, step.line)).collect();
    assert_eq!(shown, [("nginx:1.27", 2), ("team/app", 8)]);
    let copies: String = (0..50).map(|number| format!("COPY --from=image{number} a b\n")).collect();
    let refused = parse(&format!("FROM base\n{copies}")).unwrap_err();
    assert!(refused.message.contains("more than 50 stages and images"), "{refused}");
    assert_eq!(refused.line, 51);
    assert!(parse("FROM base\nCOPY --from=$A a b\n").unwrap_err().message.contains("cannot have variables"));
}

#[test]
fn a_scratch_go_dockerfile_is_parsed() {
    let file = parse(
        "FROM --platform=$BUILDPLATFORM golang AS build\nRUN CGO_ENABLED=0 go build -o /out/app ./cmd\n\
         FROM scratch\nCOPY --from=build /out/app /app\nENTRYPOINT [\"/app\"]\n",
    )
    .unwrap();
    assert_eq!(file.stages[0].platform.as_deref(), Some("$BUILDPLATFORM"));
    assert_eq!((file.stages[1].from.as_str(), file.stages[1].line), ("scratch", 3));
}

#[test]
fn a_run_with_continuations_and_comments_is_joined() {
    let text = run_text(
        "RUN apt-get update && \\\n    # why not\n\n    apt-get install -y curl \\\n  \
         && rm -rf /var/lib/apt/lists/*",
    );
    assert_eq!(text, "apt-get update &&     apt-get install -y curl   && rm -rf /var/lib/apt/lists/*");
}

#[test]
fn line_numbers_are_correct_after_a_continued_instruction() {
    let file = parse("FROM base\nRUN a \\\n b\n\nRUN c\n").unwrap();
    assert_eq!(file.stages[0].steps.iter().map(|step| step.line).collect::<Vec<_>>(), [2, 5]);
}

#[test]
fn heredocs() {
    assert_eq!(run_text("RUN <<EOF\nset -e\necho a\nEOF"), "set -e\necho a\n");
    assert_eq!(run_text("RUN <<-EOF\n\techo a\n\tEOF"), "echo a\n");
    assert_eq!(run_text("RUN python3 <<'PY' > /out\nprint(1)\nPY"), "python3 <<'PY' > /out\nprint(1)\nPY\n");
    assert!(
        run_text("RUN <<EOF\n#!/usr/bin/env python3\nprint(1)\nEOF").contains("<<'PANDASTACK_SCRIPT'\n#!")
    );
    assert_eq!(run_text("RUN echo $((1 << 2)) '<<A'"), "echo $((1 << 2)) '<<A'");
    assert_eq!(run_text("RUN cat <<< text"), "cat <<< text");
    let two = copied("COPY <<a.txt <<\"b.txt\" /dir/\n$X\na.txt\n$Y\nb.txt");
    assert_eq!((two.sources.len(), two.dest.as_str()), (0, "/dir/"));
    let [a, b] = &two.heredocs[..] else { panic!("{two:?}") };
    assert_eq!((a.name.as_str(), a.body.as_str(), a.expand), ("a.txt", "$X\n", true));
    assert_eq!((b.name.as_str(), b.body.as_str(), b.expand), ("b.txt", "$Y\n", false));
}

#[test]
fn copies() {
    let globs = copied("COPY --chmod=0755 --exclude=*.md package*.json src/ ./");
    assert_eq!((globs.sources, globs.dest.as_str()), (words(&["package*.json", "src/"]), "./"));
    assert_eq!((globs.chmod.as_deref(), globs.exclude), (Some("0755"), words(&["*.md"])));
    let spaces = copied("COPY [\"a file\", \"/to here/\"]");
    assert_eq!((spaces.sources, spaces.dest.as_str()), (words(&["a file"]), "/to here/"));
    assert!(copied("ADD app.tar.gz /app").add);
    assert!(copied("COPY --link --parents a/b /c").parents);
}

#[test]
fn variables() {
    let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
    assert_eq!(one("ENV OLD the rest  of it"), Instruction::Env(vec![pair("OLD", "the rest  of it")]));
    assert_eq!(
        one("ENV A=1 B=\"two words\" C=$A"),
        Instruction::Env(vec![pair("A", "1"), pair("B", "\"two words\""), pair("C", "$A")])
    );
    assert_eq!(
        one("ARG ONE TWO=2"),
        Instruction::Arg(vec![("ONE".to_owned(), None), ("TWO".to_owned(), Some("2".to_owned()))])
    );
    assert_eq!(
        one("LABEL org.title=\"x y\" a=b"),
        Instruction::Label(vec![pair("org.title", "\"x y\""), pair("a", "b")])
    );
}

#[test]
fn commands() {
    assert_eq!(one("CMD python app.py"), Instruction::Cmd(Command::Shell("python app.py".to_owned())));
    assert_eq!(one("CMD []"), Instruction::Cmd(Command::Exec(vec![])));
    assert_eq!(one("ENTRYPOINT [ ]"), Instruction::Entrypoint(Command::Exec(vec![])));
    assert_eq!(one("CMD [not json"), Instruction::Cmd(Command::Shell("[not json".to_owned())));
    assert_eq!(one("ENTRYPOINT --version"), Instruction::Entrypoint(Command::Shell("--version".to_owned())));
    assert_eq!(one("SHELL [\"/bin/bash\", \"-c\"]"), Instruction::Shell(words(&["/bin/bash", "-c"])));
    assert_eq!(
        one("run echo a"),
        Instruction::Run(RunStep {
            command: Command::Shell("echo a".to_owned()),
            mounts: vec![],
            network: None,
        })
    );
    let Instruction::Run(run) = one("RUN --mount=type=secret,id=k --network=none make") else { panic!() };
    assert_eq!((run.mounts, run.network.as_deref()), (words(&["type=secret,id=k"]), Some("none")));
    assert_eq!(
        one("HEALTHCHECK --interval=5s CMD curl -f http://localhost/"),
        Instruction::Healthcheck(Healthcheck::Command {
            command: Command::Shell("curl -f http://localhost/".to_owned()),
            flags: words(&["--interval=5s"]),
        })
    );
    assert_eq!(one("HEALTHCHECK none"), Instruction::Healthcheck(Healthcheck::None));
    assert_eq!(one("VOLUME /a /b"), Instruction::Volume(words(&["/a", "/b"])));
    assert_eq!(one("EXPOSE 80/tcp 443"), Instruction::Expose(words(&["80/tcp", "443"])));
}

#[test]
fn a_custom_escape_character_and_crlf_are_parsed() {
    let file = parse("# escape=`\r\nFROM base\r\nRUN dir `\r\n  C:\\\r\nWORKDIR C:\\x\r\n").unwrap();
    assert_eq!(file.escape, '`');
    assert_eq!(file.stages[0].steps[0].text, "RUN dir   C:\\");
    assert_eq!(file.stages[0].steps[1].instruction, Instruction::Workdir("C:\\x".to_owned()));
    assert_eq!(parse("\u{feff}FROM base\n").unwrap().stages.len(), 1);
}

#[test]
fn errors_name_the_line() {
    for (text, line, part) in [
        ("", 1, "no FROM"),
        ("# only\n", 1, "no FROM"),
        ("RUN a\nFROM base\n", 1, "before the first FROM"),
        ("FROM base\n\nFOO bar\n", 3, "unknown instruction `FOO`"),
        ("FROM base\nFOO\n", 2, "unknown instruction `FOO`"),
        ("FROM base\nRUN\n", 2, "RUN has no argument"),
        ("FROM base\nRUN []\n", 2, "RUN has no command"),
        ("FROM base\nONBUILD RUN a\n", 2, "ONBUILD is not supported"),
        ("FROM base\nCOPY a\n", 2, "needs a source and a destination"),
        ("FROM base\nCOPY --nope=1 a b\n", 2, "flag `--nope=1` is not supported"),
        ("FROM base\nWORKDIR --x /a\n", 2, "WORKDIR has no flag"),
        ("FROM base\nENV A\n", 2, "ENV A=VALUE"),
        ("FROM base\nENV A=1 B\n", 2, "`B` in ENV is not KEY=VALUE"),
        ("FROM base\nARG a-b\n", 2, "not a valid ARG name"),
        ("FROM base\nSHELL sh -c\n", 2, "SHELL takes a JSON array"),
        ("FROM base\nHEALTHCHECK curl\n", 2, "HEALTHCHECK takes"),
        ("FROM base\nRUN <<EOF\necho\n", 2, "heredoc `EOF` has no end"),
        ("FROM a b\n", 1, "FROM takes one image"),
        ("FROM a AS 1x\n", 1, "not a valid stage name"),
        ("FROM a AS x\nFROM b AS X\n", 2, "already called `x`"),
        ("# escape=%\nFROM a\n", 1, "escape character"),
    ] {
        let error = parse(text).unwrap_err();
        assert_eq!(error.line, line, "{text:?}: {error}");
        assert!(error.message.contains(part), "{text:?}: {error}");
    }
    assert!(parse(&"#".repeat(2 << 20)).is_err());
}

#[test]
fn oversized_dockerfiles_are_rejected_quickly() {
    let many: String = (0..70_000).map(|number| format!("FROM a AS s{number}\n")).collect();
    let stages: String = (0..51).map(|number| format!("FROM a AS s{number}\n")).collect();
    // Without a bound, each of these takes minutes.
    let began = std::time::Instant::now();
    assert!(parse(&many).is_err());
    assert!(parse(&stages).unwrap_err().message.contains("more than 50 stages"));
    let steps = format!("FROM a\n{}", "ENV A=1\n".repeat(501));
    assert!(parse(&steps).unwrap_err().message.contains("more than 500 instructions"));
    assert!(parse(&"ENV A=1\n".repeat(500).replacen("ENV A=1", "FROM a", 1)).is_ok());
    assert!(parse(&format!("FROM a\nRUN {}", "a".repeat(128 << 10))).is_err());
    assert!(began.elapsed() < std::time::Duration::from_secs(5), "{:?}", began.elapsed());
}

/// Every prefix of every file, and files with bytes changed, are parsed or refused, and never more.
#[test]
fn arbitrary_dockerfiles_never_panic_the_parser() {
    let seeds =
        [PYTHON, "FROM base\nRUN <<-'E' cat\n\tä\n\tE\nENV A=\"ü\\\" $B\" C='\nCOPY [\"a\"] <<x ${y:-\n"];
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut dice = move |sides: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % sides as u64).unwrap()
    };
    let parts =
        ["<<", "\"", "'", "\\", "\n", "$", "${", "}", "[", "]", "ß", "--", "FROM", " ", "=", "#", "EOF"];
    for _ in 0..20_000 {
        let mut text: Vec<char> = seeds[dice(seeds.len())].chars().collect();
        for _ in 0..=dice(4) {
            let at = dice(text.len());
            let end = (at + dice(5)).min(text.len());
            text.splice(at..end, parts[dice(parts.len())].chars());
        }
        let text: String = text.into_iter().collect();
        if let Ok(Dockerfile { stages, escape, .. }) = parse(&text) {
            for step in stages.iter().flat_map(|stage| &stage.steps) {
                let _ = pandastack_dockerfile::expand(&step.text, escape, &|_| None);
            }
        }
    }
}

#[test]
fn stages_and_images_of_mounts_are_named() {
    let text = "FROM base AS made\nFROM base\nRUN --mount=from=made,target=/a \
                --mount=type=bind,from=tools:1,target=/b --mount=type=cache,from=other,target=/c \
                --mount=type=bind,target=/d go\n";
    let file = parse(text).unwrap();
    assert_eq!(file.stages[1].steps[0].instruction.froms(), ["made", "tools:1"]);
    let images: Vec<&str> = file.copied_images().into_iter().map(|(image, _)| image).collect();
    assert_eq!(images, ["tools:1"]);
    let refused = parse("FROM base\nRUN --mount=type=bind,from=$A,target=/a go\n").unwrap_err();
    assert!(refused.message.contains("from=$A cannot have variables"), "{refused}");
}
