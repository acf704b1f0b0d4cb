//! Key material that never shows itself.

use std::fmt;

use zeroize::Zeroize;

/// The key that the daemon and one lease's agent share; derived per lease from the master secret.
#[derive(Clone, PartialEq, Eq)]
pub struct AgentKey([u8; 32]);

impl AgentKey {
    /// A key from its bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes, for a MAC.
    #[must_use]
    pub const fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// The key as lower-case hex: the form that is handed to the agent and that signs its requests.
    #[must_use]
    pub fn to_hex(&self) -> String {
        hex::encode(self.0)
    }
}

impl Drop for AgentKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for AgentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentKey(…)")
    }
}
