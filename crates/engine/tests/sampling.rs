//! The sampler through its public surface, with the reported faults it must not have.

use minfer_engine::sampling::{
    Sampler, SamplingError, SamplingParams, TokenId, check_token_ids, logprobs, parse_logit_bias,
};
use proptest::prelude::*;

const NO_PIECES: fn(TokenId) -> &'static [u8] = |_| b"";

fn sampler(params: SamplingParams, vocab_size: usize) -> Sampler {
    Sampler::new(params, vocab_size, NO_PIECES).unwrap()
}

/// Everything off but the draw itself.
fn plain() -> SamplingParams {
    SamplingParams { temperature: 1.0, ..SamplingParams::greedy() }
}

fn refused(params: SamplingParams) -> (&'static str, String) {
    match Sampler::new(params, 10, NO_PIECES) {
        Err(SamplingError::Parameter { field, value, .. }) => (field, value),
        other => panic!("not refused: {other:?}"),
    }
}

/// The set of tokens that come out in many draws.
fn support(params: &SamplingParams, logits: &[f32]) -> Vec<TokenId> {
    let mut seen = std::collections::BTreeSet::new();
    let mut sampler = sampler(params.clone(), logits.len());
    for _ in 0..2000 {
        seen.insert(sampler.sample(logits).unwrap());
    }
    seen.into_iter().collect()
}

fn of_probs(p: &[f32]) -> Vec<f32> {
    p.iter().map(|p| p.ln()).collect()
}

#[test]
fn s01_no_candidate_is_an_error_and_the_sampler_lives_on() {
    for params in [SamplingParams::greedy(), SamplingParams::default(), plain()] {
        let mut sampler = sampler(params.clone(), 5);
        assert_eq!(sampler.sample(&[f32::NEG_INFINITY; 5]), Err(SamplingError::NoCandidate));
        let nan = sampler.sample(&[0.0, 1.0, f32::NAN, 2.0, f32::NAN]).unwrap_err();
        assert!(matches!(nan, SamplingError::BadLogit { token: 2, value } if value.is_nan()), "{nan:?}");
        let inf = sampler.sample(&[0.0, 1.0, 2.0, f32::INFINITY, 0.0]);
        assert_eq!(inf, Err(SamplingError::BadLogit { token: 3, value: f32::INFINITY }));
        assert!(sampler.sample(&[f32::NAN; 5]).is_err());
        assert_eq!(sampler.sample(&[0.0; 4]), Err(SamplingError::LogitCount { got: 4, vocab_size: 5 }));
        // The one token that a mask leaves is the one that comes.
        let mut masked = [f32::NEG_INFINITY; 5];
        masked[3] = -40.0;
        assert_eq!(sampler.sample(&masked), Ok(3));
        // A mask by bias ends the same way.
        let ban = (0..5).map(|id| (id, f32::NEG_INFINITY)).collect();
        let mut banned = Sampler::new(SamplingParams { logit_bias: ban, ..params }, 5, NO_PIECES).unwrap();
        assert_eq!(banned.sample(&[1.0; 5]), Err(SamplingError::NoCandidate));
    }
}

#[test]
fn s02_temperature_must_be_finite_and_not_above_zero_is_greedy() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let (field, value) = refused(SamplingParams { temperature: bad, ..SamplingParams::default() });
        assert_eq!((field, value), ("temperature", bad.to_string()));
    }
    let error = SamplingParams { temperature: f32::NAN, ..SamplingParams::default() }.validate().unwrap_err();
    assert_eq!(error.to_string(), "temperature is NaN, but must be a finite number");
    for cold in [0.0, -0.0, -1.0] {
        let params = SamplingParams { temperature: cold, ..SamplingParams::default() };
        // Ties go to the lowest id.
        assert_eq!(support(&params, &[1.0, 3.0, 2.0, 3.0]), [1]);
    }
    // Negative control: the same logits at temperature 1 do not always give the best.
    assert_eq!(support(&plain(), &[1.0, 3.0, 2.0, 3.0]), [0, 1, 2, 3]);
}

#[test]
fn s02_every_float_refuses_nan_and_infinity() {
    type Set = fn(&mut SamplingParams, f32);
    let fields: [(&str, Set); 11] = [
        ("temperature", |p, v| p.temperature = v),
        ("top_p", |p, v| p.top_p = v),
        ("min_p", |p, v| p.min_p = v),
        ("typical_p", |p, v| p.typical_p = v),
        ("repeat_penalty", |p, v| p.repeat_penalty = v),
        ("presence_penalty", |p, v| p.presence_penalty = v),
        ("frequency_penalty", |p, v| p.frequency_penalty = v),
        ("dry_multiplier", |p, v| p.dry_multiplier = v),
        ("dry_base", |p, v| p.dry_base = v),
        ("xtc_probability", |p, v| p.xtc_probability = v),
        ("xtc_threshold", |p, v| p.xtc_threshold = v),
    ];
    for (name, set) in fields {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut params = SamplingParams::default();
            set(&mut params, bad);
            assert_eq!(refused(params), (name, bad.to_string()));
        }
    }
    for (name, set) in fields.iter().filter(|f| f.0.ends_with("_p") || f.0.starts_with("xtc")) {
        for bad in [-0.01, 1.01] {
            let mut params = SamplingParams::default();
            set(&mut params, bad);
            assert_eq!(refused(params).0, *name);
        }
    }
    let bias = vec![(1, f32::NAN)];
    assert_eq!(refused(SamplingParams { logit_bias: bias, ..SamplingParams::default() }).0, "logit_bias");
    let breakers = vec![String::new()];
    let params = SamplingParams { dry_sequence_breakers: breakers, ..SamplingParams::default() };
    assert_eq!(refused(params).0, "dry_sequence_breakers");
}

#[test]
fn s04_repeat_penalty_is_positive_and_one_changes_nothing() {
    for bad in [0.0, -0.0, -1.0] {
        let (field, value) = refused(SamplingParams { repeat_penalty: bad, ..SamplingParams::default() });
        assert_eq!((field, value), ("repeat_penalty", bad.to_string()));
    }
    // Two logits that differ by one unit in the last place: any arithmetic on them could swap them.
    let logits = [f32::from_bits(0x3f80_0001), 1.0, -7.3];
    let mut off = sampler(SamplingParams { repeat_penalty: 1.0, ..SamplingParams::greedy() }, 3);
    off.prime(&[0, 0, 0]).unwrap();
    assert_eq!(off.sample(&logits), Ok(0));
    let mut on = sampler(SamplingParams { repeat_penalty: 1.000_001, ..SamplingParams::greedy() }, 3);
    on.prime(&[0, 0, 0]).unwrap();
    assert_eq!(on.sample(&logits), Ok(1));
    // A negative logit is multiplied, so that it falls too.
    let mut on = sampler(SamplingParams { repeat_penalty: 2.0, ..SamplingParams::greedy() }, 3);
    on.prime(&[0]).unwrap();
    assert_eq!(on.sample(&[-1.0, -1.5, -9.0]), Ok(1));
}

#[test]
fn s05_penalty_window_whole_off_and_empty_history() {
    let params =
        |last_n| SamplingParams { repeat_penalty: 4.0, penalty_last_n: last_n, ..SamplingParams::greedy() };
    let logits = [3.0, 2.0, 1.0];
    for last_n in [-1, 0, 1, 64, i32::MAX] {
        assert_eq!(sampler(params(last_n), 3).sample(&logits), Ok(0), "empty history, last_n {last_n}");
    }
    let after = |last_n| {
        let mut s = sampler(params(last_n), 3);
        s.prime(&[0, 2, 2]).unwrap();
        let first = s.sample(&logits).unwrap();
        for _ in 0..500 {
            s.accept(2).unwrap();
        }
        (first, s.sample(&logits).unwrap())
    };
    assert_eq!(after(-1), (1, 1), "the whole context remembers token 0 for ever");
    assert_eq!(after(0), (0, 0), "disabled");
    assert_eq!(after(2), (0, 0), "token 0 is outside the window");
    assert_eq!(after(3), (1, 0));
    assert_eq!(after(503), (1, 1));
    assert_eq!(after(502), (1, 0));
    assert_eq!(
        sampler(params(-1), 3).prime(&[0, 3]),
        Err(SamplingError::TokenId { field: "history", id: "3".into(), vocab_size: 3 })
    );
}

#[test]
fn presence_counts_once_and_frequency_each_time() {
    let run = |presence, frequency, logits: [f32; 2]| {
        let params = SamplingParams {
            presence_penalty: presence,
            frequency_penalty: frequency,
            ..SamplingParams::greedy()
        };
        let mut s = sampler(params, 2);
        s.prime(&[0, 0, 0]).unwrap();
        s.sample(&logits).unwrap()
    };
    assert_eq!(run(1.0, 0.0, [2.5, 1.0]), 0);
    assert_eq!(run(1.0, 0.0, [1.9, 1.0]), 1);
    assert_eq!(run(0.0, 1.0, [4.1, 1.0]), 0);
    assert_eq!(run(0.0, 1.0, [3.9, 1.0]), 1);
    assert_eq!(run(-1.0, 0.0, [0.5, 1.0]), 0);
}

#[test]
fn s07_top_k_and_top_p_at_their_limits() {
    let logits = of_probs(&[0.3, 0.4, 0.2, 0.1]);
    let all = vec![0, 1, 2, 3];
    let top_k = |top_k| support(&SamplingParams { top_k, ..plain() }, &logits);
    assert_eq!([top_k(0), top_k(-1), top_k(4), top_k(5), top_k(i32::MAX)], [(); 5].map(|()| all.clone()));
    assert_eq!(top_k(1), [1]);
    assert_eq!(top_k(2), [0, 1]);
    let top_p = |top_p| support(&SamplingParams { top_p, ..plain() }, &logits);
    assert_eq!(top_p(0.0), [1]);
    assert_eq!(top_p(0.5), [0, 1]);
    assert_eq!(top_p(1.0), all);
    // Equal candidates at the edge: the lower id stays.
    assert_eq!(support(&SamplingParams { top_k: 2, ..plain() }, &[1.0, 2.0, 1.0, 1.0]), [0, 1]);
}

#[test]
fn s08_logit_bias_outside_the_vocabulary_is_named() {
    let named = |key: &str| match parse_logit_bias([(key, 5.0)], 1000) {
        Err(SamplingError::TokenId { field: "logit_bias", id, vocab_size: 1000 }) => id,
        other => panic!("{key}: {other:?}"),
    };
    for key in ["999999", "-1", "abc", "", "1000", "1.5", "99999999999999999999", "4294967296"] {
        assert_eq!(named(key), key);
    }
    assert_eq!(parse_logit_bias([("7", 5.0), ("999", -100.0)], 1000), Ok(vec![(7, 5.0), (999, -100.0)]));
    let params = SamplingParams { logit_bias: vec![(10, 1.0)], ..SamplingParams::default() };
    let error = Sampler::new(params, 10, NO_PIECES).unwrap_err();
    assert_eq!(error.to_string(), "logit_bias: \"10\" is not a token id (the vocabulary has 10 tokens)");
    let params = SamplingParams { logit_bias: vec![(2, 1.5)], ..SamplingParams::greedy() };
    assert_eq!(sampler(params, 3).sample(&[1.0, 2.0, 1.0]), Ok(2));
}

#[test]
fn s09_stop_token_ids_are_checked() {
    for bad in [1_000_000_000, -1, 10, i64::MAX, i64::MIN] {
        let error = check_token_ids("stop_token_ids", &[3, bad], 10).unwrap_err();
        let want = SamplingError::TokenId { field: "stop_token_ids", id: bad.to_string(), vocab_size: 10 };
        assert_eq!(error, want);
    }
    assert_eq!(check_token_ids("stop_token_ids", &[3, 9], 10), Ok(vec![3, 9]));
}

#[test]
fn s10_negative_counts_are_range_checked() {
    type Set = fn(&mut SamplingParams, i32);
    let fields: [(&str, i32, Set); 4] = [
        ("top_k", -2, |p, v| p.top_k = v),
        ("penalty_last_n", -2, |p, v| p.penalty_last_n = v),
        ("dry_penalty_last_n", -2, |p, v| p.dry_penalty_last_n = v),
        ("dry_allowed_length", -1, |p, v| p.dry_allowed_length = v),
    ];
    for (name, first_bad, set) in fields {
        for bad in [first_bad, i32::MIN] {
            let mut params = SamplingParams::default();
            set(&mut params, bad);
            assert_eq!(refused(params), (name, bad.to_string()));
        }
        let mut params = SamplingParams::default();
        set(&mut params, first_bad + 1);
        assert_eq!(params.validate(), Ok(()));
    }
}

#[test]
fn draws_follow_the_distribution() {
    let probs = [0.5, 0.3, 0.15, 0.05];
    let mut sampler = sampler(plain(), 4);
    let mut counts = [0f64; 4];
    let n = 200_000;
    for _ in 0..n {
        counts[sampler.sample(&of_probs(&probs)).unwrap() as usize] += 1.0;
    }
    for (count, p) in counts.iter().zip(probs) {
        let sigma = (f64::from(p) * (1.0 - f64::from(p)) / f64::from(n)).sqrt();
        assert!((count / f64::from(n) - f64::from(p)).abs() < 5.0 * sigma, "{counts:?}");
    }
}

#[test]
fn xtc_acts_with_its_probability() {
    let logits = of_probs(&[0.6, 0.3, 0.1]);
    let xtc = |xtc_probability, xtc_threshold| SamplingParams { xtc_probability, xtc_threshold, ..plain() };
    assert_eq!(support(&xtc(1.0, 0.2), &logits), [1, 2]);
    assert_eq!(support(&xtc(0.5, 0.2), &logits), [0, 1, 2]);
    assert_eq!(support(&xtc(1.0, 0.51), &logits), [0, 1, 2]);
}

#[test]
fn dry_reads_breakers_from_the_pieces() {
    let params = SamplingParams { dry_multiplier: 5.0, ..SamplingParams::greedy() };
    let run = |pieces: [&'static str; 4]| {
        let mut s = Sampler::new(params.clone(), 4, |id| pieces[id as usize]).unwrap();
        s.prime(&[0, 1, 2, 0, 1]).unwrap();
        s.sample(&[0.0, 0.0, 3.0, 2.0]).unwrap()
    };
    assert_eq!(run(["a", "b", "c", "d"]), 3);
    assert_eq!(run(["a", " \n\n", "c", "d"]), 2);
    assert_eq!(run(["a", "b", "c:", "d"]), 2);
}

/// Fixed values: this stream must not change between machines or versions.
#[test]
fn stream_is_the_documented_one() {
    let logits: Vec<f32> =
        (0..1000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32 / 512.0).collect();
    let run = |params: SamplingParams| {
        let mut s = sampler(params, 1000);
        s.prime(&[1, 2, 3]).unwrap();
        let mut out = Vec::new();
        for _ in 0..8 {
            let token = s.sample(&logits).unwrap();
            s.accept(token).unwrap();
            out.push(token);
        }
        out
    };
    let full = SamplingParams {
        top_k: 100,
        typical_p: 0.9,
        repeat_penalty: 1.3,
        frequency_penalty: 0.1,
        xtc_probability: 0.5,
        xtc_threshold: 0.01,
        dry_multiplier: 0.8,
        seed: 42,
        ..SamplingParams::default()
    };
    assert_eq!(run(SamplingParams::default()), STREAM_DEFAULT);
    assert_eq!(run(SamplingParams { seed: 7, ..plain() }), STREAM_PLAIN);
    assert_eq!(run(full.clone()), STREAM_FULL);
    assert_eq!(run(full), STREAM_FULL);
}
// The first two were also computed by an independent program from the documented rules.
const STREAM_DEFAULT: [TokenId; 8] = [576, 919, 830, 631, 987, 741, 254, 144];
const STREAM_PLAIN: [TokenId; 8] = [265, 548, 935, 969, 810, 393, 765, 626];
const STREAM_FULL: [TokenId; 8] = [584, 118, 550, 885, 207, 76, 694, 8];

#[test]
fn priming_starts_the_stream_over() {
    let logits = vec![0.0; 500];
    let mut s = sampler(plain(), 500);
    s.prime(&[1]).unwrap();
    let first: Vec<_> = (0..20).map(|_| s.sample(&logits).unwrap()).collect();
    s.prime(&[1]).unwrap();
    assert_eq!(first, (0..20).map(|_| s.sample(&logits).unwrap()).collect::<Vec<_>>());
    let mut other = sampler(SamplingParams { seed: 1, ..plain() }, 500);
    assert_ne!(first, (0..20).map(|_| other.sample(&logits).unwrap()).collect::<Vec<_>>());
}

#[test]
fn logprobs_are_those_of_the_softmax() {
    let probs = [0.125, 0.5, 0.125, 0.25];
    let got = logprobs(&of_probs(&probs), 3, 3).unwrap();
    assert!((got.logprob - 0.25f64.ln()).abs() < 1e-6);
    assert_eq!(got.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3, 0]);
    assert!((got.top[0].1 - 0.5f64.ln()).abs() < 1e-6);
    assert!(logprobs(&of_probs(&probs), 0, 0).unwrap().top.is_empty());
    assert_eq!(logprobs(&of_probs(&probs), 0, 99).unwrap().top.len(), 4);
    let banned = logprobs(&[0.0, f32::NEG_INFINITY], 1, 5).unwrap();
    assert_eq!((banned.logprob, banned.top), (f64::NEG_INFINITY, vec![(0, 0.0)]));
    assert!(matches!(logprobs(&[0.0], 1, 0), Err(SamplingError::TokenId { .. })));
    assert_eq!(logprobs(&[f32::NEG_INFINITY; 3], 1, 0), Err(SamplingError::NoCandidate));
    // Large vocabulary against a plain f64 sum.
    let logits: Vec<f32> = (0..150_001).map(|i| ((i * 7919) % 4001) as f32 / 200.0).collect();
    let exact = logits.iter().map(|&l| f64::from(l).exp()).sum::<f64>().ln();
    assert!((logprobs(&logits, 77, 0).unwrap().logprob - (f64::from(logits[77]) - exact)).abs() < 1e-6);
}

#[test]
fn parameters_travel_as_json() {
    let params: SamplingParams = serde_json::from_str(r#"{"temperature": 0.5, "top_k": 3}"#).unwrap();
    assert_eq!(params, SamplingParams { temperature: 0.5, top_k: 3, ..SamplingParams::default() });
}

fn any_params() -> impl Strategy<Value = SamplingParams> {
    let p = || prop_oneof![Just(0.0f32), Just(1.0f32), 0.0f32..1.0];
    let signed = || prop_oneof![Just(0.0f32), -3.0f32..3.0];
    let window = || prop_oneof![Just(-1), Just(0), 1..40i32];
    (
        (signed(), -1..60i32, p(), p(), p()),
        (0.1f32..3.0, signed(), signed(), window()),
        (prop_oneof![Just(0.0f32), 0.0f32..3.0], 1.0f32..3.0, 0..4i32, window()),
        (p(), p(), any::<u64>()),
    )
        .prop_map(|(a, b, c, d)| SamplingParams {
            temperature: a.0,
            top_k: a.1,
            top_p: a.2,
            min_p: a.3,
            typical_p: a.4,
            repeat_penalty: b.0,
            presence_penalty: b.1,
            frequency_penalty: b.2,
            penalty_last_n: b.3,
            dry_multiplier: c.0,
            dry_base: c.1,
            dry_allowed_length: c.2,
            dry_penalty_last_n: c.3,
            xtc_probability: d.0,
            xtc_threshold: d.1,
            seed: d.2,
            ..SamplingParams::default()
        })
}

proptest! {
    /// Any valid parameters on any logits give a token that was not banned, or the typed error.
    #[test]
    fn any_parameters_give_a_live_token(
        params in any_params(),
        logits in prop::collection::vec(
            prop_oneof![4 => -30.0f32..30.0, 1 => Just(f32::NEG_INFINITY), 1 => Just(1.0), 1 => Just(-3e38)], 20),
        prompt in prop::collection::vec(0u32..20, 0..60),
    ) {
        let mut s = sampler(params.clone(), 20);
        let mut again = sampler(params, 20);
        s.prime(&prompt).unwrap();
        again.prime(&prompt).unwrap();
        for _ in 0..12 {
            match s.sample(&logits) {
                Ok(token) => {
                    prop_assert!(logits[token as usize] > f32::NEG_INFINITY);
                    prop_assert_eq!(again.sample(&logits), Ok(token));
                    s.accept(token).unwrap();
                    again.accept(token).unwrap();
                }
                Err(error) => {
                    prop_assert_eq!(error, SamplingError::NoCandidate);
                    break;
                }
            }
        }
    }
}
