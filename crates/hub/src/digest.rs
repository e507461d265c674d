//! SHA-256 of files, as lower-case hex.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::{IoContext, IoError};

/// Bytes moved at a time.
pub(crate) const CHUNK: usize = 1 << 18;

pub(crate) fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Feeds the whole of `file`, from its start, into `hasher`; returns the bytes read.
pub(crate) fn hash_into(file: &mut impl Read, path: &Path, hasher: &mut Sha256) -> Result<u64, IoError> {
    let mut buffer = vec![0; CHUNK];
    let mut total = 0;
    loop {
        let n = match file.read(&mut buffer) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            other => other.context("read", path)?,
        };
        if n == 0 {
            return Ok(total);
        }
        hasher.update(&buffer[..n]);
        total += n as u64;
    }
}

pub(crate) fn sha256_file(path: &Path) -> Result<String, IoError> {
    let mut hasher = Sha256::new();
    hash_into(&mut File::open(path).context("open", path)?, path, &mut hasher)?;
    Ok(hex(&hasher.finalize()))
}

/// Whether `text` is a SHA-256 in lower-case hex.
pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_digest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("abc");
        std::fs::write(&path, "abc").unwrap();
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; // FIPS 180-4 example
        assert_eq!(sha256_file(&path).unwrap(), expected);
        assert!(is_sha256(expected));
        assert!(!is_sha256(&expected.to_uppercase()) && !is_sha256(&expected[1..]));
    }
}
