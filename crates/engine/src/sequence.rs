//! One text in the making: the tokens whose KV rows are in the cache.

use std::sync::Arc;

use minfer_tokenizer::TokenId;

use crate::pages::{PagePool, Pages};

/// A sequence of evaluated tokens and the cache pages that hold their keys and values. Made by
/// [`crate::Engine::new_sequence`]; dropping it frees its pages.
#[derive(Debug)]
pub struct Sequence {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) pages: Pages,
}

impl Sequence {
    pub(crate) fn new(pool: &Arc<PagePool>) -> Self {
        Self { tokens: Vec::new(), pages: Pages::new(pool) }
    }

    /// The evaluated tokens.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// How many tokens have been evaluated.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing has been evaluated.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Forgets the tokens from position `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.pages.shrink_to(self.tokens.len());
    }

    /// Keeps the longest common prefix with `prompt`, but leaves at least the prompt's last token to evaluate, because
    /// its logits are wanted. Returns how many tokens were kept.
    pub fn keep_prefix_of(&mut self, prompt: &[TokenId]) -> usize {
        let common = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        self.truncate(common.min(prompt.len().saturating_sub(1)));
        self.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(tokens: &[TokenId]) -> Sequence {
        let mut s = Sequence::new(&PagePool::new(8, 4));
        s.pages.grow_to(tokens.len()).unwrap();
        s.tokens.extend_from_slice(tokens);
        s
    }

    #[test]
    fn k07_the_same_prompt_again_leaves_its_last_token_to_evaluate() {
        let mut s = sequence(&[1, 2, 3, 4, 5]);
        assert_eq!(s.keep_prefix_of(&[1, 2, 3, 4, 5]), 4);
        assert_eq!(s.tokens(), [1, 2, 3, 4]);
    }

    #[test]
    fn only_an_exact_token_prefix_is_kept() {
        let mut s = sequence(&[1, 2, 3, 4, 5]);
        assert_eq!(s.keep_prefix_of(&[1, 2, 9, 4, 5, 6]), 2);
        assert_eq!(s.pages.table().len(), 1);
        assert_eq!(s.keep_prefix_of(&[7]), 0);
    }
}
