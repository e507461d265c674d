//! Guards of the builder and the scheduler.

use crate::{Attention, DType, GraphBuilder, Op, Rope, RopePairs, StateDecl, Yarn};

const STATE: StateDecl =
    StateDecl { layer: 0, dtype: DType::F32, slots: 8, page: 4, kv_heads: 2, head_dim: 4 };

/// The problems of a graph, each as `label: what`.
fn problems(build: impl FnOnce(&mut GraphBuilder)) -> Vec<String> {
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, [1, 8]);
    let y = b.scale("y", x, 1.0);
    b.output(y);
    build(&mut b);
    match b.finish() {
        Ok(_) => Vec::new(),
        Err(e) => e.problems.iter().map(|p| format!("{}: {}", p.label, p.what)).collect(),
    }
}

#[test]
fn an_output_that_is_a_leaf_in_another_shape_is_refused() {
    let found = problems(|b| {
        let x = b.input("in", DType::F32, [2, 8]);
        let r = b.reshape("r", x, [16]);
        let r = b.reshape("again", r, [4, 4]);
        b.output(r);
        b.output(x);
    });
    assert_eq!(found, ["again: an output must be computed", "in: an output must be computed"]);
}

#[test]
fn weights_and_caches_keep_their_shape() {
    let found = problems(|b| {
        let w = b.weight("w", DType::Q4_0, [4, 64]);
        b.reshape("w16", w, [16, 16]);
        let s = b.state("kv", STATE);
        b.reshape("flat", s, [16, 8]);
    });
    let what = "weights and KV caches have the shape they were declared with";
    assert_eq!(found, [format!("w16: {what}"), format!("flat: {what}")]);
}

#[test]
fn a_layer_has_one_cache_and_its_sizes_are_checked_before_they_divide() {
    let found = problems(|b| {
        b.state("kv", STATE);
        b.state("kv again", STATE);
        let none = b.state("none", StateDecl { layer: 1, kv_heads: 0, page: 0, ..STATE });
        let q = b.input("q", DType::F32, [1, 4, 4]);
        let i = b.input("i", DType::I32, [1]);
        let t = b.input("t", DType::I32, [1, 2]);
        b.attention("attn", q, none, i, i, t, Attention { scale: 1.0, window: None, softcap: None });
    });
    assert_eq!(
        found,
        [
            "kv again: layer 0 has a KV cache already",
            "none: shape [2×8×0×4] is empty or too large",
            "none: 8 slots are not a number of pages of 0",
            "none: 0 heads of 4 elements",
            "attn: q [1×4×4] does not fit 0 KV heads of 4",
        ]
    );
}

#[test]
fn sources_from_elsewhere_and_wrong_nodes_are_problems_not_panics() {
    let found = problems(|b| {
        let far = crate::NodeId(99);
        b.scale("s", far, 1.0);
        b.reshape("r", far, [3]);
        let x = b.input("in", DType::F32, [2, 8]);
        b.append("leaf", Op::Input, &[x]);
        b.append("alias", Op::Reshape, &[]);
        b.append("store", Op::KvStore, &[x]);
        b.append("alone", Op::Add, &[x]);
        b.input("f16", DType::F16, [2]);
        let vast = b.input("vast", DType::F32, [usize::MAX, 3]);
        b.reshape("as vast", vast, [3]);
    });
    let vast = usize::MAX;
    assert_eq!(
        found[7..],
        [
            format!("vast: shape [{vast}×3] is empty or too large"),
            format!("as vast: [{vast}×3] has not as many elements as [3]"),
        ]
    );
    assert_eq!(
        found[..7],
        [
            "s: source 99 is not one of the 2 nodes before it",
            "r: source 99 is not one of the 3 nodes before it",
            "leaf: not made by append",
            "alias: not made by append",
            "store: 1 sources given, 4..=4 wanted",
            "alone: 1 sources given, 2..=2 wanted",
            "f16: an input is F32 or I32, not F16",
        ]
    );
}

#[test]
fn rope_parameters_that_make_no_sense_are_refused() {
    let rope = Rope { rotary_dim: 4, pairs: RopePairs::Halves, base: 1e4, scale: 1.0, yarn: None };
    let yarn = Yarn { original_context: 32, beta_fast: 32.0, beta_slow: 1.0, magnitude: 1.0 };
    let with = |y: Yarn| Rope { yarn: Some(y), ..rope };
    let cases: [(Rope, &str); 8] = [
        (Rope { rotary_dim: 6, ..rope }, "rotary_dim 6 does not fit a head of 4"),
        (Rope { rotary_dim: 3, ..rope }, "rotary_dim 3 does not fit a head of 4"),
        (Rope { base: f32::NAN, ..rope }, "the frequency base is NaN"),
        (Rope { scale: 0.0, ..rope }, "the frequency scale is 0"),
        (with(Yarn { original_context: 0, ..yarn }), "the original context is 0"),
        (with(Yarn { beta_fast: -1.0, ..yarn }), "beta_fast is -1"),
        (with(Yarn { magnitude: f32::INFINITY, ..yarn }), "the magnitude is inf"),
        (Rope { base: 1.0, ..with(yarn) }, "the frequency base is 1, YaRN needs one above 1"),
    ];
    for (rope, what) in cases {
        let found = problems(|b| {
            let x = b.input("x", DType::F32, [1, 1, 4]);
            let p = b.input("p", DType::I32, [1]);
            b.rope("rope", x, p, None, rope);
        });
        assert_eq!(found, [format!("rope: {what}")]);
    }
}

#[test]
fn rope_frequencies_are_those_of_the_papers() {
    // arXiv 2104.09864 and 2309.00071.
    let plain = Rope { rotary_dim: 8, pairs: RopePairs::Halves, base: 10_000.0, scale: 1.0, yarn: None };
    let near = |got: f64, want: f64| assert!((got - want).abs() <= 1e-12 * want, "{got} instead of {want}");
    for (i, want) in [1.0, 0.1, 0.01, 0.001].into_iter().enumerate() {
        near(plain.frequency(i), want);
        near(Rope { scale: 0.25, ..plain }.frequency(i), want / 4.0);
    }
    // 64 rotary elements, base 10^6, 4096 positions: c(32) = 6.981 and c(1) = 15.009, so the ramp goes from 6
    // to 16.
    let yarn = Yarn { original_context: 4096, beta_fast: 32.0, beta_slow: 1.0, magnitude: 1.1 };
    let rope = Rope { rotary_dim: 64, pairs: RopePairs::Halves, base: 1e6, scale: 0.25, yarn: Some(yarn) };
    for (i, keep) in [(0, 1.0), (6, 1.0), (7, 0.9), (11, 0.5), (15, 0.1), (16, 0.0), (31, 0.0)] {
        assert!((yarn.keep(i, 64, 1e6) - keep).abs() < 1e-12, "{i}: {}", yarn.keep(i, 64, 1e6));
        near(rope.frequency(i), 1e6f64.powf(-(i as f64) / 32.0) * (0.25 * (1.0 - keep) + keep));
    }
}

#[test]
fn inv17_no_guard_is_compiled_out_of_release_builds() {
    fn scan(folder: &std::path::Path, found: &mut Vec<String>) -> usize {
        let mut files = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files += scan(&path, found);
            } else {
                files += 1;
                let text = std::fs::read_to_string(&path).unwrap();
                let marks = [concat!("debug_", "assert"), concat!("cfg(debug_", "assertions")];
                if marks.iter().any(|m| text.contains(m)) {
                    found.push(path.display().to_string());
                }
            }
        }
        files
    }
    let mut found = Vec::new();
    let files = scan(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert!(files > 30, "{files} files scanned");
    assert_eq!(found, Vec::<String>::new());
}
