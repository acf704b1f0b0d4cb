//! What a host must be like for filtered sandboxes to reach what their filters let through.

use hotcell_runtime::Check;
use hotcell_types::net::WAY_OUT_INTERFACES;

use super::{Egress, chain};

/// Every check with what it is about. `docs/operating/preflight.md` holds the same list.
#[cfg(test)]
const CHECKS: &[(&str, &str)] = &[(
    FORWARD_DROPS,
    "no other firewall of the host drops what filters let through",
)];
const FORWARD_DROPS: &str = "network.forward_drops";

impl Egress {
    /// The checks of a profile whose sandboxes are filtered.
    pub(crate) async fn preflight(&self) -> Vec<Check> {
        if !self.network.filtered {
            return Vec::new();
        }
        vec![match self.host.forward_drops(WAY_OUT_INTERFACES).await {
            Ok(chains) => of_chains(&chains),
            Err(error) => Check::warn(
                FORWARD_DROPS,
                format!("it could not be checked: {}", chain(&error)),
                "run the daemon as root (CAP_NET_ADMIN)",
            ),
        }]
    }
}

/// Only a warning: what such a chain drops is no danger, and rules elsewhere may let it pass.
fn of_chains(chains: &[String]) -> Check {
    let Some(first) = chains.first() else {
        return Check::pass(
            FORWARD_DROPS,
            "no other firewall drops what filters let through",
        );
    };
    let fix = if first == "ip filter FORWARD" {
        format!(
            "iptables -I DOCKER-USER -i {WAY_OUT_INTERFACES}+ -j ACCEPT; \
             iptables -I DOCKER-USER -o {WAY_OUT_INTERFACES}+ -m conntrack --ctstate \
             ESTABLISHED,RELATED -j ACCEPT (without Docker: the same into FORWARD)"
        )
    } else {
        format!(
            "nft insert rule {first} iifname \"{WAY_OUT_INTERFACES}*\" accept; \
             nft insert rule {first} oifname \"{WAY_OUT_INTERFACES}*\" ct state \
             established,related accept"
        )
    };
    Check::warn(
        FORWARD_DROPS,
        format!(
            "these chains drop what is forwarded and no rule there names {WAY_OUT_INTERFACES}*, so \
             filtered sandboxes reach nothing: {}",
            chains.join(", ")
        ),
        fix,
    )
}

#[cfg(test)]
mod tests {
    use hotcell_runtime::CheckStatus;

    use super::*;

    #[test]
    fn the_operators_page_lists_every_check() {
        hotcell_runtime::assert_listed("network-checks", CHECKS);
    }

    #[test]
    fn the_fix_is_for_the_chain_that_drops() {
        assert_eq!(of_chains(&[]).status, CheckStatus::Pass);
        let docker = of_chains(&["ip filter FORWARD".to_owned(), "inet mine fwd".to_owned()]);
        assert_eq!(docker.status, CheckStatus::Warn);
        assert!(docker.message.contains("ip filter FORWARD, inet mine fwd"));
        assert!(docker.fix.contains("DOCKER-USER -i hcu-+"), "{docker:?}");
        let own = of_chains(&["inet mine fwd".to_owned()]);
        let rule = "nft insert rule inet mine fwd iifname \"hcu-*\" accept";
        assert!(own.fix.contains(rule), "{own:?}");
    }
}
