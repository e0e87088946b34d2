//! Lets libraries find the program's own `ibv_modify_qp`.

fn main() {
    println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol=ibv_modify_qp");
}
