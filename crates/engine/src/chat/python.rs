//! Small pieces of Python that templates use and the template engine lacks.

use minijinja::value::{Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};

use super::environment::{measure, paid_for};

/// A finite float as Python's `repr` prints it.
pub(super) fn float_repr(value: f64) -> String {
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = value.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// Python's methods on strings, lists and dicts: those of `minijinja-contrib`, and a few more on strings.
pub(super) fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let (ValueKind::String, Some(text)) = (value.kind(), value.as_str()) {
        match name {
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)));
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)));
            }
            "partition" => {
                let (separator,): (&str,) = from_args(args)?;
                let (before, after) = split_at(text.find(not_empty(separator)?), text, separator);
                let found = if before.len() < text.len() { separator } else { "" };
                return Ok(list([before, found, after]));
            }
            "rpartition" => {
                let (separator,): (&str,) = from_args(args)?;
                return Ok(match text.rfind(not_empty(separator)?) {
                    Some(at) => list([&text[..at], separator, &text[at + separator.len()..]]),
                    None => list(["", "", text]),
                });
            }
            "rsplit" => {
                let (separator, limit): (&str, Option<i64>) = from_args(args)?;
                let limit = limit.and_then(|l| usize::try_from(l).ok()).unwrap_or(usize::MAX - 1);
                let mut parts: Vec<&str> = text.rsplitn(limit + 1, not_empty(separator)?).collect();
                parts.reverse();
                return Ok(list(parts));
            }
            "format" => state.consume_fuel(format_cost(state, text, args)?)?,
            "join" => {
                let (values,): (&Value,) = from_args(args)?;
                let values = paid_for(state, values)?;
                return minijinja_contrib::pycompat::unknown_method_callback(state, value, name, &[values]);
            }
            "split" if args.first().and_then(Value::as_str) == Some("") => {
                not_empty("")?;
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// Steps for what `format` may print at most, which it allocates before the engine charges for it: as many bytes as the
/// widths and precisions say, and for each field all that it is given.
fn format_cost(state: &State, format: &str, args: &[Value]) -> Result<u64, Error> {
    let numbers = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let widths = numbers.map(|digits| digits.parse().unwrap_or(u64::MAX)).fold(0, u64::saturating_add);
    let fields = format.matches('{').count() as u64;
    let mut given = 0u64;
    for arg in args {
        given = given.saturating_add(measure(state, arg)?);
    }
    Ok(widths.saturating_add(fields.saturating_mul(given)) / 64)
}

fn list<'a>(items: impl IntoIterator<Item = &'a str>) -> Value {
    items.into_iter().map(Value::from).collect()
}

fn split_at<'a>(at: Option<usize>, text: &'a str, separator: &str) -> (&'a str, &'a str) {
    at.map_or((text, ""), |at| (&text[..at], &text[at + separator.len()..]))
}

fn not_empty(separator: &str) -> Result<&str, Error> {
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    Ok(separator)
}

#[cfg(test)]
mod tests {
    use super::float_repr;

    #[test]
    fn floats_print_as_in_python() {
        for (value, want) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
            (123456.789, "123456.789"),
        ] {
            assert_eq!(float_repr(value), want);
        }
    }
}
