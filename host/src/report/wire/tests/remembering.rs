//! A decoder that remembers what it read gives what one that has seen nothing gives, whatever it read.

use std::sync::Arc;

use super::*;

/// Frames, good and mutated, one after the other through one decoder: each gives what it gives alone.
fn check_remembering(frames: &[Vec<u8>]) {
    let none = Keyring::default();
    let mut decoder = Decoder::new();
    for frame in frames {
        let mut reports = Vec::new();
        let decoded = decoder.decode_onto(&mut reports, frame, &none);
        match decode(frame, &none) {
            Ok(alone) => assert_eq!((decoded, text(&reports)), (Ok(()), text(&alone))),
            Err(error) => assert_eq!((decoded, text(&reports)), (Err(error), text(&[]))),
        }
        let checked = reports.iter().map(Report::check);
        checked.for_each(|checked| assert_eq!(checked, Ok(())));
        // Names that are known are written as others are.
        let again = encode(&reports, &none).expect("checked reports");
        let alone = decode(&again, &none).expect("own frame");
        assert_eq!(text(&alone), text(&reports));
        decoder.reuse(reports);
    }
}

proptest! {
    #[test]
    fn a_decoder_that_remembers_gives_the_same(
        sent in prop::collection::vec(prop::collection::vec(reports(), 0..3), 1..20),
        mutations in prop::collection::vec((any::<usize>(), any::<u8>()), 0..20),
    ) {
        let frame = |sent: &Vec<Report<'_>>| encode(sent, &Keyring::default());
        let mut frames: Vec<_> = sent.iter().map(|sent| frame(sent).expect("good")).collect();
        // The same ones again, then with a byte that is another one, then as they were.
        let good = frames.clone();
        frames.extend(good.iter().zip(mutations).map(|(frame, (at, byte))| {
            let mut mutated = frame.clone();
            mutated[at % frame.len()] = byte;
            mutated
        }));
        frames.extend(good);
        check_remembering(&frames);
    }

    #[test]
    fn a_decoder_that_remembers_is_not_misled(
        at in 0..143_usize, bytes in prop::collection::vec(any::<u8>(), 1..4), cut in 0..143_usize,
    ) {
        let good = golden(PLAIN);
        let mut mutated = good.clone();
        mutated.splice(at..good.len().min(at + bytes.len()), bytes);
        let cut = good[..cut].to_vec();
        check_remembering(&[mutated.clone(), good.clone(), mutated, cut, good]);
    }
}

#[test]
fn names_of_metrics_are_shared_by_the_reports_that_have_them() {
    let none = Keyring::default();
    let frame = encode(&[report(), report()], &none).expect("good reports");
    let (mut decoder, mut first, mut second) = (Decoder::new(), Vec::new(), Vec::new());
    decoder.decode_onto(&mut first, &frame, &none).expect("a good frame");
    let of = |report: &Report<'_>| report.metrics.names.known().map(Arc::clone);
    let names = of(&first[0]).expect("the first list is remembered at once");
    assert_eq!(of(&first[1]), Some(names.clone()));
    // One list more each time: the service's now.
    assert!(first[0].services[0].metrics.names.known().is_none());
    decoder.reuse(first);
    decoder.decode_onto(&mut second, &frame, &none).expect("a good frame");
    let again = of(&second[0]).expect("known");
    assert!(Arc::ptr_eq(&names, &again));
    assert!(second[0].services[0].metrics.names.known().is_some());
    assert_eq!(second, decode(&frame, &none).expect("a good frame"));
}
