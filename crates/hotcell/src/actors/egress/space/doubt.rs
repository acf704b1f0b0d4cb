//! A table that may not be what it shall be: compared, restored, and told of.

use hotcell_egress::{
    denied::DeniedPacket,
    firewall::{Firewall, FirewallError},
    layout::Reach,
    report::Difference,
};

use super::{Space, State, Verified, learned};
use crate::{
    actors::live::lock,
    egress::{Happened, Whose},
};

/// How far the filter's clock and the kernel's may be apart about an address that leaves, in
/// milliseconds.
const FORGOTTEN_SOON_MS: u64 = 2_000;

impl Space {
    /// Compares the table with what it shall be, and restores it: every sandbox is cut off first, so
    /// that nothing passes rules that somebody else made.
    ///
    /// # Errors
    /// The packet filter cannot be read.
    pub(in crate::actors::egress) async fn verify(&self) -> Result<Verified, FirewallError> {
        let state = self.state.lock().await;
        let wanted = self.wanted(&state);
        let differences = match self.firewall.differences(&wanted).await {
            Ok(differences) if differences.is_empty() => self.foreign_openings(&state).await?,
            Ok(differences) => differences,
            Err(error) => {
                self.cut_off(&state).await;
                return Err(error);
            }
        };
        if differences.is_empty() {
            self.let_users(&state, Reach::Outside).await;
            return Ok(Verified::Unchanged);
        }
        self.cut_off(&state).await;
        Ok(match self.replace(&state).await {
            Ok(()) => {
                self.let_users(&state, Reach::Outside).await;
                Verified::Restored(differences)
            }
            Err(error) => Verified::Broken(differences, error),
        })
    }

    /// Addresses in a learned set that the filter never opened. What it knows is always more than what
    /// the kernel has: it takes an address in before it opens it.
    async fn foreign_openings(&self, state: &State) -> Result<Vec<Difference>, FirewallError> {
        if state.members.values().all(|member| member.dns.is_none()) {
            return Ok(Vec::new());
        }
        let report = self.firewall.report(self.table()).await?;
        let mut found = Vec::new();
        for member in state.members.values() {
            let (Some(dns), Some(report)) = (&member.dns, &report) else {
                continue;
            };
            for open in learned(&member.rules, report) {
                let known = dns
                    .with_filter(|filter, now| filter.learned().get(open.address, now).is_some());
                // One that is about to leave by itself may have been forgotten already.
                if !known && open.for_ms > FORGOTTEN_SOON_MS {
                    let element = hotcell_egress::ruleset::Element::address(open.address);
                    let set = open.set.as_str().to_owned();
                    found.push(Difference::ElementForeign(set, element));
                }
            }
        }
        Ok(found)
    }

    /// Points every sandbox's interface at nothing, and of those whose way out this is what leads
    /// outside. Without a table there is nothing to point at.
    async fn cut_off(&self, state: &State) {
        self.let_users(state, Reach::Gateway).await;
        for (lease, member) in &state.members {
            let table = self.table();
            let cut = self
                .firewall
                .connect(table, &member.rules, Reach::Nothing)
                .await;
            if let Err(error) = cut {
                tracing::debug!(%lease, %error, "the sandbox cannot be cut off");
            }
        }
    }

    /// Tells every sandbox's events what happened to all of them.
    pub(in crate::actors::egress) async fn tell_all(&self, happened: &Happened) {
        let users = self.state.lock().await.users.clone();
        let mut whose: Vec<Whose> = lock(&self.told)
            .values()
            .map(|told| told.whose.clone())
            .collect();
        // A way out's are those of its leases.
        whose.extend(users.iter().filter_map(|(lease, filters)| {
            let told = lock(&filters.told);
            Some(told.get(lease.short())?.whose.clone())
        }));
        for whose in whose {
            self.journal.record(&whose, happened.clone());
        }
    }

    /// Tells of a dropped packet.
    pub(in crate::actors::egress) fn tell_denied(&self, packet: &DeniedPacket) {
        let told = lock(&self.told).get(&packet.short).cloned();
        // Of a sandbox that is gone meanwhile.
        let Some(told) = told else { return };
        let denial = told
            .dns
            .with_filter(|filter, _| filter.why_denied(packet, &told.gateways));
        let happened = crate::egress::of_packet(packet, denial);
        self.journal.record(&told.whose, happened);
    }
}
