//! The files that name a machine.
//!
//! They are overwritten in place rather than replaced or truncated: in both cases ext4 would write
//! the new blocks out at once, so every create would wait for the disk.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use pandastack_guest_proto::message::Identity;

use super::warnings::Warnings;
use crate::environment::GuestEnvironment;

/// Marks the line of `/etc/hosts` that is ours.
const HOSTS_MARK: &str = "# set by pandastack";

/// Host name, machine id and name servers.
pub(super) fn write_names(around: &GuestEnvironment, identity: &Identity, warnings: &mut Warnings) {
    let etc = around.root.join("etc");
    if let Some(name) = &identity.hostname {
        if around.is_machine {
            warnings.note("set the host name", nix::unistd::sethostname(name));
        }
        warnings.note("write /etc/hostname", overwrite(&etc.join("hostname"), &format!("{name}\n"), 0o644));
        let hosts = std::fs::read_to_string(etc.join("hosts")).unwrap_or_default();
        warnings.note("write /etc/hosts", overwrite(&etc.join("hosts"), &hosts_with(&hosts, name), 0o644));
    }
    if let Some(id) = &identity.machine_id {
        warnings.note("write /etc/machine-id", overwrite(&etc.join("machine-id"), &format!("{id}\n"), 0o444));
    }
    if !identity.dns.is_empty() {
        let servers: String = identity.dns.iter().map(|server| format!("nameserver {server}\n")).collect();
        warnings.note("write /etc/resolv.conf", write_resolv_conf(&etc.join("resolv.conf"), &servers));
    }
}

/// Writes files with facts about the machine for the programs in it.
pub(super) fn write_run_files(
    around: &GuestEnvironment,
    identity: &Identity,
    generation: u64,
    warnings: &mut Warnings,
) {
    let run = around.root.join("run/pandastack");
    warnings.note("make /run/pandastack", std::fs::create_dir_all(&run));
    let token = identity.token.as_ref().map_or("", |token| token.expose());
    warnings.note("write the token", overwrite(&run.join("token"), token, 0o600));
    warnings.note("write the sandbox id", overwrite(&run.join("sandbox_id"), &identity.sandbox_id, 0o644));
    // Last, because it makes warm interpreters read the others.
    warnings
        .note("write the generation", overwrite(&run.join("generation"), &format!("{generation}\n"), 0o644));
}

fn hosts_with(hosts: &str, name: &str) -> String {
    let mut text: String =
        hosts.lines().filter(|line| !line.ends_with(HOSTS_MARK)).flat_map(|line| [line, "\n"]).collect();
    if !hosts.split_whitespace().any(|word| word == "localhost") {
        text.insert_str(0, "127.0.0.1 localhost\n");
    }
    text.push_str(&format!("127.0.1.1 {name} {HOSTS_MARK}\n"));
    text
}

/// Images may have a link to a service that does not run here.
fn write_resolv_conf(path: &Path, servers: &str) -> io::Result<()> {
    if path.is_symlink() {
        std::fs::remove_file(path)?;
    }
    overwrite(path, servers, 0o644)
}

pub(super) fn overwrite(path: &Path, content: &str, mode: u32) -> io::Result<()> {
    if std::fs::read(path).is_ok_and(|old| old == content.as_bytes()) {
        return Ok(());
    }
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).mode(mode).open(path)?;
    file.write_all(content.as_bytes())?;
    let meta = file.metadata()?;
    if meta.len() > content.len() as u64 {
        file.set_len(content.len() as u64)?;
    }
    if meta.permissions().mode() & 0o777 != mode {
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etc_hosts_keeps_foreign_entries() {
        let first = hosts_with("127.0.0.1 localhost\n10.0.0.1 db\n", "one");
        assert_eq!(first, "127.0.0.1 localhost\n10.0.0.1 db\n127.0.1.1 one # set by pandastack\n");
        let second = hosts_with(&first, "two");
        assert_eq!(second, first.replace("one", "two"));
        assert_eq!(hosts_with("", "x"), "127.0.0.1 localhost\n127.0.1.1 x # set by pandastack\n");
    }

    #[test]
    fn overwriting_removes_all_old_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for content in ["a long first content", "short", "", "longer again"] {
            overwrite(&path, content, 0o600).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
}
