//! What has been said, and its file.

use std::path::Path;

use minfer_engine::chat::{Content, Message};

use crate::exit::Failure;
use crate::read;

/// A conversation. Its file is the JSON array of messages that chat APIs take.
#[derive(Debug, Default, PartialEq)]
pub struct Conversation {
    /// Comes first, if there is one.
    pub system: Option<String>,
    /// The others in order.
    pub messages: Vec<Message>,
}

impl Conversation {
    /// Adds a message.
    pub fn push(&mut self, role: &str, text: String) {
        self.messages.push(Message::new(role, text));
    }

    /// Takes the last message back if it has this role.
    pub fn pop(&mut self, role: &str) -> Option<Message> {
        self.messages.pop_if(|last| last.role == role)
    }

    /// How many messages there are, in words.
    pub fn count(&self) -> String {
        match self.messages.len() + usize::from(self.system.is_some()) {
            1 => "1 message".to_owned(),
            n => format!("{n} messages"),
        }
    }

    /// All messages, the system's first.
    pub fn all(&self) -> Vec<Message> {
        let system = self.system.as_ref().map(|text| Message::new("system", text));
        system.into_iter().chain(self.messages.iter().cloned()).collect()
    }

    /// All texts on end, for a model that knows no roles.
    pub fn text(&self) -> String {
        let texts = self.messages.iter().map(|message| match &message.content {
            Some(Content::Text(text)) => text.as_str(),
            _ => "",
        });
        self.system.as_deref().into_iter().chain(texts).collect()
    }

    /// Writes the file.
    pub fn save(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(&self.all()).map_err(|e| Failure::Input(e.to_string()))?;
        std::fs::write(path, text + "\n")
            .map_err(|e| Failure::Input(format!("cannot write {}: {e}", path.display())))
    }

    /// Reads a file whole before anything is made of it.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        let text =
            read::file(path).map_err(|e| Failure::Input(format!("cannot read {}: {e}", path.display())))?;
        let bad = |what: String| Failure::Input(format!("{}: {what}", path.display()));
        let mut messages: Vec<Message> =
            serde_json::from_slice(&text).map_err(|e| bad(format!("is no saved conversation: {e}")))?;
        let mut system = None;
        if messages.first().is_some_and(|first| first.role == "system") {
            match messages.remove(0).content {
                Some(Content::Text(text)) => system = Some(text),
                _ => return Err(bad("the system message is not a text".to_owned())),
            }
        }
        Ok(Self { system, messages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_conversation_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.json");
        let mut conversation = Conversation { system: Some("be brief".into()), messages: Vec::new() };
        conversation.push("user", "hi \u{1F999}\n\"".into());
        conversation.push("assistant", "hello".into());
        conversation.save(&path).unwrap();
        assert_eq!(Conversation::load(&path).unwrap(), conversation);
        let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(json[2], serde_json::json!({"role": "assistant", "content": "hello"}));
        std::fs::write(&path, "{}").unwrap();
        let message = Conversation::load(&path).unwrap_err().to_string();
        assert!(message.contains("c.json: is no saved conversation"), "{message}");
    }

    #[test]
    fn only_a_message_of_that_role_is_taken_back() {
        let mut conversation = Conversation::default();
        conversation.push("user", "a".into());
        assert_eq!(conversation.pop("assistant"), None);
        assert_eq!(conversation.pop("user"), Some(Message::new("user", "a")));
        assert_eq!(conversation.pop("user"), None);
    }
}
