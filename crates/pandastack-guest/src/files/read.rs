//! Reading a file.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use pandastack_guest_proto::message::{ErrorBody, ErrorCode, Event, FileRead};

use super::absolute::absolute;
use super::directory::describe;
use super::errors::refusal;
use super::source::{Source, Step};

/// A file that is sent to the host: first its description, then its bytes.
#[derive(Debug)]
pub(crate) struct ReadSource {
    request: FileRead,
    open: Option<(File, PathBuf)>,
    left: u64,
}

impl ReadSource {
    pub(crate) fn new(request: FileRead) -> Self {
        let left = request.length.unwrap_or(u64::MAX);
        Self { request, open: None, left }
    }

    fn open(&mut self) -> Result<Step, ErrorBody> {
        let path = absolute(&self.request.path)?;
        let fail = |error: &io::Error| refusal("read", &path, error);
        // Non-blocking: opening a pipe without a writer would block this thread.
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path)
            .map_err(|error| fail(&error))?;
        let meta = file.metadata().map_err(|error| fail(&error))?;
        if meta.is_dir() {
            return Err(fail(&ErrorKind::IsADirectory.into()));
        }
        if self.request.offset > 0 {
            file.seek(SeekFrom::Start(self.request.offset)).map_err(|error| fail(&error))?;
        }
        let entry = describe(&path, &meta);
        self.open = Some((file, path));
        Ok(Step::Event(Event::File { file: entry }))
    }
}

impl Source for ReadSource {
    fn next(&mut self, bytes_max: usize) -> Result<Step, ErrorBody> {
        let Some((file, path)) = &mut self.open else { return self.open() };
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes_max);
        let mut bytes = vec![0; wanted];
        let count = loop {
            match file.read(&mut bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let message = format!(
                        "{} has nothing to read now; read devices and pipes with a process",
                        path.display()
                    );
                    return Err(ErrorBody::new(ErrorCode::Invalid, message));
                }
                read => break read.map_err(|error| refusal("read", path, &error))?,
            }
        };
        if count == 0 {
            return Ok(Step::End);
        }
        bytes.truncate(count);
        self.left -= count as u64;
        Ok(Step::Data(bytes))
    }
}
