//! From token bytes to text that may be shown.
//!
//! [`TextStream`] takes the bytes of each token as it is generated and gives back the text that is certain:
//! never half a character ([`Utf8Stream`]), never a stop string or a part of one ([`StopMatcher`]). The concatenation of
//! what it gives out does not depend on how the bytes were cut.

mod stop;
mod stream;
mod utf8;

pub use stop::{EmptyStop, StopMatcher};
pub use stream::{Delta, TextStream};
pub use utf8::Utf8Stream;
