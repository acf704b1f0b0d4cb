//! What operators look at, over the local socket: leases, denials, the audit trail.

use hotcell_types::WorkspaceId;
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{Exit, Settings, exit::say, local::Local};

/// Rows that are asked for when nobody says how many.
const DEFAULT_ROWS: usize = 50;

/// Pages that are asked for to fill one listing.
const MAX_PAGES: usize = 100;

/// How the answer looks, and how much of it there is.
#[derive(clap::Args)]
pub(super) struct Form {
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
    /// Rows at most, newest first: 1 to 1,000.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_ROWS)]
    limit: usize,
}

/// `hotcell leases`.
#[derive(clap::Args)]
pub(super) struct Leases {
    /// Only those of this workspace.
    #[arg(long, value_name = "ID")]
    workspace: Option<WorkspaceId>,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    settings: Settings,
}

/// `hotcell denials`.
#[derive(clap::Args)]
pub(super) struct Denials {
    /// Only those of this workspace.
    #[arg(long, value_name = "ID")]
    workspace: Option<WorkspaceId>,
    /// Only those with this name, such as quota:max_concurrent.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    settings: Settings,
}

/// `hotcell audit`.
#[derive(clap::Args)]
pub(super) struct Audit {
    /// Only what this one did: operator, local_operator, system, or backend:KEY.
    #[arg(long, value_name = "WHO")]
    actor: Option<String>,
    /// Only actions that begin with this, such as workspace.
    #[arg(long, value_name = "PREFIX")]
    action: Option<String>,
    /// Only about this, such as workspace/w1.
    #[arg(long, value_name = "WHAT")]
    subject: Option<String>,
    /// Only at this time or after it, as RFC 3339.
    #[arg(long, value_name = "TIME", value_parser = millis)]
    since: Option<u64>,
    /// Only before this time, as RFC 3339.
    #[arg(long, value_name = "TIME", value_parser = millis)]
    until: Option<u64>,
    #[command(flatten)]
    form: Form,
    #[command(flatten)]
    settings: Settings,
}

fn millis(text: &str) -> Result<u64, String> {
    let at = OffsetDateTime::parse(text, &Rfc3339)
        .map_err(|error| format!("{error}; write it as 2026-01-31T12:00:00Z"))?;
    u64::try_from(at.unix_timestamp_nanos() / 1_000_000).map_err(|_| "it is before 1970".into())
}

/// A query of what is there.
fn query(path: &str, parameters: &[(&str, Option<String>)]) -> String {
    let mut separator = '?';
    let mut target = path.to_owned();
    for (name, value) in parameters {
        if let Some(value) = value {
            let value = utf8_percent_encode(value, NON_ALPHANUMERIC);
            target.push_str(&format!("{separator}{name}={value}"));
            separator = '&';
        }
    }
    target
}

fn pretty(value: &Value) -> Result<(), Exit> {
    let text = serde_json::to_string_pretty(value);
    say(&text.map_err(|error| Exit::failed(&error))?)
}

fn time(value: &Value) -> String {
    let seconds = value.as_u64().map(|millis| millis / 1_000);
    let at = seconds
        .and_then(|seconds| i64::try_from(seconds).ok())
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    at.and_then(|at| at.format(&Rfc3339).ok())
        .unwrap_or_else(|| "-".to_owned())
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn rows(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

impl Leases {
    pub(super) fn run(self) -> Result<(), Exit> {
        let answer = Local::new(&self.settings)?.ask(Method::GET, "/v1/admin/leases", None)?;
        let is_asked = |lease: &&Value| {
            let of = |workspace: &WorkspaceId| lease["workspace"] == *workspace.as_str();
            self.workspace.as_ref().is_none_or(of)
        };
        let leases: Vec<&Value> = rows(&answer["leases"]).iter().filter(is_asked).collect();
        if self.json {
            return pretty(&serde_json::json!({ "leases": leases }));
        }
        for lease in &leases {
            say(&format!(
                "{}  {:<8} {}  workspace {}  chat {}  user {}  {} calls, ends by {}",
                text(&lease["id"]),
                text(&lease["state"]),
                time(&lease["created_at_ms"]),
                text(&lease["workspace"]),
                text(&lease["chat"]),
                text(&lease["user"]),
                text(&lease["active_calls"]),
                time(&lease["ends_at_ms"]),
            ))?;
        }
        say(&format!("{} live leases", leases.len()))
    }
}

impl Denials {
    pub(super) fn run(self) -> Result<(), Exit> {
        let target = query(
            "/v1/admin/denials",
            &[
                ("workspace", self.workspace.map(|id| id.to_string())),
                ("name", self.name),
                ("limit", Some(self.form.limit.to_string())),
            ],
        );
        let answer = Local::new(&self.settings)?.ask(Method::GET, &target, None)?;
        if self.form.json {
            return pretty(&answer);
        }
        for denial in rows(&answer["denials"]) {
            let limit = ["limit", "limit_bytes", "limit_class"]
                .into_iter()
                .find(|name| !denial[*name].is_null())
                .map_or_else(String::new, |name| {
                    format!(" (limit {})", text(&denial[name]))
                });
            say(&format!(
                "{}  {}{limit}  workspace {}  chat {}  user {} ({})  {}",
                time(&denial["at_ms"]),
                text(&denial["denial"]),
                text(&denial["workspace"]),
                text(&denial["chat"]),
                text(&denial["user"]),
                text(&denial["role"]),
                text(&denial["request_id"]),
            ))?;
        }
        Ok(())
    }
}

impl Audit {
    pub(super) fn run(self) -> Result<(), Exit> {
        let local = Local::new(&self.settings)?;
        let mut found: Vec<Value> = Vec::new();
        let mut after = None;
        // A page of a filtered trail may be short, or empty, and have a next one.
        for _ in 0..MAX_PAGES {
            let left = self.form.limit - found.len();
            let target = query(
                "/v1/admin/audit",
                &[
                    ("actor", self.actor.clone()),
                    ("action", self.action.clone()),
                    ("subject", self.subject.clone()),
                    ("since_ms", self.since.map(|millis| millis.to_string())),
                    ("until_ms", self.until.map(|millis| millis.to_string())),
                    ("limit", Some(left.to_string())),
                    ("after", after),
                ],
            );
            let answer = local.ask(Method::GET, &target, None)?;
            found.extend_from_slice(rows(&answer["rows"]));
            after = answer["next"].as_str().map(str::to_owned);
            if after.is_none() || found.len() >= self.form.limit {
                break;
            }
        }
        if self.form.json {
            return pretty(&serde_json::json!({ "rows": found, "next": after }));
        }
        for row in &found {
            let fields: Vec<String> = rows(&row["fields"]).iter().map(text).collect();
            say(&format!(
                "{}  {}  {}  {}  [{}]  {}",
                time(&row["at_ms"]),
                text(&row["actor"]),
                text(&row["action"]),
                text(&row["subject"]),
                fields.join(", "),
                text(&row["request_id"]),
            ))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_hold_what_is_asked_for() {
        assert_eq!(query("/x", &[("a", None)]), "/x");
        let target = query(
            "/x",
            &[("a", Some("b:c d&e".into())), ("f", Some("1".into()))],
        );
        assert_eq!(target, "/x?a=b%3Ac%20d%26e&f=1");
    }

    #[test]
    fn times_are_rfc_3339() {
        assert_eq!(millis("1970-01-01T00:00:01.5Z"), Ok(1_500));
        assert!(millis("1969-12-31T23:59:59Z").is_err());
        assert!(millis("yesterday").is_err());
        assert_eq!(time(&Value::from(1_500)), "1970-01-01T00:00:01Z");
        assert_eq!(time(&Value::Null), "-");
    }
}
