//! The template engine, set up as Hugging Face sets up Jinja.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, StringInput, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value, filters};

use super::strftime::strftime;
use super::{DateTime, json, python};

/// Steps that one render may take: instructions, and one per 64 bytes of data.
pub const FUEL: u64 = 2_000_000;

/// Bytes that one render may print.
pub const MAX_OUTPUT: usize = 16 << 20;

/// Name of the hidden variable that holds the time as text.
pub(super) const NOW: &str = "__now";

/// What `raise_exception` was called with, kept as the source of the engine's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub String);

pub(super) fn environment() -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_fuel(Some(FUEL));
    env.set_unknown_method_callback(python::method);
    env.set_formatter(|out, state, value| {
        measure(state, value)?;
        minijinja::escape_formatter(out, state, value)
    });
    env.add_filter("tojson", json::tojson);
    // The engine charges for these texts once it has made them, which is too late for one that does not fit in memory.
    env.add_filter("join", join);
    env.add_filter("string", |state: &State, value: &Value| -> Result<Value, Error> {
        filters::string(state, &paid_for(state, value)?)
    });
    env.add_filter("pprint", |state: &State, value: &Value| -> Result<String, Error> {
        Ok(filters::pprint(&paid_for(state, value)?))
    });
    // Where the engine's own tests differ from Jinja's: none is not iterable; strings and maps are sequences.
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
    });
    env.add_function("raise_exception", |state: &State, message: Value| -> Result<Value, Error> {
        measure(state, &message)?;
        let message = message.to_string();
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    env.add_function("strftime_now", |state: &State, format: &str| -> Result<String, Error> {
        let now = match state.lookup(NOW).as_ref().and_then(Value::as_str) {
            Some(text) => text.parse::<DateTime>(),
            None => Ok(jiff::ZonedDateTime::now().datetime()),
        };
        now.and_then(|now| strftime(format, now))
            .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {e}")))
    });
    Ok(env)
}

fn join(
    state: &mut State,
    value: &Value,
    joiner: Option<StringInput<'_>>,
    attribute: Option<&str>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let value = paid_for(state, value)?;
    filters::join(state, &value, joiner, attribute, kwargs)
}

/// Takes the steps for the text of a value, before it is made; gives back the value, or a list of what it yields where that
/// can be read only once.
pub(super) fn paid_for(state: &State, value: &Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable || value.len().is_some() {
        let bytes = measure(state, value)?;
        state.consume_fuel(bytes / 64)?;
        return Ok(value.clone());
    }
    let items = value.try_iter()?.map(|item| {
        state.consume_fuel(1)?;
        paid_for(state, &item)
    });
    Ok(Value::from(items.collect::<Result<Vec<_>, _>>()?))
}

/// Values nested deeper are refused; a template can build one that contains itself.
pub(super) const MAX_DEPTH: usize = 128;

/// The bytes of all strings in a value that is about to be printed, at the price of a step for each value in it. What
/// occurs in it twice counts twice, so that a value whose text is exponentially longer than itself runs out of fuel.
pub(super) fn measure(state: &State, value: &Value) -> Result<u64, Error> {
    fn walk(state: &State, value: &Value, depth: usize) -> Result<u64, Error> {
        if depth > MAX_DEPTH {
            let detail = format!("value nested deeper than {MAX_DEPTH}");
            return Err(Error::new(ErrorKind::InvalidOperation, detail));
        }
        let mut bytes = value.as_str().map_or(0, str::len) as u64;
        // An iterator of unknown length may be one that can be read only once.
        let is_list = match value.kind() {
            ValueKind::Seq => true,
            ValueKind::Iterable => value.len().is_some(),
            ValueKind::Map => false,
            _ => return Ok(bytes),
        };
        for item in value.try_iter()? {
            state.consume_fuel(1)?;
            bytes = bytes.saturating_add(walk(state, &item, depth + 1)?);
            if !is_list {
                bytes = bytes.saturating_add(walk(state, &value.get_item(&item)?, depth + 1)?);
            }
        }
        Ok(bytes)
    }
    walk(state, value, 0)
}

/// Collects output up to a limit in bytes.
#[derive(Debug)]
pub(super) struct Capped {
    pub text: Vec<u8>,
    pub full: bool,
    limit: usize,
}

impl Capped {
    pub fn new(limit: usize) -> Self {
        Self { text: Vec::new(), full: false, limit }
    }
}

impl std::io::Write for &mut Capped {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.text.len() + bytes.len() > self.limit {
            self.full = true;
            return Err(std::io::Error::other("too much output"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
