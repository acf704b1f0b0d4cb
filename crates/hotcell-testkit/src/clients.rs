//! Programs that look names up, each by a library of its own, for sandboxes whose image has none of them: taken
//! from the host with all that they are linked with, and run by the loader that comes along.

use std::{collections::BTreeSet, path::PathBuf, process::Command};

use bytes::Bytes;
use futures_util::stream;
use hotcell_runtime::{ByteStream, Sandbox};
use sha2::{Digest, Sha256};

/// Where [`bundle`] has to be in the sandbox.
pub const BUNDLE: &str = "/workspace/clients.tgz";

const PROGRAMS: [&str; 2] = ["node", "dig"];
const LOADER: &str = "ld-linux-x86-64.so.2";

/// Prints a line for each client: its name, and the addresses that it found.
const ASK: &str = r#"
[ -d /workspace/clients ] || { mkdir /workspace/clients && tar -xzf /workspace/clients.tgz -C /workspace/clients; } || exit 1
run() { program=$1; shift; /workspace/clients/LOADER --library-path /workspace/clients /workspace/clients/$program "$@"; }
echo getent $(getent ahostsv4 NAME | awk '$2 == "STREAM" { print $1 }')
echo python $(python3 -c 'import socket, sys; print(*sorted({it[4][0] for it in socket.getaddrinfo(sys.argv[1], 443)}))' NAME)
echo node $(run node -e "
const dns = require('dns');
dns.lookup('NAME', { all: true }, (error, found) => console.log(error ? error.code : found.map((it) => it.address).join(' ')));
")
echo c-ares $(run node -e "
const dns = require('dns');
dns.resolve4('NAME', (error, found) => console.log(error ? error.code : found.join(' ')));
")
echo dig $(run dig +short NAME A)
echo dig+tcp $(run dig +tcp +short NAME A)
"#;

/// The names of the clients that [`ask`] uses, in its order.
pub const CLIENTS: [&str; 6] = ["getent", "python", "node", "c-ares", "dig", "dig+tcp"];

/// A compressed archive of the host's programs, to be put at [`BUNDLE`].
///
/// # Panics
/// When one of them is not installed.
#[must_use]
pub fn bundle() -> Vec<u8> {
    let mut files = BTreeSet::new();
    for program in PROGRAMS {
        let found = said("sh", &["-c", &format!("command -v {program}")]);
        let path = PathBuf::from(found.trim());
        for line in said("ldd", &[found.trim()]).lines() {
            // `name => path (address)`, or the loader's path alone; what the kernel brings has neither.
            let file = line.split_whitespace().find(|word| word.starts_with('/'));
            files.extend(file.map(PathBuf::from));
        }
        files.insert(path);
    }
    let mut tar = Command::new("tar");
    tar.args(["-I", "gzip -1", "-chPf", "-", "--transform=s,.*/,,"])
        .args(files);
    let output = tar.output().expect("tar can be started");
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// Puts an executable file into a sandbox.
///
/// # Panics
/// When that fails.
pub async fn push(sandbox: &dyn Sandbox, path: &str, content: Vec<u8>) {
    let (bytes, digest) = (content.len() as u64, hex::encode(Sha256::digest(&content)));
    let content: ByteStream = Box::pin(stream::iter([Ok(Bytes::from(content))]));
    let path = path.parse().expect("a path of a sandbox");
    let pushed = sandbox.write_file(&path, 0o755, bytes, &digest, content);
    pushed.await.expect("it is written");
}

/// A command that looks this name up with every client.
#[must_use]
pub fn ask(name: &str) -> String {
    ASK.replace("NAME", name).replace("LOADER", LOADER)
}

/// What [`ask`] prints when all of them found this and nothing else.
#[must_use]
pub fn all_found(address: &str) -> String {
    CLIENTS
        .map(|client| format!("{client} {address}"))
        .join("\n")
}

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.expect("it can be started");
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {output:?}"
    );
    String::from_utf8(output.stdout).expect("paths here are text")
}
