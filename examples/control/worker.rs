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
    let mut registered = false;
    // The node may be away, and after that it may not know the service.
    let mut report = |document: &str| -> Result<()> {
        if !registered {
            let options = format!(r#"{{"ttl": "{ttl}s", "name": "Worker in Rust"}}"#);
            node("PUT", &service, &options)?;
        }
        let result = node("PUT", &status, document);
        registered = result.is_ok();
        result
    };
    let (ended, end) = channel();
    thread::spawn(move || ended.send(io::copy(&mut io::stdin(), &mut io::sink())));
    loop {
        if let Err(error) = report(r#"{"status": "up"}"#) {
            eprintln!("{error}");
        }
        if end.recv_timeout(interval).is_ok() {
            report(r#"{"status": "down", "reason": "stopped"}"#)?;
            return node("DELETE", &service, "");
        }
    }
}
