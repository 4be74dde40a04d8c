mod client;
mod damage;
mod golden;
mod round_trip;
mod saving;
mod serving;
mod strategies;

use crate::{Backend, Envelope, Exchange, Reply, Request, serve};

/// Asks a back-end by way of the wire; the replies, or the error.
fn ask(backend: &dyn Backend, request: &Request) -> Result<Vec<Reply>, crate::ExchangeError> {
    let family = match request.family() {
        crate::Family::Ctrl => 16,
        crate::Family::Ipvs => crate::FAMILY_IPVS,
        crate::Family::Lvsd => crate::FAMILY_LVSD,
    };
    let (mut exchange, datagram) = Exchange::new(request, Envelope { family, seq: 7, pid: 9 }).unwrap();
    let mut replies = Vec::new();
    for datagram in serve(backend, &datagram) {
        if exchange.feed(&datagram, &mut |r| replies.push(r))? {
            return Ok(replies);
        }
    }
    panic!("the answer to {request:?} has no end");
}
