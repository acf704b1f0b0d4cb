//! The sockets: our own reader of datagrams, hickory's server for TCP, and what turns their requests into
//! questions.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use hickory_net::{NetError, runtime::Time};
use hickory_proto::{
    op::{Header, HeaderCounts, MessageType, Metadata, OpCode, ResponseCode},
    rr::DNSClass,
};
use hickory_server::{
    Server,
    server::{Request, RequestHandler, ResponseHandler, ResponseInfo},
    zone_handler::MessageResponseBuilder,
};
use hotcell_types::limits::{DNS_TCP_IDLE_MS, MAX_DNS_TCP_ANSWERS};
use tokio::{
    net::{TcpListener, UdpSocket},
    task::JoinSet,
};
use tracing::debug;

use super::{DnsFilter, datagrams, reply::Reply};

/// Answers on these sockets until the server is dropped.
#[must_use]
pub fn serve(filter: DnsFilter, udp: UdpSocket, tcp: TcpListener) -> DnsServer {
    let mut streams = Server::new(Handler(filter.clone()));
    let idle = Duration::from_millis(DNS_TCP_IDLE_MS);
    streams.register_listener(tcp, idle, MAX_DNS_TCP_ANSWERS);
    let mut datagrams = JoinSet::new();
    datagrams.spawn(datagrams::serve(udp, Arc::new(Handler(filter))));
    DnsServer { streams, datagrams }
}

/// Answers while it lives.
pub struct DnsServer {
    streams: Server<Handler>,
    datagrams: JoinSet<NetError>,
}

impl DnsServer {
    /// Waits for the end of either side, which nothing but a failure brings about.
    ///
    /// # Errors
    /// With that failure.
    pub async fn block_until_done(&mut self) -> Result<(), NetError> {
        tokio::select! {
            ended = self.streams.block_until_done() => ended,
            ended = self.datagrams.join_next() => match ended {
                Some(Ok(error)) => Err(error),
                Some(Err(error)) => Err(NetError::from(format!("the reader of datagrams: {error}"))),
                None => Ok(()),
            },
        }
    }
}

/// Turns requests into questions.
pub struct Handler(DnsFilter);

impl Handler {
    pub(super) const fn filter(&self) -> &DnsFilter {
        &self.0
    }

    pub(super) async fn reply(&self, request: &Request) -> Reply {
        // RFC 6891, 6.1.3: in the version that we know.
        if request.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
            return Reply::of(ResponseCode::BADVERS);
        }
        if request.metadata.op_code != OpCode::Query {
            return Reply::of(ResponseCode::NotImp);
        }
        // Exactly one question; what several would mean, nobody agrees on.
        let Ok(info) = request.request_info() else {
            return Reply::of(ResponseCode::FormErr);
        };
        if info.query.query_class() != DNSClass::IN {
            return Reply::of(ResponseCode::Refused);
        }
        let query = info.query;
        self.0.answer(query.name(), query.query_type()).await
    }
}

#[async_trait]
impl RequestHandler for Handler {
    async fn handle_request<R: ResponseHandler, T: Time>(
        &self,
        request: &Request,
        mut response_handle: R,
    ) -> ResponseInfo {
        let reply = self.reply(request).await;
        let metadata = reply.metadata(&request.metadata);
        let edns = request.edns.as_ref().map(|asked| reply.edns(asked));
        let mut builder = MessageResponseBuilder::from_message_request(request);
        if let Some(edns) = &edns {
            builder.edns(edns);
        }
        let message = builder.build(metadata, &reply.answers, [], &reply.soa, []);
        match response_handle.send_response(message).await {
            Ok(info) => info,
            Err(error) => {
                debug!(%error, "an answer could not be sent");
                let mut metadata =
                    Metadata::new(request.metadata.id, MessageType::Response, OpCode::Query);
                metadata.response_code = ResponseCode::ServFail;
                ResponseInfo::from(Header {
                    metadata,
                    counts: HeaderCounts::default(),
                })
            }
        }
    }
}
