//! The words of hotcell: ids, names, sizes, roles and limits. No I/O, no clock.
//!
//! Parse, don't validate: a value of one of these types is well-formed by
//! construction, and its `Deserialize` goes through the same check as its
//! `FromStr`, so the domain never sees a bare string for an id, a name or a path.

pub mod clock;
pub mod id;
pub mod limits;
pub mod name;
pub mod net;
pub mod resources;
pub mod role;
pub mod secret;
pub mod volume;

pub use clock::{Clock, IdSource, UnixMillis};
pub use id::*;
pub use name::{FileName, SandboxPath};
pub use resources::{ResourceClass, Resources};
pub use role::Role;
pub use secret::AgentKey;
pub use volume::VolumeKind;
