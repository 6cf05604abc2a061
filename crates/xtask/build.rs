//! Hands the triple of this machine to the program, which builds for it unless told otherwise. The
//! name does not begin with POINTSMAN_, because cargo hands it on to whatever `cargo run` starts,
//! and pointsman warns of variables of its own that it does not know.

fn main() {
    println!("cargo:rustc-env=XTASK_HOST={}", std::env::var("TARGET").unwrap_or_default());
}
