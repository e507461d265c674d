//! `{% generation %}` … `{% endgeneration %}` marks what the assistant said, for training masks. Rendering ignores it.
//!
//! The template engine does not know the tag, so each is replaced by the tag of a scope without variables, with the same
//! whitespace control: text inside is printed as before, and variables set inside stay inside, as in the original.

use std::borrow::Cow;

/// Replaces the tags outside comments, `raw` blocks and strings. One pass.
pub(super) fn replace_generation_tags(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len());
    let mut copied = 0;
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
        } else if raw {
            raw = !ends_raw(rest);
            at = start + 2;
        } else if rest.starts_with("{%") {
            let end = tag_end(rest, "%}");
            let tag = &rest[..end];
            let name = tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+']).trim();
            match name {
                "raw" => raw = true,
                "generation" | "endgeneration" if tag.ends_with("%}") => {
                    out.push_str(&source[copied..start]);
                    let scope = if name == "generation" { "with" } else { "endwith" };
                    out.push_str(&tag.replacen(name, scope, 1));
                    copied = start + end;
                }
                _ => {}
            }
            at = start + end;
        } else {
            at = start + 1;
        }
    }
    out.push_str(&source[copied..]);
    Cow::Owned(out)
}

/// Whether `tag` is `{% endraw %}`. Looks no further than its end, so that a raw block is read once.
fn ends_raw(tag: &str) -> bool {
    let inner = tag[2..].trim_start_matches(['-', '+']).trim_start();
    let rest = inner.strip_prefix("endraw").map(str::trim_start);
    rest.is_some_and(|rest| rest.trim_start_matches(['-', '+']).starts_with("%}"))
}

/// Length of a tag up to and including `close`, which does not count inside string literals.
fn tag_end(tag: &str, close: &str) -> usize {
    let bytes = tag.as_bytes();
    let mut quote = None;
    let mut i = 2;
    while i < bytes.len() {
        match (quote, bytes[i]) {
            (Some(_), b'\\') => i += 1,
            (Some(q), b) if b == q => quote = None,
            (None, b @ (b'"' | b'\'')) => quote = Some(b),
            (None, _) if bytes[i..].starts_with(close.as_bytes()) => return i + close.len(),
            _ => {}
        }
        i += 1;
    }
    bytes.len()
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
