//! What a profile allows each of its sandboxes, whoever uses them.

use std::collections::BTreeSet;

use hotcell_types::{ResourceClass, limits};

use crate::lease::LeaseLimits;

/// What may leave a sandbox in one collection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputLimits {
    /// The only file types, by their last extension, in lower case.
    pub types: BTreeSet<String>,
    /// Files.
    pub files: usize,
    /// Bytes of all files together.
    pub bytes: u64,
    /// Characters of the answer.
    pub characters: usize,
}

impl Default for OutputLimits {
    fn default() -> Self {
        Self {
            types: limits::ALLOWED_OUTPUT_TYPES
                .into_iter()
                .map(str::to_owned)
                .collect(),
            files: limits::MAX_OUTPUTS_PER_COLLECTION,
            bytes: limits::MAX_OUTPUT_BYTES_PER_COLLECTION,
            characters: limits::MAX_OUTPUT_CHARACTERS_PER_COLLECTION,
        }
    }
}

/// What can be copied into a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputLimits {
    /// Bytes of one file.
    pub file_bytes: u64,
    /// Bytes of all files together.
    pub total_bytes: u64,
}

impl Default for InputLimits {
    fn default() -> Self {
        Self {
            file_bytes: limits::MAX_UPLOAD_BYTES,
            total_bytes: limits::MAX_UPLOADS_TOTAL_BYTES,
        }
    }
}

/// Everything that a profile limits. A change holds for new sandboxes and never ends one that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileLimits {
    /// The times of a lease.
    pub lease: LeaseLimits,
    /// The size of `/workspace`, in bytes.
    pub scratch_bytes: u64,
    /// How large a sandbox is that nobody asked another size for.
    pub resource_class: ResourceClass,
    /// Sandboxes that are kept running for the first calls of chats.
    pub warm_pool: usize,
    /// Whether jobs may be started.
    pub jobs: bool,
    /// The longest that a job may run, in milliseconds.
    pub max_job_ms: u64,
    /// What may leave a sandbox.
    pub outputs: OutputLimits,
    /// What may be copied into one.
    pub inputs: InputLimits,
}

impl Default for ProfileLimits {
    fn default() -> Self {
        Self {
            lease: LeaseLimits {
                start_timeout_ms: limits::DEFAULT_START_TIMEOUT_MS,
                idle_timeout_ms: limits::DEFAULT_IDLE_TIMEOUT_MS,
                hard_timeout_ms: limits::DEFAULT_HARD_TIMEOUT_MS,
            },
            scratch_bytes: limits::DEFAULT_SCRATCH_BYTES,
            resource_class: ResourceClass::Small,
            warm_pool: 0,
            jobs: false,
            max_job_ms: limits::DEFAULT_MAX_JOB_MS,
            outputs: OutputLimits::default(),
            inputs: InputLimits::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_promised_ones() {
        let it = ProfileLimits::default();
        assert_eq!(it.lease.idle_timeout_ms, 600_000);
        assert_eq!(it.lease.hard_timeout_ms, 3_600_000);
        assert_eq!(it.lease.start_timeout_ms, 90_000);
        assert_eq!(it.max_job_ms, 28_800_000);
        assert_eq!(it.scratch_bytes, 1024 << 20);
        assert_eq!(it.resource_class, ResourceClass::Small);
        assert!(!it.jobs);
        assert_eq!(it.warm_pool, 0);
        assert_eq!(
            (it.outputs.files, it.outputs.bytes, it.outputs.characters),
            (25, 100 << 20, 50_000)
        );
        let types = "csv docx gif html jpeg jpg json md pdf png pptx svg tsv txt webp xlsx";
        let all: Vec<&str> = it.outputs.types.iter().map(String::as_str).collect();
        assert_eq!(all, types.split(' ').collect::<Vec<_>>());
        assert_eq!(
            (it.inputs.file_bytes, it.inputs.total_bytes),
            (25 << 20, 256 << 20)
        );
    }
}
