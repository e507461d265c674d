use std::error::Error as _;

use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value};

use super::control::ControlTokens;
use super::environment::{Capped, FUEL, MAX_OUTPUT, NOW, Raised, environment};
use super::message::ContentStyle;
use super::stack::on_deep_stack;
use super::tags::{long_tag, replace_generation_tags};
use super::{DateTime, Message, Rendered, provenance};

/// Why a template could not be compiled, or a conversation not be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The source is not a template.
    #[error("chat template, line {line}: {message}")]
    Syntax {
        /// Line in the source, from 1; 0 where unknown.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The template called `raise_exception`: it refuses this conversation.
    #[error("the chat template refuses the conversation: {0}")]
    Raised(String),
    /// The template failed.
    #[error("chat template, line {line}: {message}")]
    Failed {
        /// Line in the source, from 1; 0 where unknown.
        line: usize,
        /// What went wrong.
        message: String,
    },
    /// The template ran too long.
    #[error("the chat template takes more than {FUEL} steps")]
    OutOfFuel,
    /// The template printed too much.
    #[error("the chat template prints more than {MAX_OUTPUT} bytes")]
    TooLong,
    /// A message has a part that is not text.
    #[error("messages[{message}]: content part of type {kind:?} is not supported, only \"text\"")]
    UnsupportedPart {
        /// Position in the conversation.
        message: usize,
        /// Type of the part.
        kind: String,
    },
    /// A part of type `text` lacks its text.
    #[error("messages[{message}]: content part of type \"text\" without text")]
    PartWithoutText {
        /// Position in the conversation.
        message: usize,
    },
    /// A message spells a control token that the template searches for, so that it cannot be kept apart as plain text.
    #[error("a message contains {token:?}, which the chat template gives a meaning")]
    ControlText {
        /// The control token.
        token: String,
    },
    /// An extra variable has the name of one that the caller does not set.
    #[error("template variable {name:?} cannot be set")]
    ReservedVariable {
        /// The name.
        name: String,
    },
    /// The control tokens cannot be searched for.
    #[error("control tokens: {0}")]
    ControlTokens(String),
}

/// Texts of special tokens, for the template's variables and for keeping them out of messages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// `bos_token`; undefined in the template where none, like the others.
    pub bos: Option<String>,
    /// `eos_token`.
    pub eos: Option<String>,
    /// `unk_token`.
    pub unknown: Option<String>,
    /// `pad_token`.
    pub padding: Option<String>,
    /// Every token that plain text must never become: control and unknown, not user-defined.
    pub control: Vec<String>,
}

/// The special tokens of a vocabulary.
pub fn special_tokens(tokenizer: &minfer_tokenizer::Tokenizer) -> SpecialTokens {
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).map(str::to_owned);
    let ids = 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    let hidden = |id: &u32| tokenizer.is_control(*id) || tokenizer.unknown() == Some(*id);
    SpecialTokens {
        bos: text(tokenizer.bos()),
        eos: text(tokenizer.eos()),
        unknown: text(tokenizer.unknown()),
        padding: text(tokenizer.padding()),
        control: ids.filter(hidden).filter_map(|id| text(Some(id))).collect(),
    }
}

/// What a render needs besides the messages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RenderOptions {
    /// End with the header of a reply, so that the model writes one.
    pub add_generation_prompt: bool,
    /// Tools as JSON schemas, an array; the template's `tools` is none where absent.
    pub tools: Option<Value>,
    /// Documents for retrieval, an array; none where absent.
    pub documents: Option<Value>,
    /// What `strftime_now` prints; the local time where absent.
    pub now: Option<DateTime>,
    /// More variables, such as `enable_thinking`.
    pub variables: Map<String, Value>,
}

/// A compiled chat template. Rendering does not change it; share it between threads.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
    special: SpecialTokens,
    control: ControlTokens,
    style: ContentStyle,
}

const NAME: &str = "chat";
/// Bytes of the longest accepted template and line; those of real models have up to about 30,000.
const MAX_SOURCE: usize = 100_000;
const MAX_LINE: usize = 60_000;
/// Bytes of the longest accepted tag without its strings; those of real models have a few hundred. The template engine takes
/// time in proportion to the square of an expression's length to compile it.
const MAX_TAG: usize = 4096;

impl ChatTemplate {
    /// Compiles the Jinja source of a model file.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`] where it does not compile.
    pub fn new(source: &str, special: SpecialTokens) -> Result<Self, TemplateError> {
        // The engine counts columns and call arguments in 16 bits.
        let long = source.lines().position(|line| line.len() > MAX_LINE);
        if let Some(line) = long.or((source.len() > MAX_SOURCE).then_some(0)) {
            let message = format!("longer than {MAX_SOURCE} bytes, or a line longer than {MAX_LINE}");
            return Err(TemplateError::Syntax { line: line + 1, message });
        }
        if let Some(tag) = long_tag(source, MAX_TAG) {
            let line = 1 + source[..tag.start].matches('\n').count();
            let message = format!("a tag longer than {MAX_TAG} bytes, not counting strings");
            return Err(TemplateError::Syntax { line, message });
        }
        on_deep_stack(|| Self::compile(source, special)).map_err(no_stack)?
    }

    fn compile(source: &str, special: SpecialTokens) -> Result<Self, TemplateError> {
        let mut env = environment().map_err(|e| failed(&e))?;
        env.add_template_owned(NAME, replace_generation_tags(source).into_owned())
            .map_err(|e| TemplateError::Syntax { line: e.line().unwrap_or(0), message: describe(&e) })?;
        let control = ControlTokens::new(special.control.iter().cloned())
            .map_err(|e| TemplateError::ControlTokens(e.to_string()))?;
        let source = source.to_owned();
        let mut template = Self { env, source, special, control, style: ContentStyle::Text };
        // A hostile template must not make loading slow: the probe gets a small share of what a render may use.
        template.env.set_fuel(Some(FUEL / 50));
        template.style = template.probe_style();
        template.env.set_fuel(Some(FUEL));
        Ok(template)
    }

    /// The source it was made of.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The special tokens it was made with.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// The prompt for a conversation.
    ///
    /// # Errors
    /// [`TemplateError::Raised`] with the template's own words where it refuses the conversation, [`TemplateError::Failed`],
    /// [`TemplateError::OutOfFuel`] and [`TemplateError::TooLong`] where it fails, the others for input that cannot be
    /// expressed.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<Rendered, TemplateError> {
        let context = context(messages, options, self.style)?;
        // One moment for all runs of this render.
        let now = options.now.unwrap_or_else(|| jiff::ZonedDateTime::now().datetime());
        let run = |context: &Map<String, Value>| self.run(context, now, MAX_OUTPUT);
        on_deep_stack(|| provenance::locate(&self.control, &context, run(&context)?, run))
            .map_err(no_stack)?
    }

    fn run(
        &self,
        context: &Map<String, Value>,
        now: DateTime,
        limit: usize,
    ) -> Result<String, TemplateError> {
        let mut variables: Vec<(&str, minijinja::Value)> =
            context.iter().map(|(k, v)| (k.as_str(), Serde(v).into())).collect();
        let special = &self.special;
        for (name, token) in [
            ("bos_token", &special.bos),
            ("eos_token", &special.eos),
            ("unk_token", &special.unknown),
            ("pad_token", &special.padding),
        ] {
            variables.extend(token.as_ref().map(|text| (name, minijinja::Value::from(text))));
        }
        variables.push((NOW, now.to_string().into()));
        let mut output = Capped::new(limit);
        let template = self.env.get_template(NAME).map_err(|e| failed(&e))?;
        let result = template
            .render_captured_to(minijinja::Value::from_pairs(variables), &mut output)
            .map(|_| ())
            .map_err(|e| failed(&e));
        if output.full {
            return Err(TemplateError::TooLong);
        }
        result?;
        String::from_utf8(output.text)
            .map_err(|e| TemplateError::Failed { line: 0, message: format!("output is not UTF-8: {e}") })
    }

    /// Some templates loop over the parts of a message and print nothing for a string. Shows which kind this one is.
    fn probe_style(&self) -> ContentStyle {
        let probe = "minfer-probe";
        let prints = |style| {
            let context = context(&[Message::new("user", probe)], &RenderOptions::default(), style);
            let output = context.and_then(|context| self.run(&context, DateTime::default(), MAX_OUTPUT / 50));
            output.is_ok_and(|text| text.contains(probe))
        };
        let parts = !prints(ContentStyle::Text) && prints(ContentStyle::Parts);
        if parts { ContentStyle::Parts } else { ContentStyle::Text }
    }
}

/// The variables that come from outside.
fn context(
    messages: &[Message],
    options: &RenderOptions,
    style: ContentStyle,
) -> Result<Map<String, Value>, TemplateError> {
    let messages = messages.iter().enumerate().map(|(index, m)| m.to_json(index, style));
    let mut context = Map::new();
    context.insert("messages".into(), messages.collect::<Result<Value, _>>()?);
    context.insert("tools".into(), options.tools.clone().unwrap_or(Value::Null));
    context.insert("documents".into(), options.documents.clone().unwrap_or(Value::Null));
    context.insert("add_generation_prompt".into(), options.add_generation_prompt.into());
    for (name, value) in &options.variables {
        let special = ["bos_token", "eos_token", "unk_token", "pad_token", NOW];
        if context.contains_key(name) || special.contains(&name.as_str()) {
            return Err(TemplateError::ReservedVariable { name: name.clone() });
        }
        context.insert(name.clone(), value.clone());
    }
    Ok(context)
}

fn failed(error: &minijinja::Error) -> TemplateError {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return TemplateError::Raised(message.clone());
        }
        source = inner.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return TemplateError::OutOfFuel;
    }
    TemplateError::Failed { line: error.line().unwrap_or(0), message: describe(error) }
}

fn no_stack(error: std::io::Error) -> TemplateError {
    TemplateError::Failed { line: 0, message: format!("no thread for it: {error}") }
}

fn describe(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
