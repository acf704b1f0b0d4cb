//! The network of a profile's sandboxes: the `network` keys of the table `[runtime]`.

use std::net::{IpAddr, SocketAddr};

use hotcell_policy::FilterMode;
use hotcell_types::limits::{
    DEFAULT_LEARNED_GRACE_MS, MAX_DNS_UPSTREAMS, MAX_LEARNED_MS, MIN_LEARNED_GRACE_MS,
};
use serde::Deserialize;

use super::{ConfigError, value};

/// The port of DNS.
const DNS_PORT: u16 = 53;

/// What the sandboxes of a profile may reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Whether they reach anything at all.
    pub filtered: bool,
    /// How much of a policy is enforced.
    pub mode: FilterMode,
    /// The resolvers that allowed names are asked of, in this order; those of the host when empty.
    pub upstreams: Vec<SocketAddr>,
    /// Whether well-known encrypted resolvers are blocked where that is needed.
    pub block_encrypted_dns: bool,
    /// How long an address stays open at least after it was last in an answer, in milliseconds.
    pub learned_grace_ms: u64,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            filtered: false,
            mode: FilterMode::DnsNft,
            upstreams: Vec::new(),
            block_encrypted_dns: true,
            learned_grace_ms: DEFAULT_LEARNED_GRACE_MS,
        }
    }
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum NetworkModeKey {
    #[default]
    None,
    Filtered,
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum FilterModeKey {
    #[serde(rename = "dns")]
    Dns,
    #[default]
    #[serde(rename = "dns+nft")]
    DnsNft,
}

/// The keys as they were written.
pub(super) struct NetworkKeys {
    pub(super) network: NetworkModeKey,
    pub(super) filter_mode: Option<FilterModeKey>,
    pub(super) dns_upstreams: Option<Vec<String>>,
    pub(super) block_encrypted_dns: Option<bool>,
    pub(super) learned_grace_ms: Option<u64>,
}

impl NetworkKeys {
    pub(super) fn check(self) -> Result<NetworkConfig, ConfigError> {
        let upstreams = self.dns_upstreams.unwrap_or_default();
        if upstreams.len() > MAX_DNS_UPSTREAMS {
            let problem = format!("must be at most {MAX_DNS_UPSTREAMS}");
            return Err(value("runtime.dns_upstreams", problem));
        }
        let upstreams: Result<Vec<_>, _> = upstreams.iter().map(|text| upstream(text)).collect();
        let grace_ms = self.learned_grace_ms.unwrap_or(DEFAULT_LEARNED_GRACE_MS);
        if !(MIN_LEARNED_GRACE_MS..=MAX_LEARNED_MS).contains(&grace_ms) {
            let problem = format!("must be between {MIN_LEARNED_GRACE_MS} and {MAX_LEARNED_MS}");
            return Err(value("runtime.learned_grace_ms", problem));
        }
        Ok(NetworkConfig {
            filtered: self.network == NetworkModeKey::Filtered,
            mode: match self.filter_mode.unwrap_or_default() {
                FilterModeKey::Dns => FilterMode::Dns,
                FilterModeKey::DnsNft => FilterMode::DnsNft,
            },
            upstreams: upstreams?,
            block_encrypted_dns: self.block_encrypted_dns.unwrap_or(true),
            learned_grace_ms: grace_ms,
        })
    }
}

fn upstream(text: &str) -> Result<SocketAddr, ConfigError> {
    let alone = || Ok(SocketAddr::new(text.parse::<IpAddr>()?, DNS_PORT));
    text.parse()
        .or_else(|_| alone())
        .map_err(|_: std::net::AddrParseError| {
            let problem =
                format!("{text:?} is no resolver; write an address, or an address and a port");
            value("runtime.dns_upstreams", problem)
        })
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Overrides};

    use super::*;

    fn network(text: &str) -> Result<NetworkConfig, String> {
        let config = Config::parse(&format!("[runtime]\n{text}"), &Overrides::default());
        config.map(|it| it.runtime.network).map_err(|error| {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            format!("{error} {}", source.unwrap_or_default())
        })
    }

    #[test]
    fn nothing_is_reachable_unless_somebody_says_so() {
        assert_eq!(network("").unwrap(), NetworkConfig::default());
        assert!(!NetworkConfig::default().filtered);
        let set = network(
            "network = 'filtered'\nfilter_mode = 'dns'\nblock_encrypted_dns = false\n\
             learned_grace_ms = 60000\ndns_upstreams = ['192.0.2.1', '[2001:db8::1]:5353', '2001:db8::2']",
        );
        assert_eq!(
            set.unwrap(),
            NetworkConfig {
                filtered: true,
                mode: FilterMode::Dns,
                upstreams: ["192.0.2.1:53", "[2001:db8::1]:5353", "[2001:db8::2]:53"]
                    .map(|text| text.parse().unwrap())
                    .to_vec(),
                block_encrypted_dns: false,
                learned_grace_ms: 60_000,
            }
        );
    }

    #[test]
    fn what_is_not_possible_is_refused_with_its_place() {
        for (text, place) in [
            ("network = 'open'", "network"),
            ("filter_mode = 'nft'", "filter_mode"),
            (
                "dns_upstreams = ['dns.example.org']",
                "runtime.dns_upstreams",
            ),
            ("learned_grace_ms = 0", "runtime.learned_grace_ms"),
        ] {
            let words = network(text).unwrap_err();
            assert!(words.contains(place), "{text}: {words}");
        }
    }
}
