use std::net::Ipv4Addr;

use super::*;

fn open() -> Arc<Door> {
    Door::fixed(Ipv4Addr::LOCALHOST.into())
}

#[tokio::test]
async fn a_drain_waits_for_tickets_and_gives_no_more() {
    let door = open();
    let ticket = door.enter().ok().unwrap();
    door.hold();
    assert_eq!(door.enter().err(), Some(NoTicket::Closed));
    let mut drain = Box::pin(door.drain(Duration::from_secs(60)));
    assert!(futures::poll!(&mut drain).is_pending());
    assert!(!door.cut.is_cancelled());
    drop(ticket);
    drain.await;
    assert!(door.cut.is_cancelled());
}

#[tokio::test]
async fn what_goes_on_after_its_answer_is_waited_for_too() {
    let door = open();
    let ticket = door.enter().ok().unwrap();
    door.hold();
    let tunnel = ticket.another();
    drop(ticket);
    let mut drain = Box::pin(door.drain(Duration::from_secs(60)));
    assert!(futures::poll!(&mut drain).is_pending());
    drop(tunnel);
    drain.await;
    assert_eq!(door.count_under_way(), 0);
}

#[tokio::test]
async fn what_does_not_end_is_cut() {
    let door = open();
    let _ticket = door.enter().ok().unwrap();
    door.hold();
    door.drain(Duration::from_millis(1)).await;
    assert!(door.cut.is_cancelled());
}

#[tokio::test]
async fn what_is_cut_may_take_its_leave_before_the_drain_ends() {
    let door = open();
    let ticket = door.enter().ok().unwrap();
    door.hold();
    let mut drain = Box::pin(door.drain(Duration::from_millis(1)));
    tokio::select! {
        () = &mut drain => panic!("the guest would stop at once"),
        () = door.cut.cancelled() => {}
    }
    assert!(futures::poll!(&mut drain).is_pending());
    drop(ticket);
    let began = tokio::time::Instant::now();
    drain.await;
    assert!(began.elapsed() < PARTING_WAIT);
}

/// A ticket of a stream that waits for its guest.
fn resting(door: &Arc<Door>) -> Ticket {
    let mut ticket = door.enter().ok().unwrap();
    ticket.answered();
    ticket.set_resting(true);
    ticket
}

#[tokio::test]
async fn a_stream_on_which_nothing_happens_is_not_waited_for() {
    let door = open();
    let ticket = resting(&door);
    door.hold();
    let began = Instant::now();
    let mut drain = Box::pin(door.drain(Duration::from_secs(60)));
    tokio::select! {
        () = &mut drain => panic!("it has something left to say"),
        () = door.cut.cancelled() => {}
    }
    drop(ticket);
    drain.await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_stream_that_has_been_still_for_long_is_cut_at_once() {
    let door = open();
    let _ticket = resting(&door);
    tokio::time::sleep_until(door.still_at()).await;
    door.hold();
    assert!(futures::poll!(Box::pin(door.drain(Duration::from_secs(60)))).is_pending());
    assert!(door.cut.is_cancelled());
}

#[tokio::test]
async fn what_goes_on_is_waited_for_beside_a_stream_on_which_nothing_happens() {
    let door = open();
    let _still = resting(&door);
    let (unanswered, mut answering) = (door.enter().ok().unwrap(), resting(&door));
    answering.set_resting(false);
    door.hold();
    let mut drain = Box::pin(door.drain(Duration::from_secs(60)));
    assert!(tokio::time::timeout(2 * STILL_AFTER, &mut drain).await.is_err());
    assert!(!door.cut.is_cancelled(), "a request without an answer is under way");
    drop(unanswered);
    assert!(tokio::time::timeout(2 * STILL_AFTER, &mut drain).await.is_err());
    assert!(!door.cut.is_cancelled(), "an answer goes on");
    drop(answering);
    tokio::time::timeout(Duration::from_secs(10), drain).await.expect("nothing goes on any more");
    assert!(door.cut.is_cancelled());
}

#[tokio::test]
async fn bytes_put_off_the_moment_at_which_a_stream_is_still() {
    let door = open();
    let mut ticket = resting(&door);
    let before = door.still_at();
    tokio::time::sleep_until(before).await;
    assert!(door.has_settled());
    ticket.note_write(false);
    assert!(door.still_at() > before, "bytes went to the guest");
    let before = door.still_at();
    tokio::time::sleep_until(before).await;
    ticket.set_resting(false);
    ticket.set_resting(true);
    assert!(door.still_at() > before, "bytes came from it");
}

#[test]
fn a_stream_with_work_under_way_is_not_quiet() {
    let door = open();
    let mut ticket = door.enter().ok().unwrap();
    ticket.set_busy(false);
    assert!(!door.is_quiet(), "it moved just now");
    assert!(door.is_quiet());
    ticket.set_busy(true);
    ticket.set_busy(true);
    assert!(!door.is_quiet());
    assert!(!door.is_quiet(), "nothing moves, and it works");
    ticket.set_busy(false);
    door.is_quiet();
    assert!(door.is_quiet());
    assert!(!ticket.closing().is_cancelled());
    door.hold();
    assert!(ticket.closing().is_cancelled());
}

#[test]
fn a_request_without_an_answer_is_not_quiet_and_a_silent_stream_is() {
    let door = open();
    let mut ticket = door.enter().ok().unwrap();
    assert!(!door.is_quiet());
    assert!(!door.is_quiet());
    ticket.answered();
    assert!(door.is_quiet());
    ticket.stir();
    assert!(!door.is_quiet());
}
