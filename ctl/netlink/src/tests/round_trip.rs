//! What one end writes, the other reads back.

use proptest::prelude::*;

use super::strategies;
use crate::reply::decode_message;
use crate::wire::next_frame;
use crate::{Af, Envelope, Family, Message, Reply, Request};

fn envelope() -> impl Strategy<Value = Envelope> {
    any::<(u16, u32, u32)>().prop_map(|(family, seq, pid)| Envelope { family: family | 64, seq, pid })
}

fn family_of(reply: &Reply) -> Family {
    match reply {
        Reply::Family(_) => Family::Ctrl,
        Reply::Conn(_)
        | Reply::Counter(_)
        | Reply::Sysctl(_)
        | Reply::Overview(_)
        | Reply::Queue(_)
        | Reply::Scheduler(_)
        | Reply::Notice(_) => Family::Lvsd,
        _ => Family::Ipvs,
    }
}

proptest! {
    #[test]
    fn requests(request in strategies::request(), envelope in envelope()) {
        let bytes = request.encode(envelope).unwrap();
        let mut rest = &bytes[..];
        let frame = next_frame(&mut rest).unwrap();
        prop_assert!(rest.is_empty());
        prop_assert_eq!((frame.kind, frame.seq, frame.pid), (envelope.family, envelope.seq, envelope.pid));
        prop_assert_eq!(Request::decode(request.family(), request.is_dump(), frame.payload), Ok(request));
    }

    #[test]
    fn replies(reply in strategies::reply(), envelope in envelope(), multi: bool) {
        let bytes = reply.encode(envelope, multi).unwrap();
        let mut rest = &bytes[..];
        let frame = next_frame(&mut rest).unwrap();
        prop_assert!(rest.is_empty());
        prop_assert_eq!(frame.flags, if multi { 2 } else { 0 });
        prop_assert_eq!(decode_message(&frame, family_of(&reply), Af::V4), Ok(Message::Reply(reply)));
    }
}

#[test]
fn a_name_too_long_for_an_attribute_is_an_error() {
    let request = Request::GetFamily("x".repeat(70_000));
    assert_eq!(request.encode(Envelope { family: 16, seq: 0, pid: 0 }), Err(crate::TooLong));
}
