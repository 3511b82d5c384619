//! Template builds: rebuilds from the cache, the cost of a build over its commands, creates, images.

mod image;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pandastack_client::{Client, ClientError};
use pandastack_types::ErrorCode;
use pandastack_types::api::{Build, BuildStatus, CreateBuild, CreateSandbox, StartBuild};

use crate::api::{await_zygote, create, delete, exec, ms_since};
use crate::report::Report;

/// Arguments of `templates`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Enough samples for percentiles that are worth publishing
    #[arg(long)]
    full: bool,
    /// Data directory of the measured platform
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Directory for raw samples
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    results: PathBuf,
}

/// Number of samples.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// Rebuilds of each kind.
    rebuilds: u32,
    /// Builds beside the same commands in a sandbox.
    pairs: u32,
    /// Creates from the template, beside creates of `base`.
    creates: u32,
    /// Size of the image.
    image_mib: usize,
}

impl Plan {
    /// Minutes on an emulated machine.
    const QUICK: Plan = Plan { rebuilds: 5, pairs: 2, creates: 20, image_mib: 128 };
    /// For publication.
    const FULL: Plan = Plan { rebuilds: 20, pairs: 5, creates: 100, image_mib: 500 };
}

/// Commands of the measured build, each of which keeps a processor busy for seconds.
const COMMANDS: [&str; 4] = [
    "python3 -m compileall -q -f -o 1 /usr/lib/python3/dist-packages /usr/lib/python3.11/asyncio",
    "python3 -m compileall -q -f -o 1 /usr/lib/python3.11/email /usr/lib/python3.11/http",
    "tar -czf /srv/python.tar.gz -C /usr/lib/python3.11 json logging multiprocessing unittest",
    "sha256sum /usr/bin/* /usr/lib/python3.11/*.py > /srv/sums",
];
/// Longest wait for the zygote of `base`.
const ZYGOTE_WAIT_MAX: Duration = Duration::from_secs(300);
/// Creates until the template's machines are forked.
const WARM_UP_MAX: u32 = 200;
/// Rebuild with nothing changed, in milliseconds.
const UNCHANGED_MS_MAX: f64 = 2000.0;
/// A build, as a multiple of its commands in one sandbox.
const OVERHEAD_MAX: f64 = 1.2;
/// A create from the template, as a multiple of one of `base`.
const CREATE_RATIO_MAX: f64 = 1.1;
/// An image as a template, as a multiple of unpacking its layer and a bake.
const IMAGE_RATIO_MAX: f64 = 1.5;

/// Runs the measurement and prints the results.
pub async fn run(args: Args) -> Result<()> {
    let client = Client::from_environment()?;
    let plan = if args.full { Plan::FULL } else { Plan::QUICK };
    let mut report = Report::new();
    let measured = measure(&client, &args, plan, &mut report).await;
    // Print the report even after a failure: earlier measurements are still useful.
    println!("{}", report.markdown());
    let path = report.write(&args.results, "templates")?;
    eprintln!("raw samples: {}", path.display());
    measured
}

async fn measure(client: &Client, args: &Args, plan: Plan, report: &mut Report) -> Result<()> {
    let name = format!("bench-{}", uuid::Uuid::new_v4().simple());
    rebuilds(client, &name, plan.rebuilds, report).await.context("rebuilds")?;
    overhead(client, &name, plan.pairs, report).await.context("a build beside its commands")?;
    creates(client, args, &name, plan.creates, report).await.context("creates")?;
    image(client, &name, plan.image_mib, report).await.context("an image")?;
    client.delete_template(&name).await?;
    Ok(())
}

/// A Dockerfile whose first step is new to the cache.
fn dockerfile(salt: &str, last: &str) -> String {
    let steps = ["WORKDIR /srv", "ENV PORT=8000", "RUN mkdir -p a b c", "COPY <<end /srv/note\nhello\nend"];
    format!("FROM base\nLABEL salt={salt}\n{}\nRUN echo {last} > last\n", steps.join("\n"))
}

async fn rebuilds(client: &Client, name: &str, count: u32, report: &mut Report) -> Result<()> {
    let salt = name;
    let steps = build(client, name, dockerfile(salt, "first"), None, report, "first build").await?.steps;
    let ran = |done: &Build| f64::from(u32::try_from(missed(done)).unwrap_or(u32::MAX));
    for round in 0..count {
        let same = dockerfile(salt, "first");
        let done = build(client, name, same, None, report, "rebuild, nothing changed").await?;
        report.sample("rebuild, nothing changed: commands run", "count", ran(&done));
        let changed = dockerfile(salt, &format!("round-{round}"));
        let done = build(client, name, changed, None, report, "rebuild, last step changed").await?;
        report.sample("rebuild, last step changed: commands run", "count", ran(&done));
        ensure!(done.steps == steps, "{:?} steps instead of {steps:?}", done.steps);
    }
    let unchanged = report.median("rebuild, nothing changed");
    report.bar("rebuild, nothing changed, ms", unchanged, UNCHANGED_MS_MAX);
    report.bar("commands run", report.highest("rebuild, nothing changed: commands run"), 0.0);
    let ran = report.highest("rebuild, last step changed: commands run");
    report.bar("commands run after a change of the last step", ran, 1.0);
    Ok(())
}

/// Steps with a result that did not come from the cache. `FROM`, `LABEL` and `ENV` have none.
fn missed(build: &Build) -> usize {
    const WITHOUT_RESULT: usize = 3;
    build.steps.unwrap_or_default() - build.cached_steps.unwrap_or_default() - WITHOUT_RESULT
}

async fn overhead(client: &Client, name: &str, pairs: u32, report: &mut Report) -> Result<()> {
    for _ in 0..pairs {
        let text = format!("FROM base\nRUN {}\n", COMMANDS.join("\nRUN "));
        let start = StartBuild { no_cache: true, ..plain(text) };
        build_as(client, name, start, None, report, "build of four commands").await?;
        let began = Instant::now();
        let sandbox = create(client, "base").await?;
        for command in COMMANDS {
            exec(client, &sandbox.id, command).await?;
        }
        report.sample("the same commands in one sandbox", "ms", ms_since(began));
        delete(client, &sandbox.id).await?;
    }
    report.ratio_bar("build of four commands", "the same commands in one sandbox", OVERHEAD_MAX);
    Ok(())
}

async fn creates(client: &Client, args: &Args, name: &str, count: u32, report: &mut Report) -> Result<()> {
    await_zygote(&args.data_dir, "base", ZYGOTE_WAIT_MAX).await?;
    delete(client, &create(client, "base").await?.id).await?;
    let began = Instant::now();
    let mut sandbox = create(client, name).await?;
    report.sample("first create of the template", "ms", ms_since(began));
    let mut tries = 1;
    while sandbox.boot_mode.as_deref() != Some("fork") {
        ensure!(tries < WARM_UP_MAX, "machines of the template are not forked after {tries} creates");
        tries += 1;
        delete(client, &sandbox.id).await?;
        sandbox = create(client, name).await?;
    }
    delete(client, &sandbox.id).await?;
    for _ in 0..count {
        for (template, figure) in [("base", "create of base"), (name, "create of the template")] {
            let began = Instant::now();
            let sandbox = create(client, template).await?;
            report.sample(figure, "ms", ms_since(began));
            delete(client, &sandbox.id).await?;
        }
    }
    report.ratio_bar("create of the template", "create of base", CREATE_RATIO_MAX);
    Ok(())
}

async fn image(client: &Client, name: &str, mib: usize, report: &mut Report) -> Result<()> {
    let image = image::Image::random(mib)?;
    let sandbox = create(client, "base").await?;
    client.write_file(&sandbox.id, "/srv/layer.tar", image.layer.clone()).await?;
    let began = Instant::now();
    exec(client, &sandbox.id, "mkdir /srv/tree && tar -xf /srv/layer.tar -C /srv/tree && sync").await?;
    let unpacked_ms = ms_since(began);
    delete(client, &sandbox.id).await?;
    let baked_ms = bake(client).await.context("bake another size of base")?;
    report.sample("unpacking the layer, and a bake", "ms", unpacked_ms + baked_ms);
    let start = plain("FROM oci-layout://.\n".to_owned());
    build_as(client, name, start, Some(image.archive), report, "image as a template").await?;
    report.ratio_bar("image as a template", "unpacking the layer, and a bake", IMAGE_RATIO_MAX);
    Ok(())
}

/// A size of `base` that nobody has used.
const UNUSED_MEMORY_MB: u32 = 640;

/// Milliseconds of a bake.
async fn bake(client: &Client) -> Result<f64> {
    let request = CreateSandbox {
        template: Some("base".to_owned()),
        memory_mb: Some(UNUSED_MEMORY_MB),
        ..CreateSandbox::default()
    };
    let began = Instant::now();
    loop {
        let key = uuid::Uuid::new_v4().to_string();
        match client.create_sandbox(&request, &key).await {
            Ok(sandbox) => {
                delete(client, &sandbox.id).await?;
                return Ok(ms_since(began));
            }
            Err(ClientError::Refused { build_id: Some(id), code, .. })
                if code == ErrorCode::TemplateBaking.as_str() =>
            {
                let mut log = client.follow_build(&id.parse().context("id of the bake")?).await?;
                while log.next().await?.is_some() {}
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn plain(dockerfile: String) -> StartBuild {
    StartBuild { dockerfile, ..StartBuild::default() }
}

async fn build(
    client: &Client,
    name: &str,
    dockerfile: String,
    files: Option<Vec<u8>>,
    report: &mut Report,
    figure: &str,
) -> Result<Build> {
    build_as(client, name, plain(dockerfile), files, report, figure).await
}

/// Builds to the end. The time begins once the files are there.
async fn build_as(
    client: &Client,
    name: &str,
    start: StartBuild,
    files: Option<Vec<u8>>,
    report: &mut Report,
    figure: &str,
) -> Result<Build> {
    let request = CreateBuild { name: name.to_owned(), ..CreateBuild::default() };
    let id = client.create_build(&request).await?.id;
    if let Some(files) = files {
        client.add_build_files(&id, files).await?;
    }
    let began = Instant::now();
    client.start_build(&id, &start).await?;
    let mut log = client.follow_build(&id).await?;
    while log.next().await?.is_some() {}
    report.sample(figure, "ms", ms_since(began));
    let done = client.get_build(&id).await?;
    ensure!(done.status == BuildStatus::Done, "the build failed: {:?}", done.error);
    Ok(done)
}
