//! Media types by a name's last extension.

use hotcell_types::FileName;

/// The media type that a file of this name is served and listed as. Never guessed from content.
#[must_use]
pub(super) fn media_type(name: &FileName) -> &'static str {
    match name.extension().as_deref() {
        Some("pptx") => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        Some("xlsx") => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        Some("docx") => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        Some("pdf") => "application/pdf",
        Some("csv") => "text/csv; charset=utf-8",
        Some("tsv") => "text/tab-separated-values; charset=utf-8",
        Some("json") => "application/json",
        Some("txt") => "text/plain; charset=utf-8",
        Some("md") => "text/markdown; charset=utf-8",
        Some("html") => "text/html; charset=utf-8",
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("gif") => "image/gif",
        Some("webp") => "image/webp",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use hotcell_types::limits::ALLOWED_OUTPUT_TYPES;

    use super::*;

    #[test]
    fn every_type_that_may_leave_a_sandbox_has_its_own() {
        for extension in ALLOWED_OUTPUT_TYPES {
            let name = format!("x.{}", extension.to_uppercase()).parse().unwrap();
            assert_ne!(media_type(&name), "application/octet-stream", "{extension}");
        }
        assert_eq!(
            media_type(&"x.html.".parse().unwrap()),
            "application/octet-stream"
        );
        assert_eq!(
            media_type(&".png".parse().unwrap()),
            "application/octet-stream"
        );
    }
}
