//! Numbers and addresses of links.

use std::net::Ipv4Addr;

use hotcell_types::limits::MAX_EMBEDDED_SANDBOXES;
use serde::{Deserialize, Serialize};

/// The number of a sandbox's link. Link *n* has the *n*-th /30 of 100.64.0.0/16, a range that
/// no other network may announce (RFC 6598) and that is seen in these namespaces only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub(crate) struct Slot(u16);

/// Where addresses of links are from.
pub(crate) const RANGE: (Ipv4Addr, u8) = (Ipv4Addr::new(100, 64, 0, 0), 16);

/// Addresses of one link are this many bits long.
pub(crate) const PREFIX_BITS: u8 = 30;

/// A number over the limit.
#[derive(Debug, thiserror::Error)]
#[error("a link's number must be under {MAX_EMBEDDED_SANDBOXES}")]
pub(crate) struct SlotError;

impl Slot {
    /// The link of probes; no sandbox gets it.
    pub(crate) const PROBE: Self = Self(0);

    /// The first number that `taken` does not hold.
    pub(crate) fn first_free(taken: &std::collections::BTreeSet<Self>) -> Option<Self> {
        (1..)
            .map_while(|number| Self::try_from(number).ok())
            .find(|slot| !taken.contains(slot))
    }

    /// The address of the gateway's end.
    pub(crate) fn gateway(self) -> Ipv4Addr {
        self.address(1)
    }

    /// The address of the sandbox.
    pub(crate) fn sandbox(self) -> Ipv4Addr {
        self.address(2)
    }

    fn address(self, host: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(RANGE.0) + u32::from(self.0) * 4 + host)
    }
}

impl TryFrom<u16> for Slot {
    type Error = SlotError;
    fn try_from(number: u16) -> Result<Self, SlotError> {
        if usize::from(number) < MAX_EMBEDDED_SANDBOXES {
            Ok(Self(number))
        } else {
            Err(SlotError)
        }
    }
}

impl From<Slot> for u16 {
    fn from(slot: Slot) -> Self {
        slot.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn addresses_stay_in_the_range_and_apart() {
        let last = Slot::try_from(15_999).unwrap();
        assert_eq!(last.sandbox(), Ipv4Addr::new(100, 64, 249, 254));
        assert!(Slot::try_from(16_000).is_err());
        assert_eq!(Slot(1).gateway(), Ipv4Addr::new(100, 64, 0, 5));
        assert_eq!(Slot(1).sandbox(), Ipv4Addr::new(100, 64, 0, 6));
    }

    #[test]
    fn the_first_gap_is_taken() {
        let taken = BTreeSet::from([Slot(1), Slot(2), Slot(4)]);
        assert_eq!(Slot::first_free(&taken), Some(Slot(3)));
        assert_eq!(Slot::first_free(&BTreeSet::new()), Some(Slot(1)));
        let full = (0..16_000).map(Slot).collect();
        assert_eq!(Slot::first_free(&full), None);
    }
}
