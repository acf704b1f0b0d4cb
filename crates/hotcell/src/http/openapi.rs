//! The OpenAPI document, from the handlers themselves.

use utoipa::{
    Modify, OpenApi as _,
    openapi::{
        OpenApi,
        security::{
            ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
        },
    },
};

use super::{admin, health, metrics, v1};

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "hotcell",
        description = "An appliance that gives chat assistants a place to run code. Requests of chat backends are signed \
            (docs/api/signing.md); operators send their token. Failures are application/problem+json with a stable code."
    ),
    tags(
        (name = "sandbox", description = "The tools: running commands and presenting files."),
        (name = "jobs", description = "Commands that outlive the call that started them."),
        (name = "uploads", description = "Files that the user attached to the chat."),
        (name = "outputs", description = "Files that were collected from sandboxes."),
        (name = "lease", description = "The chat's sandbox."),
        (name = "admin", description = "What operators read and change."),
        (name = "health", description = "Whether the server can do its work."),
    ),
    components(schemas(hotcell_api::bash::BashEvent)),
    modifiers(&Schemes),
)]
struct Document;

/// The five signing headers, all of which are needed.
const SIGNING: [(&str, &str, &str); 5] = [
    ("hotcell_key", "Hotcell-Key", "The credential's key."),
    (
        "hotcell_timestamp",
        "Hotcell-Timestamp",
        "Decimal Unix seconds, at most 60 off.",
    ),
    (
        "hotcell_nonce",
        "Hotcell-Nonce",
        "16 to 64 characters of A-Z a-z 0-9 _ -, never used before.",
    ),
    (
        "hotcell_content_sha256",
        "Hotcell-Content-Sha256",
        "Lower-case hex SHA-256 of the body.",
    ),
    (
        "hotcell_signature",
        "Hotcell-Signature",
        "v1= and lower-case hex HMAC-SHA256; see docs/api/signing.md.",
    ),
];

struct Schemes;

impl Modify for Schemes {
    fn modify(&self, document: &mut OpenApi) {
        let components = document.components.get_or_insert_default();
        for (name, header, description) in SIGNING {
            let value = ApiKeyValue::with_description(header, description);
            components.add_security_scheme(name, SecurityScheme::ApiKey(ApiKey::Header(value)));
        }
        components.add_security_scheme(
            "operator_token",
            SecurityScheme::Http(
                HttpBuilder::new()
                    .scheme(HttpAuthScheme::Bearer)
                    .description(Some("The operator's token."))
                    .build(),
            ),
        );
        let signed = SIGNING
            .iter()
            .fold(SecurityRequirement::default(), |requirement, (name, ..)| {
                requirement.add::<_, [&str; 0], &str>(*name, [])
            });
        document.security = Some(vec![signed]);
    }
}

/// The document of the whole public API.
#[must_use]
pub fn openapi() -> OpenApi {
    let mut document = Document::openapi();
    document.merge(v1::routes().into_openapi());
    document.merge(admin::routes().into_openapi());
    document.merge(health::routes().into_openapi());
    document.merge(metrics::routes().into_openapi());
    document
}
