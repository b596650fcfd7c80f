//! Who reports under a name: restarts, clocks that went back, and two machines with one name.

use super::*;

const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3));

fn boot(fleet: &Fleet) -> u64 {
    fleet.by_name("a").expect("known").1.boot
}

/// Both report each second for a while; how often the name changed hands, and how often it was said
/// that there are two.
fn both_report(
    fleet: &mut Fleet,
    seconds: std::ops::Range<u64>,
    agents: [(u64, IpAddr); 2],
) -> [u32; 2] {
    let mut found = [0; 2];
    for second in seconds {
        for (index, (agent, from)) in agents.into_iter().enumerate() {
            let now_ms = second * 1_000 + index as u64 * 300;
            let before = boot(fleet);
            let applied = fleet.apply(&report("a", agent, second), from, now_ms);
            found[0] += u32::from(boot(fleet) != before);
            found[1] += u32::from(matches!(applied, Applied::Namesake { is_new: true, .. }));
            assert!(fleet.expire(now_ms).is_empty());
        }
    }
    found
}

/// O-C05: an agent that starts again begins at 1.
#[test]
fn a_restart_counts_at_once() {
    let mut fleet = fleet();
    fleet.apply(&report("a", 5, 10_000), HERE, 0);
    assert!(matches!(fleet.apply(&report("a", 6, 1), HERE, 500), Applied::Changed(_)));
    // What was still on its way when the agent ended changes nothing.
    assert_eq!(fleet.apply(&report("a", 5, 10_001), HERE, 510), Applied::OldBoot);
    assert_eq!((boot(&fleet), fleet.by_name("a").expect("known").1.seq), (6, 1));
}

#[test]
fn a_restart_on_several_interfaces_counts_at_once() {
    let mut fleet = fleet();
    fleet.apply(&report("a", 5, 9), HERE, 0);
    fleet.apply(&report("a", 6, 1), THERE, 500);
    fleet.apply(&report("a", 6, 1), HERE, 501);
    assert_eq!(boot(&fleet), 6);
    assert_eq!(fleet.apply(&report("a", 6, 1), THERE, 502), Applied::Duplicate);
}

#[test]
fn a_wall_clock_that_went_back_mutes_nobody_for_good() {
    let mut fleet = fleet();
    fleet.apply(&report("a", 1_000, 7), HERE, 0);
    let mut heard_ms = 0;
    for second in 1..10 {
        let now_ms = second * 1_000;
        fleet.expire(now_ms);
        if let Applied::Joined(_) = fleet.apply(&report("a", 3, second), HERE, now_ms) {
            heard_ms = now_ms;
        }
    }
    assert_eq!((boot(&fleet), heard_ms), (3, 7_000), "as soon as the one before is gone");
}

#[test]
fn of_two_at_two_addresses_the_first_counts_while_it_lives() {
    for (first, second) in [(5, 6), (6, 5)] {
        let mut fleet = fleet();
        fleet.apply(&report("a", first, 1), HERE, 1_000);
        let agents = [(first, HERE), (second, THERE)];
        assert_eq!(both_report(&mut fleet, 2..600, agents), [0, 1], "{first} {second}");
        let namesake = fleet.by_name("a").expect("known").1.namesake().expect("two").clone();
        assert_eq!((namesake.boot, namesake.source), (second, THERE));
        // The first one ends: the second has the name, and says so no more.
        let next = |fleet: &mut Fleet, second_s: u64| {
            fleet.expire(second_s * 1_000);
            fleet.apply(&report("a", second, second_s), THERE, second_s * 1_000)
        };
        let joined = (600..610).find(|at| matches!(next(&mut fleet, *at), Applied::Joined(_)));
        assert_eq!(joined, Some(603));
        assert!(fleet.by_name("a").expect("known").1.namesake().is_none());
    }
}

#[test]
fn of_two_at_one_address_the_first_gets_its_name_back_once() {
    let mut fleet = fleet();
    fleet.apply(&report("a", 5, 1), HERE, 1_000);
    // As after a restart the second takes over; then it shows that the first lives.
    let [changes, said] = both_report(&mut fleet, 2..600, [(5, HERE), (6, HERE)]);
    assert_eq!((changes, said, boot(&fleet)), (2, 1, 5));
    // A third one, or a real restart, waits until the first is gone.
    fleet.apply(&report("a", 7, 1), HERE, 600_000);
    assert_eq!(boot(&fleet), 5);
}

#[test]
fn two_of_one_name_are_forgotten_when_one_ends() {
    let mut fleet = fleet();
    fleet.apply(&report("a", 5, 1), HERE, 1_000);
    both_report(&mut fleet, 2..10, [(5, HERE), (6, THERE)]);
    for second in 10..30 {
        fleet.apply(&report("a", 5, second), HERE, second * 1_000);
        fleet.expire(second * 1_000);
    }
    assert!(fleet.by_name("a").expect("known").1.namesake().is_none());
    let restarted = fleet.apply(&report("a", 8, 1), HERE, 30_000);
    assert!(matches!(restarted, Applied::Changed(_)), "a restart counts at once again");
}

#[test]
fn a_third_of_the_name_does_not_hide_the_second() {
    let mut fleet = fleet();
    fleet.apply(&report("a", 5, 1), HERE, 1_000);
    both_report(&mut fleet, 2..10, [(5, HERE), (6, THERE)]);
    let third = fleet.apply(&report("a", 7, 1), ELSEWHERE, 10_000);
    assert!(matches!(third, Applied::Namesake { is_new: false, .. }));
    let second = fleet.by_name("a").expect("known").1.namesake().expect("two");
    assert_eq!(second.source, THERE);
}

#[test]
fn what_was_sent_before_does_not_take_over() {
    let mut fleet = fleet();
    let sent = |boot, seq, sent_ms| Report { sent_ms, ..report("a", boot, seq) };
    fleet.apply(&sent(5, 1, 9_000), HERE, 0);
    fleet.apply(&sent(6, 1, 12_000), HERE, 1_000);
    fleet.expire(10_000);
    assert!(alive(&fleet).is_empty());
    assert_eq!(fleet.apply(&sent(5, 2, 10_000), HERE, 10_000), Applied::OldBoot);
    assert_eq!(fleet.apply(&sent(6, 1, 12_000), HERE, 10_000), Applied::Duplicate);
    assert!(alive(&fleet).is_empty(), "nothing that is played back brings it to life");
    assert!(matches!(fleet.apply(&sent(3, 1, 13_000), HERE, 10_000), Applied::Joined(_)));
}
