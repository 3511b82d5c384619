//! A container image made of random files, in the format of `docker save`.

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use serde_json::json;
use sha2::{Digest, Sha256};

/// Size of one file.
const FILE_BYTES: usize = 256 << 10;
const MIB: usize = 1 << 20;

/// An image with one layer.
pub struct Image {
    /// The layer, a tar archive.
    pub layer: Vec<u8>,
    /// The whole image.
    pub archive: Vec<u8>,
}

impl Image {
    /// An image of about this size.
    pub fn random(mib: usize) -> Result<Self> {
        let mut layer = tar::Builder::new(Vec::with_capacity(mib * MIB + MIB));
        let mut content = vec![0; FILE_BYTES];
        for number in 0..mib * MIB / FILE_BYTES {
            getrandom::fill(&mut content).context("make random bytes")?;
            append(&mut layer, &format!("data/{}/{number}", number % 32), &content)?;
        }
        let layer = layer.into_inner()?;
        let sum = HEXLOWER.encode(&Sha256::digest(&layer));
        let rootfs = json!({"type": "layers", "diff_ids": [format!("sha256:{sum}")]});
        let config = json!({"os": "linux", "architecture": "amd64", "config": {}, "rootfs": rootfs});
        let manifest = json!([{"Config": "image.json", "RepoTags": null, "Layers": ["0/layer.tar"]}]);
        let mut archive = tar::Builder::new(Vec::with_capacity(layer.len() + MIB));
        append(&mut archive, "image.json", config.to_string().as_bytes())?;
        append(&mut archive, "manifest.json", manifest.to_string().as_bytes())?;
        append(&mut archive, "0/layer.tar", &layer)?;
        Ok(Self { layer, archive: archive.into_inner()? })
    }
}

fn append(archive: &mut tar::Builder<Vec<u8>>, path: &str, content: &[u8]) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    Ok(archive.append_data(&mut header, path, content)?)
}
