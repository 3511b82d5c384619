//! Load balancing: which machine of an app gets the next request.
//!
//! ```text
//!   machines:  first .. always | further ones
//!              share requests  | each is used while all before it have REQUESTS_PER_INSTANCE in flight
//! ```
//!
//! Must hold: the first ones get equal shares; a further one gets nothing while those before it
//! have room, so it falls asleep by itself, and the first request that finds no room wakes it. The
//! number of running machines needs no decision: it follows from sleep and wake.

use crate::limits::REQUESTS_PER_INSTANCE;

/// The load of one machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Requests in flight to it from here, also those that wait for it to wake.
    pub(crate) in_flight: usize,
    /// Whether a request recently failed to reach it.
    pub(crate) is_avoided: bool,
}

/// The place of the machine that gets the next request; `None` if all were tried. Of those with as little to do, `turn` picks one.
pub(crate) fn choose(loads: &[Load], always: usize, turn: usize, tried: &[usize]) -> Option<usize> {
    let untried = || (0..loads.len()).filter(|at| !tried.contains(at));
    let mut open: Vec<usize> = untried().filter(|at| !loads[*at].is_avoided).collect();
    if open.is_empty() {
        // A machine that may not answer is better than none.
        open = untried().collect();
    }
    let least = |used: &[usize]| used.iter().map(|at| loads[*at].in_flight).min();
    let mut used = always.max(1).min(open.len());
    while used < open.len() && least(&open[..used]) >= Some(REQUESTS_PER_INSTANCE) {
        used += 1;
    }
    let least = least(&open[..used])?;
    let equals: Vec<usize> =
        open[..used].iter().copied().filter(|at| loads[*at].in_flight == least).collect();
    Some(equals[turn % equals.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: usize = REQUESTS_PER_INSTANCE;

    fn loads(in_flight: &[usize]) -> Vec<Load> {
        in_flight.iter().map(|in_flight| Load { in_flight: *in_flight, is_avoided: false }).collect()
    }

    #[track_caller]
    fn check(in_flight: &[usize], always: usize, expect: usize) {
        for turn in 0..4 {
            assert_eq!(choose(&loads(in_flight), always, turn, &[]), Some(expect), "{in_flight:?} {always}");
        }
    }

    #[test]
    fn always_on_instances_share_requests_evenly() {
        check(&[2, 1, 2], 3, 1);
        check(&[FULL + 2, FULL + 1, FULL + 2], 3, 1);
        let turns: Vec<_> = (0..6).map(|turn| choose(&loads(&[1, 1, 1]), 3, turn, &[]).unwrap()).collect();
        assert_eq!(turns, [0, 1, 2, 0, 1, 2]);
        let turns: Vec<_> = (0..4).map(|turn| choose(&loads(&[1, 0, 0]), 3, turn, &[]).unwrap()).collect();
        assert_eq!(turns, [1, 2, 1, 2]);
    }

    #[test]
    fn further_instances_are_used_only_while_earlier_ones_are_busy() {
        check(&[0, 0, 0], 0, 0);
        check(&[FULL - 1, 0, 0], 1, 0);
        check(&[FULL, 0, 0], 1, 1);
        check(&[FULL, FULL, 3], 1, 2);
        check(&[FULL - 1, FULL, 3], 1, 0);
        check(&[FULL, FULL - 1, 0], 2, 1);
        check(&[FULL + 1, FULL, FULL + 1], 1, 1);
    }

    #[test]
    fn tried_and_unresponsive_instances_are_skipped() {
        let mut three = loads(&[0, 5, 0]);
        assert_eq!(choose(&three, 1, 0, &[0]), Some(1), "the next one in line");
        assert_eq!(choose(&three, 1, 0, &[0, 1]), Some(2));
        assert_eq!(choose(&three, 1, 0, &[0, 1, 2]), None);
        three[0].is_avoided = true;
        assert_eq!(choose(&three, 1, 0, &[]), Some(1));
        three[1].is_avoided = true;
        three[2].is_avoided = true;
        assert_eq!(choose(&three, 3, 0, &[]), Some(0), "rather one that may not answer than none");
        assert_eq!(choose(&three, 3, 0, &[0]), Some(2));
        assert_eq!(choose(&[], 1, 0, &[]), None);
    }
}
