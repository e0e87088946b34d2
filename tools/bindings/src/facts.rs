//! The facts about newer libfabrics that `crates/libfabric-sys` states by hand, beside headers.

use std::mem::offset_of;

use libfabric_sys::{
    FI_MR_DMABUF, FI_OPT_CUDA_API_PERMITTED, FI_OPT_SHARED_MEMORY_PERMITTED, NEWEST_API, Padded,
    fi_av_attr, fi_cntr_attr, fi_cq_attr, fi_cq_err_entry, fi_eq_attr, fi_eq_err_entry, fi_mr_attr,
    fi_mr_dmabuf, fi_msg, fi_msg_rma,
};

use crate::extends::Declarations;

/// The facts that the newer headers have otherwise, in words.
pub(crate) fn wrong(newer: &Declarations) -> Vec<String> {
    let constants = [
        ("FI_MAJOR_VERSION", NEWEST_API.major().into()),
        ("FI_MINOR_VERSION", NEWEST_API.minor().into()),
        ("FI_MR_DMABUF", FI_MR_DMABUF),
        ("FI_OPT_CUDA_API_PERMITTED", FI_OPT_CUDA_API_PERMITTED.into()),
        ("FI_OPT_SHARED_MEMORY_PERMITTED", FI_OPT_SHARED_MEMORY_PERMITTED.into()),
    ];
    let places = [
        ("fi_mr_dmabuf::fd", offset_of!(fi_mr_dmabuf, fd)),
        ("fi_mr_dmabuf::offset", offset_of!(fi_mr_dmabuf, offset)),
        ("fi_mr_dmabuf::len", offset_of!(fi_mr_dmabuf, len)),
        ("fi_mr_dmabuf::base_addr", offset_of!(fi_mr_dmabuf, base_addr)),
        // `mr_attr_set_dmabuf` writes it as this one.
        ("fi_mr_attr::dmabuf", offset_of!(fi_mr_attr, mr_iov)),
    ];
    let mut wrong = Vec::new();
    for (name, stated) in constants {
        let found = newer.value(name);
        if found != Some(stated) {
            wrong.push(format!("{name}: {stated}, but {found:?}"));
        }
    }
    for (field, stated) in places {
        let found = newer.place(field);
        if found != Some(stated as u64) {
            wrong.push(format!("{field} at {stated}, but {found:?}"));
        }
    }
    let size = ("fi_mr_dmabuf", size_of::<fi_mr_dmabuf>() as u64);
    if newer.size(size.0) != Some(size.1) {
        wrong.push(format!("{} of {} bytes, but {:?}", size.0, size.1, newer.size(size.0)));
    }
    // What libfabric writes into memory of the caller.
    let room = [
        ("fi_av_attr", size_of::<Padded<fi_av_attr>>()),
        ("fi_cntr_attr", size_of::<Padded<fi_cntr_attr>>()),
        ("fi_cq_attr", size_of::<Padded<fi_cq_attr>>()),
        ("fi_cq_err_entry", size_of::<Padded<fi_cq_err_entry>>()),
        ("fi_eq_attr", size_of::<Padded<fi_eq_attr>>()),
        ("fi_eq_err_entry", size_of::<Padded<fi_eq_err_entry>>()),
        ("fi_mr_attr", size_of::<Padded<fi_mr_attr>>()),
        ("fi_msg", size_of::<Padded<fi_msg>>()),
        ("fi_msg_rma", size_of::<Padded<fi_msg_rma>>()),
    ];
    for (name, room) in room {
        if newer.size(name).is_none_or(|size| size > room as u64) {
            wrong.push(format!("{name} in {room} bytes, but {:?}", newer.size(name)));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_without_a_fact_or_with_another_are_told() {
        let none = wrong(&Declarations::parse("").unwrap());
        assert_eq!(none.len(), 20, "each fact is looked for: {none:?}");
        let other = "pub const FI_MR_DMABUF: u64 = 1099511627777;";
        let other = wrong(&Declarations::parse(other).unwrap());
        let told = "FI_MR_DMABUF: 1099511627776, but Some(1099511627777)";
        assert!(other.contains(&String::from(told)), "{other:?}");
        let same = "pub const FI_MR_DMABUF: u64 = 1099511627776;";
        assert_eq!(wrong(&Declarations::parse(same).unwrap()).len(), 19);
    }
}
