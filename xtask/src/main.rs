//! Developer commands: `cargo xtask test`, `cargo xtask loom`, `cargo xtask bench`, `cargo xtask models`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::{Parser, Subcommand};
use minfer_hub::{ModelRef, Progress, Store, catalog};

/// Developer commands for minfer.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Fetch the models the tests use and run every test: unit, property, golden, conformance, hostile files.
    Test {
        /// Only tests whose name contains this.
        filter: Option<String>,
    },
    /// Run the thread pool under the model checker loom. `test` without a filter does, too.
    Loom,
    /// Fetch the models the tests use and print where they are.
    Models,
    /// Measure prompt and generation speed of every test model.
    Bench {
        /// Further arguments of `minfer bench`, after `--`.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Task::Test { filter } => test(filter.as_deref()),
        Task::Loom => loom(),
        Task::Models => models().map(|(_, paths)| paths.iter().for_each(|p| println!("{}", p.display()))),
        Task::Bench { arguments } => bench(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("error: {what}");
            ExitCode::FAILURE
        }
    }
}

fn test(filter: Option<&str>) -> Result<(), String> {
    let (dir, _) = models()?;
    // Release: the kernels are too slow otherwise, and the guards have to hold in this profile.
    let mut command = cargo(&["test", "--workspace", "--release", "--locked"]);
    command.env("MINFER_MODELS", dir);
    if let Some(filter) = filter {
        command.args(["--", filter]);
    }
    run(&mut command)?;
    if filter.is_none() { loom() } else { Ok(()) }
}

/// `docs/concurrency.md` says what this shows. Of the flags' effects nothing is shared with other builds, hence the
/// folder of its own.
fn loom() -> Result<(), String> {
    let mut command = cargo(&["test", "--package", "minfer-backend-cpu", "--lib", "--locked", "pool::model"]);
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", root().join("target/loom"));
    run(command.env("CARGO_PROFILE_DEV_DEBUG", "0"))
}

fn bench(arguments: &[String]) -> Result<(), String> {
    let (_, paths) = models()?;
    for path in paths {
        let mut command = cargo(&["run", "--release", "--quiet", "--package", "minfer", "--", "bench", "-m"]);
        run(command.arg(path).args(arguments))?;
    }
    Ok(())
}

/// Fetches what is missing of the catalog; the folder, and the models in it.
fn models() -> Result<(PathBuf, Vec<PathBuf>), String> {
    let dir = match env::var_os("MINFER_MODELS") {
        Some(dir) => PathBuf::from(dir),
        None => Store::default_dir().map_err(|e| e.to_string())?,
    };
    let store = Store::new(&dir);
    let mut paths = Vec::new();
    for entry in catalog::CATALOG {
        let model = ModelRef::parse(entry.name).map_err(|e| e.to_string())?;
        paths.push(store.pull(&model, &mut Lines).map_err(|e| format!("{}: {e}", entry.name))?);
    }
    Ok((dir, paths))
}

/// Says on stderr what is fetched, a line for each thing that happens.
struct Lines;

impl Progress for Lines {
    fn start(&mut self, label: &str, total: u64) {
        eprintln!("{label}: fetching {} MiB", total.div_ceil(1 << 20));
    }

    fn advance(&mut self, _bytes: u64) {}

    fn finish(&mut self) {}

    fn notice(&mut self, line: &str) {
        eprintln!("{line}");
    }
}

fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root()).stdin(Stdio::null());
    command
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

fn run(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("{command:?}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended with {status}")) }
}
