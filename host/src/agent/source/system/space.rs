//! Disk space: the mounted file systems in, the share of their space that is used out.
//!
//! Each file system counts once, however often it is mounted or bound; those without a device of
//! this machine (overlays, memory, other machines') and those that are always full are left out. File systems
//! of one ZFS pool share its free space, which counts once.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;

use super::super::Reading;
use super::{Roots, share, text};

/// Images that cannot be written to: full by nature.
const IMAGES: [&str; 4] = ["squashfs", "iso9660", "erofs", "udf"];

/// Bytes of a file system.
struct Space {
    used: u64,
    /// What programs may still use.
    available: u64,
}

/// The share that is used: of the file system at a path, or of all together.
pub(super) fn share_used(roots: &Roots, path: Option<&str>) -> Result<Reading, String> {
    if let Some(path) = path {
        let Space { used, available } = space(Path::new(path))?;
        return Ok(share(used, used + available));
    }
    let mounted = mounted(&text(&roots.proc.join("self/mountinfo"))?);
    together(mounted.into_iter().map(|(pool, place)| (pool, space(&place))))
}

/// The share of all file systems, each with the pool that its free space is of. Those that cannot be
/// asked are left out, unless there is no other.
fn together(
    spaces: impl Iterator<Item = (String, Result<Space, String>)>,
) -> Result<Reading, String> {
    let (mut used, mut pools) = (0, BTreeMap::<_, u64>::new());
    let mut trouble = None;
    for (pool, space) in spaces {
        match space {
            Ok(space) => {
                used += space.used;
                let available = pools.entry(pool).or_default();
                *available = space.available.max(*available);
            }
            Err(error) => trouble = Some(error),
        }
    }
    match trouble {
        Some(error) if pools.is_empty() => Err(error),
        _ => Ok(share(used, used + pools.values().sum::<u64>())),
    }
}

fn space(place: &Path) -> Result<Space, String> {
    let stat = statvfs(place)
        .map_err(|error| format!("cannot ask for the space at {}: {error}", place.display()))?;
    let used = stat.blocks().saturating_sub(stat.blocks_free()) * stat.fragment_size();
    Ok(Space { used, available: stat.blocks_available() * stat.fragment_size() })
}

/// Where the file systems of this machine are mounted, one place each, with the pool that each is of (its
/// device, where there is none); the root, where none is.
fn mounted(mountinfo: &str) -> Vec<(String, PathBuf)> {
    let mut seen = HashSet::new();
    let places = mountinfo.lines().filter_map(|line| {
        // ID parent major:minor root PLACE options … - TYPE SOURCE options
        let (mount, kind) = line.split_once(" - ")?;
        let place = mount.split(' ').nth(4)?;
        let mut kind = kind.split(' ');
        let (kind, source) = (kind.next()?, kind.next()?);
        let is_device = source.starts_with("/dev/") && !source.starts_with("/dev/loop");
        let counts = (is_device || kind == "zfs") && !IMAGES.contains(&kind);
        let pool = if kind == "zfs" { source.split('/').next()? } else { source };
        let found = || (pool.to_owned(), PathBuf::from(unescaped(place)));
        (counts && seen.insert(source)).then(found)
    });
    let places: Vec<_> = places.collect();
    if places.is_empty() { vec![(String::new(), PathBuf::from("/"))] } else { places }
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
        let places = |mountinfo: &str| -> Vec<PathBuf> {
            mounted(mountinfo).into_iter().map(|(_, place)| place).collect()
        };
        assert_eq!(places(&mountinfo), [Path::new("/"), Path::new("/data disk")]);
        assert_eq!(places("25 21 0:41 / / rw - overlay overlay rw"), [Path::new("/")]);
    }

    #[test]
    fn the_free_space_of_a_pool_counts_once() {
        let mountinfo = "\
            21 1 0:30 / / rw - zfs tank/root rw\n\
            22 1 0:31 / /home rw - zfs tank/home rw\n\
            23 1 8:1 / /boot rw - ext4 /dev/sda1 rw\n";
        let used = [10, 20, 30];
        let spaces = mounted(mountinfo).into_iter().zip(used);
        let spaces = spaces.map(|((pool, _), used)| (pool, Ok(Space { used, available: 70 })));
        // 60 used; 70 free in the pool and 70 on the device.
        assert_eq!(together(spaces), Ok(Reading::Value(0.3)));
    }

    #[test]
    fn a_place_that_cannot_be_asked_spoils_no_other() {
        let good = || ("a".to_owned(), Ok(Space { used: 1, available: 3 }));
        let bad = || ("b".to_owned(), Err("no permission".to_owned()));
        assert_eq!(together([bad(), good(), bad()].into_iter()), Ok(Reading::Value(0.25)));
        assert_eq!(together([bad()].into_iter()), Err("no permission".to_owned()));
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
