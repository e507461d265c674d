//! `minfer chat`: a conversation.

mod conversation;
mod input;

use std::path::Path;

use clap::Args;
use minfer_engine::{EngineError, Event, FinishReason, Flow, Request, Sequence};
use minfer_tokenizer::Special;

use crate::args::{ContextArgs, DeviceArgs, Globals, ModelArgs};
use crate::commands::run::{GenerationArgs, report};
use crate::config::{Config, Flags};
use crate::exit::Failure;
use crate::model::{self, Loaded};
use crate::progress::{Bar, notice, say};
use crate::prompt::{self, Evaluated};
use crate::sampling::SamplingArgs;
use crate::{interrupt, output};
use conversation::Conversation;
use input::{Entry, Input};

const COMMANDS: &str = "\
/clear         forget the conversation
/regen         answer again
/system TEXT   set the system message; without TEXT, remove it
/save FILE     write the conversation as JSON
/load FILE     go on with a conversation that was saved
/help          this
/exit          end, as Ctrl-D does
A line that ends in \\ goes on in the next; \"\"\" begins and ends a text of several lines. Ctrl-C stops a reply.";

const ROOM: &str = "/clear starts anew, -c makes it longer";

/// Talk with a model
///
/// Each line is a message; replies go to standard output. Only what is new is evaluated each turn. Lines that begin with / are
/// commands, /help lists them. A model without a chat template goes on with the text so far. When standard input is no
/// terminal, the first error ends the program.
///
/// What is typed is kept for the next time in minfer/history in the user's state folder ($XDG_STATE_HOME, else
/// ~/.local/state), unless --no-history is given.
#[derive(Debug, Args)]
pub struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The system message
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Neither read nor keep what was typed
    #[arg(long)]
    no_history: bool,
    #[command(flatten)]
    generation: GenerationArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    devices: DeviceArgs,
    #[command(flatten)]
    context: ContextArgs,
}

pub fn run(args: ChatArgs, globals: &Globals) -> Result<(), Failure> {
    let flags = Flags {
        model: args.model.model.as_deref(),
        devices: args.devices.clone(),
        context: args.context.clone(),
    };
    let config = Config::load(globals, flags)?;
    let mut sampling = args.sampling.params()?;
    let engine = model::load(&config)?;
    sampling.logit_bias = args.sampling.logit_bias(engine.info().vocab_size)?;
    if engine.chat_template().is_none() {
        notice("the model has no chat template: it goes on with the text so far");
    }
    let mut input = Input::open(!args.no_history)?;
    if input.is_terminal() {
        say(format_args!("{}; /help lists the commands", config.model));
    }
    let mut chat = Chat {
        sequence: engine.new_sequence(),
        engine,
        sampling,
        generation: args.generation,
        conversation: Conversation { system: args.system, messages: Vec::new() },
        evaluated: Evaluated::default(),
        last_prompt: Evaluated::default(),
        verbose: config.verbose,
    };
    loop {
        let done = match input.next()? {
            Entry::End => return Ok(()),
            Entry::Nothing => continue,
            Entry::Text(text) => match text.strip_prefix('/') {
                Some("exit" | "quit") => return Ok(()),
                Some(command) => chat.command(command),
                None => chat.say(text),
            },
        };
        match done {
            Err(failure) if input.is_terminal() && !matches!(failure, Failure::Output(_)) => failure.report(),
            done => done?,
        }
    }
}

struct Chat {
    engine: Loaded,
    sequence: Sequence,
    sampling: minfer_engine::sampling::SamplingParams,
    generation: GenerationArgs,
    conversation: Conversation,
    /// The conversation's text and tokens up to the end of the last reply.
    evaluated: Evaluated,
    /// Those that the last reply was made from.
    last_prompt: Evaluated,
    verbose: bool,
}

impl Chat {
    fn command(&mut self, line: &str) -> Result<(), Failure> {
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        match name {
            "help" => say(COMMANDS),
            "clear" => {
                self.conversation.messages.clear();
                self.evaluated = Evaluated::default();
                notice("the conversation is forgotten");
            }
            "regen" => return self.answer_again(),
            "system" => {
                self.conversation.system = Some(rest.to_owned()).filter(|text| !text.is_empty());
                notice(if rest.is_empty() {
                    "no system message from now on"
                } else {
                    "the system message is set"
                });
            }
            "save" => {
                self.conversation.save(file(name, rest)?)?;
                notice(&format!("saved {} to {rest}", self.conversation.count()));
            }
            "load" => {
                self.conversation = Conversation::load(file(name, rest)?)?;
                self.evaluated = Evaluated::default();
                notice(&format!("going on after {} from {rest}", self.conversation.count()));
            }
            _ => return Err(Failure::Input(format!("there is no command /{name}; /help lists them"))),
        }
        Ok(())
    }

    fn say(&mut self, text: String) -> Result<(), Failure> {
        self.conversation.push("user", text);
        self.reply().inspect_err(|_| {
            // What could not be answered must not stand in the way of what is said next.
            self.conversation.pop("user");
        })
    }

    fn answer_again(&mut self) -> Result<(), Failure> {
        let Some(answer) = self.conversation.pop("assistant") else {
            return Err(Failure::Input("/regen: there is no reply yet".to_owned()));
        };
        // From the very same tokens, but not with the same random numbers.
        self.evaluated = self.last_prompt.clone();
        self.sampling.seed = self.sampling.seed.wrapping_add(1);
        self.reply().inspect_err(|_| self.conversation.messages.push(answer))
    }

    /// Generates and prints the reply to the last message.
    fn reply(&mut self) -> Result<(), Failure> {
        let prompt = match self.engine.chat_template() {
            Some(template) => {
                prompt::conversation(&self.engine, template, &self.conversation.all(), &self.evaluated)?
            }
            None => {
                let text = self.conversation.text();
                Evaluated { ids: prompt::raw(&self.engine, text.as_bytes(), Special::AsText), text }
            }
        };
        let request = Request {
            prompt: &prompt.ids,
            sampling: self.sampling.clone(),
            max_tokens: self.generation.max_tokens(),
            stop: &self.generation.stop,
            ignore_eos: self.generation.ignore_eos,
        };
        let watch = interrupt::watch()?;
        let mut bar = Bar::count("prompt");
        let mut written = Ok(());
        let done = self.engine.generate(&mut self.sequence, &request, &mut |event| {
            match event {
                Event::Prompt { done, total } => bar.set(done as u64, total as u64),
                Event::Text(text) => written = output::text(text),
            }
            if written.is_err() { Flow::Break(()) } else { watch.flow() }
        });
        let done = done.map_err(|error| match error {
            EngineError::PromptTooLong { .. } => Failure::Input(format!("{error}; {ROOM}")),
            error => error.into(),
        })?;
        written?;
        output::text("\n")?;
        drop(watch);
        match done.finish_reason {
            FinishReason::Length if self.generation.max_tokens().is_none_or(|n| done.tokens.len() < n) => {
                notice(&format!("the context is full; {ROOM}"));
            }
            FinishReason::Cancelled => notice("stopped"),
            _ => {}
        }
        if self.verbose {
            report(&done, self.sampling.seed);
        }
        self.evaluated = prompt.clone().then(&self.engine, &done);
        self.last_prompt = prompt;
        self.conversation.push("assistant", done.text);
        Ok(())
    }
}

fn file<'a>(command: &str, name: &'a str) -> Result<&'a Path, Failure> {
    if name.is_empty() {
        return Err(Failure::Input(format!("/{command} needs a file name")));
    }
    Ok(Path::new(name))
}
