//! Documents that are refused.

use crate::*;

#[test]
fn eg46_misspelt_documents() {
    let huge = format!("{{\"egress\":[{}]}}", " ".repeat(2_000_000));
    let table: &[(&str, &str)] = &[
        (
            r#"{"defaultAcion":"deny","egress":[]}"#,
            r#"$: unknown key "defaultAcion"; did you mean "defaultAction"?"#,
        ),
        (
            r#"{"egres":[{"action":"allow","target":"pypi.org"}]}"#,
            r#"$: unknown key "egres"; did you mean "egress"?"#,
        ),
        (
            r#"{"egress":[{"Action":"allow","target":"pypi.org"}]}"#,
            r#"$.egress[0]: unknown key "Action"; did you mean "action"?; $.egress[0]: the key "action" is missing"#,
        ),
        (
            r#"{"egress":[{"action":"Deny","target":"pypi.org"}]}"#,
            r#"$.egress[0].action: "Deny" is no action; write "allow" or "deny""#,
        ),
        (
            r#"{"egress":[{"action":"block","target":"pypi.org"}]}"#,
            r#"$.egress[0].action: "block" is no action; write "allow" or "deny""#,
        ),
        (
            r#"{"egress":[{"action":"deny","target":"pypi.org","port":443}]}"#,
            r#"$.egress[0]: unknown key "port""#,
        ),
        (
            r#"{"egress":{}}"#,
            "$.egress: expected a list of rules, got an object",
        ),
        ("null", "$: expected an object, got null"),
        ("[]", "$: expected an object, got a list"),
        (r#""""#, "$: expected an object, got a string"),
        (
            r#"{"defaultAction":"deny","defaultAction":"allow"}"#,
            r#"$.defaultAction: the key "defaultAction" is given more than once"#,
        ),
        (
            r#"{"egress":[{"action":"deny","action":"deny","target":"a.org"}]}"#,
            r#"$.egress[0].action: the key "action" is given more than once"#,
        ),
        (&huge, "$: the document is longer than 1048576 bytes"),
        (
            r#"{"egress":[],}"#,
            "$: not JSON: trailing comma at line 1, column 14",
        ),
        (
            " ",
            "$: not JSON: EOF while parsing a value at line 1, column 1",
        ),
        (
            r#"{"defaultAction":null}"#,
            r#"$.defaultAction: expected "allow" or "deny", got null"#,
        ),
        (
            r#"{"egress":[null]}"#,
            "$.egress[0]: expected an object, got null",
        ),
        (
            r#"{} {}"#,
            "$: not JSON: trailing characters at line 1, column 4",
        ),
        (
            r#"{"egress":[{"action":"deny"}]}"#,
            r#"$.egress[0]: the key "target" is missing"#,
        ),
        (
            r#"{"egress":[{"action":"deny","target":8}]}"#,
            "$.egress[0].target: expected a string, got a number",
        ),
    ];
    for (document, message) in table {
        let short: String = document.chars().take(60).collect();
        let error = Policy::parse_field(document).unwrap_err();
        assert_eq!(error.to_string(), *message, "{short}");
    }
    // What is fine: nothing at all, and an empty object.
    assert!(Policy::parse_field("").unwrap().is_none());
    let empty = Policy::parse_field("{}").unwrap().unwrap();
    assert_eq!((empty.default_action(), empty.rules().len()), (Deny, 0));
}

#[test]
fn every_problem_is_named_up_to_the_limit() {
    let rules: Vec<_> = (0..100)
        .map(|_| serde_json::json!({ "action": "deny", "target": "*" }))
        .collect();
    let error = Policy::parse(&serde_json::json!({ "egress": rules }).to_string()).unwrap_err();
    assert_eq!((error.problems().len(), error.left_out()), (32, 68));
    assert_eq!(error.problems()[31].path, "$.egress[31].target");
    assert!(error.to_string().ends_with("; and 68 more"));
    let deep = format!("{{\"egress\":{}{}}}", "[".repeat(5000), "]".repeat(5000));
    assert!(Policy::parse(&deep).is_err());
    let many: Vec<_> = (0..8193)
        .map(|_| serde_json::json!({ "action": "deny", "target": "a.org" }))
        .collect();
    let error = Policy::parse(&serde_json::json!({ "egress": many }).to_string()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "$.egress: there are 8193 rules, and 8192 are allowed"
    );
}
