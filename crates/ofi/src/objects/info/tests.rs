//! What is read of an answer, with one that is made by hand.

use std::ffi::CString;

use libfabric_sys::{
    FI_MR_LOCAL, FI_MR_VIRT_ADDR, FI_ORDER_SAS, FI_THREAD_COMPLETION, fi_bus_attr, fi_device_attr,
    fi_link_attr,
};

use super::*;
use crate::options::tests::options;

pub(crate) fn empty() -> Info {
    let library = Library::load(&options().library).expect("a libfabric");
    // SAFETY: none is allowed.
    unsafe { Info::copy(library, ptr::null()) }.expect("memory")
}

pub(crate) fn edit(info: &mut Info, with: impl FnOnce(&mut fi_info)) {
    // SAFETY: owned and live, and not shared.
    with(unsafe { info.raw.as_mut() });
}

macro_rules! set {
    ($info:ident: $($part:ident.$field:ident = $value:expr),* $(,)?) => {
        // SAFETY: the attributes of an empty info exist.
        edit(&mut $info, |raw| unsafe { $((*raw.$part).$field = $value;)* })
    };
}

fn text(text: &str) -> *mut c_char {
    let text = CString::new(text).expect("no zero");
    // SAFETY: a string.
    unsafe { libc::strdup(text.as_ptr()) }
}

#[test]
fn answer_is_read_in_words() {
    let mut info = empty();
    assert_eq!((info.provider(), info.domain_name()), (String::new(), String::new()));
    assert_eq!(info.mr_mode_text(), "none");
    set!(info:
        fabric_attr.prov_name = text("tcp;ofi_rxm"), fabric_attr.name = text("10.0.0.0/8"),
        domain_attr.name = text("eth7"), domain_attr.mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR,
        domain_attr.threading = FI_THREAD_COMPLETION,
    );
    assert_eq!((info.provider().as_str(), info.domain_name().as_str()), ("tcp;ofi_rxm", "eth7"));
    assert_eq!(info.fabric_name(), "10.0.0.0/8");
    assert_eq!(info.threading_text(), "COMPLETION");
    let modes = info.mr_mode_text();
    assert!(modes.contains("LOCAL") && modes.contains("VIRT_ADDR"), "{modes}");
    assert!(!modes.contains("FI_MR") && !modes.contains(['[', ']']), "{modes}");
}

#[test]
fn thread_safe_copy_is_complete() {
    let mut info = empty();
    set!(info: domain_attr.threading = FI_THREAD_COMPLETION, tx_attr.size = 5);
    let other = info.for_any_thread().expect("memory");
    assert_eq!((other.domain_attr().threading, other.tx_attr().size), (FI_THREAD_SAFE, 5));
    assert_eq!(info.domain_attr().threading, FI_THREAD_COMPLETION, "as it was");

    macro_rules! without {
        ($($part:ident)*) => {$(
            let mut kept = std::ptr::null_mut();
            edit(&mut info, |raw| kept = std::mem::replace(&mut raw.$part, std::ptr::null_mut()));
            assert!(info.for_any_thread().is_none(), stringify!($part));
            edit(&mut info, |raw| raw.$part = kept);
        )*};
    }
    without!(tx_attr rx_attr ep_attr domain_attr fabric_attr);
    assert!(info.for_any_thread().is_some());
}

#[test]
fn writes_lose_their_order_alone() {
    let mut info = empty();
    let all = FI_ORDER_WAW | FI_ORDER_RMA_WAW | FI_ORDER_SAS;
    set!(info: tx_attr.msg_order = all, rx_attr.msg_order = all);
    info.free_writes();
    assert_eq!(info.tx_attr().msg_order, FI_ORDER_SAS);
    assert_eq!(info.rx_attr().msg_order, FI_ORDER_SAS);
}

#[test]
fn named_endpoint_ends_in_zero() {
    let mut info = empty();
    assert!(info.name_endpoints(c"fi_shm://7-8"));
    assert_eq!(info.raw().src_addrlen, "fi_shm://7-8".len() + 1);
    assert_eq!(info.text(info.raw().src_addr.cast()).as_deref(), Some("fi_shm://7-8"));
}

#[test]
fn nic_may_lack_any_part() {
    let mut info = empty();
    let read = |info: &Info| (info.nic_name(), info.pci_function(), info.link_speed());
    assert_eq!(read(&info), (None, None, None));
    // SAFETY: numbers and pointers, for which zeroes are a value.
    let (mut nic, mut device, mut bus, mut link): (
        fid_nic,
        fi_device_attr,
        fi_bus_attr,
        fi_link_attr,
    ) = unsafe { std::mem::zeroed() };
    let nic: *mut fid_nic = &raw mut nic;
    edit(&mut info, |raw| raw.nic = nic);
    assert_eq!(read(&info), (None, None, None), "a NIC of which nothing is said");
    let name = CString::new("mlx5_3").expect("no zero");
    device.name = name.as_ptr().cast_mut();
    bus.attr.pci.domain_id = 0x1a;
    // SAFETY: the union has one member.
    let pci = unsafe { &mut bus.attr.pci };
    (pci.bus_id, pci.device_id, pci.function_id) = (0xe1, 0x02, 0x7);
    let (bus, link): (*mut fi_bus_attr, *mut fi_link_attr) = (&raw mut bus, &raw mut link);
    // SAFETY: all lives as long as this test.
    unsafe {
        (*nic).device_attr = &raw mut device;
        ((*nic).bus_attr, (*nic).link_attr) = (bus, link);
        assert_eq!(read(&info), (Some("mlx5_3".into()), None, None), "a bus of another kind");
        (*bus).bus_type = FI_BUS_PCI;
        assert_eq!(info.pci_function().as_deref(), Some("001a:e1:02.7"));
        for (bits, speed) in [
            (999_999, None),
            (1_000_000, Some(1)),
            (400_000_000_000, Some(400_000)),
            (usize::MAX, None),
        ] {
            (*link).speed = bits;
            assert_eq!(info.link_speed(), speed, "{bits}");
        }
    }
    // Libfabric did not allocate it.
    edit(&mut info, |raw| raw.nic = std::ptr::null_mut());
}

#[test]
fn ip_address_is_read_or_none() {
    let v4 = [0x1f, 0x90, 10, 1, 2, 3];
    let mut inet = [0_u8; 16];
    inet[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
    inet[2..8].copy_from_slice(&v4);
    let mut inet6 = [0_u8; 28];
    inet6[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
    inet6[8..24].copy_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9]);
    let here = Some(IpAddr::from([10, 1, 2, 3]));
    let six = Some("fd00::9".parse().expect("an address"));
    // SAFETY: the length is at most that of the bytes.
    let read = |bytes: &[u8], len: usize| unsafe { sockaddr_ip(bytes.as_ptr().cast(), len) };
    assert_eq!((read(&inet, 16), read(&inet, 15), read(&inet, 1)), (here, None, None));
    assert_eq!((read(&inet6, 28), read(&inet6, 27)), (six, None));
    inet6[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    assert_eq!(read(&inet6, 28), None);
    // SAFETY: nothing is read of none.
    assert_eq!(unsafe { sockaddr_ip(std::ptr::null(), 16) }, None);

    let mut info = empty();
    assert_eq!((info.source_ip(), info.string_addresses()), (None, false));
    edit(&mut info, |raw| (raw.src_addr, raw.src_addrlen) = (inet.as_mut_ptr().cast(), 16));
    assert_eq!(info.source_ip(), here);
    edit(&mut info, |raw| raw.addr_format = FI_ADDR_STR);
    assert_eq!((info.source_ip(), info.string_addresses()), (None, true));
    // Libfabric did not allocate it.
    edit(&mut info, |raw| raw.src_addr = std::ptr::null_mut());
}
