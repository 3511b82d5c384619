//! Files that are too long. A longer one should be two, each with one concern.

use std::collections::BTreeMap;
use std::path::Path;

use super::text::kind_of;

/// Longest file of code.
const LINES_MAX: usize = 400;
/// Longer files, and their limits. The table only shrinks: no file is added, no number goes up, and
/// a file that fits is removed.
const LONGER: [(&str, usize); 23] = [
    ("crates/pandastack-apps/src/check.rs", 461),
    ("crates/pandastack-apps/src/hooks.rs", 415),
    ("crates/pandastack-control/tests/api/simulation.rs", 454),
    ("crates/pandastack-engine/src/conformance.rs", 437),
    ("crates/pandastack-engine/src/fake.rs", 451),
    ("crates/pandastack-engine/src/lib.rs", 430),
    ("crates/pandastack-functions/src/bootstrap/bootstrap.py", 458),
    ("crates/pandastack-functions/src/url.rs", 491),
    ("crates/pandastack-postgres/src/query.rs", 460),
    ("crates/pandastack-qemu-shim/src/protocol.rs", 443),
    ("crates/pandastack-types/src/api/app.rs", 492),
    ("crates/pandastack-types/src/api/function.rs", 477),
    ("sdk/python/src/pandastack/_async/sandbox.py", 585),
    ("sdk/python/src/pandastack/_sync/sandbox.py", 586),
    ("sdk/python/tests/test_requests.py", 405),
    ("sdk/typescript/src/models.ts", 428),
    ("sdk/typescript/src/sandbox.ts", 491),
    ("tests/e2e/python/test_apps.py", 600),
    ("tests/e2e/python/test_apps_git.py", 592),
    ("tests/e2e/python/test_databases.py", 446),
    ("tests/e2e/python/test_e2b.py", 497),
    ("tests/e2e/python/test_network.py", 454),
    ("tests/e2e/python/test_time_travel.py", 597),
];
/// The file with the table above.
const OWN_FILE: &str = "xtask/src/tidy/long_files.rs";

/// Lengths of the files that are too long.
#[derive(Debug, Default)]
pub struct LongFiles(BTreeMap<String, usize>);

impl LongFiles {
    /// Checks a file. Generated files can have any length.
    pub fn read(&mut self, path: &Path, text: &str) {
        let lines = text.lines().count();
        if kind_of(path).is_some() && lines > LINES_MAX && !text.contains("@generated") {
            self.0.insert(path.display().to_string(), lines);
        }
    }

    /// Every file that is longer than it may be, and every needless exception.
    pub fn problems(&self) -> Vec<String> {
        self.problems_beyond(&LONGER)
    }

    fn problems_beyond(&self, longer: &[(&str, usize)]) -> Vec<String> {
        let mut problems = Vec::new();
        for (path, lines) in &self.0 {
            let listed = longer.iter().find(|(name, _)| name == path);
            let allowed = listed.map_or(LINES_MAX, |(_, lines)| *lines);
            if *lines > allowed {
                problems.push(format!("{path}:{lines}: longer than {allowed} lines; split it"));
            }
        }
        for (path, _) in longer.iter().filter(|(path, _)| !self.0.contains_key(*path)) {
            problems.push(format!("{path}: is within {LINES_MAX} lines or gone; remove it from {OWN_FILE}"));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_long_files_may_only_shrink() {
        let mut long = LongFiles::default();
        for (path, lines) in [("a.rs", 401), ("b.py", 450), ("c.ts", 400), ("d.md", 500)] {
            long.read(Path::new(path), &"x\n".repeat(lines));
        }
        long.read(Path::new("e.rs"), &format!("// @generated\n{}", "x\n".repeat(500)));
        let check = |longer: &[(&str, usize)], expect: &[&str]| {
            let problems = long.problems_beyond(longer);
            assert_eq!(problems.len(), expect.len(), "{problems:?}");
            assert!(
                problems.iter().zip(expect).all(|(problem, start)| problem.starts_with(start)),
                "{problems:?}"
            );
        };
        check(&[("a.rs", 401), ("b.py", 460)], &[]);
        check(&[("b.py", 449)], &["a.rs:401: longer than 400", "b.py:450: longer than 449"]);
        check(&[("a.rs", 500), ("b.py", 500), ("c.ts", 500)], &["c.ts: is within 400 lines"]);
    }
}
