//! Errors as the fake fabric gives them.

use crate::engine::port::PortError;

pub(in crate::engine::fake) fn fault(call: &'static str, code: i32, text: &str) -> PortError {
    PortError { call, code, text: text.to_owned() }
}
