//! Commands of each suite.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::thread::available_parallelism;

use anyhow::{Context, Result};

use super::counts::{Counts, of_cargo, of_node, of_pytest};
use super::kvm_lab::Lab;
use super::output::{Errors, silence_max, tee, tee_watched};
use super::shared::{AZURITE, Shared};
use super::{drift, lanes, lint, timings};
use crate::platform::Scratch;
use crate::program::{self, cargo, npm, program};
use crate::tidy::Advisories;
use crate::tree::Profile;
use crate::{azurite, checkout, console, fuzz, host, login_provider, postgres, python, qemu, tidy, tree};

/// Variable with the path of the login provider.
const LOGIN_PROVIDER: &str = "PANDASTACK_TEST_LOGIN_PROVIDER";
/// Variable with the path of Firecracker.
const FIRECRACKER: &str = "PANDASTACK_FIRECRACKER";
/// Checkouts of the repositories of E2B's clients.
const E2B_REPOS: [&str; 2] = ["PANDASTACK_E2B_REPO", "PANDASTACK_E2B_INTERPRETER_REPO"];

/// State that suites share.
pub struct Session {
    shared: Shared,
    /// Test files that lanes share.
    files: OnceLock<lanes::Files>,
    /// Tests that take many minutes run, too.
    full: bool,
}

impl Session {
    /// With the tests that take many minutes, or without.
    pub fn new(full: bool) -> Result<Self> {
        if tree::in_ci() {
            checkout::enter()?;
        }
        Ok(Self { shared: Shared::new(), files: OnceLock::new(), full })
    }

    pub fn tidy(&self) -> Result<Counts> {
        let formatted = cargo(&["fmt", "--all", "--check"]).status().context("start cargo fmt")?.success();
        let mut counts = Counts::one(formatted);
        let problems = tidy::problems()?;
        problems.iter().for_each(|problem| eprintln!("{problem}"));
        counts.add(&Counts::one(problems.is_empty()));
        counts.add(&match tidy::advisories()? {
            Advisories::Clean => Counts::one(true),
            Advisories::Found(found) => {
                eprintln!("{found}");
                Counts::one(false)
            }
            Advisories::Skipped(reason) => Counts::skipped(reason),
        });
        Ok(counts)
    }

    pub fn clippy(&self) -> Result<Counts> {
        let mut clippy =
            cargo_with_profile("clippy", &["--workspace", "--all-targets", "--", "-D", "warnings"]);
        let passed = clippy.status().context("start cargo clippy")?.success();
        Ok(Counts::one(passed))
    }

    /// Creates what concurrent suites share.
    pub fn build(&self) -> Result<Counts> {
        // The host's programs are the product's to name, so it is built first.
        build_tests()?;
        host::install_for_product()?;
        host::install_for_tests()?;
        python::ensure()?;
        Ok(Counts::one(true))
    }

    pub fn rust(&self) -> Result<Counts> {
        let mut tests = cargo_with_profile("test", &["--workspace", "--no-fail-fast", "--", "--show-output"]);
        tests.env("PANDASTACK_TEST_POSTGRES_BIN", postgres::ensure()?);
        tests.env("PANDASTACK_TEST_PYTHON", python::ensure()?);
        tests.envs(azurite::ensure()?.map(|program| (AZURITE, program)));
        tests.env(LOGIN_PROVIDER, login_provider::ensure()?);
        tests.envs(firecracker().map(|program| (FIRECRACKER, program)));
        tests.envs(self.full.then_some(("PANDASTACK_TEST_FULL", "1")));
        cargo_test(tests, "rust")
    }

    /// The engine once more, with a newer emulator than the host's.
    pub fn newer_qemu(&self) -> Result<Counts> {
        let dir = match qemu::ensure() {
            Ok(dir) => dir,
            Err(error) => {
                let reason = format!("the engine with QEMU {}: {error:#}", qemu::MAJOR);
                eprintln!("SKIPPED: {reason}");
                return Ok(Counts::skipped(reason));
            }
        };
        let mut tests = qemu::in_place(&dir, &engine_tests()?);
        // A suite that only measures has no counts.
        tests.args(["--show-output", "--skip", "timing"]);
        let outcome = cargo_test(tests, "qemu-10");
        // The suite ran as root, and so did the programs that made its guest's files.
        host::give_back(&tree::target_dir().join("tmp"))?;
        outcome
    }

    /// The templates with the registries' current packages.
    pub fn newest_packages(&self) -> Result<Counts> {
        build_tests()?;
        host::install_for_product()?;
        drift::templates()
    }

    /// The engine with the kernel that Debian has now.
    pub fn newest_kernel(&self) -> Result<Counts> {
        let mut tests = host::as_root(engine_tests()?);
        tests.env("PANDASTACK_TEST_NEWEST_KERNEL", "1").args(["--show-output", "--skip", "timing"]);
        let outcome = cargo_test(tests, "newest-kernel");
        host::give_back(&tree::target_dir().join("tmp"))?;
        outcome
    }

    /// The platform with Firecracker and with QEMU, in a machine whose KVM is emulated.
    pub fn firecracker_on_kvm(&self) -> Result<Counts> {
        let named = std::env::var_os(FIRECRACKER).map(PathBuf::from);
        let Some(firecracker) = named.or_else(firecracker) else {
            let reason = format!("Firecracker on KVM: name the program in {FIRECRACKER}");
            eprintln!("SKIPPED: {reason}");
            return Ok(Counts::skipped(reason));
        };
        // Fills the caches with image and kernel, which the machine reads and cannot fetch.
        Self::start_scratch(&["base"])?.stop()?;
        let lab = match Lab::prepare(&firecracker, self.full) {
            Ok(lab) => lab,
            Err(error) => {
                let reason = format!("Firecracker on KVM: {error:#}");
                eprintln!("SKIPPED: {reason}");
                return Ok(Counts::skipped(reason));
            }
        };
        let output = tee(lab.machine(), "kvm-lab", Errors::Kept)?;
        let counts = of_cargo(&output.text());
        // A machine that ended before its tests did has no result.
        let ended = counts.passed + counts.failed > 0;
        Ok(counts.with_status(output.success && ended))
    }

    /// E2B's suites, from checkouts of their repositories.
    pub fn e2b_suite(&self) -> Result<Counts> {
        let repos = E2B_REPOS.map(|name| (name, std::env::var_os(name)));
        if repos.iter().all(|(_, path)| path.is_none()) {
            let reason = format!("E2B's own suites: set {} to checkouts of them", E2B_REPOS.join(" or "));
            eprintln!("SKIPPED: {reason}");
            return Ok(Counts::skipped(reason));
        }
        let scratch = Self::start_scratch(&["base", "code-interpreter"])?;
        host::install_for_tests()?;
        let mut suite = scratch.platform()?.point(host::as_root(python::ensure()?));
        // They run on a platform of their own, with names and certificates.
        suite.arg("tests/e2e/python/e2b_suite/run.py");
        suite.envs(repos.into_iter().filter_map(|(name, path)| Some((name, path?))));
        let output = tee(suite, "e2b-suite", Errors::Shown)?;
        scratch.stop()?;
        Ok(of_pytest(&output.text()).with_status(output.success))
    }

    /// Every target for a while, one after the other.
    pub fn fuzz(&self) -> Result<Counts> {
        if let Some(reason) = fuzz::missing() {
            eprintln!("SKIPPED: {reason}");
            return Ok(Counts::skipped(reason));
        }
        let fuzzer = fuzz::build()?;
        let mut counts = Counts::default();
        for target in fuzz::targets()? {
            let passed = fuzz::fuzz(&fuzzer, &target, fuzz::SUITE_SECONDS)?;
            counts.add(&Counts::one(passed));
            counts.failures.extend((!passed).then(|| format!("fuzz {target}")));
        }
        Ok(counts)
    }

    pub fn python(&self) -> Result<Counts> {
        pytest(program(python::ensure()?), "sdk/python/tests", "sdk/python/tests", &[])
    }

    pub fn typescript(&self) -> Result<Counts> {
        build_typescript()?;
        node_test("sdk/typescript", |npm| npm)
    }

    pub fn start_platform(&self) -> Result<Counts> {
        self.shared.start(Self::start_scratch, self.full)?;
        Ok(Counts::one(true))
    }

    /// A platform with these templates.
    fn start_scratch(templates: &[&str]) -> Result<Scratch> {
        build_tests()?;
        host::install_for_product()?;
        // Tests make tenants, also on hosts without KVM.
        let scratch = Scratch::start(&["--allow-emulated-machines-between-tenants"])?;
        for name in templates {
            scratch.platform()?.build_template(name)?;
        }
        Ok(scratch)
    }

    /// Tests of both SDKs that share one platform.
    pub fn sharing(&self) -> Result<Counts> {
        let shared = self.shared.get()?;
        let mut counts = lanes::sharing(shared.python()?)?;
        build_typescript()?;
        program::run(npm("tests/e2e/typescript", &["ci"]))?;
        let platform = shared.platform()?;
        counts.add(&node_test("tests/e2e/typescript", |npm| platform.point(npm))?);
        Ok(counts)
    }

    /// Tests with platforms of their own in the small internet.
    pub fn with_internet(&self) -> Result<Counts> {
        lanes::with_internet(self.shared.get()?.python()?)
    }

    /// All other tests with platforms of their own, of which each lane takes the next file.
    pub fn alone(&self) -> Result<Counts> {
        let shared = self.shared.get()?;
        let files = match self.files.get() {
            Some(files) => files,
            None => {
                let listed = lanes::Files::list(shared.python()?)?;
                self.files.get_or_init(|| listed)
            }
        };
        files.run(|| shared.python())
    }

    pub fn stop_platform(&self) -> Result<Counts> {
        let left = self.shared.stop()?;
        left.iter().for_each(|thing| eprintln!("left behind: {thing}"));
        Ok(Counts::one(left.is_empty()))
    }
}

/// Firecracker beside the clone, unless the caller names one. CI builds from a checkout, which has nothing beside it.
fn firecracker() -> Option<PathBuf> {
    let beside = tree::clone_root().join("../shared/kvm-lab/firecracker");
    Some(beside).filter(|path| std::env::var_os(FIRECRACKER).is_none() && path.is_file())
}

/// Builds every crate's tests, and with them the `pandastack` program. Built alone, the program
/// would have other features of shared dependencies, and everything that depends on those would be
/// compiled twice.
fn build_tests() -> Result<()> {
    console::build()?;
    program::run(cargo_with_profile("test", &["--workspace", "--no-run"]))
}

/// Cargo with the profile of this run. Tests are linted while they are compiled.
fn cargo_with_profile(subcommand: &str, args: &[&str]) -> Command {
    let mut command = cargo(&[subcommand, "--profile", tree::profile().name()]);
    command.args(args);
    if subcommand == "test" && tree::profile() == Profile::Develop {
        command.envs(lint::while_compiling());
    }
    command
}

/// The program with the tests of the QEMU engine. Cargo builds all crates' tests, for the reason
/// given at [`build_tests`].
fn engine_tests() -> Result<PathBuf> {
    #[derive(serde::Deserialize)]
    struct Artifact {
        manifest_path: PathBuf,
        target: Target,
        executable: Option<PathBuf>,
    }
    #[derive(serde::Deserialize)]
    struct Target {
        name: String,
    }
    let printed = program::read(cargo_with_profile(
        "test",
        &["--workspace", "--no-run", "--message-format", "json-render-diagnostics"],
    ))?;
    let manifest = tree::root().join("crates/pandastack-engine-qemu/Cargo.toml");
    let artifacts = printed.lines().filter_map(|line| serde_json::from_str::<Artifact>(line).ok());
    let mut ours =
        artifacts.filter(|artifact| artifact.manifest_path == manifest && artifact.target.name == "it");
    ours.find_map(|artifact| artifact.executable)
        .context("find the tests of the QEMU engine among those built")
}

/// Runs tests of a file or a directory.
pub fn pytest(python: Command, log: &str, tests: &str, chosen: &[&str]) -> Result<Counts> {
    let mut pytest = pytest_of(python, tests, chosen);
    pytest.args(["-rsfE", "--durations=40"]);
    let output = tee(pytest, log, Errors::Shown)?;
    let text = output.text();
    let tests = timings::of_pytest(&text);
    Ok(of_pytest(&text).with_status(output.success).with_timings(output.timings(log, tests)))
}

/// Runs tests in cargo's harness.
fn cargo_test(tests: Command, log: &str) -> Result<Counts> {
    let output = tee_watched(tests, log, Errors::Kept, Some(silence_max()))?;
    let threads = available_parallelism().map_or(1, usize::from);
    let timings = timings::of_cargo(&output.lines, log, threads);
    Ok(of_cargo(&output.text()).with_status(output.success).with_timings(timings))
}

/// pytest, leaving nothing in the clone.
pub fn pytest_of(mut python: Command, tests: &str, chosen: &[&str]) -> Command {
    python.args(["-m", "pytest", "-p", "no:cacheprovider", tests]).args(chosen);
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    python
}

fn build_typescript() -> Result<()> {
    host::install_for_tests()?;
    program::run(npm("sdk/typescript", &["ci"]))?;
    program::run(npm("sdk/typescript", &["run", "build"]))
}

fn node_test(dir: &str, point: impl FnOnce(Command) -> Command) -> Result<Counts> {
    let output = tee(point(npm(dir, &["test"])), dir, Errors::Shown)?;
    let text = output.text();
    let tests = timings::of_node(&text);
    Ok(of_node(&text).with_status(output.success).with_timings(output.timings(dir, tests)))
}
