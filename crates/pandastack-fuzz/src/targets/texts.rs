//! Texts that users write.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};

use jiff::Timestamp;
use pandastack_detect::{Manifest, UserSettings, View, detect, interesting};
use pandastack_dockerfile::{EXPANDED_BYTES_MAX, Ignore, Instruction, expand, expand_text, parse};
use pandastack_schedule::Timing;
use pandastack_types::image::ImageReference;
use pandastack_types::network::{Ceiling, NetworkPolicy, Opening, Target};
use pandastack_types::sse::{Event, Reader};

/// Largest event that is read.
const EVENT_BYTES_MAX: usize = 512;
/// Runs of a schedule that are computed.
const RUNS: usize = 3;

/// A network policy. It round-trips, and the ranges for the kernel open exactly the destinations
/// that the policy permits.
pub(super) fn network_policy(data: &[u8]) {
    if let Ok(target) = std::str::from_utf8(data).unwrap_or_default().parse::<Target>() {
        assert_eq!(target.to_string().parse(), Ok(target));
    }
    let Ok(policy) = serde_json::from_slice::<NetworkPolicy>(data) else { return };
    let written = serde_json::to_vec(&policy).unwrap_or_default();
    assert_eq!(serde_json::from_slice(&written).ok(), Some(policy.clone()));
    let ceiling = Ceiling::default();
    let openings = policy.openings(&ceiling);
    let edges = openings.iter().flat_map(|opening| {
        let Opening { addresses, ports } = opening;
        let around = |address: u32| [address.wrapping_sub(1), address, address.wrapping_add(1)];
        let addresses = [around(addresses.first), around(addresses.last)].concat();
        let ports = [ports.first, ports.last, ports.first.wrapping_sub(1), ports.last.wrapping_add(1)];
        addresses.into_iter().flat_map(move |address| ports.map(|port| (address, port)))
    });
    for (address, port) in edges.filter(|(_, port)| *port > 0).take(4096) {
        let is_open = openings.iter().any(|opening| {
            (opening.addresses.first..=opening.addresses.last).contains(&address)
                && (opening.ports.first..=opening.ports.last).contains(&port)
        });
        let to = SocketAddrV4::new(Ipv4Addr::from(address), port);
        assert_eq!(policy.permits(None, to, &ceiling), is_open, "{to} under {policy:?}");
    }
}

/// A `pandastack.toml`.
pub(super) fn app_manifest(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Err(error) = Manifest::parse(text) {
        assert!(!error.to_string().is_empty());
    }
}

/// Files of an app, each a line with its name and then its text, with a line of `---` between two.
pub(super) fn app_source(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let files: BTreeMap<&str, &str> =
        text.split("\n---\n").map(|file| file.split_once('\n').unwrap_or((file, ""))).collect();
    let names: BTreeSet<String> = files.keys().map(|name| (*name).to_owned()).collect();
    let read = interesting(&names).into_iter();
    let texts = read.map(|name| (name.clone(), files.get(name.as_str()).copied().unwrap_or("").to_owned()));
    let view = View { texts: texts.collect(), files: names };
    let _ = pandastack_detect::manifest(&view);
    let (one, other) = (detect(&view, &UserSettings::default()), detect(&view, &UserSettings::default()));
    assert_eq!(format!("{one:?}"), format!("{other:?}"));
}

/// A Dockerfile. Its variables are expanded within their limit.
pub(super) fn dockerfile(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let lookup = |name: &str| (!name.len().is_multiple_of(3)).then(|| name.repeat(3));
    for expanded in [expand(text, '\\', &lookup), expand_text(text, &lookup)].into_iter().flatten() {
        assert!(expanded.len() <= text.len() + EXPANDED_BYTES_MAX);
    }
    let Ok(file) = parse(text) else { return };
    let lines = text.lines().count();
    assert!(!file.stages.is_empty());
    for stage in &file.stages {
        assert!((1..=lines).contains(&stage.line));
        assert!(stage.name.as_ref().is_none_or(|name| file.stage(name).is_some()), "{:?}", stage.name);
        for step in &stage.steps {
            assert!((stage.line..=lines).contains(&step.line));
            if let Instruction::Workdir(word) = &step.instruction {
                let _ = expand(word, file.escape, &lookup);
            }
        }
    }
}

/// Lines of a `.dockerignore` file, an empty line, and paths. A path below a finally excluded one
/// is excluded, too.
pub(super) fn dockerignore(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (patterns, paths) = text.split_once("\n\n").unwrap_or((text, text));
    let ignore = Ignore::parse(patterns);
    for path in paths.lines().take(64) {
        let excluded = ignore.excludes(path);
        if excluded && !ignore.may_keep_below() {
            assert!(ignore.excludes(&format!("{path}/below")), "{path:?} under {ignore:?}");
        }
    }
}

/// A reference to an image. It is written as the same reference, and its parts can be those of a URL.
pub(super) fn image_reference(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(image) = text.parse::<ImageReference>() else { return };
    assert_eq!(image.to_string().parse(), Ok(image.clone()));
    let is_plain = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-:/".contains(&byte))
    };
    let parts = [image.tag.as_deref(), image.digest.as_deref(), Some(&image.repository), Some(image.host())];
    assert!(parts.into_iter().flatten().all(is_plain), "{image:?}");
    assert!(!image.host().contains('/') && !image.repository.split('/').any(|part| part == ".."));
}

/// A cron expression and a time zone, on a line each. Its runs are in order, wherever the search
/// starts.
pub(super) fn schedule(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (cron, zone) = text.split_once('\n').unwrap_or((text, "UTC"));
    let Ok(timing) = Timing::cron(cron, zone) else { return };
    // Before and after the clocks of Europe change.
    for begin in [1_743_210_000, 1_761_440_000].into_iter().filter_map(|at| Timestamp::from_second(at).ok()) {
        let mut last = begin;
        for next in timing.instants_after(begin).take(RUNS) {
            assert!(next > last, "{next} is not after {last}");
            last = next;
        }
    }
}

fn events(bytes: &[u8], piece_bytes: usize) -> (Vec<Event>, bool) {
    let (mut reader, mut events) = (Reader::new(EVENT_BYTES_MAX), Vec::new());
    for piece in bytes.chunks(piece_bytes) {
        reader.push(piece);
        loop {
            match reader.next_event() {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(_) => return (events, false),
            }
        }
    }
    (events, true)
}

/// Server-sent events. The first byte is the size of the pieces.
pub(super) fn sse(data: &[u8]) {
    let Some((piece, bytes)) = data.split_first() else { return };
    let whole = events(bytes, bytes.len().max(1));
    assert_eq!(whole, events(bytes, usize::from(*piece) + 1));
    let bytes_max = 3 * EVENT_BYTES_MAX;
    assert!(whole.0.iter().all(|event| event.data.len() + event.name.len() <= bytes_max));
}
