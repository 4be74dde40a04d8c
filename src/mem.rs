//! Memory of the tables. With the rings and the BPF loader the only place for `unsafe`.
