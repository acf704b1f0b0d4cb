//! The whole gate as one table.

use super::*;
use crate::model::{Deployment, Organization, Workspace};

/// One level's switch as the tests see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Missing,
    Off,
    On,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Missing,
    Off,
    OfAnother,
    On,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Profile {
    None,
    Inactive,
    Active,
}

/// Everything that the gate looks at, in words.
#[derive(Debug, Clone, Copy)]
struct Case {
    forced_off: bool,
    deployment: Level,
    organization: Level,
    workspace: Place,
    role: Role,
    own: Profile,
    default: Profile,
}

const NOW: UnixMillis = UnixMillis(1_700_000_000_000);
const LEVELS: [Level; 3] = [Level::Missing, Level::Off, Level::On];
const PLACES: [Place; 4] = [Place::Missing, Place::Off, Place::OfAnother, Place::On];
const PROFILES: [Profile; 3] = [Profile::None, Profile::Inactive, Profile::Active];
const ROLES: [Role; 4] = [Role::Viewer, Role::Editor, Role::Admin, Role::Owner];
const CLASSES: [ResourceClass; 3] = [
    ResourceClass::Small,
    ResourceClass::Medium,
    ResourceClass::Large,
];

fn profile(kind: Profile, active: &str) -> Option<ProfileId> {
    match kind {
        Profile::None => None,
        Profile::Inactive => Some("dormant".parse().unwrap()),
        Profile::Active => Some(active.parse().unwrap()),
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for forced_off in [true, false] {
        for deployment in LEVELS {
            for organization in LEVELS {
                for workspace in PLACES {
                    for role in ROLES {
                        for own in PROFILES {
                            cases.extend(PROFILES.map(|default| Case {
                                forced_off,
                                deployment,
                                organization,
                                workspace,
                                role,
                                own,
                                default,
                            }));
                        }
                    }
                }
            }
        }
    }
    cases
}

/// What the documentation says, level by level, without looking at the code.
fn expected(case: Case) -> Result<&'static str, &'static str> {
    if case.forced_off || case.deployment != Level::On {
        return Err("deployment");
    }
    if case.organization != Level::On {
        return Err("organization");
    }
    if case.workspace != Place::On {
        return Err("workspace");
    }
    if case.role == Role::Viewer {
        return Err("role");
    }
    match (case.own, case.default) {
        (Profile::Active, _) => Ok("own"),
        (Profile::None, Profile::Active) => Ok("standard"),
        _ => Err("profile"),
    }
}

fn with_facts<T>(case: Case, look: impl FnOnce(&GateFacts<'_>) -> T) -> T {
    let active: Vec<ProfileId> = ["own", "standard"].map(|id| id.parse().unwrap()).to_vec();
    let deployment = Deployment {
        enabled: case.deployment == Level::On,
        default_profile: profile(case.default, "standard"),
    };
    let organization = Organization {
        id: "o1".parse().unwrap(),
        name: "One".to_owned(),
        enabled: case.organization == Level::On,
        profile: profile(case.own, "own"),
        created_at: UnixMillis(1),
    };
    let owner = if case.workspace == Place::OfAnother {
        "o2"
    } else {
        "o1"
    };
    let workspace = Workspace {
        id: "w1".parse().unwrap(),
        organization: owner.parse().unwrap(),
        name: "First".to_owned(),
        enabled: case.workspace != Place::Off,
        created_at: UnixMillis(1),
    };
    look(&GateFacts {
        forced_off: case.forced_off,
        deployment: (case.deployment != Level::Missing).then_some(&deployment),
        organization: (case.organization != Level::Missing).then_some(&organization),
        workspace: (case.workspace != Place::Missing).then_some(&workspace),
        role: case.role,
        active_profiles: &active,
    })
}

/// Whether the admission that fills the hour still lies in it, and the words for when it leaves.
const FILLERS: [(Option<u64>, bool); 6] = [
    (None, false),
    (Some(0), true),
    (Some(1), true),
    (Some(HOUR_MS - 1), true),
    (Some(HOUR_MS), false),
    (Some(HOUR_MS + 1), false),
];

fn outcome(result: &Result<Admission, Denial>) -> Result<String, &'static str> {
    match result {
        Ok(admission) => Ok(admission.profile.to_string()),
        Err(denial) => Err(denial.name()),
    }
}

#[test]
fn every_combination_gives_the_first_refusing_level_or_the_right_profile() {
    let mut combinations = 0;
    for case in cases() {
        let levels = expected(case);
        with_facts(case, |facts| {
            assert_eq!(
                outcome(&admit(facts)),
                levels.map(str::to_owned),
                "{case:?}"
            );
            for (max_concurrent, live) in [(0, 0), (2, 0), (2, 1), (2, 2), (2, 3)] {
                for max_resource_class in CLASSES {
                    for class in CLASSES {
                        for max_jobs_per_hour in [0, 60] {
                            for (ago_ms, full) in FILLERS {
                                let quotas = Quotas {
                                    max_concurrent,
                                    max_resource_class,
                                    max_jobs_per_hour,
                                    ..Quotas::DEFAULT
                                };
                                let usage = LeaseUsage {
                                    live,
                                    admission_that_fills_the_hour: ago_ms
                                        .map(|ago| UnixMillis(NOW.0 - ago)),
                                };
                                let wanted = match levels {
                                    Err(level) => Err(level),
                                    Ok(_) if live >= max_concurrent => Err("quota:max_concurrent"),
                                    Ok(_) if class > max_resource_class => {
                                        Err("quota:max_resource_class")
                                    }
                                    Ok(_) if max_jobs_per_hour == 0 || full => {
                                        Err("quota:max_jobs_per_hour")
                                    }
                                    Ok(profile) => Ok(profile.to_owned()),
                                };
                                let got = admit_lease(facts, &quotas, usage, class, NOW);
                                assert_eq!(outcome(&got), wanted, "{case:?} {quotas:?} {usage:?}");
                                combinations += 1;
                            }
                        }
                    }
                }
            }
            for seconds in [0, 1, 3_599, 3_600, 3_601, u64::MAX] {
                let wanted = match levels {
                    Ok(_) if seconds > 3_600 => Err("quota:max_job_seconds"),
                    levels => levels.map(str::to_owned),
                };
                let got = admit_job(facts, &Quotas::DEFAULT, seconds);
                assert_eq!(outcome(&got), wanted, "{case:?} {seconds}");
            }
        });
    }
    assert_eq!(
        combinations,
        (2 * 3 * 3 * 4 * 4 * 3 * 3) * (5 * 3 * 3 * 2 * 6)
    );
}

#[test]
fn bytes_fill_the_day_to_the_last_one() {
    const GIB: u64 = 1 << 30;
    let quotas = Quotas::DEFAULT;
    for (stored, bytes, fits) in [
        (0, GIB, true),
        (GIB - 1, 1, true),
        (GIB, 0, true),
        (GIB, 1, false),
        (GIB - 1, 2, false),
        (GIB + 5, 0, false),
        (u64::MAX, u64::MAX, false),
    ] {
        let got = admit_outputs(&quotas, stored, bytes, NOW);
        assert_eq!(got.is_ok(), fits, "{stored} + {bytes}");
    }
    // It frees at midnight, unless no day is large enough.
    let full = admit_outputs(&quotas, GIB, 1, NOW).unwrap_err();
    assert_eq!(full.name(), "quota:max_artifact_bytes_per_day");
    let frees_at = full.exceeded().unwrap().frees_at.unwrap();
    assert_eq!(frees_at.0 % DAY_MS, 0);
    assert!(frees_at > NOW && frees_at.0 - NOW.0 <= DAY_MS);
    let never = admit_outputs(&quotas, 0, GIB + 1, NOW).unwrap_err();
    assert_eq!(never.exceeded().unwrap().frees_at, None);
}

#[test]
fn days_end_at_midnight_utc() {
    // 2024-02-29T00:00:00Z
    let midnight = UnixMillis(1_709_164_800_000);
    assert_eq!(utc_day(midnight), 19_782);
    assert_eq!(utc_day(UnixMillis(midnight.0 - 1)), 19_781);
    assert_eq!(utc_day(UnixMillis(midnight.0 + DAY_MS - 1)), 19_782);
    assert_eq!(next_day(UnixMillis(midnight.0 - 1)), midnight);
    assert_eq!(next_day(midnight).0, midnight.0 + DAY_MS);
    assert_eq!(next_day(UnixMillis(u64::MAX)), UnixMillis(u64::MAX));
}

#[test]
fn the_hour_says_when_it_frees() {
    let usage = LeaseUsage {
        live: 0,
        admission_that_fills_the_hour: Some(UnixMillis(NOW.0 - 1_000)),
    };
    let exceeded = Quotas::DEFAULT
        .allow_lease(usage, ResourceClass::Small, NOW)
        .unwrap_err();
    let frees_at = UnixMillis(NOW.0 - 1_000 + HOUR_MS);
    assert_eq!(exceeded.frees_at, Some(frees_at));
    assert_eq!(exceeded.frees_after_ms, Some(HOUR_MS - 1_000));
    assert_eq!(
        Quotas::DEFAULT.allow_lease(usage, ResourceClass::Small, frees_at),
        Ok(())
    );
}

#[test]
fn the_defaults_are_those_of_the_table() {
    assert_eq!(
        QuotaSettings::default().resolve(),
        Quotas {
            max_concurrent: 2,
            max_resource_class: ResourceClass::Small,
            max_job_seconds: 3_600,
            max_artifact_bytes_per_day: 1_073_741_824,
            max_jobs_per_hour: 60,
        }
    );
    assert_eq!(QuotaSettings::default().set(), []);
    let some = QuotaSettings {
        max_concurrent: Some(0),
        max_resource_class: Some(ResourceClass::Large),
        ..QuotaSettings::default()
    };
    assert_eq!(some.set(), [Quota::MaxConcurrent, Quota::MaxResourceClass]);
    let resolved = some.resolve();
    assert_eq!(
        (resolved.max_concurrent, resolved.max_jobs_per_hour),
        (0, 60)
    );
}

#[test]
fn names_are_stable_and_distinct() {
    assert_eq!(
        Denial::NAMES,
        [
            "deployment",
            "organization",
            "workspace",
            "role",
            "profile",
            "quota:max_concurrent",
            "quota:max_resource_class",
            "quota:max_job_seconds",
            "quota:max_artifact_bytes_per_day",
            "quota:max_jobs_per_hour",
        ]
    );
    for quota in Quota::ALL {
        assert_eq!(quota.denial(), format!("quota:{}", quota.name()));
        let exceeded = Exceeded {
            quota,
            limit: Quotas::DEFAULT.value(quota),
            frees_at: None,
            frees_after_ms: None,
        };
        // Whoever reads it learns the limit.
        let limit = match exceeded.limit {
            QuotaValue::Class(_) => "SMALL".to_owned(),
            QuotaValue::Count(n) | QuotaValue::Seconds(n) | QuotaValue::Bytes(n) => n.to_string(),
        };
        let words = Denial::from(exceeded).to_string();
        assert!(words.contains(&limit), "{words}");
    }
}
