//! Cutting text into words before byte-pair merging.
//!
//! The published pre-tokenizers are regular expressions with look-ahead. Here each is a scanner written by hand:
//! it looks at every character a small bounded number of times, never backtracks over more than the piece in
//! hand, and works on invalid UTF-8 too (an invalid byte is a character that is no letter, number or space).

use crate::chars::{CASELESS, END, LETTER, LOWER, MARK, NEWLINE, NUMBER, PUNCT, SPACE, SYMBOL, UPPER};
use crate::chars::{Char, char_at};

/// How a byte-level vocabulary cuts text into words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PreTokenizer {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`, after every number
    /// character has been set apart if `single_digits`.
    Gpt2 { single_digits: bool },
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,n}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|`
    /// `\s+(?!\S)|\s+`, where marks count as letters in all but the first set if `marks`.
    Cl100k { max_digits: usize, marks: bool },
    /// `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+C?|`
    /// `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*C?|\p{N}{1,n}|`
    /// ` ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`, where `C` are the contractions as above, if any.
    O200k { max_digits: usize, contractions: bool },
    /// Numbers in threes and runs of `[一-龥぀-ゟ゠-ヿ]` are set apart; the rest is cut by
    /// `[ASCII punctuation][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|`
    /// `\s+(?!\S)|\s+`.
    DeepSeek3,
    /// Runs of `[\p{P}$+<=>^~|]` are set apart, the rest is cut as GPT-2 does it, then numbers are cut off and
    /// groups of three ASCII digits are set apart.
    Default,
}

/// What a `tokenizer.ggml.pre` stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PreProfile {
    pub(crate) pre_tokenizer: PreTokenizer,
    /// A word that is a token is taken as it is, whether or not the merges lead to it.
    pub(crate) ignore_merges: bool,
    /// Whether text begins with the begin-of-text token where the file does not say.
    pub(crate) add_bos: bool,
}

impl PreProfile {
    /// Looks up a value of `tokenizer.ggml.pre`.
    pub(crate) fn by_name(pre: &str) -> Option<Self> {
        use PreTokenizer::{Cl100k, DeepSeek3, Default, Gpt2, O200k};
        let (pre_tokenizer, ignore_merges, add_bos) = match pre {
            "default" => (Default, false, false),
            "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "trillion" | "mellum" | "gigachat"
            | "modern-bert" | "exaone4" | "granite-docling" => (Gpt2 { single_digits: false }, false, false),
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => {
                (Gpt2 { single_digits: true }, false, false)
            }
            "qwen2" | "deepseek-r1-qwen" | "stablelm2" | "megrez" | "hunyuan" | "grok-2" | "solar-open" => {
                (Cl100k { max_digits: 1, marks: false }, false, false)
            }
            "qwen35" => (Cl100k { max_digits: 1, marks: true }, false, false),
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
            | "lfm2" => (Cl100k { max_digits: 3, marks: false }, true, true),
            "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => {
                (Cl100k { max_digits: 3, marks: false }, false, false)
            }
            "gpt-4o" | "llama4" => (O200k { max_digits: 3, contractions: true }, false, false),
            "tekken" => (O200k { max_digits: 1, contractions: false }, true, true),
            "deepseek-v3" => (DeepSeek3, false, false),
            _ => return None,
        };
        Some(Self { pre_tokenizer, ignore_merges, add_bos })
    }
}

impl PreTokenizer {
    /// The words of `text`, in order and without gaps.
    pub(crate) fn words(self, text: &[u8]) -> impl Iterator<Item = &[u8]> {
        let mut pos = 0;
        std::iter::from_fn(move || {
            if pos >= text.len() {
                return None;
            }
            let start = pos;
            pos = self.word_end(text, start);
            debug_assert!(pos > start && pos <= text.len());
            Some(&text[start..pos])
        })
    }

    /// Where the word that starts at `pos` ends. Requires `pos < text.len()`.
    fn word_end(self, text: &[u8], pos: usize) -> usize {
        let all = View { text, ends_at: |_| false };
        match self {
            Self::Gpt2 { single_digits: false } => gpt2(&all, pos),
            Self::Gpt2 { single_digits: true } => {
                let first = all.at(pos);
                if first.is(NUMBER) {
                    return pos + first.len;
                }
                gpt2(&View { text, ends_at: |c: Char| c.is(NUMBER) }, pos)
            }
            Self::Cl100k { max_digits, marks } => cl100k(&all, pos, max_digits, marks),
            Self::O200k { max_digits, contractions } => o200k(&all, pos, max_digits, contractions),
            Self::DeepSeek3 => deepseek3(text, pos),
            Self::Default => default(text, pos),
        }
    }
}

/// Text of which a part is under consideration: it ends before the first character for which `ends_at` holds.
struct View<'a, F> {
    text: &'a [u8],
    ends_at: F,
}

impl<F: Fn(Char) -> bool> View<'_, F> {
    fn at(&self, pos: usize) -> Char {
        let c = char_at(self.text, pos);
        if (self.ends_at)(c) { Char::END } else { c }
    }

    /// Where the run of characters for which `belongs` holds ends.
    fn run(&self, mut pos: usize, belongs: impl Fn(Char) -> bool) -> usize {
        loop {
            let c = self.at(pos);
            if c.is(END) || !belongs(c) {
                return pos;
            }
            pos += c.len;
        }
    }

    /// At most `max` number characters.
    fn numbers(&self, mut pos: usize, max: usize) -> usize {
        for _ in 0..max {
            let c = self.at(pos);
            if !c.is(NUMBER) {
                break;
            }
            pos += c.len;
        }
        pos
    }

    /// `'s|'t|'re|'ve|'m|'ll|'d`, given that an apostrophe is at `pos`. Without regard to case, the long s is
    /// an s, as Unicode folds it.
    fn contraction(&self, pos: usize, any_case: bool) -> Option<usize> {
        let letter = |c: Char| match char::from_u32(c.code) {
            Some('ſ') if any_case => 's',
            Some(c) if any_case => c.to_ascii_lowercase(),
            Some(c) => c,
            None => '\0',
        };
        let first = self.at(pos + 1);
        let end = pos + 1 + first.len;
        match letter(first) {
            's' | 't' | 'm' | 'd' => Some(end),
            head @ ('r' | 'v' | 'l') => {
                let second = self.at(end);
                let tail = if head == 'l' { 'l' } else { 'e' };
                (letter(second) == tail).then_some(end + second.len)
            }
            _ => None,
        }
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+` (the first only if `lines`), given that white space is at `pos`: up to the
    /// last line break of the run; or all of a run that ends the text; or all but the last character, which
    /// the next word takes; or that one alone.
    fn white_space(&self, pos: usize, lines: bool) -> usize {
        let (mut end, mut last, mut line_end) = (pos, pos, None);
        loop {
            let c = self.at(end);
            if !c.is(SPACE) {
                return match line_end {
                    Some(line_end) if lines => line_end,
                    _ if c.is(END) || last == pos => end,
                    _ => last,
                };
            }
            last = end;
            end += c.len;
            if c.is(NEWLINE) {
                line_end = Some(end);
            }
        }
    }
}

fn gpt2<F: Fn(Char) -> bool>(view: &View<'_, F>, pos: usize) -> usize {
    let first = view.at(pos);
    if first.is_ascii(b'\'')
        && let Some(end) = view.contraction(pos, false)
    {
        return end;
    }
    let (start, lead) = if first.is_ascii(b' ') { (pos + 1, view.at(pos + 1)) } else { (pos, first) };
    if lead.is(LETTER) {
        view.run(start, |c| c.is(LETTER))
    } else if lead.is(NUMBER) {
        view.run(start, |c| c.is(NUMBER))
    } else if !lead.is(SPACE | END) {
        view.run(start, |c| !c.is(SPACE | LETTER | NUMBER))
    } else {
        view.white_space(pos, false)
    }
}

/// ` ?[^\s\p{L}\p{N}]+T*|\s*[\r\n]+|\s+(?!\S)|\s+`, where `word` are the classes taken for letters and numbers and
/// `T` what may trail: the common end of several patterns.
fn symbols_or_space<F>(view: &View<'_, F>, pos: usize, word: u16, trails: impl Fn(Char) -> bool) -> usize
where
    F: Fn(Char) -> bool,
{
    let first = view.at(pos);
    let (start, lead) = if first.is_ascii(b' ') { (pos + 1, view.at(pos + 1)) } else { (pos, first) };
    if lead.is(SPACE | END | word) {
        return view.white_space(pos, true);
    }
    let end = view.run(start, |c| !c.is(SPACE | word));
    view.run(end, trails)
}

fn cl100k<F: Fn(Char) -> bool>(view: &View<'_, F>, pos: usize, max_digits: usize, marks: bool) -> usize {
    let letter = if marks { LETTER | MARK } else { LETTER };
    let first = view.at(pos);
    if first.is_ascii(b'\'')
        && let Some(end) = view.contraction(pos, true)
    {
        return end;
    }
    if first.is(letter) {
        return view.run(pos, |c| c.is(letter));
    }
    if first.is(NUMBER) {
        return view.numbers(pos, max_digits);
    }
    let next = pos + first.len;
    if !first.is(NEWLINE) && view.at(next).is(letter) {
        return view.run(next, |c| c.is(letter));
    }
    symbols_or_space(view, pos, letter | NUMBER, |c| c.is(NEWLINE))
}

fn o200k<F: Fn(Char) -> bool>(
    view: &View<'_, F>,
    pos: usize,
    max_digits: usize,
    contractions: bool,
) -> usize {
    let first = view.at(pos);
    if first.is(NUMBER) {
        return view.numbers(pos, max_digits);
    }
    let end = if first.is(LETTER) {
        cased_word(view, pos).map(CasedWord::end)
    } else if first.is(NEWLINE) {
        None
    } else {
        // The first character may be the one that a word can have before its letters. A mark can also be a
        // letter, and then is a word alone if those behind it have no lower case.
        match cased_word(view, pos + first.len) {
            Some(CasedWord::NoLower(_)) | None if first.is(MARK) => Some(pos + first.len),
            word => word.map(CasedWord::end),
        }
    };
    match end {
        Some(end) if contractions && view.at(end).is_ascii(b'\'') => {
            view.contraction(end, true).unwrap_or(end)
        }
        Some(end) => end,
        None => symbols_or_space(view, pos, LETTER | NUMBER, |c| c.is(NEWLINE) || c.is_ascii(b'/')),
    }
}

/// Where a word of upper-case letters followed by lower-case ones ends; caseless letters and marks are both.
enum CasedWord {
    /// It ends in at least one lower-case letter.
    Lower(usize),
    /// There is no lower-case letter in it.
    NoLower(usize),
}

impl CasedWord {
    fn end(self) -> usize {
        match self {
            Self::Lower(end) | Self::NoLower(end) => end,
        }
    }
}

/// `U*W+`, else `U+`, where `U` is any letter but lower case, `W` any but upper case, and marks are both.
fn cased_word<F: Fn(Char) -> bool>(view: &View<'_, F>, start: usize) -> Option<CasedWord> {
    let (mut pos, mut both_end) = (start, None);
    loop {
        let c = view.at(pos);
        if c.is(LOWER) {
            return Some(CasedWord::Lower(view.run(pos, |c| c.is(LOWER | CASELESS | MARK))));
        }
        if !c.is(UPPER | CASELESS | MARK) {
            break;
        }
        pos += c.len;
        if c.is(CASELESS | MARK) {
            both_end = Some(pos);
        }
    }
    // No lower case after the run: `W+` is left with the last character of the run that is both.
    both_end.map(CasedWord::Lower).or((pos > start).then_some(CasedWord::NoLower(pos)))
}

fn deepseek3(text: &[u8], pos: usize) -> usize {
    let is_cjk = |c: Char| matches!(c.code, 0x4E00..=0x9FA5 | 0x3040..=0x30FF);
    let first = char_at(text, pos);
    let view = View { text, ends_at: |c: Char| c.is(NUMBER) || is_cjk(c) != is_cjk(first) };
    if first.is(NUMBER) {
        return View { text, ends_at: |_| false }.numbers(pos, 3);
    }
    let next_pos = pos + first.len;
    let next = view.at(next_pos);
    let is_ascii_letter = |c: Char| c.code < 128 && c.is(LETTER);
    if first.code < 128 && first.is(PUNCT | SYMBOL) && is_ascii_letter(next) {
        return view.run(next_pos, is_ascii_letter);
    }
    if first.is(LETTER | MARK) {
        return view.run(pos, |c| c.is(LETTER | MARK));
    }
    if !first.is(NEWLINE | PUNCT | SYMBOL) && next.is(LETTER | MARK) {
        return view.run(next_pos, |c| c.is(LETTER | MARK));
    }
    let (start, lead) = if first.is_ascii(b' ') { (next_pos, next) } else { (pos, first) };
    if lead.is(PUNCT | SYMBOL) {
        let end = view.run(start, |c| c.is(PUNCT | SYMBOL));
        return view.run(end, |c| c.is(NEWLINE));
    }
    if first.is(SPACE) {
        return view.white_space(pos, true);
    }
    // Characters that no alternative matches stay together, up to one that can begin a word of letters.
    let (mut end, mut c) = (next_pos, next);
    while c.class == 0 {
        let after = view.at(end + c.len);
        if after.is(LETTER | MARK) {
            break;
        }
        end += c.len;
        c = after;
    }
    end
}

fn default(text: &[u8], pos: usize) -> usize {
    let is_mark = |c: Char| {
        c.is(PUNCT) || c.code < 128 && matches!(c.code as u8, b'$' | b'+' | b'<'..=b'>' | b'^' | b'~' | b'|')
    };
    let all = View { text, ends_at: |_| false };
    let first = all.at(pos);
    if is_mark(first) {
        return all.run(pos, is_mark);
    }
    if first.is(NUMBER) {
        let is_digit = |pos: usize| text.get(pos).is_some_and(u8::is_ascii_digit);
        let is_group = |pos: usize| is_digit(pos) && is_digit(pos + 1) && is_digit(pos + 2);
        if is_group(pos) {
            return pos + 3;
        }
        let mut end = pos;
        loop {
            let c = all.at(end);
            if !c.is(NUMBER) || is_group(end) {
                return end;
            }
            end += c.len;
        }
    }
    if first.is_ascii(b' ') && all.at(pos + 1).is(NUMBER) {
        return pos + 1;
    }
    gpt2(&View { text, ends_at: is_mark }, pos)
}

#[cfg(test)]
mod tests;
