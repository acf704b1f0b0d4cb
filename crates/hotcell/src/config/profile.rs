//! The table `[profile]`: what the profile `default` allows each of its sandboxes, beyond the times
//! and sizes in `[limits]`.

use std::collections::BTreeSet;

use hotcell_core::profile::{InputLimits, OutputLimits, ProfileLimits};
use hotcell_types::{ResourceClass, limits};
use serde::Deserialize;

use super::{ConfigError, value};

/// The longest that a profile may let a job run, in milliseconds: what an agent takes.
const MAX_JOB_MS: u64 = limits::agent::MAX_JOB_TIMEOUT_MS;
/// The shortest.
const MIN_JOB_MS: u64 = 1_000;
/// The most bytes that a limit of files may name.
const MAX_FILE_BYTES: u64 = 64 << 30;
/// The fewest characters that an answer needs for what it must say.
const MIN_CHARACTERS: usize = 30_000;
/// The most that an answer may have.
const MAX_CHARACTERS: usize = 1_000_000;
/// File types that one profile may name.
const MAX_TYPES: usize = 256;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ProfileTable {
    resource_class: Option<ResourceClass>,
    warm_pool: Option<usize>,
    jobs: Option<bool>,
    max_job_ms: Option<u64>,
    output_types: Option<Vec<String>>,
    max_output_files: Option<usize>,
    max_output_bytes: Option<u64>,
    max_output_characters: Option<usize>,
    max_input_file_bytes: Option<u64>,
    max_input_bytes: Option<u64>,
}

impl ProfileTable {
    /// The limits that it makes; times and the scratch size are the defaults.
    pub(super) fn check(self) -> Result<ProfileLimits, ConfigError> {
        let of = ProfileLimits::default();
        let outputs = OutputLimits {
            types: match self.output_types {
                Some(types) => output_types(types)?,
                None => of.outputs.types,
            },
            files: within(
                "profile.max_output_files",
                self.max_output_files.unwrap_or(of.outputs.files) as u64,
                1..=limits::MAX_OUTPUTS_PER_COLLECTION as u64,
            )? as usize,
            bytes: within(
                "profile.max_output_bytes",
                self.max_output_bytes.unwrap_or(of.outputs.bytes),
                1..=MAX_FILE_BYTES,
            )?,
            characters: within(
                "profile.max_output_characters",
                self.max_output_characters.unwrap_or(of.outputs.characters) as u64,
                MIN_CHARACTERS as u64..=MAX_CHARACTERS as u64,
            )? as usize,
        };
        let inputs = InputLimits {
            file_bytes: within(
                "profile.max_input_file_bytes",
                self.max_input_file_bytes.unwrap_or(of.inputs.file_bytes),
                1..=MAX_FILE_BYTES,
            )?,
            total_bytes: within(
                "profile.max_input_bytes",
                self.max_input_bytes.unwrap_or(of.inputs.total_bytes),
                1..=MAX_FILE_BYTES,
            )?,
        };
        if inputs.file_bytes > inputs.total_bytes {
            let problem = "must not be less than profile.max_input_file_bytes";
            return Err(value("profile.max_input_bytes", problem));
        }
        Ok(ProfileLimits {
            resource_class: self.resource_class.unwrap_or(of.resource_class),
            warm_pool: within(
                "profile.warm_pool",
                self.warm_pool.unwrap_or(of.warm_pool) as u64,
                0..=limits::MAX_WARM_POOL as u64,
            )? as usize,
            jobs: self.jobs.unwrap_or(of.jobs),
            max_job_ms: within(
                "profile.max_job_ms",
                self.max_job_ms.unwrap_or(of.max_job_ms),
                MIN_JOB_MS..=MAX_JOB_MS,
            )?,
            outputs,
            inputs,
            ..of
        })
    }
}

fn within(
    key: &'static str,
    number: u64,
    range: std::ops::RangeInclusive<u64>,
) -> Result<u64, ConfigError> {
    if range.contains(&number) {
        return Ok(number);
    }
    let problem = format!("must be between {} and {}", range.start(), range.end());
    Err(value(key, problem))
}

fn output_types(types: Vec<String>) -> Result<BTreeSet<String>, ConfigError> {
    let key = "profile.output_types";
    if types.len() > MAX_TYPES {
        return Err(value(key, format!("may name {MAX_TYPES} types")));
    }
    let good = |text: &String| {
        (1..=16).contains(&text.len())
            && text
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    match types.iter().find(|text| !good(text)) {
        Some(bad) => Err(value(
            key,
            format!("holds {bad:?}: a type is the last extension in lower case, such as \"csv\""),
        )),
        None => Ok(types.into_iter().collect()),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Overrides};

    use super::*;

    fn profile(text: &str) -> Result<ProfileLimits, ConfigError> {
        Config::parse(&format!("[profile]\n{text}"), &Overrides::default())
            .map(|config| config.profile)
    }

    #[test]
    fn nothing_said_is_the_default_and_what_is_said_holds() {
        assert_eq!(profile("").unwrap(), ProfileLimits::default());
        let said = profile(
            "resource_class = 'LARGE'\nwarm_pool = 3\njobs = true\nmax_job_ms = 5000\noutput_types = ['csv', 'zip']\n\
             max_output_files = 2\nmax_output_bytes = 7\nmax_output_characters = 40000\n\
             max_input_file_bytes = 3\nmax_input_bytes = 4",
        )
        .unwrap();
        assert_eq!(said.resource_class, ResourceClass::Large);
        assert!(said.jobs);
        assert_eq!(said.warm_pool, 3);
        assert_eq!(said.max_job_ms, 5_000);
        assert_eq!(said.outputs.types.len(), 2);
        assert_eq!(
            (
                said.outputs.files,
                said.outputs.bytes,
                said.outputs.characters
            ),
            (2, 7, 40_000)
        );
        assert_eq!((said.inputs.file_bytes, said.inputs.total_bytes), (3, 4));
    }

    #[test]
    fn what_is_not_possible_is_refused_with_its_place() {
        for (text, place) in [
            ("job = true", "job"),
            ("warm_pool = 65", "profile.warm_pool"),
            ("resource_class = 'small'", "small"),
            ("max_job_ms = 0", "profile.max_job_ms"),
            ("output_types = ['.csv']", "profile.output_types"),
            ("output_types = ['CSV']", "profile.output_types"),
            ("max_output_files = 26", "profile.max_output_files"),
            ("max_output_bytes = 0", "profile.max_output_bytes"),
            ("max_output_characters = 5", "profile.max_output_characters"),
            ("max_input_bytes = 5", "profile.max_input_bytes"),
        ] {
            let error = profile(text).unwrap_err();
            let source = std::error::Error::source(&error).map(ToString::to_string);
            let words = format!("{error} {}", source.unwrap_or_default());
            assert!(words.contains(place), "{text}: {words}");
        }
    }
}
