//! Counters of services of which nothing, or not everything, is known.

use super::*;

/// What a report says of the service: its weight, and requests accepted, completed, in flight.
type Said = (f64, u64, u64, u32);

/// An agent with one service whose counters come from these sources.
fn counting(sources: [Option<&str>; 3], start: Instant) -> Agent {
    let mut web = ServiceConfig::new("web", "10.0.0.1:80");
    let [accepted, completed, in_flight] =
        sources.map(|source| source.map(|source| source.parse().expect("a source")));
    web.offer.weight = 2.0;
    (web.offer.accepted, web.offer.completed, web.offer.in_flight) =
        (accepted, completed, in_flight);
    let config = AgentConfig {
        interval: Duration::from_secs(2),
        metrics: Vec::new(),
        services: vec![web],
        ..AgentConfig::default()
    };
    Agent::new(config, "farm".to_owned(), Keyring::default(), 77, start)
}

const PAGE: Option<&str> = Some("http-json:http://127.0.0.1:1/#/n");

fn hear(agent: &mut Agent, counter: usize, reading: Reading, now: Instant) {
    agent.hear(Event::Readings(vec![(Place::Tally(counter), reading)]), now);
}

fn said(agent: &mut Agent, now: Instant) -> Option<Said> {
    let frame = agent.step(now).pop()?;
    let decoded = wire::decode(&frame, &Keyring::default()).expect("own frame");
    let web = &decoded[0].services[0];
    Some((web.weight, web.accepted, web.completed, web.in_flight))
}

fn standings(agent: &mut Agent, now: Instant) -> Vec<Standing> {
    let (ask, mut answer) = oneshot::channel();
    agent.hear(Event::Asked(ask), now);
    answer.try_recv().expect("an answer")
}

#[test]
fn open_requests_that_nobody_could_read_do_not_look_like_none() {
    let start = Instant::now();
    let at = |millis| start + Duration::from_millis(millis);
    let mut agent = counting([None, None, PAGE], start);
    assert_eq!(said(&mut agent, start), None, "it is waited for like a metric");
    assert_eq!((agent.due(), said(&mut agent, at(1_999))), (at(2_000), None));
    assert_eq!(said(&mut agent, at(2_000)), Some((0.02, 0, 0, 0)), "it hangs");
    let missing = Reading::Useless("the page has no such series".to_owned());
    hear(&mut agent, 2, missing, at(2_500));
    assert_eq!(said(&mut agent, at(4_000)), Some((0.02, 0, 0, 0)));
    let shown = &standings(&mut agent, at(4_000))[0];
    assert_eq!((shown.service.as_deref(), &*shown.name), (Some("web"), "in_flight"));
    assert_eq!((shown.value, shown.useless), (None, 1));
    assert_eq!(shown.trouble.as_deref(), Some("the page has no such series"));
    hear(&mut agent, 2, Reading::Value(0.0), at(5_000));
    assert_eq!(said(&mut agent, at(6_000)), Some((2.0, 0, 0, 0)), "known, and none is open");
    hear(&mut agent, 2, Reading::Value(7.0), at(7_000));
    hear(&mut agent, 2, Reading::Silent("it hangs".to_owned()), at(7_500));
    assert_eq!(said(&mut agent, at(8_000)), Some((2.0, 0, 0, 7)), "as it was last said");
}

#[test]
fn a_counter_that_answers_with_nothing_is_not_waited_for() {
    let start = Instant::now();
    let mut agent = counting([None, None, PAGE], start);
    hear(&mut agent, 2, Reading::Useless("no such series".to_owned()), start);
    assert_eq!(said(&mut agent, start), Some((0.02, 0, 0, 0)));
}

#[test]
fn half_of_the_totals_is_no_total() {
    let start = Instant::now();
    let mut agent = counting([PAGE, PAGE, PAGE], start);
    let hear_all = |agent: &mut Agent, accepted: f64, second: u64| {
        let now = start + Duration::from_secs(second);
        hear(agent, 0, Reading::Value(accepted), now);
        hear(agent, 2, Reading::Value(3.0), now);
        now
    };
    hear_all(&mut agent, 100.0, 0);
    let now = hear_all(&mut agent, 150.0, 2);
    assert_eq!(said(&mut agent, now), Some((2.0, 0, 0, 3)), "what was completed is unknown");
    hear(&mut agent, 1, Reading::Value(90.0), now);
    let now = hear_all(&mut agent, 160.0, 4);
    hear(&mut agent, 1, Reading::Value(99.0), now);
    assert_eq!(said(&mut agent, now), Some((2.0, 60, 9, 3)));
}

#[test]
fn totals_that_applications_push_are_none_until_they_do() {
    let start = Instant::now();
    let mut agent = counting([Some("push"); 3], start);
    assert_eq!(said(&mut agent, start), Some((0.02, 0, 0, 0)), "what is open was not said");
    let pushed = vec![(Place::Tally(0), Change::Add(3.0)), (Place::Tally(2), Change::Add(3.0))];
    agent.hear(Event::Pushed(pushed), start);
    assert_eq!(said(&mut agent, start + Duration::from_secs(2)), Some((2.0, 3, 0, 3)));
}

#[test]
fn what_a_number_is_without_is_shown_until_it_is_whole() {
    let start = Instant::now();
    let mut agent = counting([None, None, PAGE], start);
    let mut shown = |reading| {
        hear(&mut agent, 2, reading, start);
        let shown = standings(&mut agent, start).remove(0);
        (shown.value, shown.trouble, shown.left_out)
    };
    let why = "2 lines of q have no number to count with".to_owned();
    assert_eq!(shown(Reading::Partly(3.0, why.clone())), (Some(3.0), None, Some(why)));
    assert_eq!(shown(Reading::Value(4.0)), (Some(4.0), None, None));
}
