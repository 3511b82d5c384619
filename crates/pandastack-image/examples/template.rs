//! Builds and locks templates from a checkout, printing each step with its time.
//!
//! ```text
//! cargo run --release -p pandastack-image --example template -- build base
//! cargo run --release -p pandastack-image --example template -- kernel
//! cargo run --release -p pandastack-image --example template -- lock base templates
//! ```

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use pandastack_image::{ImageBuilder, Kernel, Progress};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let cache_dir = pandastack_image::default_cache_dir();
    let started = Instant::now();
    let progress = |step: Progress<'_>| {
        let seconds = started.elapsed().as_secs_f32();
        eprintln!("{seconds:7.1}s  {}: {} {}", step.subject, step.phase.label(), step.detail);
    };
    match arguments.as_slice() {
        ["build", name] => {
            let recipe = pandastack_image::find(name).ok_or_else(|| format!("no template {name}"))?;
            let image = ImageBuilder::new(&cache_dir).ensure(recipe, &progress)?;
            println!("{}", image.path.display());
        }
        ["kernel"] => println!("{}", Kernel::ensure(&cache_dir, &progress)?.vmlinuz.display()),
        ["lock", "kernel", templates] => pandastack_image::relock_kernel(Path::new(templates), &cache_dir)?,
        ["lock", name, templates] => {
            pandastack_image::relock_template(&Path::new(templates).join(name), &cache_dir, &progress)?;
        }
        _ => return Err("usage: build NAME | kernel | lock NAME TEMPLATES_DIR".into()),
    }
    Ok(())
}
