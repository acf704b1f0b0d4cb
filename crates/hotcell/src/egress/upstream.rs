//! The resolvers that allowed names are asked of: one set, and one cache, for the whole deployment.

use std::{
    io::Read,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use hotcell_egress::dns::upstream::{Resolvers, Upstream};
use hotcell_types::limits::MAX_DNS_UPSTREAMS;

/// Where the host's own resolvers are written down.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// How much of it is read, in bytes.
const MAX_RESOLV_CONF_BYTES: u64 = 64 * 1024;
/// The port of DNS.
const DNS_PORT: u16 = 53;

/// The configured resolvers, or those of the host when none is.
///
/// # Errors
/// In words, when there is nobody to ask.
pub fn resolvers(configured: &[SocketAddr]) -> Result<Arc<dyn Upstream>, String> {
    let asked = if configured.is_empty() {
        of_host()?
    } else {
        configured.to_vec()
    };
    match Resolvers::new(&asked) {
        Ok(resolvers) => Ok(Arc::new(resolvers)),
        Err(error) => Err(error.to_string()),
    }
}

fn of_host() -> Result<Vec<SocketAddr>, String> {
    let unusable = |why: &dyn std::fmt::Display| {
        format!("runtime.dns_upstreams is not set, and {RESOLV_CONF} {why}")
    };
    let mut text = String::new();
    let file = std::fs::File::open(RESOLV_CONF)
        .and_then(|file| file.take(MAX_RESOLV_CONF_BYTES).read_to_string(&mut text));
    if let Err(error) = file {
        return Err(unusable(&format_args!("cannot be read: {error}")));
    }
    let found = name_servers(&text);
    if found.is_empty() {
        return Err(unusable(&"names no resolver"));
    }
    Ok(found)
}

fn name_servers(text: &str) -> Vec<SocketAddr> {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            if words.next() != Some("nameserver") {
                return None;
            }
            words.next()?.parse::<IpAddr>().ok()
        })
        .map(|address| SocketAddr::new(address, DNS_PORT))
        .take(MAX_DNS_UPSTREAMS)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_of_the_host_are_read_as_libc_does() {
        let text = "# comment\nsearch example.org\nnameserver 192.0.2.1\nnameserver\t2001:db8::1 \n\
                    nameserver fe80::1%eth0\noptions edns0\n;nameserver 192.0.2.9\n";
        let expected = ["192.0.2.1:53", "[2001:db8::1]:53"].map(|text| text.parse().unwrap());
        assert_eq!(name_servers(text), expected);
    }
}
