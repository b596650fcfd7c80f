//! A page of JSON: its bytes and pointers in, the numbers there out.

use std::io::Read;

use serde_json::Value;

use super::Reading;

/// Bytes of a page of JSON at most: it is held whole while it is read.
const BYTES_MAX: u64 = 4 << 20;

/// One reading a pointer.
///
/// # Errors
/// The page cannot be read, or is not JSON.
pub(super) fn read(body: impl Read, pointers: &[Box<str>]) -> Result<Vec<Reading>, String> {
    let page = whole(body, BYTES_MAX)?;
    let page: Value =
        serde_json::from_slice(&page).map_err(|error| format!("not JSON: {error}"))?;
    Ok(pointers.iter().map(|pointer| number_at(&page, pointer)).collect())
}

/// The whole body, if it is not longer than that.
pub(super) fn whole(body: impl Read, bytes_max: u64) -> Result<Vec<u8>, String> {
    let mut page = Vec::new();
    let read = body.take(bytes_max + 1).read_to_end(&mut page);
    read.map_err(|error| format!("the page broke off: {error}"))?;
    if page.len() as u64 > bytes_max {
        return Err(format!("the page is longer than {} MiB", bytes_max >> 20));
    }
    Ok(page)
}

/// A number, a number in a string, or 1 and 0 for true and false.
fn number_at(page: &Value, pointer: &str) -> Reading {
    let number = match page.pointer(pointer) {
        None => return Reading::Useless(format!("the page has nothing at {pointer}")),
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) => text.trim().parse().ok(),
        Some(Value::Bool(flag)) => Some(f64::from(u8::from(*flag))),
        Some(_) => None,
    };
    let why = || Reading::Useless(format!("what stands at {pointer} is not a number"));
    number.map_or_else(why, Reading::Value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(page: &str, pointer: &str, expected: &Reading) {
        let readings = read(page.as_bytes(), &[pointer.into()]).expect("JSON");
        assert_eq!(&readings[0], expected);
    }

    #[test]
    fn numbers_are_found_by_their_pointers() {
        let page = r#"{"queue":{"length":7},"list":[1,"2.5"],"up":true,"a/b":3,"no":null}"#;
        check(page, "/queue/length", &Reading::Value(7.0));
        check(page, "/list/1", &Reading::Value(2.5));
        check(page, "/up", &Reading::Value(1.0));
        check(page, "/a~1b", &Reading::Value(3.0));
        for (pointer, why) in [("/no", "is not a number"), ("/nowhere", "has nothing at")] {
            let readings = read(page.as_bytes(), &[pointer.into()]).expect("JSON");
            assert!(matches!(&readings[0], Reading::Useless(w) if w.contains(why)), "{readings:?}");
        }
    }

    #[test]
    fn what_is_not_json_or_too_long_fails_as_a_whole() {
        let fails = |page: &[u8]| read(page, &["/a".into()]).expect_err("no page");
        assert!(fails(b"<html>").starts_with("not JSON"));
        assert!(fails(b"{\"a\": 1e400}").starts_with("not JSON"));
        assert_eq!(fails(&vec![b' '; 10 << 20]), "the page is longer than 4 MiB");
    }
}
