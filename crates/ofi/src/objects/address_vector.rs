//! An address vector: the peers that an endpoint can reach.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use libfabric_sys::{
    FI_ADDR_NOTAVAIL, FI_AV_MAP, FI_AV_TABLE, Padded, fi_av_attr, fi_av_insert, fi_av_open, fid,
    fid_av,
};

use crate::error::{check, port_error, refused};
use crate::fork;
use crate::objects::domain::Domain;
use crate::objects::fabric::{close, opened};
use engine::port::{PeerAddr, PortError};

/// The call that peers' addresses are refused by.
pub(crate) const INSERT: &str = "fi_av_insert";

/// Owner of a `fid_av`.
#[derive(Debug)]
pub(crate) struct AddressVector {
    raw: NonNull<fid_av>,
    domain: Arc<Domain>,
}

impl AddressVector {
    /// Opens a vector for about `count` addresses; a table, whose lookup is an index, unless the
    /// provider only has maps.
    pub(crate) fn open(domain: &Arc<Domain>, count: usize) -> Result<Self, PortError> {
        let mut raw = ptr::null_mut();
        let mut code = 0;
        for kind in [FI_AV_TABLE, FI_AV_MAP] {
            let mut attr = Padded::<fi_av_attr>::new();
            attr.type_ = kind;
            attr.count = count;
            let gate = domain.gate().enter();
            // SAFETY: the domain is open; the attributes are padded for newer libraries.
            code = unsafe {
                fi_av_open(domain.as_ptr(), attr.as_mut_ptr(), &mut raw, ptr::null_mut())
            };
            drop(gate);
            if code == 0 {
                break;
            }
        }
        check(domain.library(), "fi_av_open", code)?;
        Ok(Self { raw: opened(raw, "fi_av_open")?, domain: Arc::clone(domain) })
    }

    pub(crate) fn as_fid(&self) -> *mut fid {
        self.as_ptr().cast()
    }

    fn as_ptr(&self) -> *mut fid_av {
        self.raw.as_ptr()
    }

    /// Inserts addresses of the provider's own length `own_len`, all in one call.
    ///
    /// # Errors
    /// Names the addresses that were refused, by their place. The others stay inserted.
    pub(crate) fn insert<A: AsRef<[u8]>>(
        &self,
        addresses: &[A],
        own_len: usize,
    ) -> Result<Vec<PeerAddr>, PortError> {
        if addresses.is_empty() {
            return Ok(Vec::new());
        }
        let packed = pack(addresses, self.domain.info().string_addresses(), own_len)
            .map_err(|text| refused(INSERT, text))?;
        fork::note_rails(addresses);
        let mut peers = vec![FI_ADDR_NOTAVAIL; addresses.len()];
        let gate = self.domain.gate().enter();
        // SAFETY: open; `packed` holds as many addresses as there are places in `peers`, each as
        // long as the provider's own or ending in a zero byte, as the format asks.
        let code = unsafe {
            fi_av_insert(
                self.as_ptr(),
                packed.as_ptr().cast(),
                addresses.len(),
                peers.as_mut_ptr(),
                0,
                ptr::null_mut(),
            )
        };
        drop(gate);
        let library = self.domain.library();
        check(library, INSERT, code)?;
        let failed: Vec<String> = (0..peers.len())
            .filter(|&index| peers[index] == FI_ADDR_NOTAVAIL)
            .map(|index| index.to_string())
            .collect();
        if !failed.is_empty() {
            let mut error = port_error(library, INSERT, libfabric_sys::FI_EADDRNOTAVAIL.into());
            error.text =
                format!("{} of {} refused: {}", failed.len(), peers.len(), failed.join(", "));
            return Err(error);
        }
        Ok(peers.into_iter().map(PeerAddr).collect())
    }
}

impl Drop for AddressVector {
    fn drop(&mut self) {
        let _gate = self.domain.gate().enter();
        // SAFETY: open, and the endpoint bound to it is closed: it owns this vector.
        unsafe { close(self.domain.library(), "address vector", self.as_fid()) };
    }
}

/// Puts addresses one behind the other, as `fi_av_insert` reads them: of one length, or, for
/// strings, each with its zero byte. They come from other processes, so they are checked.
fn pack<A: AsRef<[u8]>>(addresses: &[A], strings: bool, own_len: usize) -> Result<Vec<u8>, String> {
    let mut packed = Vec::new();
    for (index, address) in addresses.iter().enumerate() {
        let address = address.as_ref();
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
