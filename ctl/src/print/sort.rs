//! ipvsadm's order of services and servers: by mark, family, protocol, address and port.
//!
//! ipvsadm compares marks and 32-bit words of addresses by their difference in 32 bits, which wraps: 224.0.0.1 comes
//! before 10.0.0.1, and firewall mark 4294967295 before all services without a mark. That is no order where three
//! addresses lie around the whole space (each before the next), and there ipvsadm's listing depends on the kernel's
//! hash table. Here the list is brought into an order of its own first (words as signed numbers), so that the same
//! table always prints the same.

use std::net::IpAddr;

use ipvs_netlink::{Af, DestEntry, ServiceEntry, ServiceKey};

/// Sorts services.
pub fn sort_services(services: Vec<ServiceEntry>) -> Vec<ServiceEntry> {
    sort(services, |s| match s.service.key {
        ServiceKey::Addr { protocol, addr, port } => key(0, addr.into(), protocol, Some(addr), port),
        ServiceKey::Fwmark { mark, af } => key(mark.get(), af, 0, None, 0),
    })
}

/// Sorts the servers of a service.
pub fn sort_dests(dests: Vec<DestEntry>) -> Vec<DestEntry> {
    sort(dests, |d| key(0, d.dest.addr.into(), 0, Some(d.dest.addr), d.dest.port))
}

/// What is compared, the first difference deciding. All but the mark and the address are small and never wrap.
type Key = [i32; 8];

fn key(mark: u32, af: Af, protocol: u8, addr: Option<IpAddr>, port: u16) -> Key {
    let [a, b, c, d] = match addr {
        None => [0; 4],
        Some(IpAddr::V4(addr)) => [u32::from(addr), 0, 0, 0],
        Some(IpAddr::V6(addr)) => {
            let bits = u128::from(addr);
            [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
        }
    };
    [
        mark as i32,
        i32::from(af as u16),
        i32::from(protocol),
        a as i32,
        b as i32,
        c as i32,
        d as i32,
        i32::from(port),
    ]
}

/// The first difference, wrapped to 32 bits.
fn difference(a: &Key, b: &Key) -> i32 {
    a.iter().zip(b).map(|(a, b)| a.wrapping_sub(*b)).find(|&d| d != 0).unwrap_or(0)
}

fn sort<T>(list: Vec<T>, key: impl Fn(&T) -> Key) -> Vec<T> {
    let mut keyed: Vec<(Key, T)> = list.into_iter().map(|item| (key(&item), item)).collect();
    keyed.sort_by_key(|(key, _)| *key);
    merge_sort(keyed).into_iter().map(|(_, item)| item).collect()
}

/// A stable merge sort that halves the list from the top. [`slice::sort_by`] may panic when the order is none.
fn merge_sort<T>(list: Vec<(Key, T)>) -> Vec<(Key, T)> {
    if list.len() < 2 {
        return list;
    }
    let mut left = list;
    let right = left.split_off(left.len() / 2);
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let mut left = merge_sort(left).into_iter().peekable();
    let mut right = merge_sort(right).into_iter().peekable();
    while let (Some(l), Some(r)) = (left.peek(), right.peek()) {
        let next = if difference(&l.0, &r.0) <= 0 { left.next() } else { right.next() };
        merged.extend(next);
    }
    merged.extend(left);
    merged.extend(right);
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(addrs: &[&str]) -> Vec<String> {
        let list: Vec<IpAddr> = addrs.iter().map(|a| a.parse().unwrap()).collect();
        sort(list, |&a| key(0, a.into(), 6, Some(a), 80)).iter().map(IpAddr::to_string).collect()
    }

    #[test]
    fn words_wrap() {
        for ordered in [
            &["10.0.0.1", "10.0.0.2"][..],
            &["224.0.0.1", "10.0.0.1"],
            &["100.64.0.1", "200.0.0.1"],
            &["200.0.0.1", "10.0.0.1"],
            &["f000::1", "2001::1", "2001:db8::1", "2001:db8::2"],
            &["10.0.0.1", "127.0.0.1", "2001:db8::1"],
        ] {
            let reversed: Vec<&str> = ordered.iter().rev().copied().collect();
            assert_eq!(sorted(ordered), ordered);
            assert_eq!(sorted(&reversed), ordered);
        }
    }

    #[test]
    fn a_circle_prints_the_same_from_any_order() {
        let circle = ["10.0.0.1", "100.0.0.1", "200.0.0.1"];
        let first = sorted(&circle);
        for turn in 1..3 {
            let mut turned = circle;
            turned.rotate_left(turn);
            assert_eq!(sorted(&turned), first);
        }
        assert_eq!(merge_sort(Vec::<(Key, ())>::new()).len(), 0);
    }
}
