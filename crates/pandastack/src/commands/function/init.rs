//! `pandastack fn init`: creates a starter function.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::failure::Failure;
use crate::output::Output;

/// Starter functions.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Kind {
    /// Python event handler
    Python,
    /// Python HTTP handler
    PythonHttp,
    /// Node.js event handler
    Node,
    /// Node.js HTTP handler with the `fetch` API
    NodeHttp,
}

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory to create the function in
    #[arg(default_value = ".")]
    directory: PathBuf,
    /// Starter to use
    #[arg(long, value_enum, default_value = "python")]
    template: Kind,
}

const PYTHON: &str = r#"def handler(event, context):
    """Called with the event of each call; the return value is the JSON response."""
    name = (event or {}).get("name", "world")
    print(f"greeting {name}")
    return {"message": f"Hello, {name}!"}
"#;

const PYTHON_HTTP: &str = r#"def fetch(request):
    """Called with each HTTP request: method, path, query, headers, body, text(), json()."""
    name = request.query.get("name", "world")
    return {"message": f"Hello, {name}!", "path": request.path}
"#;

const NODE: &str = r#"// Called with the event of each call; the return value is the JSON response.
export async function handler(event, context) {
  const name = event?.name ?? "world";
  console.log(`greeting ${name}`);
  return { message: `Hello, ${name}!` };
}
"#;

const NODE_HTTP: &str = r#"// Called with each HTTP request.
export default {
  async fetch(request) {
    const name = new URL(request.url).searchParams.get("name") ?? "world";
    return Response.json({ message: `Hello, ${name}!` });
  },
};
"#;

impl Kind {
    fn files(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Kind::Python => &[("main.py", PYTHON), ("requirements.txt", "")],
            Kind::PythonHttp => &[("main.py", PYTHON_HTTP), ("requirements.txt", "")],
            Kind::Node => &[("index.mjs", NODE)],
            Kind::NodeHttp => &[("index.mjs", NODE_HTTP)],
        }
    }
}

/// Writes the files; never overwrites an existing one.
pub fn run(args: &Args, output: Output) -> Result<ExitCode> {
    let directory = &args.directory;
    std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    for (name, content) in args.template.files() {
        write_new(&directory.join(name), content)?;
        output.line(&directory.join(name).display().to_string())?;
    }
    eprintln!("to deploy it, run `pandastack fn deploy NAME {}`", directory.display());
    Ok(ExitCode::SUCCESS)
}

fn write_new(path: &Path, content: &str) -> Result<()> {
    use std::io::Write;
    let file = std::fs::File::options().write(true).create_new(true).open(path);
    let mut file = match file {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let failure = Failure::new(format!("{} already exists", path.display()));
            return Err(failure.hint("choose another directory or remove the file").into());
        }
        file => file.with_context(|| format!("cannot create {}", path.display()))?,
    };
    file.write_all(content.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}
