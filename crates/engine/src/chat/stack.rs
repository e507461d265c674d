//! Room for templates that nest expressions or values in each other.

use std::{io, panic, thread};

/// Bytes of the stack that templates are compiled and run on. It is address space: memory is taken as far as it is used,
/// which is a few pages unless a template was written to use more. The source can hold an expression of 50,000 operators, each
/// within the next, and fuel allows values nested more than a million times; the template engine walks down both.
const STACK: usize = 1 << 30;

/// Runs `f` on a thread with that stack, and waits for it.
pub(super) fn on_deep_stack<T: Send>(f: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("chat-template".to_owned()).stack_size(STACK);
        let thread = builder.spawn_scoped(scope, f)?;
        Ok(thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic)))
    })
}
