//! The sockets: hickory's server, and what turns its requests into questions.

use std::time::Duration;

use async_trait::async_trait;
use hickory_net::runtime::Time;
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
use tokio::net::{TcpListener, UdpSocket};
use tracing::debug;

use super::{DnsFilter, reply::Reply};

/// Answers on these sockets until the server is dropped or told to stop.
#[must_use]
pub fn serve(filter: DnsFilter, udp: UdpSocket, tcp: TcpListener) -> Server<Handler> {
    let mut server = Server::new(Handler(filter));
    server.register_socket(udp);
    let idle = Duration::from_millis(DNS_TCP_IDLE_MS);
    server.register_listener(tcp, idle, MAX_DNS_TCP_ANSWERS);
    server
}

/// Turns requests into questions.
pub struct Handler(DnsFilter);

impl Handler {
    async fn reply(&self, request: &Request) -> Reply {
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
        let mut metadata = Metadata::response_from_request(&request.metadata);
        metadata.response_code = reply.code;
        metadata.recursion_available = true;
        metadata.authoritative = false;
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
