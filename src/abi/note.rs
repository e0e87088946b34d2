//! The ELF note of the plugin: kind and version of the file, for tools that do not load it.
//!
//! All major versions, and NVIDIA's plugins, have the same file name; the note tells them apart.

/// Owner of the note, by which it is found.
pub const OWNER: &str = "nvshmem-libfabric";

/// The type of the note. Its text is the version.
pub const KIND: u32 = 1;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// An entry of an ELF note section: sizes, then owner and text, each padded to 4 bytes.
#[repr(C)]
struct Note<const OWNER: usize, const TEXT: usize> {
    owner_len: u32,
    text_len: u32,
    kind: u32,
    owner: [u8; OWNER],
    text: [u8; TEXT],
}

/// Includes the owner's terminating zero byte.
const OWNER_BYTES: usize = (OWNER.len() + 1).next_multiple_of(4);
const TEXT_BYTES: usize = VERSION.len().next_multiple_of(4);

const fn padded<const N: usize>(text: &str) -> [u8; N] {
    let (mut bytes, mut at) = ([0; N], 0);
    while at < text.len() {
        bytes[at] = text.as_bytes()[at];
        at += 1;
    }
    bytes
}

#[used]
// SAFETY: sections of this name hold notes, which are not executed.
#[unsafe(link_section = ".note.nvshmem-libfabric")]
static NOTE: Note<OWNER_BYTES, TEXT_BYTES> = Note {
    owner_len: OWNER.len() as u32 + 1,
    text_len: VERSION.len() as u32,
    kind: KIND,
    owner: padded(OWNER),
    text: padded(VERSION),
};
