//! Room for templates that nest values in each other.

use std::{io, panic, thread};

/// Bytes of the stack that templates run on. It is address space: memory is taken as far as it is used, which is a few pages
/// unless a template was written to nest values in each other. Its fuel allows more than a million levels, and comparing or
/// freeing them takes the template engine hundreds of bytes of stack for each.
const STACK: usize = 1 << 30;

/// Runs `f` on a thread with that stack, and waits for it.
pub(super) fn on_deep_stack<T: Send>(f: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("chat-template".to_owned()).stack_size(STACK);
        let thread = builder.spawn_scoped(scope, f)?;
        Ok(thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic)))
    })
}
