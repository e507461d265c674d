//! Text to token ids and back, for every vocabulary kind a GGUF file can hold.
