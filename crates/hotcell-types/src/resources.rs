//! Resource classes and what they stand for.

use serde::{Deserialize, Serialize};

/// How large a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum ResourceClass {
    /// 2 CPUs, 1 GiB, 256 processes.
    Small,
    /// 4 CPUs, 4 GiB, 512 processes.
    Medium,
    /// 8 CPUs, 8 GiB, 1,024 processes.
    Large,
}

/// The limits that a sandbox gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Memory of everything in the sandbox, its kernel included, in bytes.
    pub memory_bytes: u64,
    /// Processor time in thousandths of one core.
    pub cpu_millis: u32,
    /// Processes and threads.
    pub pids: u32,
}

impl ResourceClass {
    /// The limits of this class.
    ///
    /// No class has less than two CPUs: gVisor's kernel runs beside the user's code, and held to
    /// one CPU together they spend half of their time waiting for the quota's next period.
    #[must_use]
    pub const fn resources(self) -> Resources {
        const GIB: u64 = 1 << 30;
        match self {
            Self::Small => Resources {
                memory_bytes: GIB,
                cpu_millis: 2_000,
                pids: 256,
            },
            Self::Medium => Resources {
                memory_bytes: 4 * GIB,
                cpu_millis: 4_000,
                pids: 512,
            },
            Self::Large => Resources {
                memory_bytes: 8 * GIB,
                cpu_millis: 8_000,
                pids: 1_024,
            },
        }
    }
}
