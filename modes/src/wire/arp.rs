use std::ops::{Deref, DerefMut};

use super::{Ethernet, Mac, be16, be32, ethertype, view};

mod field {
    use std::ops::Range;
    pub(super) const HARDWARE: usize = 0;
    pub(super) const PROTOCOL: usize = 2;
    pub(super) const LENGTHS: usize = 4;
    pub(super) const OPERATION: usize = 6;
    pub(super) const SENDER_MAC: Range<usize> = 8..14;
    pub(super) const SENDER_IP: Range<usize> = 14..18;
    pub(super) const TARGET_MAC: Range<usize> = 18..24;
    pub(super) const TARGET_IP: Range<usize> = 24..28;
}

/// Bytes 0..6 of every ARP packet for IPv4 over Ethernet: hardware type 1, protocol type 0x0800, lengths 6 and 4.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// What an ARP packet is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum ArpOperation {
    /// Who has the target's address?
    Request = 1,
    /// The sender has its address.
    Reply = 2,
}

view! {
    /// An ARP packet (RFC 826) for IPv4 over Ethernet.
    Arp, 28
}

impl<B: Deref<Target = [u8; 28]>> Arp<B> {
    /// The operation; `None` if it is another one, or the packet is not for IPv4 over Ethernet.
    pub fn operation(&self) -> Option<ArpOperation> {
        let b = &self.0;
        let kind = [be16(b, field::HARDWARE), be16(b, field::PROTOCOL), be16(b, field::LENGTHS)];
        if kind != [1, ethertype::IPV4, 0x0604] {
            return None;
        }
        match be16(b, field::OPERATION) {
            1 => Some(ArpOperation::Request),
            2 => Some(ArpOperation::Reply),
            _ => None,
        }
    }
    /// The sender's MAC address.
    pub fn sender_mac(&self) -> Mac {
        std::array::from_fn(|i| self.0[field::SENDER_MAC.start + i])
    }
    /// The sender's IPv4 address; 0 in a probe (RFC 5227).
    pub fn sender_ip(&self) -> u32 {
        be32(&self.0, field::SENDER_IP.start)
    }
    /// The address asked for, or the one that is answered.
    pub fn target_ip(&self) -> u32 {
        be32(&self.0, field::TARGET_IP.start)
    }
}

impl<B: DerefMut<Target = [u8; 28]>> Arp<B> {
    fn fill(&mut self, operation: ArpOperation, sender: (Mac, u32), target: (Mac, u32)) {
        self.0[..field::OPERATION].copy_from_slice(&ETHERNET_IPV4);
        self.0[field::OPERATION..field::SENDER_MAC.start].copy_from_slice(&(operation as u16).to_be_bytes());
        self.0[field::SENDER_MAC].copy_from_slice(&sender.0);
        self.0[field::SENDER_IP].copy_from_slice(&sender.1.to_be_bytes());
        self.0[field::TARGET_MAC].copy_from_slice(&target.0);
        self.0[field::TARGET_IP].copy_from_slice(&target.1.to_be_bytes());
    }
}

/// An ARP frame from `sender` to the MAC address `to` about `target`. An answer goes to the asker with its addresses as target;
/// an announcement (RFC 5227 section 3) is a request to ff:ff:ff:ff:ff:ff with the sender's address as target and a zero MAC.
pub fn arp_frame(to: Mac, operation: ArpOperation, sender: (Mac, u32), target: (Mac, u32)) -> [u8; 42] {
    let mut frame = [0; 42];
    if let Some(mut eth) = Ethernet::new_mut(&mut frame) {
        eth.set_dst(to);
        eth.set_src(sender.0);
        eth.set_ethertype(ethertype::ARP);
    }
    if let Some(mut arp) = Arp::new_mut(&mut frame[14..]) {
        arp.fill(operation, sender, target);
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Mac = [2, 0, 0, 0, 0, 0xd0];
    const THEM: Mac = [2, 0, 0, 0, 0, 0xc1];

    #[test]
    fn reply_is_what_rfc_826_draws() {
        let f = arp_frame(THEM, ArpOperation::Reply, (US, 0x0a000001), (THEM, 0x0a0000fd));
        let mut expect = Vec::new();
        expect.extend(THEM);
        expect.extend(US);
        expect.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
        expect.extend(US);
        expect.extend([10, 0, 0, 1]);
        expect.extend(THEM);
        expect.extend([10, 0, 0, 0xfd]);
        assert_eq!(f[..], expect[..]);
    }

    #[test]
    fn view_reads_what_was_built_and_refuses_other_kinds() {
        let mut f = arp_frame([0xff; 6], ArpOperation::Request, (US, 0x0a000001), ([0; 6], 0x0a000002));
        let arp = Arp::new(&f[14..]).expect("28 bytes");
        assert_eq!(arp.operation(), Some(ArpOperation::Request));
        assert_eq!((arp.sender_mac(), arp.sender_ip(), arp.target_ip()), (US, 0x0a000001, 0x0a000002));
        for (at, value) in [(15, 6), (17, 1), (18, 8), (19, 16), (21, 3)] {
            let old = std::mem::replace(&mut f[at], value);
            assert_eq!(Arp::new(&f[14..]).expect("28 bytes").operation(), None, "byte {at}");
            f[at] = old;
        }
        assert!(Arp::new(&f[15..]).is_none());
    }
}
