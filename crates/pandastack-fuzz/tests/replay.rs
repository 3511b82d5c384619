//! Replays every corpus: seeds, and inputs that once found something.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pandastack_fuzz::{TARGETS, Target};

/// All corpora together, so that a clone stays small.
const CORPORA_BYTES_MAX: u64 = 1024 * 1024;
/// Longest time for one input, on a busy machine: fuzzing takes one of them for a hang.
const INPUT_TIME_MAX: Duration = Duration::from_secs(10);

fn corpora() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The inputs of a target, with their names.
fn inputs(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = corpora().join(target.name);
    let files = fs::read_dir(&dir).unwrap_or_else(|error| panic!("list {}: {error}", dir.display()));
    let paths = files.map(|file| file.unwrap().path());
    paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

#[test]
fn every_input_of_every_corpus_still_passes() {
    for target in TARGETS {
        let inputs = inputs(target);
        assert!(!inputs.is_empty(), "{} has no seed", target.name);
        for (path, input) in inputs {
            let began = Instant::now();
            if std::panic::catch_unwind(|| target.run(&input)).is_err() {
                panic!("{} fails with {}", target.name, path.display());
            }
            let took = began.elapsed();
            assert!(took < INPUT_TIME_MAX, "{} took {took:?} with {}", target.name, path.display());
        }
    }
}

#[test]
fn corpora_are_small_and_belong_to_a_target() {
    let mut bytes = 0;
    for dir in fs::read_dir(corpora()).unwrap().map(Result::unwrap) {
        let name = dir.file_name().into_string().unwrap();
        let target = Target::named(&name).unwrap_or_else(|| panic!("corpus {name} has no target"));
        for (path, input) in inputs(target) {
            assert!(input.len() <= target.input_bytes_max, "{} is too long to be tried", path.display());
            bytes += input.len() as u64;
        }
    }
    assert!(bytes <= CORPORA_BYTES_MAX, "{bytes} bytes; keep what reaches new branches only");
}

#[test]
fn a_fuzz_target_over_its_memory_limit_fails() {
    let greedy = Target {
        name: "greedy",
        parse: |input| drop(std::hint::black_box(vec![1_u8; 100 * input.len()])),
        input_bytes_max: 10,
        memory_bytes: 0,
        memory_per_byte: 100,
    };
    greedy.run(b"1234");
    let frugal = Target { memory_per_byte: 99, ..greedy };
    assert!(std::panic::catch_unwind(|| frugal.run(b"1234")).is_err());
}
