//! Well-known encrypted resolvers: ways to look up names past the filter.
//!
//! Data, and switchable: on by itself when the default is deny or a domain is denied, off when the
//! operator says so. A rule that allows one of these names exactly, or one of these addresses alone,
//! wins over the list; a wildcard or range does not. The list cannot be complete, since anybody can
//! run a resolver on port 443: it keeps programs with a built-in one from going round by accident.

use std::net::IpAddr;

use hotcell_policy::{Action, DomainName, Policy, Prefix, Target};

/// Names of DNS over HTTPS, TLS and QUIC services. Each stands for everything below it, too.
const NAMES: &[&str] = &[
    // Signals to browsers: NXDOMAIN here means that they keep to the given resolver.
    "use-application-dns.net",
    // Google
    "dns.google",
    "dns.google.com",
    "dns64.dns.google",
    // Cloudflare
    "cloudflare-dns.com",
    "one.one.one.one",
    "1dot1dot1dot1.cloudflare-dns.com",
    "cloudflare-gateway.com",
    // Quad9
    "dns.quad9.net",
    "dns9.quad9.net",
    "dns10.quad9.net",
    "dns11.quad9.net",
    "dns12.quad9.net",
    // Cisco OpenDNS
    "doh.opendns.com",
    "dns.opendns.com",
    "doh.umbrella.com",
    "dns.umbrella.com",
    "doh.familyshield.opendns.com",
    "familyshield.opendns.com",
    // AdGuard
    "dns.adguard.com",
    "dns.adguard-dns.com",
    "unfiltered.adguard-dns.com",
    "family.adguard-dns.com",
    "d.adguard-dns.com",
    // NextDNS, Control D, Mullvad, CleanBrowsing
    "dns.nextdns.io",
    "anycast.dns.nextdns.io",
    "dns.controld.com",
    "freedns.controld.com",
    "dns.mullvad.net",
    "doh.mullvad.net",
    "doh.cleanbrowsing.org",
    "security-filter-dns.cleanbrowsing.org",
    // Others that programs carry built in
    "mozilla.cloudflare-dns.com",
    "chrome.cloudflare-dns.com",
    "doh.dns.apple.com",
    "mask.icloud.com",
    "mask-h2.icloud.com",
    "dns.alidns.com",
    "doh.pub",
    "dot.pub",
    "dns.pub",
    "doh.360.cn",
    "dot.360.cn",
    "dns.twnic.tw",
    "doh.dns.sb",
    "dot.sb",
    "public.dns.iij.jp",
    "dns0.eu",
    "dns4all.eu",
    "unfiltered.joindns4.eu",
    "protective.joindns4.eu",
    "dns.switch.ch",
    "doh.libredns.gr",
    "dot.libredns.gr",
    "doh.applied-privacy.net",
    "dns.digitale-gesellschaft.ch",
    "doh.ffmuc.net",
    "dot.ffmuc.net",
    "ordns.he.net",
    "odoh.cloudflare-dns.com",
    "jp.tiar.app",
    "doh.tiar.app",
    "doh.li",
    "dns.rabbitdns.org",
];

/// Addresses that serve nothing but DNS.
const ADDRESSES: &[&str] = &[
    "8.8.8.8",
    "8.8.4.4",
    "2001:4860:4860::8888",
    "2001:4860:4860::8844",
    "2001:4860:4860::6464",
    "2001:4860:4860::64",
    "1.1.1.1",
    "1.0.0.1",
    "1.1.1.2",
    "1.0.0.2",
    "1.1.1.3",
    "1.0.0.3",
    "2606:4700:4700::1111",
    "2606:4700:4700::1001",
    "2606:4700:4700::1112",
    "2606:4700:4700::1002",
    "2606:4700:4700::1113",
    "2606:4700:4700::1003",
    "9.9.9.9",
    "149.112.112.112",
    "9.9.9.10",
    "149.112.112.10",
    "9.9.9.11",
    "149.112.112.11",
    "2620:fe::fe",
    "2620:fe::9",
    "2620:fe::10",
    "2620:fe::11",
    "208.67.222.222",
    "208.67.220.220",
    "208.67.222.123",
    "208.67.220.123",
    "2620:119:35::35",
    "2620:119:53::53",
    "94.140.14.14",
    "94.140.15.15",
    "94.140.14.15",
    "94.140.15.16",
    "94.140.14.140",
    "94.140.14.141",
    "2a10:50c0::ad1:ff",
    "2a10:50c0::ad2:ff",
    "45.90.28.0",
    "45.90.30.0",
    "76.76.2.0",
    "76.76.10.0",
    "194.242.2.2",
    "194.242.2.3",
    "185.228.168.9",
    "185.228.169.9",
    "223.5.5.5",
    "223.6.6.6",
    "2400:3200::1",
    "2400:3200:baba::1",
    "119.29.29.29",
    "101.101.101.101",
    "185.222.222.222",
    "45.11.45.11",
    "193.110.81.0",
    "185.253.5.0",
    "130.59.31.248",
    "74.82.42.42",
    "2001:470:20::2",
];

/// What of the list holds for one policy.
#[derive(Debug, Clone, Default)]
pub struct BlockList {
    names: Vec<DomainName>,
    addresses: Vec<IpAddr>,
}

impl BlockList {
    /// The list for a policy, or an empty one where it is not needed or switched off.
    #[must_use]
    pub fn for_policy(policy: &Policy, switched_on: bool) -> Self {
        let needed = policy.default_action() == Action::Deny || policy.denies_names();
        if !switched_on || !needed {
            return Self::default();
        }
        let allowed = |wanted: &Target| {
            policy
                .rules()
                .iter()
                .find(|rule| rule.target == *wanted)
                .is_some_and(|rule| rule.action == Action::Allow)
        };
        let mut names: Vec<DomainName> = NAMES
            .iter()
            .filter_map(|name| DomainName::from_typed(name).ok())
            .filter(|name| !allowed(&Target::Name(name.clone())))
            .collect();
        names.sort_unstable();
        let addresses = ADDRESSES
            .iter()
            .filter_map(|address| address.parse().ok())
            .filter(|address| !allowed(&Target::Range(Prefix::single(*address))))
            .collect();
        Self { names, addresses }
    }

    /// Whether the name or one above it is listed.
    #[must_use]
    pub fn blocks(&self, name: &DomainName) -> bool {
        let mut rest = name.as_str();
        loop {
            let listed = self
                .names
                .binary_search_by(|n| n.as_str().cmp(rest))
                .is_ok();
            if listed {
                return true;
            }
            match rest.split_once('.') {
                Some((_, above)) => rest = above,
                None => return false,
            }
        }
    }

    /// The listed addresses.
    #[must_use]
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> BlockList {
        BlockList::for_policy(&Policy::parse(text).unwrap(), true)
    }

    fn name(text: &str) -> DomainName {
        DomainName::from_question(text).unwrap()
    }

    #[test]
    fn every_entry_is_well_formed() {
        let all = list("{}");
        assert_eq!(all.names.len(), NAMES.len());
        assert_eq!(all.addresses.len(), ADDRESSES.len());
    }

    #[test]
    fn it_holds_where_it_is_needed() {
        assert!(list("{}").blocks(&name("dns.google")));
        assert!(list("{}").blocks(&name("x.CLOUDFLARE-dns.com")));
        assert!(!list("{}").blocks(&name("google.com")));
        assert!(!list("{}").blocks(&name("notdns.google.com.example")));
        let denying =
            r#"{"defaultAction":"allow","egress":[{"action":"deny","target":"bad.example"}]}"#;
        assert!(list(denying).blocks(&name("dns.google")));
        let open = r#"{"defaultAction":"allow","egress":[{"action":"deny","target":"192.0.2.1"}]}"#;
        assert!(!list(open).blocks(&name("dns.google")));
        let off = BlockList::for_policy(&Policy::parse("{}").unwrap(), false);
        assert!(!off.blocks(&name("dns.google")) && off.addresses().is_empty());
    }

    #[test]
    fn a_rule_for_exactly_that_wins() {
        let text = r#"{"egress":[{"action":"allow","target":"dns.google"},
            {"action":"allow","target":"*.cloudflare-dns.com"},{"action":"allow","target":"8.8.8.8"},
            {"action":"allow","target":"9.9.9.0/24"}]}"#;
        let list = list(text);
        assert!(!list.blocks(&name("dns.google")));
        assert!(list.blocks(&name("mozilla.cloudflare-dns.com")));
        assert!(!list.addresses().contains(&"8.8.8.8".parse().unwrap()));
        assert!(list.addresses().contains(&"9.9.9.9".parse().unwrap()));
    }
}
