//! Kernel settings of the network namespace that the calling thread is in.

use std::{fs, io};

use rustix::mount::{MountFlags, mount_remount};

/// Settings of a gateway: it forwards from no link of which that was not asked, believes no forged
/// source address, and knows no IPv6. A new namespace takes IPv4 settings from the host, so all of them are written.
const GATEWAY: [(&str, &str); 11] = [
    ("ipv4/ip_forward", "0"),
    ("ipv4/conf/all/forwarding", "0"),
    ("ipv4/conf/default/forwarding", "0"),
    ("ipv4/conf/all/rp_filter", "1"),
    ("ipv4/conf/default/rp_filter", "1"),
    // The way back is looked up with the packet's mark, like the way out.
    ("ipv4/conf/all/src_valid_mark", "1"),
    ("ipv4/conf/default/arp_ignore", "2"),
    ("ipv4/conf/default/accept_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
];

/// Settings of a sandbox, before it has a link: no IPv6, so no link-local address either.
const SANDBOX: [(&str, &str); 2] = [
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
];

/// Closes the gateway that the calling thread is in. Links from which it forwards already, stay so.
///
/// # Errors
/// When a setting cannot be written.
pub fn close_gateway() -> io::Result<()> {
    write_all(&GATEWAY)
}

/// Forwards what comes in by this link of the gateway, as far as there are routes.
///
/// # Errors
/// When a setting cannot be written.
pub fn forward_from(link: &str) -> io::Result<()> {
    let path = format!("/proc/sys/net/ipv4/conf/{link}/forwarding");
    fs::write(&path, "1").map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))
}

/// Closes the sandbox's namespace that the calling thread is in.
///
/// # Errors
/// When a setting cannot be written.
pub fn close_sandbox() -> io::Result<()> {
    write_all(&SANDBOX)
}

/// Makes `/proc/sys` writable in the calling thread's own mount namespace.
///
/// # Errors
/// When it cannot be mounted again.
pub fn make_writable() -> io::Result<()> {
    let flags = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount_remount("/proc/sys", flags, "")?)
}

/// Whether the namespace that the calling thread is in, the host's, forwards IPv4: without it nothing
/// that comes out of an uplink goes on.
///
/// # Errors
/// When the setting cannot be read.
pub fn forwards() -> io::Result<bool> {
    Ok(fs::read_to_string("/proc/sys/net/ipv4/ip_forward")?.trim() == "1")
}

fn write_all(settings: &[(&str, &str)]) -> io::Result<()> {
    settings.iter().try_for_each(|(name, value)| {
        let path = format!("/proc/sys/net/{name}");
        match fs::write(&path, value) {
            // A kernel without IPv6 has nothing to switch off.
            Err(error) if error.kind() == io::ErrorKind::NotFound && name.starts_with("ipv6") => {
                Ok(())
            }
            Err(error) => Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
            Ok(()) => Ok(()),
        }
    })
}
