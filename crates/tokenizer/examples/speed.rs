//! Time to build a tokenizer and to encode a text: `speed MODEL.gguf [TEXT]`.

use std::time::Instant;

use minfer_gguf::Gguf;
use minfer_tokenizer::{Special, Tokenizer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let model = args.next().ok_or("usage: speed MODEL.gguf [TEXT]")?;
    let file = Gguf::open(&model)?;
    let mut tokenizer = Tokenizer::from_metadata(file.metadata())?;
    for _ in 0..3 {
        let start = Instant::now();
        tokenizer = Tokenizer::from_metadata(file.metadata())?;
        println!(
            "build: {:.1} ms for {} tokens",
            start.elapsed().as_secs_f64() * 1e3,
            tokenizer.vocab_size()
        );
    }
    for warning in tokenizer.warnings() {
        println!("warning: {warning}");
    }
    if let Some(path) = args.next() {
        let text = std::fs::read(path)?;
        for special in [Special::AsText, Special::Parse, Special::AsText] {
            let start = Instant::now();
            let ids = tokenizer.encode_bytes(&text, special);
            let seconds = start.elapsed().as_secs_f64();
            let rate = text.len() as f64 / seconds / 1e6;
            println!("encode: {rate:.1} MB/s, {} bytes to {} tokens", text.len(), ids.len());
            let start = Instant::now();
            let bytes = tokenizer.decode(&ids, false);
            println!("decode: {:.1} MB/s", bytes.len() as f64 / start.elapsed().as_secs_f64() / 1e6);
        }
    }
    Ok(())
}
