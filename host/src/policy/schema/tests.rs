//! Schemas, settings, and what is said of them.

use serde_json::{Value, json};

use super::*;

#[track_caller]
fn check(schema: &Value, settings: &Value, expected: &[&str]) {
    let schema = Schema::parse(&schema.to_string()).expect("a schema");
    let told: Vec<_> = schema.check(settings).iter().map(ToString::to_string).collect();
    assert_eq!(told, expected);
}

#[test]
fn wrong_values_are_named_with_what_would_be_right() {
    let schema = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "share": {"type": "number", "minimum": 0, "maximum": 1, "default": 0.5},
            "count": {"type": "integer", "minimum": 1},
            "above": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 9.5},
            "stay": {"type": "boolean"},
            "mode": {"enum": ["fast", "fair"]},
            "name": {"type": "string", "minLength": 1, "maxLength": 3},
            "none": {"type": ["null", "integer"]},
            "only": {"const": 7},
        },
    });
    check(&schema, &json!({}), &[]);
    let good = json!({"share": 1, "count": 3.0, "above": 9.4, "stay": true, "mode": "fair",
        "name": "äöü", "none": null, "only": 7});
    check(&schema, &good, &[]);
    let bad = json!({"share": 1.5, "count": 2.5, "above": 0, "stay": "yes", "mode": "quick",
        "name": "", "none": "x", "only": 8});
    check(
        &schema,
        &bad,
        &[
            "above: 0 is not a number above 0 and below 9.5",
            "count: 2.5 is not a whole number of at least 1",
            r#"mode: "quick" is not one of "fast", "fair""#,
            r#"name: "" is not a string of 1 to 3 characters"#,
            r#"none: "x" is not null or a whole number"#,
            "only: 8 is not 7",
            "share: 1.5 is not a number from 0 to 1 (default 0.5)",
            r#"stay: "yes" is not true or false"#,
        ],
    );
    check(&schema, &json!([]), &["[] is not a table"]);
}

#[test]
fn tables_and_lists_are_looked_into() {
    let schema = json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["weights"],
        "properties": {
            "weights": {
                "type": "object", "minProperties": 1,
                "additionalProperties": {"type": "number", "minimum": 0},
            },
            "steps": {"type": "array", "maxItems": 2, "items": {"type": "integer"}},
        },
    });
    check(&schema, &json!({"weights": {"a.b": 0}, "steps": [1, 2]}), &[]);
    check(
        &schema,
        &json!({"weights": {"cpu": -1, "mem": "x"}, "steps": [1, 0.5], "weigths": 1}),
        &[
            "steps[1]: 0.5 is not a whole number",
            "weights.cpu: -1 is not a number of at least 0",
            r#"weights.mem: "x" is not a number of at least 0"#,
            "weigths: unknown setting, did you mean weights?",
        ],
    );
    let each = "a table that is not empty, each a number of at least 0";
    check(&schema, &json!({"weights": {}}), &[&format!("weights: {{}} is not {each}")]);
    check(
        &schema,
        &json!({"steps": [1, 2, 3]}),
        &[
            "steps: [1,2,3] is not a list of at most 2 values, each a whole number",
            &format!("weights: is missing: {each}"),
        ],
    );
    let none = json!({"type": "object", "additionalProperties": false});
    check(&none, &json!({"x": 1}), &["x: unknown setting: there are none here"]);
}

#[test]
fn choices_and_references_are_followed() {
    let schema = json!({
        "$defs": {"share": {"type": "number", "maximum": 1}, "by": {
            "type": "object", "additionalProperties": false,
            "properties": {"cpu": {"$ref": "#/$defs/share"}},
        }},
        "properties": {
            "limit": {"anyOf": [{"$ref": "#/$defs/share"}, {"type": "null"}]},
            "by": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/by"}]},
            "both": {"allOf": [{"minimum": 0}, {"$ref": "#/$defs/share"}]},
        },
    });
    check(&schema, &json!({"limit": null, "by": {"cpu": 1}, "both": 0}), &[]);
    check(
        &schema,
        &json!({"limit": 2, "by": {"cpu": 2}, "both": -1}),
        &[
            "both: -1 is not a value of at least 0",
            "by.cpu: 2 is not a number of at most 1",
            "limit: 2 is not a number of at most 1 or null",
        ],
    );
}

#[test]
fn entangled_schemas_end() {
    let around = json!({"$ref": "#"});
    let too_much = "the policy's settings schema is too entangled to be checked by";
    check(&around, &json!({}), &[too_much]);
    // Each level refers twice to the next: 2^40 paths.
    let mut levels = serde_json::Map::new();
    for level in 0..40 {
        let next = json!({"$ref": format!("#/$defs/{}", level + 1)});
        levels.insert(level.to_string(), json!({"allOf": [next, next]}));
    }
    check(&json!({"$ref": "#/$defs/0", "$defs": levels}), &json!({}), &[too_much]);
}

#[test]
fn what_is_no_schema_is_told_and_what_is_not_checked_is_named() {
    assert!(Schema::parse("").expect("nothing said").check(&json!({"x": 1})).is_empty());
    assert!(Schema::parse("{\"type\":").expect_err("cut").starts_with("not JSON"));
    assert!(Schema::parse("[]").expect_err("a list").contains("not a JSON Schema"));
    let schema = json!({"properties": {"a": {"pattern": "^x", "title": "A"}}, "not": {}});
    let schema = Schema::parse(&schema.to_string()).expect("a schema");
    assert_eq!(schema.not_checked().into_iter().collect::<Vec<_>>(), ["not", "pattern"]);
}

#[test]
fn many_mistakes_are_counted_and_words_cannot_forge_a_line() {
    let schema = Schema::parse(r#"{"additionalProperties":false}"#).expect("a schema");
    let settings: serde_json::Map<_, _> =
        (0..30).map(|number| (format!("s\n{number:02}"), json!(1))).collect();
    let line = in_one_line(&schema.check(&settings.into()));
    assert!(line.starts_with("s\\n00: unknown setting") && line.ends_with("and 10 more"), "{line}");
}
