//! Settings under /proc/sys, of the calling thread's network namespace.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::error::Error;

fn path(key: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(key)
}

/// Where in the key of an interface's setting its name stands: what is before, the name, what is behind. None for the keys of others,
/// and for those of all interfaces.
pub(crate) fn of_interface(key: &str) -> Option<(&str, &str, &str)> {
    let name = key.strip_prefix("net/ipv4/conf/").or_else(|| key.strip_prefix("net/ipv6/conf/"))?;
    let (name, _) = name.split_once('/')?;
    let (before, rest) = key.split_at_checked("net/ipvX/conf/".len())?;
    let behind = rest.strip_prefix(name)?;
    (!matches!(name, "all" | "default")).then_some((before, name, behind))
}

/// A setting's value without the newline; None where the setting (or its interface) does not exist. `key` with slashes.
pub(crate) fn read(key: &str) -> Result<Option<String>, Error> {
    match fs::read_to_string(path(key)) {
        Ok(text) => Ok(Some(text.trim_end().to_owned())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::os(path(key).display().to_string(), e)),
    }
}

/// Writes a setting.
pub(crate) fn write(key: &str, value: &str) -> Result<(), Error> {
    fs::write(path(key), value).map_err(|e| Error::os(path(key).display().to_string(), e))
}

/// The command that writes it. sysctl(8) takes slashes where an interface's name has a dot.
pub(crate) fn command(key: &str, value: &str) -> String {
    let key = if key.contains('.') { key.to_owned() } else { key.replace('/', ".") };
    format!("sysctl -w {key}={value}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_interfaces_with_dots_keep_their_slashes() {
        assert_eq!(command("net/ipv4/conf/all/arp_ignore", "1"), "sysctl -w net.ipv4.conf.all.arp_ignore=1");
        assert_eq!(
            command("net/ipv4/conf/eth0.7/rp_filter", "2"),
            "sysctl -w net/ipv4/conf/eth0.7/rp_filter=2"
        );
    }

    #[test]
    fn what_is_not_there_is_none() {
        assert_eq!(read("net/ipv4/conf/no-such-interface/rp_filter").unwrap(), None);
        assert!(read("net/ipv4/ip_forward").unwrap().is_some());
        let e = write("net/ipv4/conf/no-such-interface/rp_filter", "1").unwrap_err();
        assert!(e.to_string().contains("no-such-interface"), "{e}");
    }
}
