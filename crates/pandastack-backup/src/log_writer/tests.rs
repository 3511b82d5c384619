use std::sync::Arc;

use object_store::memory::InMemory;
use object_store::path::Path;

use super::*;
use crate::seal::Key;

const START: Lsn = Lsn(5 * SEGMENT_BYTES);

fn archive() -> Archive {
    Archive::over(Arc::new(InMemory::new()), Path::default(), "db", Key::new([3; 32])).unwrap()
}

/// The log of a server that always writes the same.
fn log(from: Lsn, bytes: u64) -> Bytes {
    (from.0..from.0 + bytes).map(|at| (at / 7 % 251) as u8).collect()
}

async fn write(writer: &mut LogWriter, bytes: u64) {
    writer.push(writer.received(), log(writer.received(), bytes)).unwrap();
    writer.flush().await.unwrap();
}

async fn entries(archive: &Archive) -> Vec<Entry> {
    archive.list().await.unwrap().into_iter().map(|listed| listed.entry).collect()
}

#[tokio::test]
async fn wal_pieces_are_merged_into_segments() {
    let archive = archive();
    let mut writer = LogWriter::begin(archive.clone(), Timeline(1), Lsn(START.0 + 77));
    let pieces = MERGE_PIECES as u64 * MERGE_PIECES as u64 + 3;
    for _ in 0..pieces {
        write(&mut writer, 1000).await;
    }
    let segment = Segment::at(Timeline(1), START);
    let found = entries(&archive).await;
    let piece = |from: u32, to: u32| Entry::Piece(Piece { segment, from: from * 1000, to: to * 1000 });
    assert_eq!(found, [piece(0, 256), piece(256, 257), piece(257, 258), piece(258, 259)]);
    write(&mut writer, SEGMENT_BYTES).await;
    let next = Segment { number: segment.number + 1, ..segment };
    let rest = Piece { segment: next, from: 0, to: 259_000 };
    assert_eq!(entries(&archive).await, [Entry::Segment(segment), Entry::Piece(rest)]);
    let whole = archive.get(&Entry::Segment(segment)).await.unwrap().plain;
    assert!(whole == log(START, SEGMENT_BYTES), "the segment is what was sent");
}

#[tokio::test]
async fn a_new_log_writer_resumes_at_the_archive_end() {
    let archive = archive();
    assert!(LogWriter::resume(&archive).await.unwrap().is_none());
    let mut writer = LogWriter::begin(archive.clone(), Timeline(1), START);
    writer.note_complete(Timestamp::from_second(5).unwrap());
    for bytes in [SEGMENT_BYTES, 100_000, 50] {
        write(&mut writer, bytes).await;
        let mut again = LogWriter::resume(&archive).await.unwrap().unwrap();
        assert_eq!((again.archived(), again.timeline()), (writer.archived(), Timeline(1)));
        assert_eq!(again.complete_until(), Some(Timestamp::from_second(5).unwrap()));
        // The stream restarts with bytes that are already archived, within the segment that the
        // slot retains.
        let from = again.rewind();
        assert!(from.segment_start() == again.archived().segment_start() && from <= again.archived());
        again.push(from, log(from, 20_000)).unwrap();
        assert_eq!(again.received(), Lsn(from.0 + 20_000));
    }
}

#[test]
fn wal_is_complete_up_to_the_response_before_an_idle_one() {
    let mut writer = LogWriter::begin(archive(), Timeline(1), START);
    let at = |second| Timestamp::from_second(second).unwrap();
    writer.note_answer(at(10));
    assert_eq!(writer.complete_until(), None);
    writer.push(START, log(START, 10)).unwrap();
    writer.note_answer(at(20));
    assert_eq!(writer.complete_until(), None, "there was log after the first answer");
    writer.note_answer(at(30));
    assert_eq!(writer.complete_until(), Some(at(20)));
}

#[tokio::test]
async fn a_diverged_log_is_refused() {
    let archive = archive();
    let mut writer = LogWriter::begin(archive.clone(), Timeline(1), START);
    write(&mut writer, 1000).await;
    let from = writer.rewind();
    let mut other = log(from, 2000).to_vec();
    other[999] ^= 1;
    assert!(matches!(writer.push(from, Bytes::from(other)), Err(LogError::Diverged { .. })));
    writer.rewind();
    // The proof may arrive in parts.
    writer.push(from, log(from, 400)).unwrap();
    let behind = Lsn(from.0 + 400);
    assert!(matches!(writer.push(Lsn(from.0 + 500), log(behind, 10)), Err(LogError::Hole { .. })));
    writer.push(behind, log(behind, 700)).unwrap();
    assert_eq!((writer.received(), writer.archived()), (Lsn(from.0 + 1100), Lsn(from.0 + 1000)));
}

#[tokio::test]
async fn leftovers_of_an_interrupted_merge_are_harmless() {
    let archive = archive();
    let mut writer = LogWriter::begin(archive.clone(), Timeline(1), START);
    write(&mut writer, 1000).await;
    write(&mut writer, 1000).await;
    let segment = Segment::at(Timeline(1), START);
    let merged = Entry::Piece(Piece { segment, from: 0, to: 2000 });
    archive.put(&merged, Timestamp::now(), log(START, 2000)).await.unwrap();
    let mut again = LogWriter::resume(&archive).await.unwrap().unwrap();
    assert_eq!(again.archived(), Lsn(START.0 + 2000));
    again.rewind();
    let from = again.rewind();
    again.push(from, log(from, 2000 + SEGMENT_BYTES)).unwrap();
    again.flush().await.unwrap();
    let whole = archive.get(&Entry::Segment(segment)).await.unwrap().plain;
    assert!(whole == log(START, SEGMENT_BYTES), "the segment is what was sent");
}

#[tokio::test]
async fn a_new_timeline_starts_at_its_segment_boundary() {
    let archive = archive();
    let mut writer = LogWriter::begin(archive.clone(), Timeline(1), START);
    write(&mut writer, 1000).await;
    writer.switch(Timeline(2), Lsn(START.0 + 1000));
    assert_eq!((writer.timeline(), writer.rewind()), (Timeline(2), START));
    write(&mut writer, 1500).await;
    let resumed = LogWriter::resume(&archive).await.unwrap().unwrap();
    assert_eq!((resumed.timeline(), resumed.archived()), (Timeline(2), Lsn(START.0 + 1500)));
}
