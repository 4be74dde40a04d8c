//! Prints lvsctl(8): `cargo run -p lvsctl --example man > man/lvsctl.8`.

fn main() {
    print!("{}", lvsctl::man::man_page());
}
