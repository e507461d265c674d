//! Facts about special tokens that GGUF files do not state: which end a text, and which eat the spaces around.

/// Spellings of control tokens that some files type as text, and whether the model ends its text with them.
///
/// The begin-of-repository and file-separator tokens of code models count as ends: where a model writes one, what
/// was asked for is complete and another file would follow.
pub(crate) const CONTROL: &[(&str, bool)] = &[
    ("<|eot_id|>", true),
    ("<|eom_id|>", true),
    ("<|im_end|>", true),
    ("<|end|>", true),
    ("<|return|>", true),
    ("<|call|>", true),
    ("<|calls|>", true),
    ("<|flush|>", true),
    ("<|endoftext|>", true),
    ("<|end_of_text|>", true),
    ("<end_of_turn>", true),
    ("<end_of_utterance>", true),
    ("<eos>", true),
    ("</s>", true),
    ("<EOT>", true),
    ("_<EOT>", true),
    ("[EOT]", true),
    ("[EOS]", true),
    ("<｜end▁of▁sentence｜>", true),
    // Fill-in-the-middle: prefix, suffix, middle.
    ("<|fim_prefix|>", false),
    ("<fim-prefix>", false),
    ("<fim_prefix>", false),
    ("<｜fim▁begin｜>", false),
    ("<PRE>", false),
    ("▁<PRE>", false),
    ("<|code_prefix|>", false),
    ("<|fim_suffix|>", false),
    ("<fim-suffix>", false),
    ("<fim_suffix>", false),
    ("<｜fim▁hole｜>", false),
    ("<SUF>", false),
    ("▁<SUF>", false),
    ("<|code_suffix|>", false),
    ("<|fim_middle|>", false),
    ("<fim-middle>", false),
    ("<fim_middle>", false),
    ("<｜fim▁end｜>", false),
    ("<MID>", false),
    ("▁<MID>", false),
    ("<|code_middle|>", false),
    // Padding, repository name, file separator.
    ("<|fim_pad|>", true),
    ("<fim-pad>", true),
    ("<fim_pad>", true),
    ("<PAD>", true),
    ("[PAD]", true),
    ("<|fim_repo|>", true),
    ("<|repo_name|>", true),
    ("<fim-repo>", true),
    ("<REPO>", true),
    ("<reponame>", true),
    ("<|file_sep|>", true),
];

/// In formats that have all of one of these sets, `<|end|>` ends a message but not the text.
pub(crate) const END_IS_NOT_EOG: &[&[&str]] = &[
    &["<|return|>", "<|call|>"],
    &["<|return|>", "<|calls|>"],
    &["<|call|>", "<|flush|>"],
    &["<|calls|>", "<|flush|>"],
];

/// Whether the special token spelled `text` takes the white space behind it, in the model called `name`
/// (`general.name`).
pub(crate) fn eats_space_behind(name: &str, text: &str) -> bool {
    let name = name.to_ascii_lowercase();
    (name.contains("phi-3") || name.contains("phi3")) && !matches!(text, "<unk>" | "<s>" | "<|endoftext|>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phi3_tokens_eat_the_space_behind_them() {
        assert!(eats_space_behind("Phi-3 Mini", "<|user|>") && eats_space_behind("phi3", "</s>"));
        assert!(!eats_space_behind("Phi-3 Mini", "<s>") && !eats_space_behind("Qwen2.5", "<|im_end|>"));
    }
}
