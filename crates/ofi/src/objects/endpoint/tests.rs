//! What listens, and for how long.

use std::net::{SocketAddr, TcpListener};

use crate::data_path::some_rail;
use crate::objects::info::sockaddr_ip;
use crate::provider::Provider;

/// Where an endpoint of tcp listens.
fn socket(address: &[u8]) -> SocketAddr {
    // SAFETY: within the bytes.
    let ip = unsafe { sockaddr_ip(address.as_ptr().cast(), address.len()) };
    SocketAddr::new(ip.expect("an IP address"), u16::from_be_bytes([address[2], address[3]]))
}

#[test]
fn an_endpoint_listens_until_it_is_closed_or_has_taken_no_place() {
    for provider in [Provider::Tcp, Provider::TcpRxm] {
        let listens = |at: SocketAddr| TcpListener::bind(at).is_err();
        let rail = some_rail(provider);
        let first = socket(rail.endpoint().address());
        let another = rail.endpoint().another().expect("another");
        let at = socket(&another.address);
        assert!(listens(first) && listens(at) && first != at, "{provider}");
        drop(another);
        assert!(listens(first) && !listens(at), "{provider}: it has taken no place");

        let another = rail.endpoint().another().expect("another");
        let at = socket(&another.address);
        // SAFETY: nothing is resolved of the endpoint, and it has no regions.
        let told = unsafe { rail.endpoint().replace(another) };
        assert_eq!(socket(&told), at);
        assert!(!listens(first) && listens(at), "{provider}: it has the other's place");
        drop(rail);
        assert!(!listens(at), "{provider}: closed");
    }
}
