//! Extracts the uncompressed ELF kernel from Debian's compressed image.
//!
//! A bzImage is a small loader with the compressed kernel inside. Its header says where ("setup
//! header" of the x86 boot protocol, since version 2.08), and the last four bytes of the payload
//! are the length of what comes out.

use std::io::Read;
use std::path::Path;

use pandastack_types::chain;

use crate::error::ImageError;

/// File of the extracted kernel, beside the bzImage.
pub(crate) const FILE: &str = "vmlinux";
/// Largest kernel that is unpacked; Debian's has 53 MB.
const KERNEL_BYTES_MAX: u32 = 512 << 20;
/// Length of a sector of the loader.
const SECTOR_BYTES: usize = 512;
/// Offset of the number of the loader's sectors, less the first.
const SETUP_SECTORS_AT: usize = 0x1f1;
/// Offset of the header's signature.
const SIGNATURE_AT: usize = 0x202;
/// Offset of the payload's offset and, behind it, its length.
const PAYLOAD_AT: usize = 0x248;
/// Most that one block of the older LZ4 format unpacks to.
const LZ4_BLOCK_BYTES: usize = 8 << 20;

/// Unpacks the kernel of the bzImage at `vmlinuz` to `out`, replacing it whole.
pub(crate) fn extract(vmlinuz: &Path, out: &Path) -> Result<(), ImageError> {
    let image = std::fs::read(vmlinuz).map_err(ImageError::io("read", vmlinuz))?;
    let kernel = unpack(&image);
    let kernel = kernel.map_err(|why| ImageError::malformed(vmlinuz.display().to_string(), chain(&why)))?;
    let parent = out.parent().unwrap_or(Path::new("/"));
    let file = tempfile::NamedTempFile::new_in(parent).map_err(ImageError::io("create a file in", parent))?;
    std::fs::write(file.path(), kernel).map_err(ImageError::io("write", out))?;
    file.as_file().sync_all().map_err(ImageError::io("make durable", out))?;
    file.persist(out).map_err(|error| ImageError::io("publish", out)(error.error))?;
    Ok(())
}

/// Reason why no kernel can be extracted from an image.
#[derive(Debug, thiserror::Error)]
enum KernelError {
    #[error("it is not a bzImage")]
    NoImage,
    #[error("its payload is too short")]
    Short,
    #[error("its kernel would have {0} bytes")]
    TooLarge(u32),
    #[error("its payload is compressed in an unknown way")]
    UnknownCompression,
    #[error("its payload cannot be unpacked")]
    Stream(#[source] std::io::Error),
    #[error("its payload cannot be unpacked")]
    Block(#[source] lz4_flex::block::DecompressError),
    #[error("its last block is cut short")]
    CutShort,
    #[error("its payload unpacks to {unpacked} bytes that are no ELF image of {expected}")]
    NoElf { unpacked: usize, expected: u32 },
}

fn unpack(image: &[u8]) -> Result<Vec<u8>, KernelError> {
    let payload = payload(image).ok_or(KernelError::NoImage)?;
    let (packed, length) = payload.split_last_chunk::<4>().ok_or(KernelError::Short)?;
    let length = u32::from_le_bytes(*length);
    if length > KERNEL_BYTES_MAX {
        return Err(KernelError::TooLarge(length));
    }
    let kernel = decompress(packed, length as usize)?;
    if kernel.len() == length as usize && kernel.starts_with(b"\x7fELF") {
        return Ok(kernel);
    }
    Err(KernelError::NoElf { unpacked: kernel.len(), expected: length })
}

/// The compressed kernel, with its length behind it.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| Some(u32::from_le_bytes(*image.get(at..)?.first_chunk::<4>()?) as usize);
    image.get(SIGNATURE_AT..)?.starts_with(b"HdrS").then_some(())?;
    let sectors = match *image.get(SETUP_SECTORS_AT)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = ((sectors + 1) * SECTOR_BYTES).checked_add(word(PAYLOAD_AT)?)?;
    image.get(start..start.checked_add(word(PAYLOAD_AT + 4)?)?)
}

fn decompress(packed: &[u8], length: usize) -> Result<Vec<u8>, KernelError> {
    let mut kernel = Vec::with_capacity(length);
    let limit = length as u64 + 1;
    match packed {
        [0x02, 0x21, 0x4c, 0x18, blocks @ ..] => return decompress_lz4(blocks, length),
        [0xfd, b'7', b'z', b'X', ..] => {
            xz2::read::XzDecoder::new(packed)
                .take(limit)
                .read_to_end(&mut kernel)
                .map_err(KernelError::Stream)?;
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let decoder = zstd::stream::read::Decoder::new(packed).map_err(KernelError::Stream)?;
            decoder.take(limit).read_to_end(&mut kernel).map_err(KernelError::Stream)?;
        }
        _ => return Err(KernelError::UnknownCompression),
    }
    Ok(kernel)
}

/// Blocks of the older LZ4 format, each with its packed length in front.
fn decompress_lz4(mut blocks: &[u8], length: usize) -> Result<Vec<u8>, KernelError> {
    let mut kernel = vec![0; length];
    let mut filled = 0;
    while let Some((size, rest)) = blocks.split_first_chunk::<4>() {
        let size = u32::from_le_bytes(*size) as usize;
        let (block, rest) = rest.split_at_checked(size).ok_or(KernelError::CutShort)?;
        let end = length.min(filled + LZ4_BLOCK_BYTES);
        filled +=
            lz4_flex::block::decompress_into(block, &mut kernel[filled..end]).map_err(KernelError::Block)?;
        blocks = rest;
    }
    kernel.truncate(filled);
    Ok(kernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn kernel() -> Vec<u8> {
        let body = (0..3 * LZ4_BLOCK_BYTES / 2).map(|at| (at / 1000) as u8);
        b"\x7fELF".iter().copied().chain(body).collect()
    }

    fn lz4(kernel: &[u8]) -> Vec<u8> {
        let mut packed = vec![0x02, 0x21, 0x4c, 0x18];
        for block in kernel.chunks(LZ4_BLOCK_BYTES) {
            let block = lz4_flex::block::compress(block);
            packed.extend((block.len() as u32).to_le_bytes());
            packed.extend(block);
        }
        packed
    }

    fn bzimage(packed: &[u8], length: u32) -> Vec<u8> {
        const SETUP: usize = 3 * SECTOR_BYTES;
        let mut image = vec![0; SETUP + 100];
        image[SETUP_SECTORS_AT] = 2;
        image[SIGNATURE_AT..SIGNATURE_AT + 4].copy_from_slice(b"HdrS");
        image[PAYLOAD_AT..PAYLOAD_AT + 4].copy_from_slice(&100u32.to_le_bytes());
        image[PAYLOAD_AT + 4..PAYLOAD_AT + 8].copy_from_slice(&(packed.len() as u32 + 4).to_le_bytes());
        image.extend(packed);
        image.extend(length.to_le_bytes());
        image.extend(b"more of the loader");
        image
    }

    #[test]
    fn every_debian_kernel_compression_is_unpacked() {
        let kernel = kernel();
        let mut xz = xz2::write::XzEncoder::new(Vec::new(), 0);
        xz.write_all(&kernel).unwrap();
        let zstd = zstd::encode_all(&kernel[..], 1).unwrap();
        for packed in [lz4(&kernel), xz.finish().unwrap(), zstd] {
            assert!(unpack(&bzimage(&packed, kernel.len() as u32)).unwrap() == kernel);
        }
    }

    #[test]
    fn invalid_kernel_images_are_rejected() {
        let (kernel, packed) = (kernel(), lz4(&kernel()));
        let length = kernel.len() as u32;
        let good = bzimage(&packed, length);
        let cases = [
            Vec::new(),
            good[..SIGNATURE_AT + 2].to_vec(),
            good[..good.len() / 2].to_vec(),
            bzimage(&packed[..packed.len() - 1], length),
            bzimage(&packed, length + 1),
            bzimage(&packed, length - 1),
            bzimage(&packed, u32::MAX),
            bzimage(&lz4(&kernel[1..]), length - 1),
            bzimage(b"unknown", length),
            bzimage(b"", 0),
        ];
        for (number, case) in cases.iter().enumerate() {
            assert!(unpack(case).is_err(), "case {number}");
        }
    }
}
