//! Files of the machine. It is the tenant's own machine: links are followed, every path is allowed, and the
//! kernel's answer is the answer.
//!
//! Everything here runs on worker threads, one bounded step at a time ([`Source`], [`Sink`]), so that files of
//! any size cost constant memory.

mod attributes;
mod copy;
mod directory;
mod errors;
mod glob;
mod grep;
mod names;
mod pack;
mod read;
mod tar_stream;
mod unpack;
#[cfg(test)]
mod unpack_fuzz;
mod walk;
mod write;

pub(crate) use attributes::AttributesSource;
pub(crate) use copy::{CopySource, MoveSource};
pub(crate) use directory::{ListSource, make_directory, remove, stat};
pub(crate) use errors::refusal;
pub(crate) use grep::GrepSource;
pub(crate) use pack::PackSource;
pub(crate) use read::ReadSource;
pub(crate) use unpack::UnpackSink;
pub(crate) use walk::WalkSource;
pub(crate) use write::WriteSink;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pandastack_guest_proto::message::{ErrorBody, ErrorCode, Event, RawPath};

/// One step of something that is sent to the host.
#[derive(Debug)]
pub(crate) enum Step {
    /// Raw bytes.
    Data(Vec<u8>),
    /// A message.
    Event(Event),
    /// Nothing yet: there was only work to do, and more of it follows.
    Idle,
    /// All was sent.
    End,
}

/// Something that is sent to the host step by step.
pub(crate) trait Source: Send {
    /// The next step; data is at most `bytes_max` long.
    fn next(&mut self, bytes_max: usize) -> Result<Step, ErrorBody>;
}

/// Something that takes the host's bytes step by step. Dropping it before its end undoes it if it can.
pub(crate) trait Sink: Send {
    /// Takes bytes.
    fn write(&mut self, bytes: &[u8]) -> Result<(), ErrorBody>;
    /// All was received; returns how many bytes that were.
    fn finish(&mut self) -> Result<u64, ErrorBody>;
}

/// The path that the host means; relative ones start at the root directory.
pub(crate) fn absolute(path: &RawPath) -> Result<PathBuf, ErrorBody> {
    let bytes = path.as_bytes();
    if bytes.is_empty() || bytes.contains(&0) {
        return Err(ErrorBody::new(ErrorCode::Invalid, "a path must not be empty or contain a zero byte"));
    }
    Ok(Path::new("/").join(OsStr::from_bytes(bytes)))
}
