//! Where answers come from: the resolvers of the operator, with one cache for all sandboxes.
//!
//! The cache is shared for answers only. Whether a sandbox may have one is decided before it is
//! asked for, by that sandbox's own filter.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{StreamExt, stream::FuturesUnordered};
use hickory_net::{DnsError, NetError, runtime::TokioRuntimeProvider};
use hickory_proto::{
    op::ResponseCode,
    rr::{Name, Record, RecordType},
};
use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts},
};
use hotcell_types::limits::{
    DNS_UPSTREAM_AVOID_MS, DNS_UPSTREAM_PATIENCE_MS, DNS_UPSTREAM_TIMEOUT_MS, DNS_UPSTREAM_TRIES,
    MAX_DNS_CACHE_ENTRIES, MAX_DNS_TTL_SECONDS, MAX_DNS_UPSTREAM_REQUESTS,
};
use tokio::time::Instant;

/// What an upstream resolver said.
#[derive(Debug, Clone)]
pub struct UpstreamAnswer {
    /// No error, or that there is no such name.
    pub code: ResponseCode,
    /// Aliases and records, as they came.
    pub answers: Vec<Record>,
    /// The zone's, for an answer without records.
    pub soa: Option<Record>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The resolvers were asked and did not answer usefully.
    #[error("no upstream resolver answered")]
    Failed(#[source] Box<NetError>),
}

/// Somebody who answers any question.
#[async_trait]
pub trait Upstream: Send + Sync {
    /// Looks a name up, following aliases.
    async fn lookup(&self, name: Name, kind: RecordType) -> Result<UpstreamAnswer, UpstreamError>;
}

/// The operator's resolvers, asked in their order. One that failed lately comes last; one that takes
/// its time is not waited for alone. Cheap to share: all filters use one.
pub struct Resolvers {
    servers: Vec<Server>,
    started: Instant,
}

/// One resolver with its cache.
struct Server {
    resolver: TokioResolver,
    /// Milliseconds after the start until which it comes last.
    avoided_until_ms: AtomicU64,
}

/// Why the resolvers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ResolversError {
    /// There is not even one.
    #[error("no upstream resolver is configured")]
    None,
    /// The settings make no resolver.
    #[error("the upstream resolvers cannot be set up")]
    Setup(#[source] Box<NetError>),
}

impl Resolvers {
    /// With these resolvers, asked over UDP, and over TCP where an answer is too long for it.
    ///
    /// # Errors
    /// Without any resolver.
    pub fn new(resolvers: &[SocketAddr]) -> Result<Self, ResolversError> {
        if resolvers.is_empty() {
            return Err(ResolversError::None);
        }
        let servers: Result<Vec<Server>, ResolversError> = resolvers
            .iter()
            .map(|address| Server::new(*address))
            .collect();
        Ok(Self {
            servers: servers?,
            started: Instant::now(),
        })
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn in_order(&self) -> VecDeque<&Server> {
        let now_ms = self.now_ms();
        let avoided = |server: &&Server| server.avoided_until_ms.load(Relaxed) > now_ms;
        let good = self.servers.iter().filter(|server| !avoided(server));
        good.chain(self.servers.iter().filter(avoided)).collect()
    }
}

impl Server {
    fn new(address: SocketAddr) -> Result<Self, ResolversError> {
        let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut config| {
            config.port = address.port();
            config
        });
        let server = NameServerConfig::new(address.ip(), true, connections.to_vec());
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
        let mut builder =
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        let longest = Duration::from_secs(MAX_DNS_TTL_SECONDS.into());
        let mut options = ResolverOpts::default();
        options.timeout = Duration::from_millis(DNS_UPSTREAM_TIMEOUT_MS);
        options.attempts = DNS_UPSTREAM_TRIES;
        options.cache_size = MAX_DNS_CACHE_ENTRIES;
        options.max_active_requests = MAX_DNS_UPSTREAM_REQUESTS;
        options.use_hosts_file = ResolveHosts::Never;
        options.preserve_intermediates = true;
        options.edns0 = true;
        options.positive_max_ttl = Some(longest);
        options.negative_max_ttl = Some(longest);
        *builder.options_mut() = options;
        let resolver = builder
            .build()
            .map_err(|error| ResolversError::Setup(Box::new(error)))?;
        Ok(Self {
            resolver,
            avoided_until_ms: AtomicU64::new(0),
        })
    }

    async fn lookup(&self, name: Name, kind: RecordType) -> Result<UpstreamAnswer, NetError> {
        match self.resolver.lookup(name, kind).await {
            Ok(lookup) => Ok(UpstreamAnswer {
                code: ResponseCode::NoError,
                answers: lookup.answers().to_vec(),
                soa: None,
            }),
            Err(NetError::Dns(DnsError::NoRecordsFound(none)))
                if matches!(
                    none.response_code,
                    ResponseCode::NXDomain | ResponseCode::NoError
                ) =>
            {
                Ok(UpstreamAnswer {
                    code: none.response_code,
                    answers: Vec::new(),
                    soa: none.soa.map(|soa| (*soa).into_record_of_rdata()),
                })
            }
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl Upstream for Resolvers {
    async fn lookup(
        &self,
        mut name: Name,
        kind: RecordType,
    ) -> Result<UpstreamAnswer, UpstreamError> {
        name.set_fqdn(true);
        // Nobody to put before it or to ask beside it.
        if let [server] = self.servers.as_slice() {
            let answer = server.lookup(name, kind).await;
            return answer.map_err(|error| UpstreamError::Failed(Box::new(error)));
        }
        let mut waiting = self.in_order();
        let mut asked = FuturesUnordered::new();
        let mut last = NetError::NoConnections;
        loop {
            if let Some(server) = waiting.pop_front() {
                let name = name.clone();
                asked.push(async move { (server, server.lookup(name, kind).await) });
            }
            let patience = Duration::from_millis(DNS_UPSTREAM_PATIENCE_MS);
            let answer = if waiting.is_empty() {
                asked.next().await
            } else {
                match tokio::time::timeout(patience, asked.next()).await {
                    Ok(answer) => answer,
                    // The next one is asked beside it.
                    Err(_) => continue,
                }
            };
            match answer {
                Some((server, Ok(answer))) => {
                    server.avoided_until_ms.store(0, Relaxed);
                    return Ok(answer);
                }
                Some((server, Err(error))) => {
                    let until_ms = self.now_ms().saturating_add(DNS_UPSTREAM_AVOID_MS);
                    server.avoided_until_ms.store(until_ms, Relaxed);
                    last = error;
                }
                None => return Err(UpstreamError::Failed(Box::new(last))),
            }
        }
    }
}
