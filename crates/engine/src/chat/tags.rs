//! The tags of a template, which are looked at before it is compiled.
//!
//! `{% generation %}` … `{% endgeneration %}` marks what the assistant said, for training masks. Rendering ignores it.
//!
//! The template engine does not know the tag, so each is replaced by the tag of a scope without variables, with the same
//! whitespace control: text inside is printed as before, and variables set inside stay inside, as in the original.

use std::borrow::Cow;
use std::ops::Range;

/// Replaces the tags outside comments, `raw` blocks and strings. One pass.
pub(super) fn replace_generation_tags(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
    each_tag(source, |range| {
        let tag = &source[range.clone()];
        let name = statement(tag);
        if matches!(name, "generation" | "endgeneration") && tag.ends_with("%}") {
            out.push_str(&source[copied..range.start]);
            let scope = if name == "generation" { "with" } else { "endwith" };
            out.push_str(&tag.replacen(name, scope, 1));
            copied = range.end;
        }
    });
    out.push_str(&source[copied..]);
    Cow::Owned(out)
}

/// The first tag that is longer than `most` bytes, not counting what its strings say.
pub(super) fn long_tag(source: &str, most: usize) -> Option<Range<usize>> {
    let mut found = None;
    each_tag(source, |range| {
        if found.is_none() && range.len() > most && len_without_strings(&source[range.clone()]) > most {
            found = Some(range);
        }
    });
    found
}

/// Calls `each` with the place of every `{{ … }}` and `{% … %}` outside comments and `raw` blocks. One pass.
fn each_tag(source: &str, mut each: impl FnMut(Range<usize>)) {
    let mut at = 0;
    let mut raw = false;
    while let Some(found) = source[at..].find('{') {
        let start = at + found;
        let rest = &source[start..];
        if raw && !rest.starts_with("{%") {
            at = start + 1;
        } else if rest.starts_with("{#") {
            at = rest.find("#}").map_or(source.len(), |end| start + end + 2);
        } else if rest.starts_with("{{") {
            at = start + tag_end(rest, "}}");
            each(start..at);
        } else if raw {
            raw = !ends_raw(rest);
            at = start + 2;
        } else if rest.starts_with("{%") {
            at = start + tag_end(rest, "%}");
            each(start..at);
            raw = statement(&source[start..at]) == "raw";
        } else {
            at = start + 1;
        }
    }
}

/// What stands in a `{% … %}`.
fn statement(tag: &str) -> &str {
    tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+']).trim()
}

/// Whether `tag` is `{% endraw %}`. Looks no further than its end, so that a raw block is read once.
fn ends_raw(tag: &str) -> bool {
    let inner = tag[2..].trim_start_matches(['-', '+']).trim_start();
    let rest = inner.strip_prefix("endraw").map(str::trim_start);
    rest.is_some_and(|rest| rest.trim_start_matches(['-', '+']).starts_with("%}"))
}

/// Length of a tag up to and including `close`, which does not count inside string literals.
fn tag_end(tag: &str, close: &str) -> usize {
    let mut end = tag.len();
    outside_strings(tag, |at| {
        let closes = at >= 2 && tag.as_bytes()[at..].starts_with(close.as_bytes());
        if closes {
            end = at + close.len();
        }
        !closes
    });
    end
}

fn len_without_strings(tag: &str) -> usize {
    let mut len = 0;
    outside_strings(tag, |_| {
        len += 1;
        true
    });
    len
}

/// Calls `each` with the place of every byte of a tag that is no string literal's, but for the quote that begins one,
/// until it returns false.
fn outside_strings(tag: &str, mut each: impl FnMut(usize) -> bool) {
    let bytes = tag.as_bytes();
    let mut quote = None;
    let mut at = 0;
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(q), b) if b == q => quote = None,
            (Some(_), _) => {}
            (None, b) => {
                if !each(at) {
                    return;
                }
                quote = matches!(b, b'"' | b'\'').then_some(b);
            }
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c07_only_real_tags_are_replaced() {
        for (source, want) in [
            ("a{% generation %}b{% endgeneration %}c", "a{% with %}b{% endwith %}c"),
            ("{%- generation -%}\n{%+ endgeneration +%}", "{%- with -%}\n{%+ endwith +%}"),
            ("{%generation%}{%endgeneration%}", "{%with%}{%endwith%}"),
            (
                "{# {% generation %} #}{{ '{% generation %}' }}",
                "{# {% generation %} #}{{ '{% generation %}' }}",
            ),
            (r#"{{ "\"{% generation %}" }}"#, r#"{{ "\"{% generation %}" }}"#),
            ("{% if '%} {% generation %}' %}", "{% if '%} {% generation %}' %}"),
            ("{% raw %}{% generation %}{{ {# {% endraw %}", "{% raw %}{% generation %}{{ {# {% endraw %}"),
            ("{%- raw -%}it's{%- endraw -%}{% generation %}", "{%- raw -%}it's{%- endraw -%}{% with %}"),
            ("{% if add_generation_prompt %}generation{{ generation }}", ""),
            ("{% set generation = 1 %}{% generation", ""),
            ("{{ '{% generation %}", ""),
            ("{ {% generation %}", "{ {% with %}"),
            ("é{% generation %}é", "é{% with %}é"),
        ] {
            let want = if want.is_empty() { source } else { want };
            assert_eq!(replace_generation_tags(source), want);
        }
    }
}
