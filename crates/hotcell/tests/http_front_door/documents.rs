//! What is promised in `docs/api` is what is there.

use std::path::PathBuf;

use hotcell_api::ErrorCode;

fn docs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/api")
}

#[test]
fn the_openapi_document_is_the_generated_one() {
    let generated = hotcell::http::openapi().to_pretty_json().unwrap() + "\n";
    let path = docs().join("openapi.json");
    if std::env::var_os("HOTCELL_WRITE_DOCS").is_some() {
        std::fs::write(&path, &generated).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap();
    assert!(
        stored == generated,
        "docs/api/openapi.json is not what the handlers say: write it with `hotcell openapi > docs/api/openapi.json`"
    );
}

#[test]
fn every_operation_has_an_id_a_summary_and_problems() {
    let document = serde_json::to_value(hotcell::http::openapi()).unwrap();
    let mut ids = std::collections::HashSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let at = format!("{method} {path}");
            assert!(
                ids.insert(operation["operationId"].as_str().expect(&at).to_owned()),
                "{at}"
            );
            assert!(operation["summary"].is_string(), "{at}");
            if path.starts_with("/v1") {
                assert!(operation["responses"].get("4XX").is_some(), "{at}");
            }
            let admin = path.starts_with("/v1/admin") || path == "/metrics";
            assert_eq!(
                operation["security"].to_string().contains("operator_token"),
                admin,
                "{at}"
            );
        }
    }
    let signed = &document["security"][0];
    assert_eq!(signed.as_object().unwrap().len(), 5);
    for name in signed.as_object().unwrap().keys() {
        assert!(
            document["components"]["securitySchemes"]
                .get(name)
                .is_some(),
            "{name}"
        );
    }
}

#[test]
fn the_table_of_error_codes_is_complete() {
    let text = std::fs::read_to_string(docs().join("README.md")).unwrap();
    let rows: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("| `") && line.matches(" | ").count() == 2)
        .filter(|line| {
            line.split(" | ")
                .nth(1)
                .is_some_and(|cell| cell.parse().is_ok_and(|status: u16| status >= 400))
        })
        .collect();
    let expected: Vec<String> = ErrorCode::ALL
        .iter()
        .map(|code| {
            format!(
                "| `{}` | {} | {} |",
                code.as_str(),
                code.status(),
                code.meaning()
            )
        })
        .collect();
    assert_eq!(rows, expected);
}
