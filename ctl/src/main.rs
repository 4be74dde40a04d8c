//! `lvsctl`: administers lvsd with ipvsadm's grammar.
fn main() {
    eprintln!("lvsctl: no command yet");
    std::process::exit(2);
}
