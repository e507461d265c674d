//! The built program, run as a person runs it.

mod chat;
mod errors;
mod generate;
mod interrupt;
mod meta;
mod models;
mod numbers;
mod support;
mod watching;
