//! The figures in the docs are those that the program makes.

#[allow(dead_code, reason = "`main` is the example's own")]
#[path = "../examples/figures.rs"]
mod figures;

#[test]
fn the_figures_in_the_docs_are_what_the_program_makes() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/figures/");
    for (name, made) in figures::figures() {
        let committed = std::fs::read_to_string(format!("{folder}{name}")).unwrap();
        assert_eq!(
            committed, made,
            "{name}: make it anew with `cargo run -p minfer-graph --example figures`"
        );
    }
}
