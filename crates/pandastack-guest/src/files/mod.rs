//! Files of the machine. It is the tenant's own machine: links are followed, every path is allowed, and the
//! kernel's answer is the answer.
//!
//! Everything here runs on worker threads, one bounded step at a time ([`Source`], [`Sink`]), so that files
//! of any size cost constant memory.

mod absolute;
mod attributes;
mod copy;
mod directory;
mod errors;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;
mod glob;
mod grep;
mod names;
mod pack;
mod read;
mod sink;
mod source;
mod tar_stream;
mod unpack;
#[cfg(test)]
mod unpack_fuzz;
mod walk;
mod write;
mod xattrs;

pub(crate) use absolute::absolute;
pub(crate) use attributes::AttributesSource;
pub(crate) use copy::{CopySource, MoveSource};
pub(crate) use directory::{ListSource, make_directory, remove, stat};
pub(crate) use errors::refusal;
pub(crate) use grep::GrepSource;
pub(crate) use pack::PackSource;
pub(crate) use read::ReadSource;
pub(crate) use sink::Sink;
pub(crate) use source::{Source, Step};
pub(crate) use unpack::UnpackSink;
pub(crate) use walk::WalkSource;
pub(crate) use write::{TemporaryKind, WriteSink, temporary};
