use std::net::Ipv4Addr;

use super::*;

fn open() -> Arc<TrafficGrant> {
    TrafficGrant::fixed(Ipv4Addr::LOCALHOST.into())
}

#[tokio::test]
async fn a_drain_waits_for_permits_and_grants_no_more() {
    let grant = open();
    let permit = grant.enter().ok().unwrap();
    grant.hold();
    assert_eq!(grant.enter().err(), Some(PermitError::Closed));
    let mut drain = Box::pin(grant.drain(Duration::from_secs(60)));
    assert!(futures::poll!(&mut drain).is_pending());
    assert!(!grant.cut.is_cancelled());
    drop(permit);
    drain.await;
    assert!(grant.cut.is_cancelled());
}

#[tokio::test]
async fn draining_waits_for_tunnels_after_their_response() {
    let grant = open();
    let permit = grant.enter().ok().unwrap();
    grant.hold();
    let tunnel = permit.duplicate();
    drop(permit);
    let mut drain = Box::pin(grant.drain(Duration::from_secs(60)));
    assert!(futures::poll!(&mut drain).is_pending());
    drop(tunnel);
    drain.await;
    assert_eq!(grant.count_in_flight(), 0);
}

#[tokio::test]
async fn draining_cuts_requests_at_the_deadline() {
    let grant = open();
    let _permit = grant.enter().ok().unwrap();
    grant.hold();
    grant.drain(Duration::from_millis(1)).await;
    assert!(grant.cut.is_cancelled());
}

#[tokio::test]
async fn a_drain_waits_for_cut_streams_to_close() {
    let grant = open();
    let permit = grant.enter().ok().unwrap();
    grant.hold();
    let mut drain = Box::pin(grant.drain(Duration::from_millis(1)));
    tokio::select! {
        () = &mut drain => panic!("the guest would stop at once"),
        () = grant.cut.cancelled() => {}
    }
    assert!(futures::poll!(&mut drain).is_pending());
    drop(permit);
    let began = tokio::time::Instant::now();
    drain.await;
    assert!(began.elapsed() < PARTING_WAIT);
}

/// A permit of a stream that waits for its guest.
fn resting(grant: &Arc<TrafficGrant>) -> Permit {
    let mut permit = grant.enter().ok().unwrap();
    permit.answered();
    permit.set_resting(true);
    permit
}

#[tokio::test]
async fn an_idle_stream_does_not_delay_a_drain() {
    let grant = open();
    let permit = resting(&grant);
    grant.hold();
    let began = Instant::now();
    let mut drain = Box::pin(grant.drain(Duration::from_secs(60)));
    tokio::select! {
        () = &mut drain => panic!("it has something left to say"),
        () = grant.cut.cancelled() => {}
    }
    drop(permit);
    drain.await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_long_idle_stream_is_cut_immediately() {
    let grant = open();
    let _permit = resting(&grant);
    tokio::time::sleep_until(grant.still_at()).await;
    grant.hold();
    assert!(futures::poll!(Box::pin(grant.drain(Duration::from_secs(60)))).is_pending());
    assert!(grant.cut.is_cancelled());
}

#[tokio::test]
async fn draining_waits_for_active_requests_beside_an_idle_stream() {
    let grant = open();
    let _still = resting(&grant);
    let (unanswered, mut answering) = (grant.enter().ok().unwrap(), resting(&grant));
    answering.set_resting(false);
    grant.hold();
    let mut drain = Box::pin(grant.drain(Duration::from_secs(60)));
    assert!(tokio::time::timeout(2 * STILL_AFTER, &mut drain).await.is_err());
    assert!(!grant.cut.is_cancelled(), "a request without an answer is under way");
    drop(unanswered);
    assert!(tokio::time::timeout(2 * STILL_AFTER, &mut drain).await.is_err());
    assert!(!grant.cut.is_cancelled(), "an answer goes on");
    drop(answering);
    tokio::time::timeout(Duration::from_secs(10), drain).await.expect("nothing goes on any more");
    assert!(grant.cut.is_cancelled());
}

#[tokio::test]
async fn traffic_delays_when_a_stream_becomes_idle() {
    let grant = open();
    let mut permit = resting(&grant);
    let before = grant.still_at();
    tokio::time::sleep_until(before).await;
    assert!(grant.has_settled());
    permit.note_write(false);
    assert!(grant.still_at() > before, "bytes went to the guest");
    let before = grant.still_at();
    tokio::time::sleep_until(before).await;
    permit.set_resting(false);
    permit.set_resting(true);
    assert!(grant.still_at() > before, "bytes came from it");
}

#[test]
fn a_stream_with_work_in_flight_is_not_quiet() {
    let grant = open();
    let mut permit = grant.enter().ok().unwrap();
    permit.set_busy(false);
    assert!(!grant.is_quiet(), "it moved just now");
    assert!(grant.is_quiet());
    permit.set_busy(true);
    permit.set_busy(true);
    assert!(!grant.is_quiet());
    assert!(!grant.is_quiet(), "nothing moves, and it works");
    permit.set_busy(false);
    grant.is_quiet();
    assert!(grant.is_quiet());
    assert!(!permit.closing().is_cancelled());
    grant.hold();
    assert!(permit.closing().is_cancelled());
}

#[test]
fn only_an_answered_silent_stream_is_quiet() {
    let grant = open();
    let mut permit = grant.enter().ok().unwrap();
    assert!(!grant.is_quiet());
    assert!(!grant.is_quiet());
    permit.answered();
    assert!(grant.is_quiet());
    permit.note_activity();
    assert!(!grant.is_quiet());
}
