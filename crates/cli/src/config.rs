//! The configuration: flags, then `MINFER_*` variables, then a TOML file, then defaults. Read once, at the start.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use minfer_engine::{EngineOptions, Isa, Placement, Watching};
use minfer_hub::{DEFAULT_MODEL, Store};

use crate::args::{ContextArgs, DeviceArgs, Globals};
use crate::read;
use crate::settings::{KvType, PlaceBy, Value};

/// Every variable of minfer begins so.
const PREFIX: &str = "MINFER_";
/// The variable that names the configuration file.
const FILE_VARIABLE: &str = "MINFER_CONFIG";

/// What is wrong with the environment or the configuration file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("configuration file {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file is not TOML.
    #[error("configuration file {}: {problem}", path.display())]
    Syntax { path: PathBuf, problem: String },
    /// A key that means nothing.
    #[error("{place}: unknown key {key}; known are {known}")]
    Unknown { place: String, key: String, known: String },
    /// A value of another type or range.
    #[error("{place}: {key} is {value}, but must be {expected}")]
    Bad { place: String, key: String, value: String, expected: &'static str },
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Flag,
    /// This variable.
    Variable(String),
    /// This file.
    File(PathBuf),
    /// Nobody said anything.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("flag"),
            Self::Variable(name) => write!(f, "environment {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A setting as `minfer config` shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    /// The key in the file; in capitals after `MINFER_`, the variable.
    pub key: &'static str,
    /// The value; null where it is left to the model or the machine.
    pub value: serde_json::Value,
    /// Where it comes from.
    pub origin: Origin,
}

/// The typed configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The folder of models; `None` where none is known, which matters only if it is needed.
    pub models: Option<PathBuf>,
    /// The model used when none is named.
    pub model: String,
    /// Whether to say more on standard error.
    pub verbose: bool,
    /// How models are run.
    pub engine: EngineOptions,
    /// All of it, for people.
    pub shown: Vec<Shown>,
}

/// What the command line says.
#[derive(Debug, Default)]
pub struct Flags<'a> {
    pub model: Option<&'a str>,
    pub devices: DeviceArgs,
    pub context: ContextArgs,
}

impl Config {
    /// Reads the environment and the file, and puts the flags above them.
    pub fn load(globals: &Globals, flags: Flags<'_>) -> Result<Self, ConfigError> {
        let mut sources = Sources {
            variables: variables()?,
            file: BTreeMap::new(),
            path: PathBuf::new(),
            shown: Vec::new(),
        };
        sources.read_file(globals.config.as_deref())?;
        sources.resolve(globals, flags)
    }

    /// The store of models.
    pub fn store(&self) -> Result<Store, minfer_hub::Error> {
        self.models.clone().map(Store::new).ok_or(minfer_hub::Error::NoHome)
    }
}

/// All `MINFER_*` variables.
fn variables() -> Result<BTreeMap<String, String>, ConfigError> {
    let ours = env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    ours.filter(|(name, _)| name.starts_with(PREFIX))
        .map(|(name, value)| {
            let value = value.into_string().map_err(|value| ConfigError::Bad {
                place: "environment".to_owned(),
                key: name.clone(),
                value: format!("{value:?}"),
                expected: "valid Unicode",
            })?;
            Ok((name, value))
        })
        .collect()
}

/// `minfer/config.toml` in the user's configuration folder.
pub fn default_file() -> Option<PathBuf> {
    Some(user_folder("XDG_CONFIG_HOME", ".config")?.join("minfer").join("config.toml"))
}

/// One of the user's folders by its variable, else by its place in the home folder.
pub fn user_folder(variable: &str, in_home: &str) -> Option<PathBuf> {
    let absolute = |value: OsString| Some(PathBuf::from(value)).filter(|path| path.is_absolute());
    env::var_os(variable)
        .and_then(absolute)
        .or_else(|| env::var_os("HOME").and_then(absolute).map(|home| home.join(in_home)))
}

/// What is not yet taken of the environment and the file.
struct Sources {
    variables: BTreeMap<String, String>,
    file: BTreeMap<String, toml::Value>,
    path: PathBuf,
    shown: Vec<Shown>,
}

impl Sources {
    /// Reads the file that the flag, the variable or the custom names; only the last need not exist.
    fn read_file(&mut self, flag: Option<&Path>) -> Result<(), ConfigError> {
        let variable = self.variables.remove(FILE_VARIABLE).map(PathBuf::from);
        let (path, optional) = match (flag.map(Path::to_owned).or(variable), default_file()) {
            (Some(path), _) => (path, false),
            (None, Some(path)) => (path, true),
            (None, None) => return Ok(()),
        };
        let text = read::file(&path).and_then(|bytes| {
            String::from_utf8(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e.utf8_error()))
        });
        let text = match text {
            // A home folder may be none, such as /dev/null.
            Err(e)
                if optional && matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
            {
                return Ok(());
            }
            other => other.map_err(|source| ConfigError::Read { path: path.clone(), source })?,
        };
        self.file = toml::from_str(&text)
            .map_err(|e| ConfigError::Syntax { path: path.clone(), problem: problem(&text, &e) })?;
        self.path = path;
        Ok(())
    }

    fn resolve(mut self, globals: &Globals, flags: Flags<'_>) -> Result<Config, ConfigError> {
        let defaults = EngineOptions::default();
        let Flags { model, devices, context } = flags;
        let models = self.take("models", globals.models.clone(), || Store::default_dir().ok())?;
        let model = self.take("model", model.map(str::to_owned), || Some(DEFAULT_MODEL.to_owned()))?;
        let verbose = self.take("verbose", globals.verbose.then_some(true), || Some(false))?;
        let threads =
            self.take("threads", devices.threads, || Some(defaults.threads))?.unwrap_or(defaults.threads);
        let threads_batch = self.take("threads_batch", devices.threads_batch, || Some(threads))?;
        let kv_type = self.take("kv_type", devices.kv_type, || Some(KvType::F16))?.unwrap_or(KvType::F16);
        let isa = self.take::<Isa>("isa", devices.isa, || None)?;
        let device = self.take("device", devices.device, || None)?;
        let gpu_layers = self.take("gpu_layers", devices.gpu_layers, || None)?;
        let place = self.take("place", devices.place, || None)?;
        let place_by = self.take("place_by", devices.place_by, || Some(PlaceBy::Node))?;
        let n_ctx = self.take("context", context.context, || None)?;
        let n_batch = self.take("batch", context.batch, || Some(EngineOptions::DEFAULT_BATCH))?;
        let watching = self.take_watching()?;
        self.refuse_the_rest()?;
        let engine = EngineOptions {
            n_ctx,
            n_batch: n_batch.unwrap_or(EngineOptions::DEFAULT_BATCH),
            kv_type: kv_type.tensor_type(),
            threads,
            threads_batch: threads_batch.unwrap_or(threads),
            isa,
            placement: Placement {
                devices: device.unwrap_or_default(),
                gpu_layers,
                rules: place.unwrap_or_default(),
                unit: place_by.unwrap_or(PlaceBy::Node).unit(),
            },
            watching,
            ..defaults
        };
        Ok(Config {
            models,
            model: model.unwrap_or_else(|| DEFAULT_MODEL.to_owned()),
            verbose: verbose.unwrap_or(false),
            engine,
            shown: self.shown,
        })
    }

    /// What is watched: no flags, since this is looked for in any command and seldom.
    fn take_watching(&mut self) -> Result<Watching, ConfigError> {
        Ok(Watching {
            graph_trace: self.take("graph_trace", None, || Some(false))?.unwrap_or(false),
            op_profile: self.take("op_profile", None, || Some(false))?.unwrap_or(false),
            graph_dump: self.take("graph_dump", None, || None)?,
            trace: self.take("trace", None, || None)?,
        })
    }

    /// One setting from the first source that has it.
    fn take<T: Value>(
        &mut self,
        key: &'static str,
        flag: Option<T>,
        default: impl FnOnce() -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let name = format!("{PREFIX}{}", key.to_uppercase());
        // Those that are overruled have to be right as well.
        let variable = self.variables.remove(&name).map(|text| {
            T::from_text(&text).ok_or_else(|| ConfigError::Bad {
                place: "environment".to_owned(),
                key: name.clone(),
                value: format!("{text:?}"),
                expected: T::EXPECTED,
            })
        });
        let variable = variable.transpose()?;
        let in_file = self.file.remove(key).map(|value| {
            T::from_toml(&value).ok_or_else(|| ConfigError::Bad {
                place: self.place(),
                key: key.to_owned(),
                value: value.to_string(),
                expected: T::EXPECTED,
            })
        });
        let in_file = in_file.transpose()?;
        let (value, origin) = match (flag, variable, in_file) {
            (Some(value), _, _) => (Some(value), Origin::Flag),
            (None, Some(value), _) => (Some(value), Origin::Variable(name)),
            (None, None, Some(value)) => (Some(value), Origin::File(self.path.clone())),
            (None, None, None) => (default(), Origin::Default),
        };
        let json = value.as_ref().map_or(serde_json::Value::Null, T::to_json);
        self.shown.push(Shown { key, value: json, origin });
        Ok(value)
    }

    fn place(&self) -> String {
        format!("configuration file {}", self.path.display())
    }

    fn refuse_the_rest(&self) -> Result<(), ConfigError> {
        let keys = || self.shown.iter().map(|s| s.key);
        if let Some(name) = self.variables.keys().next() {
            let known = keys().map(|k| format!("{PREFIX}{}", k.to_uppercase()));
            return Err(ConfigError::Unknown {
                place: "environment".to_owned(),
                key: name.clone(),
                known: known.chain([FILE_VARIABLE.to_owned()]).collect::<Vec<_>>().join(", "),
            });
        }
        match self.file.keys().next() {
            None => Ok(()),
            Some(key) => Err(ConfigError::Unknown {
                place: self.place(),
                key: key.clone(),
                known: keys().collect::<Vec<_>>().join(", "),
            }),
        }
    }
}

/// Where a file is not TOML, and why; the library's own words are a drawing of several lines.
fn problem(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let (line, start) = (before.matches('\n').count() + 1, before.rfind('\n').map_or(0, |at| at + 1));
    format!("line {line}, column {}: {}", before[start..].chars().count() + 1, error.message())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(variables: &[(&str, &str)], file: &str) -> Sources {
        Sources {
            variables: variables.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect(),
            file: toml::from_str(file).unwrap(),
            path: PathBuf::from("c.toml"),
            shown: Vec::new(),
        }
    }

    fn resolve(variables: &[(&str, &str)], file: &str, threads: Option<usize>) -> Result<Config, String> {
        let globals = Globals { config: None, models: None, verbose: false };
        let devices = DeviceArgs { threads, ..DeviceArgs::default() };
        let flags = Flags { devices, ..Flags::default() };
        sources(variables, file).resolve(&globals, flags).map_err(|e| e.to_string())
    }

    #[test]
    fn flags_come_before_variables_before_the_file_before_defaults() {
        let origin =
            |config: &Config, key| config.shown.iter().find(|s| s.key == key).unwrap().origin.clone();
        let variables = [("MINFER_THREADS", "2"), ("MINFER_BATCH", "64")];
        let file = "threads = 1\nbatch = 32\ncontext = 99";
        let config = resolve(&variables, file, Some(3)).unwrap();
        let engine = &config.engine;
        assert_eq!((engine.threads, engine.threads_batch, engine.n_batch), (3, 3, 64));
        assert_eq!((engine.n_ctx, engine.kv_type), (Some(99), KvType::F16.tensor_type()));
        assert_eq!(origin(&config, "threads"), Origin::Flag);
        assert_eq!(origin(&config, "batch"), Origin::Variable("MINFER_BATCH".into()));
        assert_eq!(origin(&config, "context"), Origin::File("c.toml".into()));
        assert_eq!(origin(&config, "kv_type"), Origin::Default);
        assert_eq!(resolve(&variables, file, None).unwrap().engine.threads, 2);
        assert_eq!(resolve(&[], file, None).unwrap().engine.threads, 1);
    }

    #[track_caller]
    fn refused(variables: &[(&str, &str)], file: &str, wanted: &str) {
        let message = resolve(variables, file, Some(1)).unwrap_err();
        assert!(message.starts_with(wanted), "{message}");
    }

    #[test]
    fn unknown_keys_and_wrong_values_are_named_even_where_overruled() {
        refused(
            &[("MINFER_THREAD", "1")],
            "",
            "environment: unknown key MINFER_THREAD; known are MINFER_MODELS,",
        );
        refused(&[], "thread = 1", "configuration file c.toml: unknown key thread; known are models,");
        refused(
            &[("MINFER_THREADS", "two")],
            "",
            "environment: MINFER_THREADS is \"two\", but must be a whole",
        );
        refused(
            &[],
            "threads = 0",
            "configuration file c.toml: threads is 0, but must be a whole number above 0",
        );
        refused(
            &[("MINFER_VERBOSE", "yes")],
            "",
            "environment: MINFER_VERBOSE is \"yes\", but must be true or",
        );
        refused(&[], "isa = \"sse\"", "configuration file c.toml: isa is \"sse\", but must be scalar,");
        refused(&[], "kv_type = 16", "configuration file c.toml: kv_type is 16, but must be f16 or f32");
    }
}
