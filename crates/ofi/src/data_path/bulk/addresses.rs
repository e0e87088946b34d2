//! Joined addresses: those of a rail and of its bulk connections, as one.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | number of addresses, the rail's own first |
//! | 1 | length of the next, from 1 on |
//! | as many | the address, as the provider writes it |

use crate::data_path::bulk::MAX_CONNECTIONS;

/// Joins a rail's own address and those of its bulk connections. Addresses of providers that have
/// such connections are a few bytes long.
pub(crate) fn join<'a>(own: &'a [u8], bulk: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut joined = vec![0];
    for address in std::iter::once(own).chain(bulk) {
        joined[0] += 1;
        let len = u8::try_from(address.len()).unwrap_or(u8::MAX);
        joined.push(len);
        joined.extend_from_slice(&address[..len.into()]);
    }
    joined
}

/// Splits joined addresses of another process, the rail's own first. None if they are malformed.
pub(crate) fn split(joined: &[u8]) -> Option<Vec<&[u8]>> {
    let (&count, mut rest) = joined.split_first()?;
    if count == 0 || usize::from(count) > 1 + MAX_CONNECTIONS {
        return None;
    }
    let mut addresses = Vec::with_capacity(count.into());
    for _ in 0..count {
        let (&len, behind) = rest.split_first()?;
        let (address, behind) = behind.split_at_checked(len.into())?;
        if address.is_empty() {
            return None;
        }
        addresses.push(address);
        rest = behind;
    }
    rest.is_empty().then_some(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::wire::handshake::MAX_ADDRESS;

    #[test]
    fn joined_addresses_split_again() {
        let own = [7_u8; 16];
        for count in 0..=MAX_CONNECTIONS {
            let bulk: Vec<Vec<u8>> = (0..count).map(|at| vec![at as u8; 28]).collect();
            let joined = join(&own, bulk.iter().map(Vec::as_slice));
            let parts = split(&joined).unwrap();
            assert_eq!(parts[0], own);
            assert!(parts[1..].iter().copied().eq(bulk.iter().map(Vec::as_slice)), "{count}");
            assert!(joined.len() <= MAX_ADDRESS, "{count}");
        }
    }
}
