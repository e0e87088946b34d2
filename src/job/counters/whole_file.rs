//! Atomic creation of a file at a user's path, possibly in a directory where others may write: no
//! link is followed, and no target of a link is truncated.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Replaces or creates a file; writes to a special one, such as `/dev/null` or a pipe being read.
pub(super) fn write(path: &Path, text: &str) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_symlink() => {
            Err(io::Error::other("it is a link, and none is followed"))
        }
        Ok(there) if there.file_type().is_char_device() || there.file_type().is_fifo() => {
            let mut options = OpenOptions::new();
            // Does not wait for a reader of a pipe.
            options.write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
            options.open(path)?.write_all(text.as_bytes())
        }
        Ok(there) if !there.is_file() => Err(io::Error::other("it is no file")),
        Ok(_) | Err(_) => replace(path, text),
    }
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::other("it names no file"))?;
    let mut part = name.to_os_string();
    part.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(part);
    let made = || -> io::Result<()> {
        // Left by a killed process with this number. Anything else makes the next step fail.
        let _ = fs::remove_file(&part);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).custom_flags(libc::O_NOFOLLOW);
        options.open(&part)?.write_all(text.as_bytes())?;
        fs::rename(&part, path)
    };
    made().inspect_err(|_| drop(fs::remove_file(&part)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use test_support::scratch::Scratch;

    use super::*;

    #[test]
    fn files_are_replaced_atomically() {
        let directory = Scratch::new();
        let path = directory.join("counters.json");
        let kept = directory.join("kept");
        for text in ["a long text of before", "new"] {
            write(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            // Another hard link keeps the old file.
            let _ = fs::remove_file(&kept);
            fs::hard_link(&path, &kept).unwrap();
        }
        write(&path, "newest").unwrap();
        assert_eq!(fs::read_to_string(&kept).unwrap(), "new");
        assert_eq!(fs::read_dir(&*directory).unwrap().count(), 2);
    }

    #[test]
    fn links_are_not_followed() {
        let directory = Scratch::new();
        let (victim, link) = (directory.join("victim"), directory.join("counters.json"));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, &link).unwrap();
        assert!(write(&link, "counters").unwrap_err().to_string().contains("link"));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        // The name that is used on the way, which others may guess.
        let part = directory.join(format!("new.json.{}.part", std::process::id()));
        symlink(&victim, &part).unwrap();
        write(&directory.join("new.json"), "counters").unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    }

    #[test]
    fn special_files_do_not_block() {
        write(Path::new("/dev/null"), "counters").unwrap();
        assert!(fs::symlink_metadata("/dev/null").unwrap().file_type().is_char_device());
        let directory = Scratch::new();
        let pipe = directory.join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(write(&pipe, "counters").is_err(), "nobody reads");
        let refused = write(&directory, "counters").unwrap_err().to_string();
        assert!(refused.contains("no file"), "{refused}");
    }
}
