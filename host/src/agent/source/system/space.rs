//! Disk space: the mounted file systems in, the share of their space that is used out.
//!
//! Each file system counts once, however often it is mounted or bound; those without a device of
//! this machine (overlays, memory, other machines') and those that are always full are left out.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;

use super::super::Reading;
use super::{Roots, share, text};

/// Images that cannot be written to: full by nature.
const IMAGES: [&str; 4] = ["squashfs", "iso9660", "erofs", "udf"];

/// The share that is used: of the file system at a path, or of all together.
pub(super) fn share_used(roots: &Roots, path: Option<&str>) -> Result<Reading, String> {
    let places = match path {
        Some(path) => vec![PathBuf::from(path)],
        None => mounted(&text(&roots.proc.join("self/mountinfo"))?),
    };
    let (mut used, mut total) = (0, 0);
    for place in &places {
        let (used_here, total_here) = space(place)?;
        used += used_here;
        total += total_here;
    }
    Ok(share(used, total))
}

/// Bytes used, and those that programs may use in all.
fn space(place: &Path) -> Result<(u64, u64), String> {
    let stat = statvfs(place)
        .map_err(|error| format!("cannot ask for the space at {}: {error}", place.display()))?;
    let used = stat.blocks().saturating_sub(stat.blocks_free()) * stat.fragment_size();
    Ok((used, used + stat.blocks_available() * stat.fragment_size()))
}

/// Where the file systems of this machine are mounted, one place each; the root, where none is.
fn mounted(mountinfo: &str) -> Vec<PathBuf> {
    let mut seen = HashSet::new();
    let places = mountinfo.lines().filter_map(|line| {
        // ID parent major:minor root PLACE options … - TYPE SOURCE options
        let (mount, kind) = line.split_once(" - ")?;
        let place = mount.split(' ').nth(4)?;
        let mut kind = kind.split(' ');
        let (kind, source) = (kind.next()?, kind.next()?);
        let is_device = source.starts_with("/dev/") && !source.starts_with("/dev/loop");
        let counts = (is_device || kind == "zfs") && !IMAGES.contains(&kind);
        (counts && seen.insert(source)).then(|| PathBuf::from(unescaped(place)))
    });
    let places: Vec<_> = places.collect();
    if places.is_empty() { vec![PathBuf::from("/")] } else { places }
}

/// Spaces and the like are written as three octal digits.
fn unescaped(place: &str) -> String {
    let pairs = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    pairs.iter().fold(place.to_owned(), |place, (code, c)| place.replace(code, c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_counts_once_however_often_it_is_bound() {
        let mut mountinfo = "\
            21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
            22 21 0:5 / /proc rw - proc proc rw\n\
            23 21 8:2 / /data\\040disk rw shared:2 master:1 - xfs /dev/sdb rw\n\
            24 21 0:40 / /run rw - tmpfs tmpfs rw\n\
            25 21 0:41 / /merged rw - overlay overlay rw,lowerdir=/a\n\
            26 21 7:0 / /snap/x ro - squashfs /dev/loop0 ro\n\
            27 21 0:50 / /mnt/far rw - nfs4 server:/export rw\n"
            .to_owned();
        for number in 0..5 {
            mountinfo += &format!("3{number} 21 8:1 /home /mnt/{number} rw - ext4 /dev/sda1 rw\n");
        }
        assert_eq!(mounted(&mountinfo), [Path::new("/"), Path::new("/data disk")]);
        assert_eq!(mounted("25 21 0:41 / / rw - overlay overlay rw"), [Path::new("/")]);
    }

    #[test]
    fn this_machine_has_space_and_a_wrong_path_is_named() {
        let share = share_used(&Roots::default(), None).expect("file systems");
        assert!(
            matches!(share, Reading::Value(share) if (0.0..=1.0).contains(&share)),
            "{share:?}"
        );
        let error = share_used(&Roots::default(), Some("/no/where")).expect_err("no such path");
        assert!(error.contains("/no/where"), "{error}");
    }
}
