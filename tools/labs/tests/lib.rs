//! Nothing: this package is its test program, `labs`.
