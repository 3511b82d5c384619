//! Searching files for lines.
//!
//! Regular expressions do not backtrack, and lines and steps have a bounded size: for any pattern
//! and files, a search takes time proportional to the bytes it reads, and almost no memory.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use pandastack_guest_proto::message::{ErrorBody, ErrorCode, Event, FileGrep, GrepMatch, RawPath};
use regex::bytes::{Regex, RegexBuilder};

use super::absolute::absolute;
use super::directory::{JSON_GROWTH_MAX, PAGE_BYTES};
use super::errors::refusal;
use super::glob::{COMPILED_BYTES_MAX, Glob};
use super::source::{Source, Step};
use super::walk::{STEP_ENTRIES, Walker};

/// Longest pattern.
const PATTERN_BYTES_MAX: usize = 4096;
/// A longer line is searched in pieces of this length.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a line that are sent.
const TEXT_BYTES_MAX: usize = 1024;
/// Bytes searched in one step.
const STEP_BYTES: usize = 1024 * 1024;
/// The fixed part of a match in JSON.
const MATCH_BYTES: usize = 64;
/// Room for reading ahead; a zero byte in the first of it makes a file a binary one.
const BUFFER_BYTES: usize = 32 * 1024;

/// A search whose matches are sent in pages.
#[derive(Debug)]
pub(crate) struct GrepSource {
    request: FileGrep,
    open: Option<SearchState>,
    ended: bool,
}

#[derive(Debug)]
struct SearchState {
    files: Files,
    regex: Regex,
    left: u32,
    current: Option<SearchedFile>,
}

#[derive(Debug)]
enum Files {
    One(Option<PathBuf>),
    Tree(Walker, Option<Glob>),
}

#[derive(Debug)]
struct SearchedFile {
    reader: BufReader<File>,
    relative: RawPath,
    line: u64,
}

impl GrepSource {
    pub(crate) fn new(request: FileGrep) -> Self {
        Self { request, open: None, ended: false }
    }

    fn open(&self) -> Result<SearchState, ErrorBody> {
        let path = absolute(&self.request.path)?;
        let regex = compile(&self.request)?;
        let meta = std::fs::metadata(&path).map_err(|error| refusal("search", &path, &error))?;
        let files = if meta.is_dir() {
            let glob = self.request.glob.as_deref().map(Glob::new).transpose()?;
            let walker = Walker::open(&path, None).map_err(|error| refusal("search", &path, &error))?;
            Files::Tree(walker, glob)
        } else {
            Files::One(Some(path))
        };
        Ok(SearchState { files, regex, left: self.request.matches_max, current: None })
    }
}

fn compile(request: &FileGrep) -> Result<Regex, ErrorBody> {
    let refuse = |why: String| ErrorBody::new(ErrorCode::Invalid, format!("the search pattern {why}"));
    if request.pattern.is_empty() || request.pattern.len() > PATTERN_BYTES_MAX {
        return Err(refuse(format!("must have 1 to {PATTERN_BYTES_MAX} bytes")));
    }
    let text = if request.fixed { regex::escape(&request.pattern) } else { request.pattern.clone() };
    RegexBuilder::new(&text)
        .case_insensitive(request.ignore_case)
        .size_limit(COMPILED_BYTES_MAX)
        .build()
        .map_err(|error| refuse(format!("is not a regular expression: {error}")))
}

impl SearchState {
    /// The next file, or `None` at the end; the inner `None` when this step has visited enough
    /// entries.
    fn next_file(&mut self, budget: &mut usize) -> Option<Option<SearchedFile>> {
        loop {
            let (path, relative) = match &mut self.files {
                Files::One(path) => (path.take()?, PathBuf::new()),
                Files::Tree(walker, glob) => {
                    if *budget == 0 {
                        return Some(None);
                    }
                    *budget -= 1;
                    let visited = walker.next()?;
                    let wanted = visited.meta.is_file()
                        && glob.as_ref().is_none_or(|glob| glob.matches(&visited.relative));
                    if !wanted {
                        continue;
                    }
                    (visited.path, visited.relative)
                }
            };
            // A file that vanished or may not be read has no lines.
            if let Ok(Some(reader)) = open_text(&path) {
                let relative = relative.as_os_str().as_bytes().to_vec().into();
                return Some(Some(SearchedFile { reader, relative, line: 0 }));
            }
        }
    }

    /// Matches of one step, and whether the search is complete.
    fn page(&mut self) -> (Vec<GrepMatch>, bool) {
        let (mut matches, mut sent, mut read) = (Vec::new(), 0, 0);
        let mut entries = STEP_ENTRIES;
        let mut line = Vec::new();
        while sent < PAGE_BYTES && read < STEP_BYTES {
            let Some(current) = &mut self.current else {
                match self.next_file(&mut entries) {
                    None => return (matches, true),
                    Some(None) => return (matches, false),
                    Some(found) => self.current = found,
                }
                continue;
            };
            match next_line(&mut current.reader, &mut line) {
                Ok(Some(complete)) => {
                    read += line.len() + 1;
                    if self.regex.is_match(&line) {
                        if self.left == 0 {
                            self.truncate();
                            return (matches, true);
                        }
                        self.left -= 1;
                        let found = current.matched(&line);
                        sent +=
                            MATCH_BYTES + (found.text.len() + found.path.as_bytes().len()) * JSON_GROWTH_MAX;
                        matches.push(found);
                    }
                    current.line += u64::from(complete);
                }
                Ok(None) | Err(_) => self.current = None,
            }
        }
        (matches, false)
    }

    fn truncate(&mut self) {
        if let Files::Tree(walker, _) = &mut self.files {
            walker.truncated = true;
        } else {
            self.files = Files::One(Some(PathBuf::new()));
        }
    }

    fn end(&self) -> Event {
        match &self.files {
            Files::Tree(walker, _) => {
                Event::WalkEnded { visited: walker.visited, truncated: walker.truncated }
            }
            Files::One(left) => Event::WalkEnded { visited: 1, truncated: left.is_some() },
        }
    }
}

impl SearchedFile {
    fn matched(&self, line: &[u8]) -> GrepMatch {
        let line_bytes = line.get(..TEXT_BYTES_MAX).unwrap_or(line);
        let text = String::from_utf8_lossy(line_bytes).trim_end_matches('\r').to_owned();
        GrepMatch { path: self.relative.clone(), line: self.line + 1, text }
    }
}

/// A reader of a text file; `None` for binary files, devices and the like.
fn open_text(path: &Path) -> io::Result<Option<BufReader<File>>> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    let mut reader = BufReader::with_capacity(BUFFER_BYTES, file);
    let binary = reader.fill_buf()?.contains(&0);
    Ok((!binary).then_some(reader))
}

/// Reads a line, or the next piece of a long one, without its end. Returns whether the line is
/// complete; `None` at the end of the file.
fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    line.clear();
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok((!line.is_empty()).then_some(true));
        }
        let room = LINE_BYTES_MAX - line.len();
        let window = buffer.get(..room).unwrap_or(buffer);
        if let Some(end) = window.iter().position(|&byte| byte == b'\n') {
            line.extend_from_slice(&window[..end]);
            reader.consume(end + 1);
            return Ok(Some(true));
        }
        let taken = window.len();
        line.extend_from_slice(window);
        reader.consume(taken);
        if line.len() >= LINE_BYTES_MAX {
            return Ok(Some(false));
        }
    }
}

impl Source for GrepSource {
    fn next(&mut self, _bytes_max: usize) -> Result<Step, ErrorBody> {
        let mut open = match self.open.take() {
            Some(open) => open,
            None if self.ended => return Ok(Step::End),
            None => self.open()?,
        };
        if self.ended {
            return Ok(Step::Event(open.end()));
        }
        let (matches, ended) = open.page();
        self.ended = ended;
        self.open = Some(open);
        Ok(if matches.is_empty() { Step::Idle } else { Step::Event(Event::Matches { matches }) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_a_newline_or_at_the_length_limit() {
        let mut text = Vec::from("one\n\n");
        text.extend(vec![b'x'; LINE_BYTES_MAX + 1]);
        text.extend(b"\nlast");
        let mut reader = BufReader::with_capacity(7, text.as_slice());
        let mut line = Vec::new();
        let mut lines = Vec::new();
        while let Some(complete) = next_line(&mut reader, &mut line).unwrap() {
            lines.push((line.len(), complete));
        }
        assert_eq!(lines, [(3, true), (0, true), (LINE_BYTES_MAX, false), (1, true), (4, true)]);
    }

    #[test]
    fn grep_patterns_are_validated() {
        let grep = |pattern: &str, fixed| FileGrep { pattern: pattern.into(), fixed, ..FileGrep::default() };
        assert!(compile(&grep("(", true)).is_ok());
        for bad in ["", "(", "a{1000}{1000}{1000}"] {
            assert_eq!(compile(&grep(bad, false)).unwrap_err().code, ErrorCode::Invalid, "{bad}");
        }
    }
}
