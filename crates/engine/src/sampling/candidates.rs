//! The tokens still in the draw, and the steps that narrow them.

use std::cmp::Ordering;

use super::TokenId;
use super::math::{exp_nonpositive, scan};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub logit: f32,
    pub id: TokenId,
}

/// Best first, lowest id first on a tie. Logits are never NaN here, so this is a total order without equal elements.
fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

/// Puts the `k` best tokens above −inf into `out`, best first.
///
/// A candidate enters only above the worst of the `k` best so far, so most blocks of a row are skipped by one comparison.
pub(super) fn select_best(logits: &[f32], k: usize, out: &mut Vec<Candidate>) {
    const BLOCK: usize = 64;
    out.clear();
    if k == 0 {
        return;
    }
    let limit = k.saturating_mul(2).max(256).min(logits.len().max(1));
    out.reserve(limit + BLOCK);
    let mut floor = f32::NEG_INFINITY;
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        if scan(block).0 <= floor {
            continue;
        }
        for (offset, &logit) in block.iter().enumerate() {
            // Ids rise, so a later token that equals the floor is worse than the one that set it.
            if logit > floor {
                out.push(Candidate { logit, id: (index * BLOCK + offset) as TokenId });
            }
        }
        if out.len() >= limit && out.len() > k {
            out.select_nth_unstable_by(k - 1, best_first);
            out.truncate(k);
            floor = out[k - 1].logit;
        }
    }
    if out.len() > k {
        out.select_nth_unstable_by(k - 1, best_first);
        out.truncate(k);
    }
    out.sort_unstable_by(best_first);
}

/// Sorts as much of `items` as it takes for the weights of the first ones to reach `target`, and gives their number.
///
/// Sorting a whole vocabulary to keep a few tokens is wasteful, so a prefix is sorted, and grown while it is too short.
fn sort_until<T>(
    items: &mut [T],
    order: impl Fn(&T, &T) -> Ordering,
    weight: impl Fn(&T) -> f64,
    target: f64,
) -> usize {
    let (mut done, mut sum, mut prefix) = (0, 0f64, 256);
    while done < items.len() {
        let tail = &mut items[done..];
        let count = tail.len().min(prefix);
        if count < tail.len() {
            tail.select_nth_unstable_by(count, &order);
        }
        tail[..count].sort_unstable_by(&order);
        for item in &tail[..count] {
            sum += weight(item);
            done += 1;
            if sum >= target {
                return done;
            }
        }
        prefix *= 8;
    }
    items.len()
}

/// Candidates of one step with their probabilities. Buffers are kept between steps.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    items: Vec<Candidate>,
    /// Probability of each item, valid after `softmax`; unnormalized in `draw`.
    probs: Vec<f32>,
    /// Scratch of `typical`.
    scores: Vec<(f64, u32)>,
    sorted: bool,
    max: f32,
}

impl Candidates {
    /// Takes the `top_k` best of `logits`, or all where it is 0. `max` is the largest logit.
    pub fn fill(&mut self, logits: &[f32], top_k: usize, max: f32) {
        self.max = max;
        self.sorted = top_k != 0 && top_k < logits.len();
        if self.sorted {
            select_best(logits, top_k, &mut self.items);
        } else {
            self.items.clear();
            let all = logits.iter().enumerate().map(|(id, &logit)| Candidate { logit, id: id as TokenId });
            self.items.extend(all.filter(|c| c.logit > f32::NEG_INFINITY));
        }
    }

    /// Normalized probabilities in the order of the items, which is canonical: by id or best first.
    fn softmax(&mut self) {
        self.weigh(1.0);
        let sum: f64 = self.probs.iter().map(|&p| f64::from(p)).sum();
        self.probs.iter_mut().for_each(|p| *p = (f64::from(*p) / sum) as f32);
    }

    fn weigh(&mut self, temperature: f32) {
        let max = self.max;
        self.probs.clear();
        self.probs.extend(self.items.iter().map(|c| exp_nonpositive((c.logit - max) / temperature)));
    }

    fn sort(&mut self) {
        if !self.sorted {
            self.items.sort_unstable_by(best_first);
            self.sorted = true;
        }
    }

    fn truncate(&mut self, keep: usize) {
        self.items.truncate(keep.max(1));
    }

    /// Locally typical sampling: orders by |surprise − entropy| and keeps the smallest set reaching `mass`.
    pub fn typical(&mut self, mass: f32) {
        if mass >= 1.0 || self.items.len() < 2 {
            return;
        }
        self.softmax();
        // −ln p of an item, from its logit: exact where p itself has underflowed.
        let max = self.max;
        let log_sum = {
            let best = self.items.iter().zip(&self.probs).find(|(c, _)| c.logit == max);
            best.map_or(0.0, |(_, &p)| -libm::log(f64::from(p)))
        };
        let surprise = |c: &Candidate| log_sum + f64::from(max) - f64::from(c.logit);
        let entropy: f64 = self.items.iter().zip(&self.probs).map(|(c, &p)| f64::from(p) * surprise(c)).sum();
        self.scores.clear();
        let scored = self.items.iter().enumerate().map(|(i, c)| ((surprise(c) - entropy).abs(), i as u32));
        self.scores.extend(scored);
        let (items, probs) = (&self.items, &self.probs);
        let closest = |a: &(f64, u32), b: &(f64, u32)| {
            a.0.total_cmp(&b.0).then_with(|| best_first(&items[a.1 as usize], &items[b.1 as usize]))
        };
        let keep = sort_until(&mut self.scores, closest, |s| f64::from(probs[s.1 as usize]), f64::from(mass));
        // Kept items move to the front in ascending index, so that nothing is overwritten before it is read.
        self.scores.truncate(keep);
        self.scores.sort_unstable_by_key(|s| s.1);
        for (to, &(_, from)) in self.scores.iter().enumerate() {
            self.items[to] = self.items[from as usize];
        }
        self.truncate(keep);
        self.max = self.items.iter().fold(f32::NEG_INFINITY, |a, c| a.max(c.logit));
    }

    /// Keeps the smallest set of best tokens whose probabilities reach `mass`.
    pub fn top_p(&mut self, mass: f32) {
        if mass >= 1.0 || self.items.len() < 2 {
            return;
        }
        self.weigh(1.0);
        let total = self.probs.iter().map(|&p| f64::from(p)).sum::<f64>();
        let target = f64::from(mass) * total;
        if !self.sorted {
            // Together, candidates below this weight do not make up what may be left out: none of them can be kept.
            let floor = ((1.0 - f64::from(mass)) * total / self.items.len() as f64) as f32;
            let mut weights = self.probs.iter();
            self.items.retain(|_| weights.next().is_some_and(|&w| w >= floor));
        }
        let max = self.max;
        let weight = |c: &Candidate| f64::from(exp_nonpositive(c.logit - max));
        let keep = sort_until(&mut self.items, best_first, weight, target);
        self.truncate(keep);
        self.sorted = true;
    }

    /// Drops tokens less than `min_p` times as probable as the best.
    pub fn min_p(&mut self, min_p: f32) {
        if min_p <= 0.0 {
            return;
        }
        // p / p_max ≥ min_p, as a bound on the logit.
        let floor = f64::from(self.max) + libm::log(f64::from(min_p));
        self.items.retain(|c| f64::from(c.logit) >= floor);
    }

    /// Drops every token of at least `threshold` probability but the least probable of them.
    pub fn exclude_top_choices(&mut self, threshold: f32) {
        if self.items.len() < 2 {
            return;
        }
        self.sort();
        self.softmax();
        let above = self.probs.iter().take_while(|&&p| p >= threshold).count();
        if above >= 2 {
            self.items.drain(..above - 1);
            self.max = self.items[0].logit;
        }
    }

    /// Picks by one uniform number in [0, 1) after dividing by `temperature` > 0.
    pub fn draw(&mut self, temperature: f32, uniform: f64) -> Option<TokenId> {
        self.weigh(temperature);
        let total: f64 = self.probs.iter().map(|&p| f64::from(p)).sum();
        let mut left = uniform * total;
        for (item, &weight) in self.items.iter().zip(&self.probs) {
            left -= f64::from(weight);
            if left < 0.0 {
                return Some(item.id);
            }
        }
        // Rounding can leave a crumb at the very end: the last token that has any weight takes it.
        let last = self.probs.iter().rposition(|&w| w > 0.0)?;
        Some(self.items[last].id)
    }

    #[cfg(test)]
    pub fn ids(&self) -> Vec<TokenId> {
        self.items.iter().map(|c| c.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(logits: &[f32], top_k: usize) -> Candidates {
        let mut c = Candidates::default();
        c.fill(logits, top_k, logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        c
    }

    /// Logits whose softmax is exactly the given probabilities.
    fn of_probs(p: &[f32]) -> Vec<f32> {
        p.iter().map(|p| p.ln()).collect()
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_reaches_the_mass() {
        let logits = of_probs(&[0.1, 0.5, 0.15, 0.25]);
        let after = |p| {
            let mut c = filled(&logits, 0);
            c.top_p(p);
            c.ids()
        };
        assert_eq!(after(0.0), [1]);
        assert_eq!(after(0.49), [1]);
        assert_eq!(after(0.6), [1, 3]);
        assert_eq!(after(0.8), [1, 3, 2]);
        assert_eq!(after(0.999), [1, 3, 2, 0]);
        // Off: nothing is even reordered.
        assert_eq!(after(1.0), [0, 1, 2, 3]);
    }

    #[test]
    fn min_p_compares_with_the_best() {
        let mut c = filled(&of_probs(&[0.1, 0.5, 0.15, 0.25]), 0);
        c.min_p(0.25);
        assert_eq!(c.ids(), [1, 2, 3]);
        c.min_p(1.0);
        assert_eq!(c.ids(), [1]);
    }

    #[test]
    fn typical_prefers_expected_surprise() {
        // Entropy 1.28 nats; surprises 0.69, 1.39, 1.90, 2.30: the second is closest, then the first.
        let logits = of_probs(&[0.5, 0.25, 0.15, 0.1]);
        let after = |p| {
            let mut c = filled(&logits, 0);
            c.typical(p);
            c.ids()
        };
        assert_eq!(after(0.0), [1]);
        assert_eq!(after(0.2), [1]);
        assert_eq!(after(0.3), [0, 1]);
        assert_eq!(after(0.76), [0, 1, 2]);
        assert_eq!(after(1.0), [0, 1, 2, 3]);
    }

    #[test]
    fn xtc_keeps_the_least_probable_of_the_top_choices() {
        let logits = of_probs(&[0.1, 0.4, 0.2, 0.3]);
        let mut c = filled(&logits, 0);
        c.exclude_top_choices(0.15);
        assert_eq!(c.ids(), [2, 0]);
        // One token above the threshold: nothing to exclude.
        let mut c = filled(&logits, 0);
        c.exclude_top_choices(0.35);
        assert_eq!(c.ids(), [1, 3, 2, 0]);
    }

    #[test]
    fn draw_walks_the_cumulative_distribution() {
        let mut c = filled(&of_probs(&[0.25, 0.5, 0.25]), 0);
        for (uniform, id) in [(0.0, 0), (0.24, 0), (0.26, 1), (0.74, 1), (0.76, 2), (1.0 - 1e-16, 2)] {
            assert_eq!(c.draw(1.0, uniform), Some(id), "{uniform}");
        }
        // A temperature near zero leaves only the best, without NaN.
        assert_eq!(c.draw(1e-40, 0.999), Some(1));
    }

    proptest! {
        #[test]
        fn selection_equals_a_full_sort(
            // Few distinct values, so that ties are common.
            raw in prop::collection::vec(-20i32..20, 1..3000), k in 1usize..400,
        ) {
            let logits: Vec<f32> =
                raw.iter().map(|&v| if v == -20 { f32::NEG_INFINITY } else { v as f32 }).collect();
            let mut want: Vec<(f32, TokenId)> =
                logits.iter().enumerate().map(|(i, &l)| (l, i as TokenId)).filter(|x| x.0.is_finite()).collect();
            want.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            want.truncate(k);
            let mut got = Vec::new();
            select_best(&logits, k, &mut got);
            prop_assert_eq!(got.iter().map(|c| (c.logit, c.id)).collect::<Vec<_>>(), want);
        }

        #[test]
        fn top_p_equals_a_full_sort(raw in prop::collection::vec(-400i32..400, 2..3000), p in 0.0f32..0.999) {
            let logits: Vec<f32> = raw.iter().map(|&v| v as f32 / 100.0).collect();
            let mut prefix = filled(&logits, 0);
            prefix.top_p(p);
            let mut full = filled(&logits, 0);
            full.weigh(1.0);
            let target = f64::from(p) * full.probs.iter().map(|&x| f64::from(x)).sum::<f64>();
            full.sort();
            full.weigh(1.0);
            let mut sum = 0.0;
            let keep = full.probs.iter().take_while(|&&x| { let go = sum < target; sum += f64::from(x); go }).count();
            full.truncate(keep);
            prop_assert_eq!(prefix.ids(), full.ids());
        }
    }
}
