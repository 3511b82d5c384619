//! Lists the files that `npm run build` in `web/` left in `pages/built`, for the crate to embed.
//!
//! Every file is there twice: `x.gz` and `x.br`. Without a build the list is empty.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

fn main() -> std::io::Result<()> {
    // The directory itself always exists. Cargo would rerun this for ever because of a path that does not.
    println!("cargo::rerun-if-changed=pages");
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name: &str| PathBuf::from(std::env::var_os(name).unwrap_or_default());
    let built = variable("CARGO_MANIFEST_DIR").join("pages/built");
    let mut found = Vec::new();
    if built.is_dir() {
        walk(&built, &mut found)?;
    }
    found.sort();
    let mut list = String::from("&[\n");
    for file in found {
        let gzip = fs::read(&file)?;
        let mut hasher = DefaultHasher::new();
        gzip.hash(&mut hasher);
        let name = file.strip_prefix(&built).unwrap_or(&file).with_extension("");
        let brotli = file.with_extension("br");
        list.push_str(&format!(
            "Page {{ path: {name:?}, etag: \"\\\"{:016x}\\\"\", gzip: include_bytes!({file:?}), \
             brotli: include_bytes!({brotli:?}) }},\n",
            hasher.finish()
        ));
    }
    list.push(']');
    fs::write(variable("OUT_DIR").join("pages.rs"), list)
}

/// Every `.gz` below a directory.
fn walk(dir: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "gz") {
            found.push(path);
        }
    }
    Ok(())
}
