//! DRY ("don't repeat yourself"): penalizes the token that would continue a sequence already seen.
//!
//! Where the last `m` tokens also occur earlier and were followed by token `t` there, the logit of `t` falls by
//! `multiplier · base^(m − allowed_length)` for the longest such `m`, provided `m ≥ allowed_length`. A match does not
//! reach back over a sequence breaker.

use super::history::Window;
use super::{SamplingParams, TokenId};

#[derive(Debug)]
pub(super) struct Dry {
    multiplier: f32,
    base: f32,
    allowed_length: usize,
    pub window: Window,
    /// Whether the token's text contains a breaker.
    breaks: Vec<bool>,
    /// z[i]: how many tokens before position i (counted from the end) equal the end of the history.
    z: Vec<u32>,
    /// Longest match per token that would continue it; all zero between calls.
    longest: Vec<u32>,
}

impl Dry {
    /// None where DRY is off. `piece` gives the bytes of a token.
    pub fn new<P: AsRef<[u8]>>(
        params: &SamplingParams,
        vocab_size: usize,
        piece: impl Fn(TokenId) -> P,
    ) -> Option<Self> {
        let window = Window::new(params.dry_penalty_last_n);
        if params.dry_multiplier == 0.0 || window == Window::Last(0) {
            return None;
        }
        let contains = |text: &[u8], part: &[u8]| text.windows(part.len()).any(|w| w == part);
        let breaks = (0..vocab_size as TokenId)
            .map(|id| {
                let text = piece(id);
                params.dry_sequence_breakers.iter().any(|b| contains(text.as_ref(), b.as_bytes()))
            })
            .collect();
        Some(Self {
            multiplier: params.dry_multiplier,
            base: params.dry_base,
            allowed_length: params.dry_allowed_length as usize,
            window,
            breaks,
            z: Vec::new(),
            longest: vec![0; vocab_size],
        })
    }

    pub fn apply(&mut self, history: &[TokenId], logits: &mut [f32]) {
        let tokens = self.window.of(history);
        let n = tokens.len();
        let at = |i: usize| tokens[n - 1 - i];
        let reach = tokens.iter().rev().take_while(|&&t| !self.breaks[t as usize]).count();
        let allowed = self.allowed_length.max(1);
        if n < 2 || reach < allowed {
            return;
        }
        self.match_lengths(n, at);
        for i in 1..n {
            let length = (self.z[i] as usize).min(reach);
            let next = at(i - 1) as usize;
            if length >= allowed && !self.breaks[next] {
                self.longest[next] = self.longest[next].max(length as u32);
            }
        }
        for i in 1..n {
            let next = at(i - 1) as usize;
            let length = std::mem::take(&mut self.longest[next]) as usize;
            if length > 0 {
                let power = libm::pow(f64::from(self.base), (length - self.allowed_length) as f64);
                let penalty = (f64::from(self.multiplier) * power).min(f64::from(f32::MAX));
                logits[next] -= penalty as f32;
            }
        }
    }

    /// The Z function of the reversed history: linear, whatever the input.
    fn match_lengths(&mut self, n: usize, at: impl Fn(usize) -> TokenId) {
        self.z.clear();
        self.z.resize(n, 0);
        let (mut left, mut right) = (0, 0);
        for i in 1..n {
            let mut length = if i < right { (self.z[i - left] as usize).min(right - i) } else { 0 };
            while i + length < n && at(length) == at(i + length) {
                length += 1;
            }
            if i + length > right {
                (left, right) = (i, i + length);
            }
            self.z[i] = length as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dry(multiplier: f32, allowed: i32, last_n: i32) -> Dry {
        let params = SamplingParams {
            dry_multiplier: multiplier,
            dry_base: 2.0,
            dry_allowed_length: allowed,
            dry_penalty_last_n: last_n,
            ..SamplingParams::default()
        };
        // Token 9 is a line break, the others are letters.
        Dry::new(&params, 10, |id| if id == 9 { "\n".into() } else { format!("t{id}") }).unwrap()
    }

    fn penalties(mut dry: Dry, history: &[TokenId]) -> Vec<(usize, f32)> {
        let mut logits = vec![0.0; 10];
        dry.apply(history, &mut logits);
        logits.iter().enumerate().filter(|(_, l)| **l != 0.0).map(|(i, &l)| (i, -l)).collect()
    }

    #[test]
    fn penalty_grows_with_the_length_of_the_match() {
        assert_eq!(penalties(dry(1.0, 2, -1), &[1, 2, 3, 1, 2]), [(3, 1.0)]);
        assert_eq!(penalties(dry(1.0, 2, -1), &[1, 2, 3, 4, 1, 2, 3]), [(4, 2.0)]);
        assert_eq!(penalties(dry(0.5, 2, -1), &[1, 2, 3, 4, 5, 1, 2, 3, 4]), [(5, 2.0)]);
        // Shorter than allowed: free.
        assert_eq!(penalties(dry(1.0, 3, -1), &[1, 2, 3, 1, 2]), []);
        // The longest of several matches counts: "1 2 3 7 1 2" (six tokens), not "1 2".
        assert_eq!(penalties(dry(1.0, 2, -1), &[1, 2, 3, 7, 1, 2, 3, 7, 1, 2]), [(3, 16.0)]);
        // Two continuations of the same match.
        assert_eq!(penalties(dry(1.0, 2, -1), &[1, 2, 3, 1, 2, 4, 1, 2]), [(3, 1.0), (4, 1.0)]);
    }

    #[test]
    fn window_and_breakers_bound_the_match() {
        assert_eq!(penalties(dry(1.0, 2, 4), &[1, 2, 3, 1, 2]), []);
        assert_eq!(penalties(dry(1.0, 2, 5), &[1, 2, 3, 1, 2]), [(3, 1.0)]);
        assert_eq!(penalties(dry(1.0, 2, -1), &[1, 9, 2, 3, 1, 9, 2]), []);
        assert_eq!(penalties(dry(1.0, 2, -1), &[1, 2, 9, 1, 2]), []);
        assert_eq!(penalties(dry(1.0, 2, -1), &[]), []);
        assert_eq!(penalties(dry(1.0, 0, -1), &[1]), []);
    }

    #[test]
    fn long_repetition_is_linear_and_finite() {
        let mut dry = dry(1.0, 2, -1);
        let mut logits = vec![0.0; 10];
        dry.apply(&vec![3; 200_000], &mut logits);
        assert_eq!(logits[3], -f32::MAX);
    }
}
