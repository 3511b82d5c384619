//! A bucket of a test's own on loopback, gone with it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use url::Url;

/// Names a Python that has what `tests/e2e/python/requirements.txt` names; `cargo xtask test` sets it.
const PYTHON: &str = "PANDASTACK_TEST_PYTHON";
/// Names the emulator of Azure's store; `cargo xtask test` sets it.
const AZURITE: &str = "PANDASTACK_TEST_AZURITE";
/// The program, below the root of the repository. Tests of whole platforms use it too.
const PROGRAM: &str = "tests/e2e/python/bucket.py";

pub struct Bucket {
    pub url: Url,
    /// The store's variables in lower case, as the server passes them.
    pub settings: Vec<(String, String)>,
    program: Child,
}

impl Bucket {
    /// Starts a store of a kind (`s3`, `gs`, `az`), or prints why the test is skipped.
    pub fn start(kind: &str) -> Option<Self> {
        let needed: &[&str] = if kind == "az" { &[PYTHON, AZURITE] } else { &[PYTHON] };
        if let Some(missing) = needed.iter().find(|name| std::env::var_os(name).is_none()) {
            println!("skipped: no {kind}:// here ({missing} is not set; `cargo xtask test` brings one)");
            return None;
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut program = Command::new(std::env::var_os(PYTHON)?);
        program.arg(root.join(PROGRAM)).arg(kind).env("PYTHONDONTWRITEBYTECODE", "1");
        let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "{PROGRAM} {kind} ended before it served");
        let mut variables: BTreeMap<String, String> = serde_json::from_str(&line).unwrap();
        let url = variables.remove("PANDASTACK_BACKUPS").unwrap().parse().unwrap();
        let settings = variables.into_iter().map(|(name, value)| (name.to_lowercase(), value)).collect();
        Some(Self { url, settings, program })
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        // The server ends with its standard input.
        drop(self.program.stdin.take());
        let _ = self.program.wait();
    }
}
