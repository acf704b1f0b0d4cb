//! Network policies, and what filters did with them.

use std::net::IpAddr;

use hotcell_types::{LeaseId, OrganizationId, UnixMillis, WorkspaceId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// The network policy of an organization.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetworkPolicy {
    /// Whose it is.
    #[schema(value_type = String)]
    pub organization: OrganizationId,
    /// The document, exactly as it was typed; `null` when there is none, which means no restriction
    /// but what no sandbox ever reaches.
    pub text: Option<String>,
    /// The same in canonical form: names in lower case and ASCII, ranges as they are meant, one rule a
    /// line.
    pub canonical: Option<String>,
    /// How many rules it has.
    pub rules: usize,
    /// What happens when no rule matches: `allow` or `deny`.
    pub default_action: String,
    /// How much of it sandboxes that are made now enforce: `none` (they reach nothing at all), `dns`
    /// (names only) or `dns+nft` (names and addresses).
    pub enforced: String,
    /// What the operator should know about it.
    pub warnings: Vec<String>,
    /// When it was last saved, in milliseconds since the Unix epoch.
    #[schema(value_type = Option<u64>)]
    pub changed_at_ms: Option<UnixMillis>,
    /// Whether the configuration declares it: it is then changed there and nowhere else.
    pub declared: bool,
}

/// Something that the filter of a sandbox did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressEvent {
    /// Its number, for `after`; later events have greater ones.
    #[schema(example = "115343360000000001")]
    pub number: String,
    /// When, in milliseconds since the Unix epoch.
    #[schema(value_type = u64)]
    pub at_ms: UnixMillis,
    /// The organization whose policy the sandbox was created with.
    #[schema(value_type = String)]
    pub organization: OrganizationId,
    /// The sandbox's workspace.
    #[schema(value_type = String)]
    pub workspace: WorkspaceId,
    /// The sandbox's lease.
    #[schema(value_type = String)]
    pub lease: LeaseId,
    /// What it was, such as `name_denied`, `packet_denied` or `foreign_change`.
    pub kind: String,
    /// Where it was decided: `name` (at the lookup), `packet` (in the kernel) or `filter` (by the
    /// filter itself).
    pub layer: String,
    /// The place of the rule that decided, from 0; absent when none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub rule: Option<u32>,
    /// The name that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub name: Option<String>,
    /// The address that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub address: Option<IpAddr>,
    /// The port that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub port: Option<u16>,
    /// Everything in words.
    pub detail: String,
}

/// Events of filters, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressEventPage {
    /// The events.
    pub events: Vec<EgressEvent>,
    /// What to give as `after` next; absent when there was nothing.
    pub next: Option<String>,
    /// Whether there are more now.
    pub more: bool,
    /// How many that would belong here were forgotten since the server started, to make room.
    pub forgotten: u64,
}

/// Which events to read.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EgressEventQuery {
    /// Only of this lease.
    #[serde(default)]
    #[param(value_type = String, nullable = false)]
    pub lease: Option<LeaseId>,
    /// Only of this workspace.
    #[serde(default)]
    #[param(value_type = String, nullable = false)]
    pub workspace: Option<WorkspaceId>,
    /// Only those after the event with this number: `next` of the page before.
    #[serde(default)]
    #[param(nullable = false)]
    pub after: Option<String>,
    /// How many at most; 100 when absent.
    #[serde(default)]
    #[param(minimum = 1, maximum = 1000, nullable = false)]
    pub limit: Option<usize>,
}
