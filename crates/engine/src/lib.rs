//! The inference engine: sequences, paged KV, sampling, chat templates.
