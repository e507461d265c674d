//! Developer commands: `cargo xtask test`, `cargo xtask bench`.
fn main() {}
