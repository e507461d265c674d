//! The GGUF container and its block formats: read, check, map, write.
