//! `strftime` as Python's `datetime.strftime` prints a time without zone, in the C locale.

use jiff::civil::DateTime;
use jiff::fmt::strtime;

/// Formats `time`. Directives that do not exist are printed as they stand, as the C library does.
pub(super) fn strftime(format: &str, time: DateTime) -> Result<String, jiff::Error> {
    let mut out = String::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let directive = &rest[at..];
        // A directive is %, flags, an ignored locale modifier, and a letter.
        let flags = directive[1..].chars().take_while(|c| "-_0^#".contains(*c)).count();
        let modifier = usize::from(directive[1 + flags..].starts_with(['E', 'O']));
        let Some(letter) = directive[1 + flags + modifier..].chars().next() else {
            out.push_str(directive);
            return Ok(out);
        };
        let length = 1 + flags + modifier + letter.len_utf8();
        let flags = &directive[1..1 + flags];
        match letter {
            '%' => out.push('%'),
            // A time without zone has none of these.
            'z' | 'Z' => {}
            'f' => out.push_str(&strtime::format("%6f", time)?),
            'c' => out.push_str(&strtime::format("%a %b %e %H:%M:%S %Y", time)?),
            'x' => out.push_str(&strtime::format("%m/%d/%y", time)?),
            'X' => out.push_str(&strtime::format("%H:%M:%S", time)?),
            'r' => out.push_str(&strtime::format("%I:%M:%S %p", time)?),
            'a' | 'A' | 'b' | 'B' | 'C' | 'd' | 'D' | 'e' | 'F' | 'g' | 'G' | 'h' | 'H' | 'I' | 'j' | 'k'
            | 'l' | 'm' | 'M' | 'n' | 'p' | 'P' | 'R' | 'S' | 't' | 'T' | 'u' | 'U' | 'V' | 'w' | 'W'
            | 'y' | 'Y' => {
                out.push_str(&strtime::format(format!("%{flags}{letter}"), time)?);
            }
            _ => out.push_str(&directive[..length]),
        }
        rest = &directive[length..];
    }
    out.push_str(rest);
    Ok(out)
}
