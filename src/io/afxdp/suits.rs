//! Which kind of ring suits an interface, by what its driver says.

use std::io;

use crate::io::netdev;
use crate::io::netlink::{ask_generic, attribute};

/// Bits of `NETDEV_A_DEV_XDP_FEATURES` (linux/netdev.h).
const XDP_BASIC: u64 = 1;
const XDP_ZEROCOPY: u64 = 8;

/// What an interface's driver can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Driver {
    /// XDP in the driver, and AF_XDP that needs no copy.
    ZeroCopy,
    /// XDP in the driver only.
    Native,
    /// No XDP in the driver.
    Generic,
}

/// What an interface's driver says of itself (kernel 6.3).
fn features(index: u32) -> io::Result<Driver> {
    const CTRL_CMD_GETFAMILY: u8 = 3;
    const CTRL_ATTR_FAMILY_ID: u16 = 1;
    const CTRL_ATTR_FAMILY_NAME: u16 = 2;
    const NETDEV_CMD_DEV_GET: u8 = 1;
    const NETDEV_A_DEV_IFINDEX: u16 = 1;
    const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
    let silent = || io::Error::from_raw_os_error(libc::ENOENT);
    let reply =
        ask_generic(libc::GENL_ID_CTRL as u16, CTRL_CMD_GETFAMILY, (CTRL_ATTR_FAMILY_NAME, b"netdev\0"))?;
    let family = attribute(&reply, CTRL_ATTR_FAMILY_ID).and_then(|v| v.try_into().ok()).ok_or_else(silent)?;
    let asked = (NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes()[..]);
    let reply = ask_generic(u16::from_ne_bytes(family), NETDEV_CMD_DEV_GET, asked)?;
    let bits =
        attribute(&reply, NETDEV_A_DEV_XDP_FEATURES).and_then(|v| v.try_into().ok()).ok_or_else(silent)?;
    Ok(match u64::from_ne_bytes(bits) {
        f if f & (XDP_BASIC | XDP_ZEROCOPY) == XDP_BASIC | XDP_ZEROCOPY => Driver::ZeroCopy,
        f if f & XDP_BASIC != 0 => Driver::Native,
        _ => Driver::Generic,
    })
}

/// Whether XDP is the better choice on these interfaces, and why (or why not) in a few words. It is where all have AF_XDP without
/// a copy, which NICs have. Elsewhere (veth, virtio, tap) senders hand over super-packets, which are lost to XDP, and bulk TCP lives on them
/// (docs/performance.md).
pub fn suits(interfaces: &[String]) -> (bool, String) {
    let why_not = interfaces.iter().find_map(|name| {
        let told = netdev::index(name).map(features);
        obstacle(name, &netdev::driver(name), told)
    });
    (why_not.is_none(), why_not.unwrap_or_else(|| "all interfaces have zero-copy AF_XDP".into()))
}

/// What speaks against XDP on an interface with this driver.
fn obstacle(name: &str, driver: &str, told: Option<io::Result<Driver>>) -> Option<String> {
    Some(match told {
        Some(Ok(Driver::ZeroCopy)) => return None,
        Some(Ok(Driver::Native)) => {
            format!(
                "{name} ({driver}) has no zero-copy AF_XDP, and super-packets of bulk TCP stay whole at tc"
            )
        }
        Some(Ok(Driver::Generic)) => format!("{name} ({driver}) has no XDP in its driver"),
        Some(Err(e)) if e.raw_os_error() == Some(libc::ENOENT) => {
            format!("this kernel does not tell what {name} ({driver}) can do for XDP")
        }
        Some(Err(e)) => format!("cannot ask what {name} can do for XDP: {e}"),
        None => format!("{name} is not there to be asked"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::testnet::{Net, cannot};

    #[test]
    fn zero_copy_alone_speaks_for_xdp() {
        let against = |told| obstacle("e0", "drv", told);
        let error = |code| Some(Err(io::Error::from_raw_os_error(code)));
        assert_eq!(against(Some(Ok(Driver::ZeroCopy))), None);
        for (told, says) in [
            (Some(Ok(Driver::Native)), "e0 (drv) has no zero-copy AF_XDP"),
            (Some(Ok(Driver::Generic)), "e0 (drv) has no XDP in its driver"),
            (error(libc::ENOENT), "does not tell what e0 (drv) can do"),
            (error(libc::EPERM), "cannot ask what e0 can do"),
            (None, "e0 is not there"),
        ] {
            let why = against(told).unwrap();
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn a_veth_has_native_xdp_without_zero_copy() {
        if cannot() {
            return;
        }
        let net = Net::new();
        net.sh("ip link add va type veth peer name vb");
        let (xdp, why) = net.run(|| suits(&["va".into()]));
        assert!(!xdp && why.contains("va (veth)"), "{why}");
        let known = why.contains("no zero-copy") || why.contains("does not tell");
        assert!(known, "{why}");
        let (xdp, why) = net.run(|| suits(&["nothere".into()]));
        assert!(!xdp && why.contains("nothere"), "{why}");
    }
}
