//! Errors as the fake fabric gives them.

use engine::port::PortError;

pub(in crate::fake) fn fault(call: &'static str, code: i32, text: &str) -> PortError {
    PortError { call, code, text: text.to_owned() }
}
