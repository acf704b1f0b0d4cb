//! Ways out, and the leases whose packets take them.
//!
//! ```text
//!   install ──attach──► way out ──remembers──► lease, and the space that its rules are in
//!   the way out's table is not what it shall be
//!        └─► each of its leases is let as far as the gateway ─► restored ─► and outside again
//! ```
//! Their own rules are not in doubt then, so their agents and resolvers go on. A way out locks itself
//! before the spaces of its leases, never the other way round.

use std::sync::Arc;

use hotcell_egress::{
    firewall::{Firewall, FirewallError},
    layout::Reach,
};
use hotcell_types::LeaseId;

use super::space::{Space, State};

impl Space {
    /// From now on this is a lease's way out, whose rules are in `filters`. `Gone` when this was shut
    /// meanwhile; there will be another.
    pub(super) async fn attach(
        &self,
        lease: &LeaseId,
        filters: &Arc<Self>,
    ) -> Result<(), FirewallError> {
        let mut state = self.state.lock().await;
        if state.shut {
            return Err(FirewallError::Gone);
        }
        // Before anybody knows of it nobody could let it outside again.
        filters.let_as_far_as(lease, Reach::Outside).await?;
        state.users.insert(lease.clone(), Arc::clone(filters));
        Ok(())
    }

    /// Takes over the leases of an earlier one, which nobody joins any more.
    pub(super) async fn take_users_of(&self, old: &Self) {
        let users = {
            let mut state = old.state.lock().await;
            state.shut = true;
            std::mem::take(&mut state.users)
        };
        let mut state = self.state.lock().await;
        state.users.extend(users);
        self.let_users(&state, Reach::Outside).await;
    }

    /// Lets every lease that has this as its way out as far as that. What fails is found by the guard
    /// of the space that it fails in.
    pub(super) async fn let_users(&self, state: &State, reach: Reach) {
        for (lease, filters) in &state.users {
            if let Err(error) = filters.let_as_far_as(lease, reach).await {
                tracing::warn!(%lease, %error, ?reach, "the sandbox's reach cannot be changed");
            }
        }
    }

    /// Lets a lease whose rules are here as far as that. It stays so when the table is made anew.
    pub(super) async fn let_as_far_as(
        &self,
        lease: &LeaseId,
        reach: Reach,
    ) -> Result<(), FirewallError> {
        let mut state = self.state.lock().await;
        let Some(member) = state.members.get_mut(lease) else {
            return Ok(());
        };
        if member.reach == reach {
            return Ok(());
        }
        let before = member.reach;
        member.reach = reach;
        let rules = member.rules.clone();
        let changed = self.firewall.connect(self.table(), &rules, reach).await;
        // Closing that failed is made up for by the guard; opening that failed is tried again, unless
        // the table is gone: its own guard then makes it anew as it shall be, and nobody else would
        // come back to open it.
        if changed.is_err()
            && reach == Reach::Outside
            && !matches!(self.firewall.report(self.table()).await, Ok(None))
            && let Some(member) = state.members.get_mut(lease)
        {
            member.reach = before;
        }
        changed
    }
}
