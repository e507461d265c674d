//! JSON as Python's `json.dumps` prints it.

use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::environment::{MAX_DEPTH, MAX_OUTPUT};
use super::python::float_repr;

/// The filter of that name as Hugging Face defines it:
/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(
    state: &State,
    value: &Value,
    args: Rest<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let names = ["ensure_ascii", "indent", "separators", "sort_keys"];
    if args.len() > names.len() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let argument = |position: usize| match args.get(position) {
        Some(value) => Ok(value.clone()),
        None => Ok::<_, Error>(kwargs.get::<Option<Value>>(names[position])?.unwrap_or(Value::from(()))),
    };
    let ensure_ascii = argument(0)?.is_true();
    let indent = indentation(&argument(1)?)?;
    let separators = argument(2)?;
    let sort_keys = argument(3)?.is_true();
    kwargs.assert_all_used()?;
    let (item, key) = if separators.is_none() {
        (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned())
    } else {
        (separators.get_item_by_index(0)?.to_string(), separators.get_item_by_index(1)?.to_string())
    };
    let mut writer = Writer { state, out: String::new(), ensure_ascii, indent, item, key, sort_keys };
    writer.value(value, 0)?;
    Ok(Value::from(writer.out))
}

fn indentation(indent: &Value) -> Result<Option<String>, Error> {
    match indent.kind() {
        ValueKind::None | ValueKind::Undefined => Ok(None),
        ValueKind::String => Ok(Some(indent.to_string())),
        ValueKind::Bool => Ok(Some(" ".repeat(usize::from(indent.is_true())))),
        _ => match i64::try_from(indent.clone())? {
            n if n > 1000 => Err(refuse(format!("tojson: indent is {n}, but must be at most 1000"))),
            n => Ok(Some(" ".repeat(usize::try_from(n).unwrap_or(0)))),
        },
    }
}

fn refuse(detail: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

struct Writer<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    out: String,
    ensure_ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(refuse(format!("tojson: value nested deeper than {MAX_DEPTH}")));
        }
        self.state.consume_fuel(1)?;
        if self.out.len() > MAX_OUTPUT {
            return Err(refuse(format!("tojson: text longer than {MAX_OUTPUT} bytes")));
        }
        match value.kind() {
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                let text = scalar(value)?;
                self.out.push_str(&text);
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.collect::<Vec<_>>();
                self.list(['[', ']'], &items, depth, |this, item| this.value(item, depth + 1))?;
            }
            ValueKind::Map => {
                let mut entries = Vec::new();
                for key in value.try_iter()? {
                    entries.push((key_text(&key)?, value.get_item(&key)?));
                }
                if self.sort_keys {
                    entries.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.list(['{', '}'], &entries, depth, |this, (key, item)| {
                    this.string(key);
                    this.out.push_str(&this.key.clone());
                    this.value(item, depth + 1)
                })?;
            }
            kind => return Err(refuse(format!("tojson: a value of type {kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn list<T>(
        &mut self,
        [open, close]: [char; 2],
        items: &[T],
        depth: usize,
        mut each: impl FnMut(&mut Self, &T) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.out.push_str(&self.item);
            }
            self.line(depth + 1);
            each(self, item)?;
        }
        if !items.is_empty() {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            (0..depth).for_each(|_| self.out.push_str(indent));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.to_string()),
        ValueKind::None | ValueKind::Bool | ValueKind::Number => scalar(key),
        kind => Err(refuse(format!("tojson: a key of type {kind} is not allowed"))),
    }
}

fn scalar(value: &Value) -> Result<String, Error> {
    Ok(match value.kind() {
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => value.is_true().to_string(),
        _ if value.is_integer() => value.to_string(),
        _ => match f64::try_from(value.clone())? {
            f if f.is_nan() => "NaN".to_owned(),
            f if f.is_infinite() => if f > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
            f => float_repr(f),
        },
    })
}
