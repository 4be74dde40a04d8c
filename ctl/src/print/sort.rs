//! ipvsadm's order of services and servers.

use std::net::IpAddr;

use ipvs_netlink::{Af, DestEntry, ServiceEntry, ServiceKey};

/// Sorts by mark, family, protocol, address and port.
pub fn sort_services(services: Vec<ServiceEntry>) -> Vec<ServiceEntry> {
    merge_sort(services, &|a, b| service_order(&a.service.key, &b.service.key))
}

/// Sorts by family, address and port.
pub fn sort_dests(dests: Vec<DestEntry>) -> Vec<DestEntry> {
    merge_sort(dests, &|a, b| {
        family(a.dest.addr.into())
            .wrapping_sub(family(b.dest.addr.into()))
            .then(|| addr_order(a.dest.addr, b.dest.addr))
            .then(|| i32::from(a.dest.port) - i32::from(b.dest.port))
    })
}

/// The next comparison where this one found no difference.
trait Then {
    fn then(self, next: impl FnOnce() -> i32) -> i32;
}

impl Then for i32 {
    fn then(self, next: impl FnOnce() -> i32) -> i32 {
        if self == 0 { next() } else { self }
    }
}

fn family(af: Af) -> i32 {
    i32::from(af as u16)
}

fn service_order(a: &ServiceKey, b: &ServiceKey) -> i32 {
    let parts = |key: &ServiceKey| match *key {
        ServiceKey::Addr { protocol, addr, port } => (0, protocol, Some(addr), port),
        ServiceKey::Fwmark { mark, .. } => (mark.get(), 0, None, 0),
    };
    let ((a_mark, a_protocol, a_addr, a_port), (b_mark, b_protocol, b_addr, b_port)) = (parts(a), parts(b));
    signed(a_mark, b_mark)
        .then(|| family(a.af()) - family(b.af()))
        .then(|| i32::from(a_protocol) - i32::from(b_protocol))
        .then(|| a_addr.zip(b_addr).map_or(0, |(a, b)| addr_order(a, b)))
        .then(|| i32::from(a_port) - i32::from(b_port))
}

/// The difference of two 32-bit words in 32 bits: as in ipvsadm it wraps, so that 224.0.0.1 comes before 10.0.0.1 and
/// firewall mark 4294967295 before all services without a mark.
fn signed(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

fn addr_order(a: IpAddr, b: IpAddr) -> i32 {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => signed(a.into(), b.into()),
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let words = |a: u128| [96, 64, 32, 0].map(|shift| (a >> shift) as u32);
            let pairs = words(a.into()).into_iter().zip(words(b.into()));
            pairs.map(|(a, b)| signed(a, b)).find(|&d| d != 0).unwrap_or(0)
        }
        (IpAddr::V4(_), IpAddr::V6(_)) => -1,
        (IpAddr::V6(_), IpAddr::V4(_)) => 1,
    }
}

/// A stable merge sort that halves the list from the top, as the C library's `qsort(3)` does. The order above is not
/// transitive for addresses more than half the space apart, for which `slice::sort_by` may panic and any other
/// sequence of comparisons gives another result.
fn merge_sort<T>(list: Vec<T>, order: &dyn Fn(&T, &T) -> i32) -> Vec<T> {
    if list.len() < 2 {
        return list;
    }
    let mut left = list;
    let right = left.split_off(left.len() / 2);
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let mut left = merge_sort(left, order).into_iter().peekable();
    let mut right = merge_sort(right, order).into_iter().peekable();
    while let (Some(l), Some(r)) = (left.peek(), right.peek()) {
        let next = if order(l, r) <= 0 { left.next() } else { right.next() };
        merged.extend(next);
    }
    merged.extend(left);
    merged.extend(right);
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_like_qsort() {
        let by = |a: &i32, b: &i32| a - b;
        assert_eq!(merge_sort(vec![], &by), Vec::<i32>::new());
        assert_eq!(merge_sort(vec![3, 1, 2, 5, 4], &by), [1, 2, 3, 4, 5]);
        let by_tens = |a: &i32, b: &i32| a / 10 - b / 10;
        assert_eq!(merge_sort(vec![12, 11, 2, 1, 19], &by_tens), [2, 1, 12, 11, 19]);
        // No order at all must not panic.
        assert_eq!(merge_sort(vec![1, 2, 3], &|_, _| 1).len(), 3);
    }

    #[test]
    fn words_wrap() {
        let v4 = |a: &str, b: &str| addr_order(a.parse().unwrap(), b.parse().unwrap()).signum();
        assert_eq!(v4("10.0.0.1", "10.0.0.2"), -1);
        assert_eq!(v4("224.0.0.1", "10.0.0.1"), -1);
        assert_eq!(v4("100.64.0.1", "200.0.0.1"), -1);
        assert_eq!(v4("f000::1", "2001::1"), -1);
        assert_eq!(v4("2001:db8::2", "2001:db8::1"), 1);
        assert_eq!(v4("::1", "::1"), 0);
    }
}
