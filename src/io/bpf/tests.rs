use super::*;
use crate::io::testnet;

fn tables() -> BpfTables {
    BpfTables::create(TableShape::for_limits(1000, 0, [1, 2]), 0x1234_5678).unwrap()
}

fn present(tables: &BpfTables, key: ServiceKey) -> bool {
    tables.services.lock().unwrap().map.get(&key, 0).is_ok()
}

#[test]
fn a_virtual_address_lives_as_long_as_its_last_service() {
    if testnet::cannot() {
        return;
    }
    let t = tables();
    let addr = Addr::from("192.0.2.1".parse::<std::net::IpAddr>().unwrap());
    let vip = service_key(Family::V4, 0, addr, 0);
    let key = |proto, port| service_key(Family::V4, proto, addr, port);
    t.service_added(Family::V4, 6, addr, 80);
    t.service_added(Family::V4, 6, addr, 80);
    t.service_added(Family::V4, 17, addr, 0);
    assert!(present(&t, vip) && present(&t, key(6, 80)) && present(&t, key(17, 0)));
    t.service_removed(Family::V4, 6, addr, 81);
    t.service_removed(Family::V4, 6, addr, 80);
    assert!(present(&t, vip) && !present(&t, key(6, 80)) && present(&t, key(17, 0)));
    t.service_removed(Family::V4, 6, addr, 80);
    assert!(present(&t, vip));
    t.service_removed(Family::V4, 17, addr, 0);
    assert!(!present(&t, vip) && !present(&t, key(17, 0)));
    assert!(t.services.lock().unwrap().known.is_empty());
}

#[test]
fn keys_are_in_network_order() {
    let addr = Addr::from("1.2.3.4".parse::<std::net::IpAddr>().unwrap());
    assert_eq!(service_key(Family::V4, 6, addr, 0x1234)[..8], [4, 6, 0x12, 0x34, 1, 2, 3, 4]);
    let addr = Addr::from("2001:db8::5".parse::<std::net::IpAddr>().unwrap());
    let key = service_key(Family::V6, 17, addr, 1);
    assert_eq!((key[0], key[4], key[5], key[19]), (6, 0x20, 1, 5));
}

#[test]
fn arrays_can_be_mapped_and_are_zero() {
    if testnet::cannot() {
        return;
    }
    let t = tables();
    let bytes = t.shape().bytes(TableMap::EntriesV4);
    let words = testnet::words(t.fd(TableMap::EntriesV4), bytes);
    assert_eq!(words.len(), bytes / 8);
    assert!(words.iter().all(|w| w.load(std::sync::atomic::Ordering::Relaxed) == 0));
    assert_eq!(t.shape().bytes(TableMap::IndexV6), 0);
}

#[test]
fn a_mark_of_0_is_refused() {
    let e = BpfTables::create(TableShape::for_limits(1, 1, [0, 0]), 0).unwrap_err();
    assert!(e.to_string().contains("must not be 0"), "{e}");
}
