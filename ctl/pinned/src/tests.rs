use super::*;

#[test]
fn each_socket_has_a_directory_of_its_own() {
    let of = |socket: &str| default_dir(Path::new(socket)).to_string_lossy().into_owned();
    assert_eq!(of("/run/lvsd.sock"), "/sys/fs/bpf/lvsd/run-lvsd-sock");
    assert_eq!(of("/run/a b/x_1.sock"), "/sys/fs/bpf/lvsd/run-a-b-x_1-sock");
    assert!(of("lvsd.sock").ends_with("-lvsd-sock"), "a relative path is made absolute");
}

#[test]
fn what_is_not_there_is_not_found() {
    assert!(PinDir::find(Path::new("/sys/fs/bpf/lvsd/there-is-no-such")).unwrap().is_none());
    // a directory, but on no BPF file system
    assert!(PinDir::find(&std::env::temp_dir()).unwrap().is_none());
}

/// With root, and a kernel with BPF: the whole life of a directory.
#[test]
fn a_directory_is_made_locked_cleared_and_removed() {
    let path = default_dir(Path::new(&format!("/test/{}", std::process::id())));
    let dir = match PinDir::open(&path) {
        Ok(dir) => dir,
        Err(e) if std::env::var_os("CI").is_none() => {
            eprintln!("skipped: {e}");
            return;
        }
        Err(e) => panic!("{e}"),
    };
    assert!(dir.is_empty());
    let again = PinDir::find(&path).unwrap_err();
    assert!(matches!(again, PinError::InUse(_)), "{again}");
    assert!(again.to_string().contains(path.to_str().unwrap()), "{again}");
    let map = Array::<_, u32>::create(4, 0).unwrap();
    map.pin(dir.map("numbers")).unwrap();
    assert!(!dir.is_empty());
    dir.clear().unwrap();
    assert!(dir.is_empty());
    drop(dir);
    let dir = PinDir::find(&path).unwrap().expect("it is there");
    dir.remove().unwrap();
    assert!(!path.exists());
}

#[test]
fn an_interface_without_filters_or_that_is_not_there_is_no_failure() {
    assert_eq!(detach_filters("lo").unwrap(), 0);
    assert_eq!(detach_filters("no-such0").unwrap(), 0);
}
