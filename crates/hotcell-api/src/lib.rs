//! What goes over the public API: requests, answers and error codes. No I/O, no HTTP.
//!
//! ```text
//!   request  ── deny_unknown_fields, ids and names parsed on the way in
//!   answer   ── every field is documented here; docs/api/openapi.json is generated from it
//!   failure  ── Problem, with one ErrorCode: status and title follow from the code alone
//! ```

pub mod admin;
pub mod bash;
pub mod code;
pub mod deletions;
pub mod denial;
pub mod files;
pub mod jobs;
pub mod lease;
pub mod network;
pub mod problem;
pub mod quota;
pub mod tools;
pub mod user;

pub use code::ErrorCode;
pub use problem::{PROBLEM_MEDIA_TYPE, Problem};
pub use user::{Member, MemberRole};
