//! Pages as exporters write them, and as they should not.

use std::time::Duration;

use super::*;

fn series(queries: &[&str]) -> Series {
    Series::new(queries.iter().map(|query| query.parse().expect("a query")).collect())
}

#[track_caller]
fn check(page: &str, query: &str, expected: Option<f64>) {
    let readings = series(&[query]).read(page.as_bytes(), Instant::now()).expect("a page");
    match (&readings[0], expected) {
        (Reading::Value(found) | Reading::Partly(found, _), Some(expected)) => {
            assert!((found - expected).abs() < 1e-9, "{query}: {found}");
        }
        (Reading::Useless(_), None) => {}
        other => panic!("{query}: {other:?}"),
    }
}

const PAGE: &str = "# HELP load Some load.\n\
    # TYPE load gauge\n\
    load 1.5\n\
    load_total 7\n\
    # TYPE queue gauge\n\
    queue{pool=\"a\",mode=\"fast\"} 3 1700000000000\n\
    queue{pool=\"b\", mode=\"slow\",} 4\n\
    queue{pool=\"c}\\\"x\\\\\",mode=\"slow\"} 1e1\n\
    limit 8\n\
    nothing 0";

#[test]
fn gauges_are_summed_over_matching_series() {
    check(PAGE, "load", Some(1.5));
    check(PAGE, "queue", Some(17.0));
    check(PAGE, "queue{mode=\"slow\"}", Some(14.0));
    check(PAGE, "queue{mode!=\"slow\"}", Some(3.0));
    check(PAGE, "queue{pool=~\"a|b\"}", Some(7.0));
    check(PAGE, "queue{pool!~\"a|b\"}", Some(10.0));
    check(PAGE, "queue{pool=\"c}\\\"x\\\\\"}", Some(10.0));
    check(PAGE, "queue{pool=\"z\"}", None);
    check(PAGE, "queue{zone=\"\"}", Some(17.0));
    check(PAGE, "max(queue)", Some(10.0));
    check(PAGE, "min(queue)", Some(3.0));
    check(PAGE, "avg(queue{mode=\"slow\"})", Some(7.0));
    check(PAGE, "queue{pool=\"a\"} / limit", Some(0.375));
    check(PAGE, "1 - queue{pool=\"b\"}/limit", Some(0.5));
    check(PAGE, "limit / nothing", None);
    check(PAGE, "loa", None);
}

#[test]
fn values_that_are_no_numbers_are_left_out_and_the_others_count() {
    let page = "# TYPE q gauge\r\nq{a=\"1\"} NaN\r\nq{a=\"2\"} +Inf\r\nq{a=\"3\"} -Inf\r\n\
                q{a=\"4\"} 1e400\r\nq{a=\"5\"} 2.5\r\nq{a=\"6\" 3\r\nq\r\n\r\n  \r\nbad NaN\r\ngood 4";
    check(page, "q", Some(2.5));
    check(page, "good", Some(4.0));
    check(page, "bad", None);
}

#[test]
fn what_is_left_out_is_told_beside_the_number() {
    let page = "q{a=\"1\"} NaN\nq{a=\"2\"} +Inf\nq{a=\"3\"} 4\nwhole 2\n";
    let readings = series(&["q", "whole", "whole / q", "1 - q{a=\"3\"}"])
        .read(page.as_bytes(), Instant::now())
        .expect("a page");
    let why = "2 lines of q have no number to count with".to_owned();
    let expected = [
        Reading::Partly(4.0, why.clone()),
        Reading::Value(2.0),
        Reading::Partly(0.5, why),
        Reading::Value(-3.0),
    ];
    assert_eq!(readings, expected);
}

#[test]
fn garbage_and_ten_megabytes_around_a_value_do_not_hide_it() {
    let mut page = vec![0xff; 3 << 20];
    page.extend(b"\n{}{}{\"\" \\\\ q\n# TYPE\n#\n");
    for number in 0..150_000 {
        page.extend(format!("noise{{number=\"{number}\",x=\"{number:040}\"}} 1\n").bytes());
    }
    page.extend(b"q 7");
    assert!(page.len() > 10 << 20);
    let readings = series(&["q"]).read(&*page, Instant::now());
    assert_eq!(readings, Ok(vec![Reading::Value(7.0)]));
}

#[test]
fn no_piece_of_a_line_that_is_too_long_is_a_line() {
    let long = "# HELP q ".to_owned() + &"x".repeat(LINE_BYTES_MAX - 9);
    for more in ["", &"y".repeat(LINE_BYTES_MAX)] {
        check(&format!("q 3\n{long}{more}q 7\nother 1\n"), "q", Some(3.0));
        check(&format!("q 3\n{long}{more}q 7\nother 1\n"), "other", Some(1.0));
    }
    let padded = |bytes: usize| format!("q 3\nq 7{}\n", " ".repeat(bytes - 4));
    check(&padded(LINE_BYTES_MAX), "q", Some(7.0));
    check(&padded(LINE_BYTES_MAX + 1), "q", Some(3.0));
}

#[test]
fn counters_are_rates_by_the_pages_own_word() {
    let start = Instant::now();
    let mut series = series(&["hits_total", "value(hits_total)", "rate(raw)", "lat_count", "raw"]);
    let mut read = |second: u64, a: u64, b: u64| {
        let page = format!(
            "# TYPE hits counter\nhits_total{{s=\"a\"}} {a}\nhits_total{{s=\"b\"}} {b}\n\
             # TYPE lat histogram\nlat_count {a}\nraw {b}\n"
        );
        series.read(page.as_bytes(), start + Duration::from_secs(second)).expect("a page")
    };
    let (value, not_yet) = (Reading::Value, || Reading::NotYet);
    assert_eq!(read(0, 10, 20), [not_yet(), value(30.0), not_yet(), not_yet(), value(20.0)]);
    assert_eq!(read(2, 20, 24), [value(7.0), value(44.0), value(2.0), value(5.0), value(24.0)]);
    // One of the two begins anew: no sum of rates, and nothing negative.
    let third = read(4, 30, 1);
    assert!(matches!(third[0], Reading::Useless(_)) && third[3] == value(5.0), "{third:?}");
    assert_eq!(read(6, 40, 3)[0], value(6.0));
}

#[test]
fn a_page_that_is_empty_is_no_page() {
    assert!(series(&["q"]).read(&b""[..], Instant::now()).is_err());
}
