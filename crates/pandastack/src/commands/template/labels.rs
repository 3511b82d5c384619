//! Labels of an exported template: what a template has, and a container image has no field for.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use pandastack_types::api::{ReadyCheck, Template};
use serde::Deserialize;

use super::image_file::{blob_path, digest_of};
use crate::failure::Failure;

/// Longest part of an image that is read for its labels, and all of them together.
const PART_BYTES_MAX: u64 = 4 << 20;
const PARTS_BYTES_MAX: u64 = 32 << 20;
/// Begins the names of our labels.
const PREFIX: &str = "pandastack.template.";
const START: &str = "pandastack.template.start-command";
const READY: &str = "pandastack.template.ready";
const CPU: &str = "pandastack.template.cpu";
const MEMORY: &str = "pandastack.template.memory-mb";
const DESCRIPTION: &str = "pandastack.template.description";

/// What the labels of an image say about its template.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Labelled {
    /// Command that runs in every sandbox.
    pub(super) start_command: Option<String>,
    /// Check that the command is ready.
    pub(super) ready: Option<ReadyCheck>,
    /// Size of its sandboxes.
    pub(super) cpu: Option<u32>,
    pub(super) memory_mb: Option<u32>,
    /// Human-readable description.
    pub(super) description: Option<String>,
}

/// Sets the labels of a template. Those of an image that it was imported from are replaced.
pub(super) fn add(labels: &mut BTreeMap<String, String>, template: &Template) -> Result<()> {
    labels.retain(|name, _| !name.starts_with(PREFIX));
    let version = template.version.clone().unwrap_or_default();
    let ready = version.ready.map(|ready| serde_json::to_string(&ready)).transpose()?;
    let found = [
        (START, version.start_command),
        (READY, ready),
        (CPU, Some(template.cpu.to_string())),
        (MEMORY, Some(template.memory_mb.to_string())),
        (DESCRIPTION, Some(template.description.clone()).filter(|text| !text.is_empty())),
    ];
    labels.extend(found.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    Ok(())
}

/// Reads the labels of an image. One without them has none of these.
pub(super) fn read(labels: &BTreeMap<String, String>) -> Result<Labelled> {
    let text = |name: &str| labels.get(name).cloned();
    let number = |name: &str| -> Result<Option<u32>> {
        let parsed = labels.get(name).map(|value| value.parse()).transpose();
        parsed.with_context(|| format!("label `{name}` of the image is not a number"))
    };
    let ready = labels.get(READY).map(|value| serde_json::from_str(value)).transpose();
    Ok(Labelled {
        start_command: text(START),
        ready: ready.with_context(|| format!("label `{READY}` of the image is not a ready check"))?,
        cpu: number(CPU)?,
        memory_mb: number(MEMORY)?,
        description: text(DESCRIPTION),
    })
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    config: Settings,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Settings {
    #[serde(rename = "Labels")]
    labels: Option<BTreeMap<String, String>>,
}

/// The labels of the only image in a file. Checks the digests of everything that it reads.
pub(super) fn of_file(path: &Path) -> Result<BTreeMap<String, String>> {
    let wrong = |why: &str| {
        Failure::new(format!("{} is not an exported template: {why}", path.display()))
            .hint("other images are built with `pandastack template build --from-archive`")
    };
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let parts = small_parts(file).map_err(|error| wrong(&error.to_string()))?;
    let blob = |digest: &str| -> Result<&[u8]> {
        let content = parts.get(&blob_path(digest)).ok_or_else(|| wrong(&format!("{digest} is missing")))?;
        match digest_of(content) == digest {
            true => Ok(content),
            false => Err(wrong(&format!("the content of {digest} was changed")).into()),
        }
    };
    let index = parts.get("index.json").ok_or_else(|| wrong("it has no `index.json`"))?;
    let index: Index = serde_json::from_slice(index).map_err(|error| wrong(&error.to_string()))?;
    let [image] = index.manifests.as_slice() else {
        return Err(wrong(&format!("it has {} images", index.manifests.len())).into());
    };
    let manifest: Manifest =
        serde_json::from_slice(blob(&image.digest)?).map_err(|error| wrong(&error.to_string()))?;
    let config: Config =
        serde_json::from_slice(blob(&manifest.config.digest)?).map_err(|error| wrong(&error.to_string()))?;
    Ok(config.config.labels.unwrap_or_default())
}

/// The parts of an image, except its layers.
fn small_parts(file: File) -> Result<BTreeMap<String, Vec<u8>>> {
    let (mut parts, mut room) = (BTreeMap::new(), PARTS_BYTES_MAX);
    let mut archive = tar::Archive::new(file);
    for entry in archive.entries_with_seek()? {
        let mut entry = entry?;
        if entry.size() > PART_BYTES_MAX || entry.size() > room {
            continue;
        }
        room -= entry.size();
        let name = String::from_utf8_lossy(&entry.path_bytes()).trim_start_matches("./").to_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        parts.insert(name, content);
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_bring_the_settings_of_a_template() {
        let template: Template = serde_json::from_value(serde_json::json!({
            "name": "mine", "aliases": [], "label": "mine", "description": "d", "category": "custom",
            "base": "", "tools": [], "cpu": 2, "memory_mb": 512, "size_bytes": 1, "is_global": false,
            "status": "ready",
            "version": {"build_id": "b", "created_at": null, "tags": [], "config": {},
                        "start_command": "serve", "ready": {"port": 80}}
        }))
        .unwrap();
        let other = ("other".to_owned(), "stays".to_owned());
        let mut labels = BTreeMap::from([other.clone(), (format!("{PREFIX}old"), "goes".to_owned())]);
        add(&mut labels, &template).unwrap();
        assert_eq!(labels.len(), 6);
        assert_eq!(labels.get("other"), Some(&other.1));
        let expect = Labelled {
            start_command: Some("serve".to_owned()),
            ready: Some(ReadyCheck::Port(80)),
            cpu: Some(2),
            memory_mb: Some(512),
            description: Some("d".to_owned()),
        };
        assert_eq!(read(&labels).unwrap(), expect);
        assert_eq!(read(&BTreeMap::new()).unwrap(), Labelled::default());
        labels.insert(CPU.to_owned(), "many".to_owned());
        assert!(read(&labels).unwrap_err().to_string().contains(CPU));
    }
}
