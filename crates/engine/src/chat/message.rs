use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::TemplateError;

/// One message of a conversation, as the OpenAI API writes it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or whatever the template knows.
    pub role: String,
    /// What is said; none where there are only tool calls.
    #[serde(default)]
    pub content: Option<Content>,
    /// All other fields, handed to the template as they are: `name`, `tool_calls`, `tool_call_id`, `reasoning_content`…
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Message {
    /// A message of plain text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        Self { role: role.into(), content: Some(Content::Text(text.into())), extra: Map::new() }
    }
}

/// Text, or a list of typed parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// Parts; only those of type `text` are supported.
    Parts(Vec<Part>),
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// `text`, `image_url`, …
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of a part of type `text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// How a template wants the content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentStyle {
    /// One string: several text parts are joined by line breaks.
    Text,
    /// Always a list of parts.
    Parts,
}

impl Message {
    /// The object that the template sees. `index` is the position in the conversation, for errors.
    pub(super) fn to_json(&self, index: usize, style: ContentStyle) -> Result<Value, TemplateError> {
        let content = match &self.content {
            None => Value::Null,
            Some(Content::Text(text)) => match style {
                ContentStyle::Text => text.as_str().into(),
                ContentStyle::Parts => parts_json([text.as_str()]),
            },
            Some(Content::Parts(parts)) => {
                let texts = parts
                    .iter()
                    .map(|part| match (part.kind.as_str(), &part.text) {
                        ("text", Some(text)) => Ok(text.as_str()),
                        ("text", None) => Err(TemplateError::PartWithoutText { message: index }),
                        (kind, _) => {
                            Err(TemplateError::UnsupportedPart { message: index, kind: kind.to_owned() })
                        }
                    })
                    .collect::<Result<Vec<_>, _>>()?;
                match style {
                    ContentStyle::Text => texts.join("\n").into(),
                    ContentStyle::Parts => parts_json(texts),
                }
            }
        };
        let mut object = Map::new();
        object.insert("role".into(), self.role.as_str().into());
        object.insert("content".into(), content);
        for (key, value) in &self.extra {
            object.entry(key.as_str()).or_insert_with(|| value.clone());
        }
        Ok(Value::Object(object))
    }
}

fn parts_json<'a>(texts: impl IntoIterator<Item = &'a str>) -> Value {
    texts.into_iter().map(|text| serde_json::json!({"type": "text", "text": text})).collect()
}
