//! `lvsd`: the director's daemon.
fn main() {
    eprintln!("lvsd: nothing to run yet");
    std::process::exit(2);
}
