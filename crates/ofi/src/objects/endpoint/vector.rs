//! An endpoint's address vector: the peers that it can reach.

use std::ptr;

use libfabric_sys::{
    FI_ADDR_NOTAVAIL, FI_AV_MAP, FI_AV_TABLE, FI_EADDRNOTAVAIL, Padded, fi_av_attr, fi_av_insert,
    fi_av_open, fid_av,
};

use crate::error::{check, port_error, refused, with_help};
use crate::fork;
use crate::objects::domain::Domain;
use crate::objects::endpoint::Endpoint;
use crate::objects::object::Object;
use engine::port::{PeerAddr, PortError};

const INSERT: &str = "fi_av_insert";

/// Opens a vector for about `count` addresses; a table, or a map if the provider has no tables.
pub(super) fn open(domain: &Domain, count: usize) -> Result<Object<fid_av>, PortError> {
    let open = |kind| {
        let mut attr = Padded::<fi_av_attr>::zeroed();
        attr.type_ = kind;
        attr.count = count;
        // SAFETY: the domain is open, and the endpoint that owns the vector holds it; the
        // attributes are padded for newer libraries.
        unsafe {
            let kind = ("address vector", "fi_av_open");
            Object::open(kind, domain.library(), &domain.gate, |vector| {
                fi_av_open(domain.as_ptr(), attr.as_mut_ptr(), vector, ptr::null_mut())
            })
        }
    };
    open(FI_AV_TABLE).or_else(|_| open(FI_AV_MAP))
}

impl Endpoint {
    /// Inserts addresses of peers, all in one call.
    ///
    /// # Errors
    /// Names the refused addresses by their index. The others stay inserted.
    pub(crate) fn insert(&self, addresses: &[&[u8]]) -> Result<Vec<PeerAddr>, PortError> {
        if addresses.is_empty() {
            return Ok(Vec::new());
        }
        let (domain, library) = (&self.domain, self.domain.library());
        let packed = pack(addresses, domain.info.string_addresses(), self.address.len())
            .map_err(|text| refused(INSERT, text))?;
        fork::register_rails(addresses);
        let mut peers = vec![FI_ADDR_NOTAVAIL; addresses.len()];
        let gate = domain.gate.enter();
        let (vector, from, into) = (self.vector.as_ptr(), packed.as_ptr(), peers.as_mut_ptr());
        // SAFETY: open; `packed` has an address for each entry of `peers`, as long as the
        // provider's own or zero-terminated, as the format demands.
        let code =
            unsafe { fi_av_insert(vector, from.cast(), addresses.len(), into, 0, ptr::null_mut()) };
        drop(gate);
        let help = |error| with_help(error, *domain.profile.addresses_refused);
        check(library, INSERT, code).map_err(help)?;
        let failed: Vec<String> = (0..peers.len())
            .filter(|&index| peers[index] == FI_ADDR_NOTAVAIL)
            .map(|index| index.to_string())
            .collect();
        if !failed.is_empty() {
            let mut error = port_error(library, INSERT, FI_EADDRNOTAVAIL.into());
            error.text =
                format!("{} of {} refused: {}", failed.len(), peers.len(), failed.join(", "));
            return Err(help(error));
        }
        Ok(peers.into_iter().map(PeerAddr).collect())
    }
}

/// Concatenates addresses of other processes for `fi_av_insert`: of one length, or, for strings,
/// each zero-terminated. Checks them.
fn pack(addresses: &[&[u8]], strings: bool, own_len: usize) -> Result<Vec<u8>, String> {
    let mut packed = Vec::new();
    for (index, address) in addresses.iter().enumerate() {
        if strings {
            let text = address.strip_suffix(&[0]).unwrap_or(address);
            if text.is_empty() || text.contains(&0) {
                return Err(format!("address {index} is not a string"));
            }
            packed.extend_from_slice(text);
            packed.push(0);
        } else if address.len() == own_len {
            packed.extend_from_slice(address);
        } else {
            return Err(format!(
                "address {index} has {} bytes, but this provider's have {own_len}: does the peer \
                 use another provider?",
                address.len()
            ));
        }
    }
    Ok(packed)
}

#[cfg(test)]
mod tests {
    use super::pack;

    #[test]
    fn strings_get_exactly_one_zero_byte() {
        assert_eq!(pack(&[&b"a"[..], b"bc\0"], true, 2).unwrap(), b"a\0bc\0");
        assert!(pack(&[&b"a\0b"[..]], true, 2).is_err());
        assert!(pack(&[&b"\0"[..]], true, 2).is_err());
    }
}
