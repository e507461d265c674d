//! Every flag, declared once: help, man pages and completions are made from these declarations.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use minfer_engine::{GpuLayers, Isa, PlaceRule};

use crate::commands::{
    bench, chat, completions, config, detokenize, devices, graph, inspect, list, logits, man, perplexity,
    pull, rm, run, tokenize,
};
use crate::settings::{KvType, PlaceBy, Value};

const AFTER_HELP: &str = "\
Exit codes:
  0    done
  1    the output could not be written
  2    usage: a flag, a MINFER_* variable or the configuration file is wrong
  3    model: it cannot be had, read or run
  4    input: the prompt, token ids or sampling parameters are unusable
  5    device: it cannot be opened, is too small or failed
  70   a fault of minfer itself
  130  interrupted";

/// Run GGUF language models.
///
/// MODEL is a path to a GGUF file, a name of the catalog (see `minfer list`), or hf:org/repo[:quant|file]. A model that is
/// not on this machine is fetched first. Results go to standard output, everything else to standard error.
#[derive(Debug, Parser)]
#[command(name = "minfer", version, after_help = AFTER_HELP, propagate_version = true)]
#[command(arg_required_else_help = true, max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    pub globals: Globals,
    #[command(subcommand)]
    pub command: Command,
}

/// Flags that every command takes.
#[derive(Debug, Args)]
pub struct Globals {
    /// The configuration file [env: MINFER_CONFIG]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub config: Option<PathBuf>,
    /// The folder of models [env: MINFER_MODELS]
    #[arg(long = "models", global = true, value_name = "DIR", help_heading = "Global options")]
    pub models: Option<PathBuf>,
    /// Say on standard error which device, instruction set and settings are used, and how long things take
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub verbose: bool,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Run(run::RunArgs),
    Chat(chat::ChatArgs),
    Logits(logits::LogitsArgs),
    Tokenize(tokenize::TokenizeArgs),
    Detokenize(detokenize::DetokenizeArgs),
    Inspect(inspect::InspectArgs),
    Graph(graph::GraphArgs),
    Bench(bench::BenchArgs),
    Perplexity(perplexity::PerplexityArgs),
    Devices(devices::DevicesArgs),
    Config(config::ConfigArgs),
    Pull(pull::PullArgs),
    List(list::ListArgs),
    Rm(rm::RmArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

/// The model to use.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// A path, a catalog name, or hf:org/repo[:quant|file] [env: MINFER_MODEL] [default: smollm2-135m]
    #[arg(short, long)]
    pub model: Option<String>,
}

/// The model to use, in a command that is about nothing else.
#[derive(Debug, Args)]
pub struct SubjectArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The model, as -m
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    positional: Option<String>,
}

impl SubjectArgs {
    /// Its name, if one is given.
    pub fn name(&self) -> Option<&str> {
        self.positional.as_deref().or(self.model.model.as_deref())
    }
}

/// How the devices are used.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Device options")]
pub struct DeviceArgs {
    /// Threads for generating [env: MINFER_THREADS] [default: one per CPU]
    #[arg(short, long, value_name = "N", value_parser = positive)]
    pub threads: Option<usize>,
    /// Threads for prompts; -tb is the same [env: MINFER_THREADS_BATCH] [default: as --threads]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub threads_batch: Option<usize>,
    /// Element type of the KV cache [env: MINFER_KV_TYPE] [default: f16]
    #[arg(long, value_name = "TYPE")]
    pub kv_type: Option<KvType>,
    /// Devices by name, the preferred one first, such as sim,cpu; `minfer devices` lists them [env: MINFER_DEVICE]
    /// [default: every real one]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub device: Option<Vec<String>>,
    /// How much of the model devices besides the CPU may run, from its end: 1 is the output, 2 the last layer as well, and so
    /// on, or all; -ngl is the same [env: MINFER_GPU_LAYERS] [default: what they can]
    #[arg(long, value_name = "N")]
    pub gpu_layers: Option<GpuLayers>,
    /// Nodes of the graph whose name matches go to a device; may be repeated, the first that matches counts
    /// [env: MINFER_PLACE, rules divided by ;]
    #[arg(long, value_name = "REGEX=DEVICE")]
    pub place: Option<Vec<PlaceRule>>,
    /// What goes to one device as a whole: node, layer or model [env: MINFER_PLACE_BY] [default: node]
    #[arg(long, value_name = "UNIT")]
    pub place_by: Option<PlaceBy>,
    /// SIMD instruction set: scalar, avx2, avx512-vnni or neon [env: MINFER_ISA] [default: the best there is]
    #[arg(long)]
    pub isa: Option<Isa>,
}

/// How much text is held and evaluated at once.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Device options")]
pub struct ContextArgs {
    /// Context length in tokens [env: MINFER_CONTEXT] [default: the model's, at most 8192]
    #[arg(short, long, value_name = "N", value_parser = positive)]
    pub context: Option<usize>,
    /// Prompt tokens evaluated in one step [env: MINFER_BATCH] [default: 512]
    #[arg(short, long, value_name = "N", value_parser = positive)]
    pub batch: Option<usize>,
}

/// Reads a count that may not be 0, by the rule that variables and the file have as well.
pub fn positive(text: &str) -> Result<usize, String> {
    usize::from_text(text).ok_or_else(|| format!("expected {}", usize::EXPECTED))
}
