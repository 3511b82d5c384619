//! The times of sources, across clones.
//!
//! Cargo tells by a file's time whether it changed. In a fresh clone every file is new, so every
//! crate of ours would be compiled again though its build output is in the cache. Content and time
//! of every file and directory are noted beside the build output, and what has the same content in
//! the next clone gets its time back.
//!
//! What must hold: a time goes back only if the build output is that of the noted content. Whoever
//! else builds into the same directory leaves output that is newer than the note; then the note
//! says nothing. Nor does it for a clone at another place: programs have the place of their sources
//! in them, and cargo does not compile them again for that.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, FileTimes};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::tree;

/// What is known of the sources that the build output was made from.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// The clone.
    root: PathBuf,
    /// When the newest of the build output was written.
    built: Duration,
    sources: BTreeMap<PathBuf, Source>,
}

/// A file, or a directory: then the content is its names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Source {
    content: u64,
    modified: Duration,
}

/// The clone's sources, with the times that cargo is to see.
#[derive(Debug)]
pub struct Sources {
    root: PathBuf,
    target: PathBuf,
    sources: BTreeMap<PathBuf, Source>,
}

impl Sources {
    /// Gives back their times to what is as it was, and the present time to the rest.
    pub fn restore() -> Result<Self> {
        Self::restore_in(tree::root(), &tree::target_dir(), &tree::files()?)
    }

    fn restore_in(root: &Path, target: &Path, files: &[PathBuf]) -> Result<Self> {
        let known =
            fs::read(note_path(target)).ok().and_then(|text| serde_json::from_slice::<Note>(&text).ok());
        let known = known.filter(|note| note.root == root && note.built == newest_output(target));
        let known = known.map(|note| note.sources).unwrap_or_default();
        let now = since_epoch(SystemTime::now());
        let mut sources = BTreeMap::new();
        for (path, content) in contents(root, files)? {
            let same = known.get(&path).filter(|source| source.content == content);
            let modified = same.map_or(now, |source| source.modified);
            set_modified(&root.join(&path), modified)?;
            sources.insert(path, Source { content, modified });
        }
        Ok(Self { root: root.to_owned(), target: target.to_owned(), sources })
    }

    /// Notes that the build output is that of these sources, where it is there at all: cargo finds
    /// the rest missing.
    pub fn were_built(&self) -> Result<()> {
        let built = newest_output(&self.target);
        let note = Note { root: self.root.clone(), built, sources: self.sources.clone() };
        let path = note_path(&self.target);
        let text = serde_json::to_vec(&note).context("write the times of the sources as JSON")?;
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    }
}

fn note_path(target: &Path) -> PathBuf {
    target.join("source-times.json")
}

/// Every file and every directory with a hash of what is in it.
fn contents(root: &Path, files: &[PathBuf]) -> Result<BTreeMap<PathBuf, u64>> {
    let mut found = BTreeMap::new();
    let mut directories: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
    for path in files {
        let bytes = fs::read(root.join(path)).with_context(|| format!("read {}", path.display()))?;
        found.insert(path.clone(), hash_of(&bytes));
        let mut child = path.as_path();
        while let Some(parent) = child.parent() {
            directories.entry(parent).or_default().insert(child);
            child = parent;
        }
    }
    found.extend(directories.into_iter().map(|(path, names)| (path.to_owned(), hash_of(&names))));
    Ok(found)
}

fn hash_of(content: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

/// When cargo last noted something that it built.
fn newest_output(target: &Path) -> Duration {
    let entries = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten();
    let units = entries(target.join("release/.fingerprint")).flat_map(|unit| entries(unit.path()));
    let times = units.filter_map(|file| file.metadata().ok()?.modified().ok());
    times.map(since_epoch).max().unwrap_or_default()
}

fn set_modified(path: &Path, modified: Duration) -> Result<()> {
    let times = FileTimes::new().set_modified(UNIX_EPOCH + modified);
    let set = File::open(path).and_then(|file| file.set_times(times));
    set.with_context(|| format!("set the time of {}", path.display()))
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clone and a directory that is built to, both gone at the end.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("pandastack-sources-{name}-{}", std::process::id()));
            fs::create_dir_all(dir.join("clone/src")).unwrap();
            fs::create_dir_all(dir.join("target/release/.fingerprint/unit")).unwrap();
            let place = Self(dir);
            place.write("a", "a");
            place.write("b", "b");
            place.build();
            place
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.0.join("clone/src").join(name), text).unwrap();
        }

        /// Cargo at work.
        fn build(&self) {
            fs::write(self.0.join("target/release/.fingerprint/unit/built"), "").unwrap();
        }

        fn restore(&self) -> Sources {
            let names = fs::read_dir(self.0.join("clone/src")).unwrap();
            let files: Vec<PathBuf> =
                names.map(|name| Path::new("src").join(name.unwrap().file_name())).collect();
            Sources::restore_in(&self.0.join("clone"), &self.0.join("target"), &files).unwrap()
        }

        fn modified(&self, path: &str) -> SystemTime {
            fs::metadata(self.0.join("clone").join(path)).unwrap().modified().unwrap()
        }

        /// Which of these have the time that they have at the next restore.
        fn kept(&self, paths: &[&'static str]) -> Vec<&'static str> {
            let before: Vec<_> = paths.iter().map(|path| self.modified(path)).collect();
            // As in a fresh clone.
            let now = FileTimes::new().set_modified(SystemTime::now() + Duration::from_secs(9));
            for path in paths {
                File::open(self.0.join("clone").join(path)).unwrap().set_times(now).unwrap();
            }
            self.restore();
            let same = paths.iter().zip(before).filter(|(path, before)| self.modified(path) == *before);
            same.map(|(path, _)| *path).collect()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_is_as_it_was_gets_its_time_back() {
        let place = Place::new("same");
        place.restore().were_built().unwrap();
        assert_eq!(place.kept(&["src/a", "src/b", "src"]), ["src/a", "src/b", "src"]);
        place.write("a", "another");
        assert_eq!(place.kept(&["src/a", "src/b", "src"]), ["src/b", "src"]);
        place.write("c", "new");
        assert_eq!(place.kept(&["src/b", "src"]), ["src/b"], "the directory has another name in it");
    }

    #[test]
    fn build_output_of_others_makes_the_note_worthless() {
        let place = Place::new("others");
        place.restore().were_built().unwrap();
        let note = fs::read(place.0.join("target/source-times.json")).unwrap();
        place.build();
        assert!(place.kept(&["src/a", "src"]).is_empty());
        // Noted after the build, it counts again, but only at that place.
        place.restore().were_built().unwrap();
        assert_ne!(fs::read(place.0.join("target/source-times.json")).unwrap(), note);
        assert_eq!(place.kept(&["src/a"]), ["src/a"]);
        let (elsewhere, noted) = (place.0.join("elsewhere"), place.modified("src/a"));
        fs::rename(place.0.join("clone"), &elsewhere).unwrap();
        Sources::restore_in(&elsewhere, &place.0.join("target"), &[PathBuf::from("src/a")]).unwrap();
        assert_ne!(fs::metadata(elsewhere.join("src/a")).unwrap().modified().unwrap(), noted);
    }
}
