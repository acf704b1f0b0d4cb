//! `hotcell status`.

use http::Method;
use serde_json::{Value, json};

use super::{Exit, Settings, exit::say, local::Local};

pub(super) fn status(settings: &Settings, as_json: bool) -> Result<(), Exit> {
    let local = Local::new(settings)?;
    let (_, readiness) = local.ask_any(Method::GET, "/readyz", None)?;
    let profiles = local.ask(Method::GET, "/v1/admin/profiles", None)?;
    let deployment = local.ask(Method::GET, "/v1/admin/deployment", None)?;
    let leases = local.ask(Method::GET, "/v1/admin/leases?limit=1000", None)?;
    if as_json {
        let all = json!({
            "readiness": readiness,
            "deployment": deployment,
            "profiles": profiles["profiles"],
            "leases": leases["leases"],
        });
        let text = serde_json::to_string_pretty(&all);
        return say(&text.map_err(|error| Exit::failed(&error))?);
    }
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let is_ready = readiness["ready"].as_bool() == Some(true);
    say(if is_ready { "ready" } else { "NOT ready" })?;
    if deployment["forced_off"].as_bool() == Some(true) {
        say("code execution is forced off by the server's environment (HOTCELL_ENABLED)")?;
    }
    if deployment["config_locked"].as_bool() == Some(true) {
        say(
            "profiles and settings are locked by the server's environment (HOTCELL_CONFIG_LOCKED)",
        )?;
    }
    if deployment["enabled"].as_bool() != Some(true) {
        say("the deployment's switch is off: `hotcell deployment enable` turns it on")?;
    }
    for component in rows(&readiness["components"]) {
        let state = if component["ok"].as_bool() == Some(true) {
            "ok"
        } else {
            "FAILED"
        };
        let detail = component["detail"].as_str();
        let detail = detail.map_or_else(String::new, |detail| format!("  {detail}"));
        say(&format!(
            "  {:<20} {state}{detail}",
            text(&component["name"])
        ))?;
    }
    for profile in rows(&profiles["profiles"]) {
        let engine = &profile["engine"]["engine"];
        say(&format!(
            "profile {}: {}, {}",
            text(&profile["id"]),
            text(&profile["state"]),
            text(engine)
        ))?;
        let warm = &profile["warm"];
        if warm["wanted"].as_u64() > Some(0) {
            let problem = warm["problem"].as_str();
            let problem = problem.map_or_else(String::new, |problem| format!(": {problem}"));
            say(&format!(
                "  {} of {} warm sandboxes are ready{problem}",
                warm["ready"], warm["wanted"]
            ))?;
        }
        for check in rows(&profile["checks"]) {
            say(&format!(
                "  {:<5} {:<20} {}",
                text(&check["status"]),
                text(&check["id"]),
                text(&check["message"])
            ))?;
            if let Some(fix) = check["fix"].as_str().filter(|fix| !fix.is_empty()) {
                say(&format!("        → {fix}"))?;
            }
        }
    }
    let leases = rows(&leases["leases"]);
    say(&format!("{} live leases", leases.len()))?;
    for lease in leases {
        say(&format!(
            "  {} {} workspace {} chat {}",
            text(&lease["id"]),
            text(&lease["state"]),
            text(&lease["workspace"]),
            text(&lease["chat"])
        ))?;
    }
    Ok(())
}

fn rows(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
