//! Reading what may have no end, such as `/dev/zero`.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::Path;

/// Bytes of one input at most: far more than any context holds, and no more than memory does.
const MAX: usize = 256 << 20;

/// All of a file.
pub fn file(path: &Path) -> io::Result<Vec<u8>> {
    all(File::open(path)?)
}

/// All there is, if it is not more than [`MAX`] bytes.
pub fn all(input: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(MAX as u64 + 1).read_to_end(&mut bytes)?;
    checked(bytes)
}

/// A line with its end, if there is one; nothing at the end of the input.
pub fn line(input: impl BufRead) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(MAX as u64 + 1).read_until(b'\n', &mut bytes)?;
    checked(bytes)
}

fn checked(bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    if bytes.len() <= MAX {
        return Ok(bytes);
    }
    let what = format!("there are more than {} MiB", MAX >> 20);
    Err(io::Error::new(io::ErrorKind::FileTooLarge, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_not_read() {
        let refused =
            |read: io::Result<Vec<u8>>| assert_eq!(read.unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        refused(all(io::repeat(0)));
        refused(line(io::BufReader::new(io::repeat(b'x'))));
        assert_eq!(all(io::repeat(0).take(MAX as u64)).unwrap().len(), MAX);
        let mut lines = &b"a\n\nb"[..];
        assert_eq!([(); 4].map(|()| line(&mut lines).unwrap()), [&b"a\n"[..], b"\n", b"b", b""]);
    }
}
