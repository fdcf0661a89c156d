// Report the status of a service to the node from Rust; the standard library only, which has no signals: this program
// works for as long as its standard input is open.
//   rustc --edition 2021 worker.rs && SVCNODE_CONTROL=/run/svcnode/control.sock ./worker ID TTL_IN_SECONDS
use std::io::{Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::time::Duration;
use std::{env, io, thread};

/// `path` is percent-encoded. The node closes the connection after the response.
fn node(method: &str, path: &str, body: &str) -> Result<()> {
    let mut stream = UnixStream::connect(env::var("SVCNODE_CONTROL").map_err(io::Error::other)?)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let length = body.len();
    let head = format!("{method} /v1/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close");
    write!(stream, "{head}\r\nContent-Length: {length}\r\n\r\n{body}")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    match response.get(9..10) {
        Some("2") => Ok(()),
        _ => Err(io::Error::other(response)),
    }
}

fn main() -> Result<()> {
    let [_, id, ttl] = env::args()
        .collect::<Vec<_>>()
        .try_into()
        .expect("give ID and TTL_IN_SECONDS");
    let interval = Duration::from_secs(ttl.parse().expect("the ttl is a number")) / 3;
    let (service, status) = (format!("services/{id}"), format!("services/{id}/status"));
    node(
        "PUT",
        &service,
        &format!(r#"{{"ttl": "{ttl}s", "name": "Worker in Rust"}}"#),
    )?;
    let (ended, end) = channel();
    thread::spawn(move || ended.send(io::copy(&mut io::stdin(), &mut io::sink())));
    loop {
        if let Err(error) = node("PUT", &status, r#"{"status": "up"}"#) {
            eprintln!("{error}"); // the node may be restarted meanwhile
        }
        if end.recv_timeout(interval).is_ok() {
            node("PUT", &status, r#"{"status": "down", "reason": "stopped"}"#)?;
            return node("DELETE", &service, "");
        }
    }
}
