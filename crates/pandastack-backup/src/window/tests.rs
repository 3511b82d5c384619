use super::*;
use crate::limits::SEGMENT_BYTES;

const DAY_S: i64 = 24 * 60 * 60;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn segment(timeline: u32, number: u64) -> Entry {
    Entry::Segment(Segment { timeline: Timeline(timeline), number })
}

fn piece(timeline: u32, number: u64, from: u32, to: u32) -> Entry {
    Entry::Piece(Piece { segment: Segment { timeline: Timeline(timeline), number }, from, to })
}

/// A base in a segment, complete at a second.
fn base(number: u64, stopped_at: i64) -> BaseBackup {
    BaseBackup {
        label: format!("b{stopped_at}"),
        server_version: "16.14".to_owned(),
        system_id: "7".to_owned(),
        timeline: Timeline(1),
        start: Lsn(number * SEGMENT_BYTES + 40),
        stop: Lsn(number * SEGMENT_BYTES + 400),
        started_at: at(stopped_at - 5),
        stopped_at: at(stopped_at),
        parts: 1,
        tar_bytes: 1,
    }
}

/// An archive whose objects were put at second 0, and whose chains are complete until `until`.
fn catalog(bases: &[BaseBackup], log: &[Entry], until: i64) -> Catalog {
    let described = bases.iter().flat_map(|base| {
        let label = base.label.clone();
        [Entry::Base { label: label.clone() }, Entry::BasePart { label, number: 0 }]
    });
    let entries = log.iter().cloned().chain(described);
    let listed = entries.map(|entry| ArchivedObject { entry, put_at: at(0), bytes: 1 }).collect();
    let mut catalog = Catalog { bases: bases.to_vec(), ..Catalog::of_listing(listed) };
    catalog.complete_until = log.iter().map(|entry| (entry.clone(), at(until))).collect();
    catalog
}

#[test]
fn a_segment_is_covered_by_the_fewest_pieces() {
    let check = |pieces: &[(u32, u32)], expected: &[(u32, u32)]| {
        let segment = Segment { timeline: Timeline(1), number: 1 };
        let pieces: Vec<_> =
            pieces.iter().map(|(from, to)| Piece { segment, from: *from, to: *to }).collect();
        let covered: Vec<_> = cover(&pieces).iter().map(|piece| (piece.from, piece.to)).collect();
        assert_eq!(covered, expected, "{pieces:?}");
    };
    check(&[], &[]);
    check(&[(1, 5)], &[]);
    check(&[(0, 5), (5, 9), (10, 12)], &[(0, 5), (5, 9)]);
    check(&[(0, 5), (0, 9), (5, 9), (9, 10)], &[(0, 9), (9, 10)]);
    check(&[(0, 5), (3, 9)], &[(0, 5), (3, 9)]);
}

#[test]
fn the_restore_window_spans_the_first_base_to_the_end_of_wal() {
    let log = [segment(1, 1), segment(1, 2), piece(1, 3, 0, 500), piece(1, 3, 500, 700)];
    let window = catalog(&[base(1, 100), base(2, 200)], &log, 300).window();
    assert_eq!((window.earliest(), window.latest()), (Some(at(100)), Some(at(300))));
    assert_eq!(window.restorable.len(), 1);
    assert_eq!(window.end, Some((Timeline(1), Lsn(3 * SEGMENT_BYTES + 700))));
    assert!(window.gaps.is_empty());
}

#[test]
fn a_base_backup_is_restorable_only_with_its_log() {
    let check = |log: &[Entry], counts: bool| {
        let plan = catalog(&[base(1, 100)], log, 300).plan_restore(Target::Latest);
        assert_eq!(plan.is_ok(), counts, "{log:?}: {plan:?}");
    };
    check(&[], false);
    check(&[piece(1, 1, 0, 399)], false);
    check(&[piece(1, 1, 0, 400)], true);
    check(&[piece(1, 1, 40, 400)], false);
    check(&[segment(2, 1)], false);
}

#[test]
fn restore_targets_select_a_base_backup_or_an_error() {
    let log = [segment(1, 1), segment(1, 2), piece(1, 3, 0, 500)];
    let catalog = catalog(&[base(1, 100), base(2, 200)], &log, 300);
    let label = |second| catalog.plan_restore(Target::At(at(second))).map(|plan| plan.base.label);
    assert_eq!(label(100), Ok("b100".to_owned()));
    assert_eq!(label(199), Ok("b100".to_owned()));
    assert_eq!(label(200), Ok("b200".to_owned()));
    assert_eq!(label(300), Ok("b200".to_owned()));
    assert_eq!(label(99), Err(PlanError::TooEarly { target: at(99), earliest: at(100) }));
    assert_eq!(label(301), Err(PlanError::TooLate { target: at(301), latest: at(300) }));
    let sentence = label(301).unwrap_err().to_string();
    assert!(sentence.contains("1970-01-01T00:05:01Z is after the latest time"), "{sentence}");
}

#[test]
fn a_gap_is_reported_and_never_skipped() {
    let log = [segment(1, 1), piece(1, 2, 0, 500), piece(1, 2, 600, 700), segment(1, 4), segment(1, 5)];
    let mut catalog = catalog(&[base(1, 100), base(4, 400)], &log, 0);
    catalog.complete_until.insert(piece(1, 2, 0, 500), at(150));
    catalog.complete_until.insert(segment(1, 5), at(500));
    let window = catalog.window();
    assert_eq!(window.restorable, [(at(100), at(150)), (at(400), at(500))]);
    let gap =
        Gap { timeline: Timeline(1), from: Lsn(2 * SEGMENT_BYTES + 500), to: Lsn(2 * SEGMENT_BYTES + 600) };
    assert_eq!(window.gaps, [gap]);
    let plan = |second| catalog.plan_restore(Target::At(at(second))).map(|plan| plan.base.label);
    assert_eq!(plan(150), Ok("b100".to_owned()));
    assert_eq!(plan(300), Err(PlanError::Gap { target: at(300), gap, before: at(150) }));
    assert_eq!(plan(450), Ok("b400".to_owned()));
}

#[test]
fn timelines_are_followed_where_they_branch_off() {
    let switch = Lsn(2 * SEGMENT_BYTES + 500);
    let log = [segment(1, 1), piece(1, 2, 0, 500), segment(2, 2), piece(2, 3, 0, 10)];
    let mut catalog = catalog(&[base(1, 100)], &log, 300);
    catalog.parents.insert(Timeline(2), (Timeline(1), switch));
    let chain = catalog.chain(&catalog.bases[0]);
    assert_eq!((chain.timeline, chain.end), (Timeline(2), Lsn(3 * SEGMENT_BYTES + 10)));
    let segments: Vec<_> =
        chain.segments.iter().map(|(segment, _)| (segment.timeline.0, segment.number)).collect();
    assert_eq!(segments, [(1, 1), (1, 2), (2, 2), (2, 3)]);
    assert_eq!((chain.histories.as_slice(), chain.gap), (&[Timeline(2)][..], None));
    // A timeline's history may be archived before its log.
    let log = [segment(1, 1), piece(1, 2, 0, 500)];
    let early =
        Catalog { parents: catalog.parents.clone(), ..super::tests::catalog(&[base(1, 100)], &log, 300) };
    assert_eq!(early.chain(&early.bases[0]).end, switch);
    // A timeline that starts beyond the end of the old one is not followed.
    catalog.parents.insert(Timeline(2), (Timeline(1), Lsn(switch.0 + 1)));
    assert_eq!(catalog.chain(&catalog.bases[0]).timeline, Timeline(1));
}

#[test]
fn timeline_histories_name_their_parent() {
    let history = b"1\t0/1000\tno recovery target specified\n\n2\t0/3000028\tbefore 2000-01-01 01:00:00+01\n";
    assert_eq!(chain::parent(history), Some((Timeline(2), Lsn(0x300_0028))));
    assert_eq!(chain::parent(b"# nothing\n"), None);
}

#[test]
fn an_idle_database_stays_restorable() {
    let mut catalog = catalog(&[base(1, 100)], &[segment(1, 1)], 150);
    let end = (Timeline(1), Lsn(2 * SEGMENT_BYTES));
    catalog.extend((Timeline(1), Lsn(end.1.0 + 1)), at(400));
    assert_eq!(catalog.window().latest(), Some(at(150)), "the status knows of more log than the listing");
    catalog.extend(end, at(300));
    assert_eq!(catalog.window().latest(), Some(at(300)));
}

#[test]
fn objects_not_needed_by_a_kept_base_backup_expire() {
    let log: Vec<_> = (1..=6).map(|number| segment(1, number)).collect();
    let bases = [base(1, DAY_S), base(3, 2 * DAY_S), base(5, 3 * DAY_S)];
    let catalog = catalog(&bases, &log, 4 * DAY_S);
    let gone = |keep_from| catalog.expired(at(keep_from), at(4 * DAY_S));
    assert_eq!(gone(0), []);
    assert_eq!(gone(2 * DAY_S - 1), [], "the first base is needed for the second before the second base");
    let label = || format!("b{DAY_S}");
    let first = [
        Entry::Base { label: label() },
        segment(1, 1),
        segment(1, 2),
        Entry::BasePart { label: label(), number: 0 },
    ];
    assert_eq!(gone(2 * DAY_S), first);
    // Long after the last one, it stays.
    let rest = gone(100 * DAY_S);
    assert!(rest.contains(&segment(1, 4)) && !rest.contains(&segment(1, 5)), "{rest:?}");
}

#[test]
fn redundant_objects_are_deleted_and_unfinished_uploads_are_kept() {
    let log =
        [segment(1, 1), piece(1, 1, 0, 400), piece(1, 2, 0, 10), piece(1, 2, 0, 20), piece(1, 2, 10, 20)];
    let mut catalog = catalog(&[base(1, 100)], &log, 200);
    let unfinished = Entry::BasePart { label: "x".to_owned(), number: 0 };
    catalog.listed.push(ArchivedObject { entry: unfinished.clone(), put_at: at(DAY_S), bytes: 1 });
    let leftovers = [piece(1, 1, 0, 400), piece(1, 2, 0, 10), piece(1, 2, 10, 20)];
    assert_eq!(catalog.expired(at(0), at(2 * DAY_S)), leftovers);
    assert!(catalog.expired(at(0), at(2 * DAY_S + 1)).contains(&unfinished));
    // Without a base that can be restored nothing is touched.
    catalog.bases.clear();
    assert_eq!(catalog.expired(at(0), at(9 * DAY_S)), []);
}
