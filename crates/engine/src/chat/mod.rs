//! Chat templates: from messages to the prompt a model was trained on.
//!
//! A [`ChatTemplate`] is the Jinja source that a model file carries, run as Hugging Face's `apply_chat_template` runs it:
//! blocks trimmed, Python's string methods, `tojson` as `json.dumps` prints, `strftime_now`, `raise_exception`,
//! `{% generation %}`. A template that cannot be compiled or fails is an error; another format is never put in its place.
//!
//! Known differences from Jinja, beyond what `minijinja` documents: floats outside 1e-4…1e16 print without exponent (not in
//! `tojson`), and there is no `%` on strings, `center` or `wordcount`, and `int` does not
//! fall back to 0; these are errors.
//!
//! # Whose text is it
//!
//! A prompt mixes the template's own text, whose control tokens must be tokenized as such, with text of users, where the
//! same characters must stay plain text. [`Rendered::segments`] tells the two apart; how is described in `provenance.rs`.
//!
//! # Limits
//!
//! Templates come with model files from anywhere, so a render may use at most [`FUEL`] steps, which also bounds its
//! memory, and may print at most [`MAX_OUTPUT`] bytes.

mod control;
mod environment;
mod json;
mod message;
mod provenance;
mod python;
mod reasoning;
mod rendered;
mod stack;
mod strftime;
mod tags;
mod template;

pub use environment::{FUEL, MAX_OUTPUT};
pub use jiff::civil::DateTime;
pub use message::{Content, Message, Part};
pub use reasoning::{ReasoningDelta, ReasoningSplitter, ends_in_open_reasoning};
pub use rendered::{Rendered, Segment};
pub use template::{ChatTemplate, RenderOptions, SpecialTokens, TemplateError, special_tokens};
