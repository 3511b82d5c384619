//! Feeds archived WAL to a server that is being restored.
//!
//! ```text
//!   in the machine: the server wants a file -> `take` names it in `asked`, waits until it is there, and copies it
//!   here:           reads `asked` -> removes unneeded files, sends that file and the next few -> repeats
//! ```
//!
//! Must hold: however long a log is, only [`AHEAD`] files of it are on the volume at once. A server
//! gets any file it requests, repeatedly and in any order: it begins with a checkpoint, which may
//! come after the position that it then starts from. Only files outside the restore are refused at
//! once, which is how the server learns that the log has ended; otherwise it would end too early.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::body::Body;
use pandastack_backup::Restore;
use pandastack_sandboxes::machine::Machine;
use pandastack_types::{Error, ErrorCode, Result};
use tokio::time::Instant;

use super::archives::failed;
use crate::shell;

/// Directory beside the data, on the same volume: the requested log, and settings.
const LOG_DIR: &str = "/var/lib/postgresql/restore";
/// Longest time to write one file.
const WRITE_WAIT: Duration = Duration::from_secs(30 * 60);
/// Files that are there at once: 64 MiB.
const AHEAD: usize = 4;
/// Interval at which the server's requests are polled.
const POLL_EVERY: Duration = Duration::from_millis(250);
/// Longest duration of one poll.
const POLL_SECONDS: u64 = 60;
/// Time that a server may be busy with one file before it counts as stuck.
const FILE_MAX: Duration = Duration::from_secs(60 * 60);

/// Restore command that the server runs for each file, as its own user, with the file's name and
/// its destination. An existing file that cannot be copied ends the recovery (a status above 125
/// does): an ordinary failure would mean that the log has ended.
const TAKE: &str = r#"dir=/var/lib/postgresql/restore
grep -qxF "$1" $dir/files
case $? in 0) ;; 1) exit 1 ;; *) exit 126 ;; esac
echo "$1" > $dir/asked.new && mv $dir/asked.new $dir/asked || exit 126
tries=0
until cp "$dir/$1" "$2" 2> $dir/trouble; do
    if [ -e "$dir/$1" ]; then
        tries=$((tries + 1))
        [ $tries -lt 50 ] || { cat $dir/trouble >&2; exit 126; }
    fi
    sleep 0.1
done
"#;
/// Removes files, and prints the requested one.
const ASKED: &str =
    "cd /var/lib/postgresql/restore && rm -f $UNWANTED && if [ -e asked ]; then cat asked; fi";

/// The log of one restore.
pub(super) struct Feed<'a> {
    machine: &'a Machine,
    restore: &'a Restore,
    /// All names, in the order in which they are needed.
    files: Vec<String>,
    /// Files that are in the machine, by index.
    there: BTreeSet<usize>,
}

impl<'a> Feed<'a> {
    /// Installs the files that a server needs to request log, and the first files of the log.
    pub(super) async fn begin(machine: &'a Machine, restore: &'a Restore) -> Result<Self> {
        let (files, there) = (restore.files(), BTreeSet::new());
        let mut feed = Self { machine, restore, files, there };
        feed.put("take", Body::from(TAKE)).await?;
        let names: String = feed.files.iter().map(|name| format!("{name}\n")).collect();
        feed.put("files", Body::from(names)).await?;
        let (wanted, _) = window(0, feed.files.len(), &feed.there);
        feed.send(wanted).await?;
        Ok(feed)
    }

    /// The server's `restore_command`.
    pub(super) fn command() -> String {
        format!("sh {LOG_DIR}/take %f %p")
    }

    /// Hands out files until that fails, and returns why. Meant to be dropped when the server has
    /// recovered.
    pub(super) async fn run(mut self) -> Error {
        let (mut last, mut since, mut unwanted) = (None, Instant::now(), Vec::new());
        loop {
            let asked = match self.poll(&unwanted).await {
                Ok(asked) => asked,
                Err(error) => return error,
            };
            if asked != last {
                (last, since) = (asked, Instant::now());
            }
            if since.elapsed() >= FILE_MAX {
                let minutes = FILE_MAX.as_secs() / 60;
                return Error::internal(format!(
                    "PostgreSQL made no progress with its log for {minutes} min"
                ));
            }
            let wanted;
            (wanted, unwanted) =
                asked.map(|asked| window(asked, self.files.len(), &self.there)).unwrap_or_default();
            match (unwanted.is_empty(), wanted.is_empty()) {
                // Room first.
                (false, _) => {}
                (true, true) => tokio::time::sleep(POLL_EVERY).await,
                (true, false) => {
                    if let Err(error) = self.send(wanted).await {
                        return error;
                    }
                }
            }
        }
    }

    /// Takes files away, and returns which one the server wants.
    async fn poll(&mut self, unwanted: &[usize]) -> Result<Option<usize>> {
        let names: Vec<&str> = unwanted.iter().filter_map(|n| Some(self.files.get(*n)?.as_str())).collect();
        let names = names.join(" ");
        let polled = shell::run(self.machine, ASKED, &[("UNWANTED", &names)], POLL_SECONDS).await?;
        if polled.exit_code != 0 {
            let said = polled.stderr.trim();
            return Err(Error::internal(format!("the log could not be passed to PostgreSQL: {said}")));
        }
        self.there.retain(|n| !unwanted.contains(n));
        let asked = polled.stdout.trim();
        Ok(self.files.iter().position(|name| name == asked))
    }

    async fn send(&mut self, wanted: Vec<usize>) -> Result<()> {
        for n in wanted {
            let Some(name) = self.files.get(n).cloned() else { continue };
            let bytes = self.restore.file(&name).await.map_err(failed)?;
            let bytes = bytes.ok_or_else(|| Error::internal(format!("the log has no {name} any more")))?;
            self.put(&name, Body::from(bytes)).await?;
            self.there.insert(n);
        }
        Ok(())
    }

    async fn put(&self, name: &str, body: Body) -> Result<()> {
        write(self.machine, &format!("{LOG_DIR}/{name}"), body).await
    }
}

/// Writes a file in a machine.
pub(super) async fn write(machine: &Machine, path: &str, content: Body) -> Result<()> {
    let late = |_| Error::new(ErrorCode::GuestUnavailable, "copying the data timed out; try again");
    tokio::time::timeout(WRITE_WAIT, machine.write(path, content)).await.map_err(late)?
}

/// Files to send and files to remove for a server that requests file `asked` of `files`, when the
/// files in `there` are present.
fn window(asked: usize, files: usize, there: &BTreeSet<usize>) -> (Vec<usize>, Vec<usize>) {
    let span = asked..files.min(asked + AHEAD);
    let wanted = span.clone().filter(|n| !there.contains(n)).collect();
    let unwanted = there.iter().copied().filter(|n| !span.contains(n)).collect();
    (wanted, unwanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_log_file_is_fed_with_few_staged() {
        let mut there = BTreeSet::new();
        // First the checkpoint's file, then from the start; at the end the last file once more.
        for asked in [7].into_iter().chain(3..100).chain([98]) {
            let (wanted, unwanted) = window(asked, 100, &there);
            there.retain(|n| !unwanted.contains(n));
            there.extend(wanted);
            assert!(there.contains(&asked) && there.len() <= AHEAD, "{asked}: {there:?}");
            assert!(there.iter().all(|n| *n < 100));
        }
    }

    #[test]
    fn a_log_without_files_has_no_window() {
        assert_eq!(window(0, 0, &BTreeSet::new()), (vec![], vec![]));
    }
}
