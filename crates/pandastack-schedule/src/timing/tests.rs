use jiff::ToSpan;
use proptest::prelude::*;

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// The next instants, as the zone's clock shows them with its offset.
#[track_caller]
fn check(cron: &str, zone: &str, after: &str, expected: &[&str]) {
    let timing = Timing::cron(cron, zone).unwrap_or_else(|error| panic!("{error}"));
    let shown = timing.instants_after(at(after)).take(expected.len());
    let shown: Vec<_> =
        shown.map(|at| at.to_zoned(timing.zone()).strftime("%F %H:%M %z").to_string()).collect();
    assert_eq!(shown, expected, "`{cron}` in {zone}");
}

#[track_caller]
fn refused(cron: &str, zone: &str) -> TimingError {
    Timing::cron(cron, zone).map(|_| ()).expect_err(cron)
}

#[test]
fn cron_handles_dst_in_new_york() {
    // 2027-03-14 02:00 jumps to 03:00; 2027-11-07 02:00 goes back to 01:00.
    let gap = ["2027-03-13 02:30 -0500", "2027-03-14 03:00 -0400", "2027-03-15 02:30 -0400"];
    check("30 2 * * *", "America/New_York", "2027-03-13T00:00:00Z", &gap);
    let back = ["2027-11-06 01:30 -0400", "2027-11-07 01:30 -0400", "2027-11-08 01:30 -0500"];
    check("30 1 * * *", "America/New_York", "2027-11-06T00:00:00Z", &back);
    let both = [
        "2027-11-07 01:00 -0400",
        "2027-11-07 01:30 -0400",
        "2027-11-07 01:00 -0500",
        "2027-11-07 01:30 -0500",
        "2027-11-07 02:00 -0500",
    ];
    check("*/30 * * * *", "America/New_York", "2027-11-07T04:59:00Z", &both);
    let around = ["2027-03-14 01:30 -0500", "2027-03-14 03:00 -0400", "2027-03-14 03:30 -0400"];
    check("*/30 * * * *", "America/New_York", "2027-03-14T06:00:00Z", &around);
}

#[test]
fn berlin() {
    // 2027-03-28 02:00 jumps to 03:00; 2027-10-31 03:00 goes back to 02:00.
    let gap = ["2027-03-27 02:15 +0100", "2027-03-28 03:00 +0200", "2027-03-29 02:15 +0200"];
    check("15 2 * * *", "Europe/Berlin", "2027-03-27T00:00:00Z", &gap);
    let back = ["2027-10-31 02:15 +0200", "2027-11-01 02:15 +0100"];
    check("15 2 * * *", "Europe/Berlin", "2027-10-30T22:00:00Z", &back);
    check("0 9 * * MON-FRI", "Europe/Berlin", "2027-03-26T12:00:00Z", &["2027-03-29 09:00 +0200"]);
}

#[test]
fn cron_handles_half_hour_dst_shifts() {
    // 2027-10-03 02:00 jumps to 02:30; 2027-04-04 02:00 goes back to 01:30.
    let gap = ["2027-10-02 02:15 +1030", "2027-10-03 02:30 +1100", "2027-10-04 02:15 +1100"];
    check("15 2 * * *", "Australia/Lord_Howe", "2027-10-01T14:00:00Z", &gap);
    let back = ["2027-04-03 01:45 +1100", "2027-04-04 01:45 +1100", "2027-04-05 01:45 +1030"];
    check("45 1 * * *", "Australia/Lord_Howe", "2027-04-02T10:00:00Z", &back);
    let quarters = ["2027-04-04 01:45 +1100", "2027-04-04 01:30 +1030", "2027-04-04 01:45 +1030"];
    check("*/15 * * * *", "Australia/Lord_Howe", "2027-04-03T14:30:00Z", &quarters);
}

#[test]
fn cron_handles_leap_days_and_month_ends() {
    let leap = ["2028-02-29 00:00 +0000", "2032-02-29 00:00 +0000"];
    check("0 0 29 2 *", "UTC", "2027-01-01T00:00:00Z", &leap);
    // 2100 is not a leap year.
    check("0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", &["2104-02-29 00:00 +0000"]);
    let ends = ["2027-01-31 12:00 +0000", "2027-02-28 12:00 +0000", "2027-03-31 12:00 +0000"];
    check("0 12 L * *", "UTC", "2027-01-01T00:00:00Z", &ends);
    // 2027-05-15 is a Saturday, 2027-08-15 a Sunday.
    check(
        "0 0 15W 5,8 *",
        "UTC",
        "2027-01-01T00:00:00Z",
        &["2027-05-14 00:00 +0000", "2027-08-16 00:00 +0000"],
    );
    check("0 0 * * FRI#2", "UTC", "2027-01-01T00:00:00Z", &["2027-01-08 00:00 +0000"]);
    check("0 0 * * 5L", "UTC", "2027-01-01T00:00:00Z", &["2027-01-29 00:00 +0000"]);
    check("@daily", "Asia/Kolkata", "2027-01-01T00:00:00Z", &["2027-01-02 00:00 +0530"]);
    // Day of month or day of week: the 13th, and every Friday.
    let either = ["2027-01-01 00:00 +0000", "2027-01-08 00:00 +0000", "2027-01-13 00:00 +0000"];
    check("0 0 13 * 5", "UTC", "2026-12-31T12:00:00Z", &either);
    check("0 0 * * 0", "UTC", "2027-01-01T00:00:00Z", &["2027-01-03 00:00 +0000"]);
    check("0 0 * * 7", "UTC", "2027-01-01T00:00:00Z", &["2027-01-03 00:00 +0000"]);
}

#[test]
fn invalid_schedules_are_rejected_quickly_with_a_reason() {
    let began = std::time::Instant::now();
    for cron in
        ["0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 31 FEB *", "0 0 30,31 feb ?", "0 0 30-31 2 *"]
    {
        assert!(matches!(refused(cron, "UTC"), TimingError::Never(_)), "{cron}");
    }
    for cron in [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "a b c d e",
        "@reboot",
        "@every 5m",
        "1 @daily",
    ] {
        assert!(matches!(refused(cron, "UTC"), TimingError::Cron { .. }), "{cron}");
    }
    assert!(matches!(refused(&"*".repeat(CRON_BYTES_MAX + 1), "UTC"), TimingError::Cron { .. }));
    for zone in ["", "Europe/Nowhere", "EST5EDT,M3.2.0,M11.1.0", "../etc/passwd", "local"] {
        assert_eq!(refused("* * * * *", zone), TimingError::Zone(zone.to_owned()), "{zone}");
    }
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(Timing::every(0, Timestamp::UNIX_EPOCH).is_err());
    assert!(Timing::every(SCHEDULE_EVERY_SECONDS_MAX, Timestamp::UNIX_EPOCH).is_ok());
    assert!(Timing::every(SCHEDULE_EVERY_SECONDS_MAX + 1, Timestamp::UNIX_EPOCH).is_err());
}

#[test]
fn intervals_stay_on_their_anchor_and_one_time_schedules_fire_once() {
    let anchor = at("2027-01-01T00:00:07.5Z");
    let every = Timing::every(60, anchor).unwrap();
    assert_eq!(every.next_after(anchor), Some(anchor + 60.seconds()));
    assert_eq!(every.next_after(anchor + 59.seconds()), Some(anchor + 60.seconds()));
    assert_eq!(every.next_after(anchor + 60.seconds()), Some(anchor + 120.seconds()));
    assert_eq!(every.next_after(anchor - 1.hour()), Some(anchor + 60.seconds()));
    let once = Timing::Once(anchor);
    assert_eq!(once.next_after(anchor - 1.second()), Some(anchor));
    assert_eq!(once.next_after(anchor), None);
    assert_eq!(every.next_after(Timestamp::MAX), None);
}

const ZONES: [&str; 6] = [
    "UTC",
    "America/New_York",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Africa/Casablanca",
];
const CRONS: [&str; 8] = [
    "* * * * *",
    "*/7 * * * *",
    "30 2 * * *",
    "0 0 1 * *",
    "15 1-3 * * SUN",
    "0 12 L * *",
    "5 4 * 3,4,10,11 *",
    "@hourly",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Time goes forward, on whole minutes except for the ends of gaps, and no instant is found
    /// twice or left out: the next instant is the same from any moment in between.
    #[test]
    fn instants_increase_and_do_not_depend_on_the_starting_point(
        second in 1_700_000_000_i64..2_200_000_000, zone in 0..ZONES.len(), cron in 0..CRONS.len(), part in 0.0..1.0_f64,
    ) {
        let timing = Timing::cron(CRONS[cron], ZONES[zone]).unwrap();
        let start = Timestamp::from_second(second).unwrap();
        let found: Vec<_> = timing.instants_after(start).take(20).collect();
        prop_assert_eq!(found.len(), 20);
        prop_assert!(start < found[0]);
        for pair in found.windows(2) {
            prop_assert!(pair[0] < pair[1]);
            prop_assert_eq!(pair[1].as_second() % 60, 0);
            let between = pair[0].as_second() as f64 + part * (pair[1].as_second() - pair[0].as_second()) as f64;
            let between = Timestamp::from_second(between as i64).unwrap();
            if between < pair[1] {
                prop_assert_eq!(timing.next_after(between), Some(pair[1]));
            }
        }
    }

    /// Every text is a timing or an error, never a panic.
    #[test]
    fn arbitrary_cron_text_never_panics(text in "[-0-9*/,LW#? @a-z]{0,24}", zone in "[A-Za-z/_]{0,12}") {
        let _ = Timing::cron(&text, &zone);
    }
}
