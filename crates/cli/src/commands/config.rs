//! `minfer config`: every setting, and where its value comes from.

use clap::Args;

use crate::args::{ContextArgs, DeviceArgs, Globals, ModelArgs};
use crate::config::{Config, Flags, default_file};
use crate::exit::Failure;
use crate::output;

/// Show every setting and where its value comes from
///
/// A flag comes before the variable MINFER_KEY, that before the configuration file, that before the default. The file is TOML with
/// the keys shown here, by default minfer/config.toml in the user's configuration folder. Unknown keys and variables, and values of
/// another type, are errors. What is printed can be used as the file.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Print a JSON object: for each key its value and origin
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    devices: DeviceArgs,
    #[command(flatten)]
    context: ContextArgs,
}

pub fn run(args: ConfigArgs, globals: &Globals) -> Result<(), Failure> {
    let flags = Flags { model: args.model.model.as_deref(), devices: args.devices, context: args.context };
    let config = Config::load(globals, flags)?;
    if args.json {
        let entry = |value: &_, origin: String| serde_json::json!({"value": value, "origin": origin});
        let all = config.shown.iter().map(|s| (s.key.to_owned(), entry(&s.value, s.origin.to_string())));
        return output::json(&all.collect::<serde_json::Map<_, _>>());
    }
    let mut text = String::new();
    if let Some(path) = default_file() {
        text.push_str(&format!(
            "# the configuration file, unless --config or MINFER_CONFIG names another: {}\n",
            path.display()
        ));
    }
    for shown in &config.shown {
        // JSON's texts, numbers and booleans are TOML's.
        let line = match &shown.value {
            serde_json::Value::Null => format!("# {} is not set", shown.key),
            value => format!("{} = {value}", shown.key),
        };
        text.push_str(&format!("{line:<40} # {}\n", shown.origin));
    }
    output::text(&text)
}
