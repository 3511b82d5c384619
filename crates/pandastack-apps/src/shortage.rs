//! Detects whether a failed build step ran out of memory or disk, which programs report in many ways,
//! or not at all.

use crate::command::shell;
use crate::machine::Machine;

/// Bytes of a disk below which a step that failed most likely wanted more.
const FREE_BYTES_MIN: u64 = 32 << 20;

/// Prints free space and size of the disk that sources are on, in blocks, their size, and the number of
/// processes that were killed for lack of memory.
const MEASURE: &str = r#"stat -f -c '%a %S %d' /srv; sed -n 's/^oom_kill //p' /proc/vmstat"#;

/// Free resources of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Headroom {
    free_bytes: u64,
    free_files: u64,
    /// Since it was first started.
    out_of_memory: u64,
}

impl Headroom {
    /// Measures a machine. A failed measurement does not fail the deployment.
    pub(crate) async fn of(machine: &Machine) -> Option<Self> {
        Self::parse(&machine.exec(&shell(MEASURE, &[])).await.ok()?.stdout)
    }

    fn parse(printed: &str) -> Option<Self> {
        let mut numbers = printed.split_whitespace().map(|word| word.parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        let (blocks, block_bytes, free_files) = (next()?, next()?, next()?);
        let free_bytes = blocks.checked_mul(block_bytes)?;
        Some(Self { free_bytes, free_files, out_of_memory: next().unwrap_or(0) })
    }

    /// Explains a failed step by the shortage since `before`.
    pub(crate) fn shortage_since(&self, before: &Self) -> Option<String> {
        if self.out_of_memory > before.out_of_memory {
            return Some(
                "the machine ran out of memory and a process was killed; raise `memory_mb` \
                 (`pandastack app deploy --memory MIB`)"
                    .to_owned(),
            );
        }
        let left = match (self.free_bytes < FREE_BYTES_MIN, self.free_files) {
            (true, _) => format!("{} MiB are left", self.free_bytes >> 20),
            (_, 0) => "no inodes are left".to_owned(),
            _ => return None,
        };
        Some(format!(
            "the machine's disk is full ({left}); reduce the source or its dependencies, or use a template \
             with a larger disk"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_names_the_exhausted_resource() {
        let look = |printed: &str| Headroom::parse(printed).unwrap();
        let before = look("1000000 4096 5000\n2\n");
        assert_eq!(before, Headroom { free_bytes: 4_096_000_000, free_files: 5000, out_of_memory: 2 });
        let lack = |printed: &str| look(printed).shortage_since(&before);
        assert_eq!(lack("900000 4096 4000\n2\n"), None, "a kill from before says nothing of this step");
        assert!(lack("900000 4096 4000\n3\n").unwrap().contains("memory_mb"));
        assert!(lack("256 4096 4000\n2\n").unwrap().contains("(1 MiB are left)"));
        assert!(lack("900000 4096 0\n2\n").unwrap().contains("no inodes"));
        assert_eq!(Headroom::parse("stat: cannot read file system information"), None);
    }
}
