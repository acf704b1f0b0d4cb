//! The test vectors of `docs/api/signing.md`, which other implementations check themselves against.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use hotcell_wire::{body_sha256, sign_headers, string_to_sign};
use serde_json::Value;

const SIGNING: &str = include_str!("../../../docs/api/signing.md");

fn vectors() -> Vec<Value> {
    let block = SIGNING
        .split("```json\n")
        .filter_map(|rest| rest.split_once("\n```").map(|(block, _)| block))
        .find(|block| block.contains("\"string_to_sign\""))
        .unwrap();
    serde_json::from_str(block).unwrap()
}

#[test]
fn every_vector_holds() {
    let vectors = vectors();
    assert!(vectors.len() >= 6);
    for vector in &vectors {
        let text = |name: &str| vector[name].as_str().unwrap();
        let name = text("name");
        let timestamp = vector["timestamp"].as_u64().unwrap();
        let hash = body_sha256(text("body").as_bytes());
        assert_eq!(hash, text("body_sha256"), "{name}");
        let (method, target, nonce) = (text("method"), text("target"), text("nonce"));
        assert_eq!(
            string_to_sign(timestamp, nonce, method, target, &hash),
            text("string_to_sign"),
            "{name}"
        );
        let headers = sign_headers(
            text("key"),
            text("secret"),
            timestamp,
            nonce,
            method,
            target,
            &hash,
        );
        assert_eq!(headers[4].1, text("signature"), "{name}");
    }
    let mut signatures: Vec<&str> = vectors
        .iter()
        .filter_map(|v| v["signature"].as_str())
        .collect();
    signatures.sort_unstable();
    signatures.dedup();
    assert_eq!(signatures.len(), vectors.len());
}
