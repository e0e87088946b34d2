use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// The address of a PCI function, as Linux writes it: `0000:3b:00.0`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PciAddress {
    /// Domain; more than 16 bits for those that the kernel invents (VMD).
    pub domain: u32,
    pub bus: u8,
    /// Device on the bus, below 32.
    pub device: u8,
    /// Function of the device, below 8.
    pub function: u8,
}

impl PciAddress {
    /// Parses the name of a device's directory in sysfs.
    pub fn of_path(path: &Path) -> Option<Self> {
        path.file_name()?.to_str()?.parse().ok()
    }

    pub(super) fn is_same_device(self, other: Self) -> bool {
        (self.domain, self.bus, self.device) == (other.domain, other.bus, other.device)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (domain, bus, rest) = (parts.next()?, parts.next()?, parts.next()?);
        let (device, function) = rest.split_once('.')?;
        // Hexadecimal digits only: `from_str_radix` takes a sign. CUDA writes domains with 8.
        let number = |digits: &str, most: usize| {
            let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            if plain && digits.len() <= most { u32::from_str_radix(digits, 16).ok() } else { None }
        };
        let small = |digits, below: u8| {
            u8::try_from(number(digits, 2)?).ok().filter(|value| *value < below)
        };
        let address = Self {
            domain: number(domain, 8)?,
            bus: u8::try_from(number(bus, 2)?).ok()?,
            device: small(device, 32)?,
            function: small(function, 8)?,
        };
        parts.next().is_none().then_some(address)
    }
}

impl FromStr for PciAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("`{text}` is no PCI address, which looks like 0000:3b:00.0");
        Self::parse(text.trim()).ok_or_else(error)
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_written() {
        let plain = PciAddress { domain: 0, bus: 0x3b, device: 0, function: 1 };
        for text in ["0000:3b:00.1", "00000000:3B:00.1", "0000:3b:00.1\n"] {
            assert_eq!(text.parse(), Ok(plain), "{text:?}");
        }
        assert_eq!(plain.to_string(), "0000:3b:00.1");
        let made_up: PciAddress = "10000:e1:1f.7".parse().expect("an address");
        assert_eq!(made_up.to_string(), "10000:e1:1f.7");
        assert_eq!(
            PciAddress::of_path(Path::new("/sys/devices/pci0000:3a/0000:3b:00.1")),
            Some(plain)
        );
    }

    #[test]
    fn other_texts_are_refused() {
        let texts = " 3b:00.1 0000:3b:00 0000:3b:00.8 0000:3b:20.0 0000:3g:00.0 0000:+b:00.0 \
                     0000:3b:00.0:1 0000:13b:00.0 pci0000:3a 000000000:00:00.0";
        for text in texts.split(' ') {
            assert!(text.parse::<PciAddress>().is_err(), "{text:?}");
        }
    }
}
