//! The files that a package installs, laid out as on the host.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::plan::{Release, product};
use crate::program::{program, read, run};
use crate::tree::root;

/// Completions: the shell, and the file in a package.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/pandastack"),
    ("zsh", "usr/share/zsh/vendor-completions/_pandastack"),
    ("fish", "usr/share/fish/vendor_completions.d/pandastack.fish"),
];
/// Files of the clone, and where a package has them.
const COPIES: [(&str, &str); 9] = [
    ("deploy/systemd/pandastack.service", "usr/lib/systemd/system/pandastack.service"),
    ("deploy/systemd/pandastack-control.service", "usr/lib/systemd/system/pandastack-control.service"),
    ("deploy/systemd/pandastack-agent.service", "usr/lib/systemd/system/pandastack-agent.service"),
    ("deploy/systemd/pandastack-edge.service", "usr/lib/systemd/system/pandastack-edge.service"),
    ("deploy/pandastack.toml", "etc/pandastack/pandastack.toml"),
    ("LICENSE", "usr/share/doc/pandastack/copyright"),
    ("README.md", "usr/share/doc/pandastack/README.md"),
    ("CHANGELOG.md", "usr/share/doc/pandastack/CHANGELOG.md"),
    ("SECURITY.md", "usr/share/doc/pandastack/SECURITY.md"),
];
const PROGRAM: &str = "usr/bin/pandastack";
const MAN_PAGES: &str = "usr/share/man/man1";

/// Lays out the files and returns their directory.
pub fn stage(release: &Release) -> Result<PathBuf> {
    let staged = release.work.join("root");
    install(&product(), &staged.join(PROGRAM), 0o755)?;
    let mut strip = program("strip");
    strip.arg("--strip-unneeded").arg(staged.join(PROGRAM));
    run(strip)?;
    for (from, to) in COPIES {
        install(&root().join(from), &staged.join(to), 0o644)?;
    }
    for (shell, to) in COMPLETIONS {
        let mut completion = program(product());
        completion.args(["completion", shell]);
        write(&staged.join(to), &read(completion)?)?;
    }
    let pages = staged.join(MAN_PAGES);
    let mut man_pages = program(product());
    man_pages.arg("man-pages").arg(&pages);
    run(man_pages)?;
    compress(&pages)?;
    Ok(staged)
}

pub fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let bytes = std::fs::read(from).with_context(|| format!("read {}", from.display()))?;
    make_parent(to)?;
    std::fs::write(to, bytes).with_context(|| format!("write {}", to.display()))?;
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(to, mode).with_context(|| format!("set the mode of {}", to.display()))
}

pub fn write(to: &Path, text: &str) -> Result<()> {
    make_parent(to)?;
    std::fs::write(to, text).with_context(|| format!("write {}", to.display()))
}

fn make_parent(path: &Path) -> Result<()> {
    let parent = path.parent().unwrap_or(path);
    std::fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))
}

/// Compresses every page, as Debian requires, without an embedded name and time.
fn compress(pages: &Path) -> Result<()> {
    let listed = std::fs::read_dir(pages).with_context(|| format!("list {}", pages.display()))?;
    let mut gzip = program("gzip");
    gzip.args(["-9", "-n"]);
    for page in listed {
        gzip.arg(page.context("list manual pages")?.path());
    }
    run(gzip)
}
