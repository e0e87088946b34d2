//! Connection records that PEs exchange.
//!
//! Two collective exchanges of records of fixed size:
//!
//! 1. [`Hello`]: whether this PE has opened its rails, and if not, the reason. No PE continues
//!    before all can, so that a failure of one PE is an error with its reason everywhere and never
//!    a hang.
//! 2. [`Addresses`]: the addresses of its rails. The record size follows from all hellos.
//!
//! A hello with [`SetupStep::Ready`] ends the set-up likewise, after addresses were inserted.

use thiserror::Error;

use crate::ids::{Pe, RailId};
use crate::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use crate::wire::cookie::SHARE_BYTES;
use crate::wire::handle::{self, MAX_RAILS};
use crate::wire::message::VERSION;

/// Size of an encoded [`Hello`].
pub const HELLO_BYTES: usize = 400;

/// Longest address of a rail in bytes; libfabric's longest, of shm, is below 256.
pub const MAX_ADDRESS: usize = 512;

/// Ends with the versions of messages, handles and this record: other builds are refused.
const MAGIC: [u8; 8] = [b'n', b'v', b'l', b'f', b'h', b'i', VERSION << 4 | handle::VERSION, 12];
const _: () = assert!(VERSION < 16 && handle::VERSION < 16);
const _: () = assert!(MAX_LONG_MESSAGE <= u16::MAX as usize);
const SHARE_AT: usize = 20;
const PROVIDER_AT: usize = SHARE_AT + SHARE_BYTES;
const PROVIDER_BYTES: usize = 64;
const REASON_AT: usize = PROVIDER_AT + PROVIDER_BYTES;

/// Longest name of a rail in a record, which is cut.
pub const NAME_BYTES: usize = 64;

/// Bytes before an address: hash of the fabric's name, name of the rail, length of the address.
const ADDRESS_HEAD: usize = LEN_AT + 2;
const LEN_AT: usize = 8 + NAME_BYTES;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetupStep {
    /// The PE has opened its rails, or failed to.
    Open = 0,
    /// The PE has inserted all addresses and proved its rails, or failed to.
    Ready = 1,
}

/// State of one PE after a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    pub step: SetupStep,
    /// The provider in use, cut at 64 bytes.
    pub provider: String,
    pub rails: u8,
    /// Bytes of immediate data that all its rails carry: zero, four or eight.
    pub immediate_data: u8,
    /// Longest message in bytes that all its rails accept, [`MAX_MESSAGE`] at least.
    pub longest_message: u16,
    /// Length of its longest address in bytes.
    pub longest_address: u16,
    /// Number of peers from which it has not heard over all rails.
    pub unheard: u16,
    /// Reason that it cannot continue, cut to fit. None if it can.
    pub failure: Option<String>,
    /// Its share of the job's cookie.
    pub share: [u8; SHARE_BYTES],
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ExchangeError {
    #[error("{}", failures(.0))]
    Peers(Vec<(Pe, String)>),
    /// A record of another version of the transport.
    #[error(
        "{pe} sent something else than this version's connection record: all PEs must run the \
         same version of the plugin"
    )]
    Record { pe: Pe },
    #[error(
        "{pe} uses libfabric provider {theirs:?}, but PE 0 uses {first:?}: all PEs need the same; else set NVSHMEM_LIBFABRIC_PROVIDER \
         to tcp or to your NIC's provider"
    )]
    Providers { pe: Pe, theirs: String, first: String },
    #[error("the address of {rail} has {len} bytes, the most is {MAX_ADDRESS}")]
    LongAddress { rail: RailId, len: usize },
}

fn failures(failed: &[(Pe, String)]) -> String {
    // A few name the cause: often every PE fails for the same reason.
    let shown: Vec<String> =
        failed.iter().take(4).map(|(pe, reason)| format!("{pe}: {reason}")).collect();
    let more = failed.len() - shown.len();
    let more = if more > 0 { format!("; and {more} more PEs") } else { String::new() };
    format!("{}{more}", shown.join("; "))
}

impl Hello {
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8] = self.step as u8;
        bytes[9] = u8::from(self.failure.is_some());
        bytes[10] = self.rails;
        bytes[11] = self.immediate_data;
        bytes[12..14].copy_from_slice(&self.longest_address.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.unheard.to_le_bytes());
        bytes[18..SHARE_AT].copy_from_slice(&self.longest_message.to_le_bytes());
        bytes[SHARE_AT..PROVIDER_AT].copy_from_slice(&self.share);
        put_text(&mut bytes[PROVIDER_AT..REASON_AT], &self.provider);
        put_text(&mut bytes[REASON_AT..], self.failure.as_deref().unwrap_or_default());
        bytes
    }

    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let steps = [SetupStep::Open, SetupStep::Ready];
        let step = steps.into_iter().find(|step| *step as u8 == bytes[8])?;
        let longest_address = u16::from_le_bytes([bytes[12], bytes[13]]);
        let longest_message = u16::from_le_bytes([bytes[18], bytes[19]]);
        let sound = bytes[0..8] == MAGIC
            && bytes[9] <= 1
            && bytes[14..16] == [0; 2]
            && usize::from(bytes[10]) <= MAX_RAILS
            && matches!(bytes[11], 0 | 4 | 8)
            && usize::from(longest_address) <= MAX_ADDRESS
            && (MAX_MESSAGE..=MAX_LONG_MESSAGE).contains(&usize::from(longest_message));
        sound.then(|| Self {
            step,
            provider: text(&bytes[PROVIDER_AT..REASON_AT]),
            rails: bytes[10],
            immediate_data: bytes[11],
            longest_message,
            longest_address,
            unheard: u16::from_le_bytes([bytes[16], bytes[17]]),
            failure: (bytes[9] == 1).then(|| text(&bytes[REASON_AT..])),
            share: bytes[SHARE_AT..PROVIDER_AT].try_into().unwrap_or_default(),
        })
    }

    /// Decodes the records of all PEs, in PE order, and checks that the job can go on.
    pub fn agree(step: SetupStep, records: &[u8]) -> Result<Vec<Hello>, ExchangeError> {
        let mut hellos = Vec::new();
        for (pe, record) in (0..).map(Pe).zip(records.chunks(HELLO_BYTES)) {
            let hello = <&[u8; HELLO_BYTES]>::try_from(record)
                .ok()
                .and_then(Hello::decode)
                .filter(|hello| hello.step == step)
                .ok_or(ExchangeError::Record { pe })?;
            hellos.push(hello);
        }
        let failed: Vec<(Pe, String)> = (0..)
            .map(Pe)
            .zip(&hellos)
            .filter_map(|(pe, hello)| Some((pe, hello.failure.clone()?)))
            .collect();
        if !failed.is_empty() {
            return Err(ExchangeError::Peers(failed));
        }
        for (pe, hello) in (0..).map(Pe).zip(&hellos) {
            if hello.provider != hellos[0].provider {
                let (theirs, first) = (hello.provider.clone(), hellos[0].provider.clone());
                return Err(ExchangeError::Providers { pe, theirs, first });
            }
            // Later code divides by the number of rails.
            if hello.rails == 0 {
                return Err(ExchangeError::Peers(vec![(pe, "it has no rails".to_owned())]));
            }
        }
        Ok(hellos)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RailAddress {
    /// Hash of the fabric's name, see [`fabric_hash`]. Rails of one fabric reach one another.
    pub fabric: u64,
    /// The address, in the provider's format.
    pub address: Vec<u8>,
    /// Name for users, with the host's.
    pub name: String,
}

/// Addresses of a PE's rails, in rail order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addresses(pub Vec<RailAddress>);

impl Addresses {
    /// Returns the length of the longest address in bytes.
    ///
    /// # Errors
    /// An address that is too long.
    pub fn longest(&self) -> Result<u16, ExchangeError> {
        let mut longest = 0;
        for (rail, RailAddress { address, .. }) in self.0.iter().enumerate() {
            if address.len() > MAX_ADDRESS {
                let rail = RailId(rail as u8);
                return Err(ExchangeError::LongAddress { rail, len: address.len() });
            }
            longest = longest.max(address.len());
        }
        Ok(longest as u16)
    }

    /// Returns the bytes of each PE's record.
    pub fn record_bytes(hellos: &[Hello]) -> usize {
        let rails = hellos.iter().map(|hello| usize::from(hello.rails)).max().unwrap_or(0);
        let longest = hellos.iter().map(|hello| hello.longest_address).max().unwrap_or(0);
        rails * (ADDRESS_HEAD + usize::from(longest))
    }

    pub fn encode(&self, hellos: &[Hello]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::record_bytes(hellos));
        for RailAddress { fabric, address, name } in &self.0 {
            bytes.extend_from_slice(&fabric.to_le_bytes());
            let mut text = [0; NAME_BYTES];
            put_text(&mut text, name);
            bytes.extend_from_slice(&text);
            bytes.extend_from_slice(&(address.len() as u16).to_le_bytes());
            bytes.extend_from_slice(address);
        }
        bytes.resize(Self::record_bytes(hellos), 0);
        bytes
    }

    /// Decodes the records of all PEs, in PE order.
    pub fn decode_all(hellos: &[Hello], records: &[u8]) -> Result<Vec<Addresses>, ExchangeError> {
        let stride = Self::record_bytes(hellos);
        hellos
            .iter()
            .enumerate()
            .map(|(pe, hello)| {
                let record = records.get(pe * stride..(pe + 1) * stride);
                record
                    .and_then(|record| Self::decode(record, hello.rails))
                    .ok_or(ExchangeError::Record { pe: Pe(pe as u32) })
            })
            .collect()
    }

    fn decode(mut record: &[u8], rails: u8) -> Option<Self> {
        let mut addresses = Vec::with_capacity(usize::from(rails));
        for _ in 0..rails {
            let (head, rest) = record.split_at_checked(ADDRESS_HEAD)?;
            let fabric = u64::from_le_bytes(head[0..8].try_into().ok()?);
            let len = usize::from(u16::from_le_bytes([head[LEN_AT], head[LEN_AT + 1]]));
            let (address, rest) = rest.split_at_checked(len)?;
            // Empty means padding: the PE has fewer rails than its hello says.
            if len == 0 || len > MAX_ADDRESS {
                return None;
            }
            let name = text(&head[8..LEN_AT]);
            addresses.push(RailAddress { fabric, address: address.to_vec(), name });
            record = rest;
        }
        Some(Self(addresses))
    }
}

/// Returns a hash of a fabric's name, equal on every PE (64-bit FNV-1a).
pub fn fabric_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn put_text(into: &mut [u8], text: &str) {
    let mut end = text.len().min(into.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    into[..end].copy_from_slice(&text.as_bytes()[..end]);
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REASON_BYTES: usize = HELLO_BYTES - REASON_AT;

    #[test]
    fn names_have_fixed_numbers() {
        assert_eq!(fabric_hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fabric_hash("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fabric_hash("foobar"), 0x8594_4171_f739_67e8);
    }

    fn hello() -> Hello {
        Hello {
            step: SetupStep::Open,
            provider: "tcp;ofi_rxm".to_owned(),
            rails: 2,
            immediate_data: 8,
            longest_message: MAX_LONG_MESSAGE as u16,
            longest_address: 16,
            unheard: 0,
            failure: None,
            share: *b"0123456789abcdef",
        }
    }

    fn rail(fabric: u64, address: &[u8]) -> RailAddress {
        RailAddress { fabric, address: address.to_vec(), name: format!("eth{fabric}") }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        for before in ["", "x"] {
            let failure = Some(format!("{before}{}", "ä".repeat(400)));
            let long = Hello { failure, provider: "x".repeat(99), ..hello() };
            let read = Hello::decode(&long.encode()).unwrap();
            assert_eq!(read.provider, "x".repeat(PROVIDER_BYTES));
            let fit = (REASON_BYTES - before.len()) / 2;
            assert_eq!(read.failure, Some(format!("{before}{}", "ä".repeat(fit))));
        }
    }

    #[test]
    fn one_failure_is_everybodys_error() {
        let bad = Hello { failure: Some("fi_domain: no memory".to_owned()), ..hello() };
        let records = [hello().encode(), bad.encode(), hello().encode()].concat();
        let error = Hello::agree(SetupStep::Open, &records).unwrap_err();
        assert_eq!(error.to_string(), "PE 1: fi_domain: no memory");
        let many = [bad.encode(); 9].concat();
        assert!(
            Hello::agree(SetupStep::Open, &many).unwrap_err().to_string().ends_with("5 more PEs")
        );
    }

    #[test]
    fn unfit_records_are_refused() {
        let mut damaged = hello().encode();
        damaged[0] ^= 1;
        let with = |at: usize, byte| {
            let mut bytes = hello().encode();
            bytes[at] = byte;
            bytes
        };
        let cases = [
            [hello().encode(), damaged],
            [hello().encode(), Hello { step: SetupStep::Ready, ..hello() }.encode()],
            [hello().encode(), Hello { rails: 33, ..hello() }.encode()],
            [hello().encode(), with(6, MAGIC[6] ^ 1)],
            [hello().encode(), with(6, MAGIC[6] ^ 1 << 4)],
            [hello().encode(), with(11, 2)],
            [hello().encode(), with(14, 3)],
            [hello().encode(), with(15, 2)],
        ];
        for records in cases {
            let error = Hello::agree(SetupStep::Open, &records.concat()).unwrap_err();
            assert_eq!(error, ExchangeError::Record { pe: Pe(1) });
        }
        let other = Hello { provider: "shm".to_owned(), ..hello() };
        let error = Hello::agree(SetupStep::Open, &[hello().encode(), other.encode()].concat());
        assert!(matches!(error, Err(ExchangeError::Providers { pe: Pe(1), .. })));
        let none = Hello { rails: 0, ..hello() };
        assert!(Hello::agree(SetupStep::Open, &none.encode()).is_err());
    }

    #[test]
    fn addresses_survive_the_trip() {
        let all = [
            Addresses(vec![rail(1, b"short"), rail(2, &[7; MAX_ADDRESS])]),
            Addresses(vec![rail(7, b"x")]),
        ];
        let hello = |of: &Addresses| Hello {
            rails: of.0.len() as u8,
            longest_address: of.longest().unwrap(),
            ..hello()
        };
        let hellos: Vec<Hello> = all.iter().map(hello).collect();
        let records: Vec<u8> = all.iter().flat_map(|addresses| addresses.encode(&hellos)).collect();
        assert_eq!(records.len(), 2 * 2 * (ADDRESS_HEAD + MAX_ADDRESS));
        assert_eq!(Addresses::decode_all(&hellos, &records).unwrap(), all);
        let cut = Addresses::decode_all(&hellos, &records[..records.len() - 1]);
        assert_eq!(cut, Err(ExchangeError::Record { pe: Pe(1) }));
        let empty = vec![0; records.len()];
        assert!(Addresses::decode_all(&hellos, &empty).is_err());
    }

    #[test]
    fn address_lengths_are_bounded() {
        let most = Hello {
            rails: MAX_RAILS as u8,
            longest_address: MAX_ADDRESS as u16,
            unheard: 0x102,
            ..hello()
        };
        assert_eq!(Hello::decode(&most.encode()), Some(most.clone()));
        let more = Hello { longest_address: MAX_ADDRESS as u16 + 1, ..most };
        assert_eq!(Hello::decode(&more.encode()), None);
        assert!(Addresses(vec![rail(1, &[0; MAX_ADDRESS + 1])]).longest().is_err());
        let mut longer = vec![0; ADDRESS_HEAD + MAX_ADDRESS + 1];
        longer[LEN_AT..ADDRESS_HEAD].copy_from_slice(&(MAX_ADDRESS as u16 + 1).to_le_bytes());
        assert!(Addresses::decode(&longer, 1).is_none());
    }
}
