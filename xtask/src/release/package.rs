//! The tarball and the Debian package.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};

use super::plan::{Release, product};
use super::tree;
use crate::program::{program, read, run};
use crate::tree::root;

/// Scripts of the Debian package.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Writes both.
pub fn write(release: &Release, staged: &Path) -> Result<()> {
    tarball(release, staged)?;
    debian(release, staged)
}

fn tarball(release: &Release, staged: &Path) -> Result<()> {
    let name = format!("pandastack-{}-linux-x86_64", release.version);
    let content = release.work.join("tarball").join(&name);
    copy(staged, &content)?;
    tree::install(&root().join("deploy/install.sh"), &content.join("install.sh"), 0o755)?;
    let packages = packages(&["--all"])?.join("\n") + "\n";
    tree::write(&content.join("packages.txt"), &packages)?;
    let target = release.out.join(format!("{name}.tar.gz"));
    let plain = release.work.join("tarball.tar");
    let mut tar = release.program("tar");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
    tar.arg(format!("--mtime=@{}", release.epoch)).arg("--file").arg(&plain);
    tar.arg("--directory").arg(release.work.join("tarball")).arg(&name);
    run(tar)?;
    let mut gzip = release.program("gzip");
    gzip.args(["-9", "-n", "--stdout"]).arg(&plain);
    gzip.stdout(File::create(&target).with_context(|| format!("create {}", target.display()))?);
    run(gzip)
}

fn debian(release: &Release, staged: &Path) -> Result<()> {
    let content = release.work.join("debian");
    copy(staged, &content)?;
    let installed = read({
        let mut du = program("du");
        du.args(["--summarize", "--apparent-size", "--block-size=1024"]).arg(&content);
        du
    })?;
    let installed = installed.split_whitespace().next().context("read what du printed")?;
    let control = control(&release.version, installed, &packages(&["--all"])?, &packages(&["--for-builds"])?);
    tree::write(&content.join("DEBIAN/control"), &control)?;
    tree::write(&content.join("DEBIAN/conffiles"), "/etc/pandastack/pandastack.toml\n")?;
    for script in SCRIPTS {
        let from = root().join("deploy/debian").join(script);
        tree::install(&from, &content.join("DEBIAN").join(script), 0o755)?;
    }
    let mut build = release.program("dpkg-deb");
    build.args(["--root-owner-group", "-Zxz", "--build"]).arg(&content).arg(&release.out);
    run(build)
}

fn control(version: &str, installed_kib: &str, needed: &[String], for_builds: &[String]) -> String {
    format!(
        "Package: pandastack\n\
         Version: {version}\n\
         Architecture: amd64\n\
         Maintainer: PandaStack maintainers <maintainers@pandastack.invalid>\n\
         Installed-Size: {installed_kib}\n\
         Depends: libc6 (>= 2.36), libgcc-s1, passwd, {}\n\
         Recommends: ca-certificates, {}\n\
         Section: admin\n\
         Priority: optional\n\
         Homepage: https://github.com/pandastack/pandastack\n\
         Description: microVM platform for untrusted code\n\
         \x20Sandboxes, apps, functions and PostgreSQL databases, each in its own virtual machine,\n\
         \x20which is forked from a running one in milliseconds.\n",
        needed.join(", "),
        for_builds.join(", "),
    )
}

/// Debian packages that the program lists.
fn packages(args: &[&str]) -> Result<Vec<String>> {
    let mut listed = program(product());
    listed.arg("host-packages").args(args);
    Ok(read(listed)?.lines().map(str::to_owned).collect())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().unwrap_or(to);
    std::fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    let mut cp = program("cp");
    cp.args(["--archive", "--no-target-directory"]).arg(from).arg(to);
    run(cp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_file_has_one_field_per_line() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let control = control("1.2.3", "42", &names(&["qemu-system-x86", "xfsprogs"]), &names(&["npm"]));
        let fields: Vec<&str> = control
            .lines()
            .filter(|line| !line.starts_with(' '))
            .filter_map(|line| line.split(": ").next())
            .collect();
        assert_eq!(fields.len(), 11);
        assert!(
            control.contains("\nDepends: libc6 (>= 2.36), libgcc-s1, passwd, qemu-system-x86, xfsprogs\n")
        );
        assert!(control.contains("\nRecommends: ca-certificates, npm\n") && control.ends_with(".\n"));
    }
}
