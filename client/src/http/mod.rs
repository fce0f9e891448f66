//! A small web server for browsers and for programs that collect metrics. It answers only requests that have the token.
//!
//! Every connection serves one request. Connections are limited in number and time: if there are too many, the oldest
//! is closed, so that slow clients cannot keep out others.

mod guests;
mod secret;

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use guests::Guests;
pub(crate) use secret::Secret;

use crate::failure::Failure;

/// Time limit for the headers of a request to arrive; `ANSWER_LIMIT` is the limit for a whole connection with its
/// answer.
const QUESTION_LIMIT: Duration = Duration::from_secs(5);
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Maximum size of a request to the web server in bytes, headers included.
const QUESTION_BYTES_MAX: usize = 16 << 10;

/// A request to the web server that has the right access token.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) path: String,
    /// True for a POST request, which asks the web server to do something.
    pub(crate) acts: bool,
    query: String,
}

impl Question {
    /// Returns the value of a query parameter as it stands in the URL, without decoding.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        value_in(&self.query, name)
    }

    /// Returns the value of a query parameter as a finite number.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        let value = value_in(&self.query, name)?;
        value.parse().ok().filter(|number: &f64| number.is_finite())
    }
}

/// A response of the web server.
pub(crate) struct Answer {
    status: StatusCode,
    kind: &'static str,
    /// Content security policy: sources that the page may load and run.
    policy: String,
    body: Bytes,
}

impl Answer {
    /// Returns a successful response with this content type.
    pub(crate) fn of(kind: &'static str, body: impl Into<Bytes>) -> Self {
        Self {
            status: StatusCode::OK,
            kind,
            policy: "default-src 'none'; frame-ancestors 'none'".into(),
            body: body.into(),
        }
    }

    /// Returns an HTML page with its content security policy.
    pub(crate) fn page(body: impl Into<Bytes>, policy: &str) -> Self {
        Self {
            policy: policy.into(),
            ..Self::of("text/html; charset=utf-8", body)
        }
    }

    /// Returns a response with one sentence as plain text.
    pub(crate) fn sentence(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            ..Self::of("text/plain; charset=utf-8", text.into() + "\n")
        }
    }

    /// Returns the 404 response.
    pub(crate) fn nothing() -> Self {
        Self::sentence(StatusCode::NOT_FOUND, "this server has no page at this address")
    }
}

/// Parses an address of this machine, with a host name or numbers; `:7700` means that port on all addresses. If a host
/// name has several addresses, the first one is taken.
pub(crate) async fn own_address(flag: &str, text: &str) -> Result<SocketAddr, Failure> {
    let anywhere = if text.starts_with(':') { "0.0.0.0" } else { "" };
    let found = tokio::net::lookup_host(format!("{anywhere}{text}")).await;
    let address = found.ok().and_then(|mut found| found.next());
    address.ok_or_else(|| {
        Failure::input(format!(
            "{flag} {text} is no valid address: give HOST:PORT, for example 192.168.1.10:7700, or :7700"
        ))
    })
}

/// A running web server, which stops when this value is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Starts a web server at an address. Requests that have the access token are answered by `answer`. `flag` is the flag
/// that set the address, for error messages.
pub(crate) async fn serve<A, F>(flag: &str, address: SocketAddr, secret: Secret, answer: A) -> Result<Server, Failure>
where
    A: Fn(Question) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let not_bound = |error: std::io::Error| {
        Failure::input(format!(
            "cannot listen on {flag} {address}: {error}; give another address, or port 0 for any free port"
        ))
    };
    let listener = TcpListener::bind(address).await.map_err(not_bound)?;
    let address = listener.local_addr().map_err(not_bound)?;
    let accepting = tokio::spawn(accept(listener, secret, answer));
    Ok(Server { address, accepting })
}

async fn accept<A, F>(listener: TcpListener, secret: Secret, answer: A)
where
    A: Fn(Question) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let mut guests = Guests::default();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Most likely there are no free file descriptors: open connections will end and free some.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (secret, answer) = (secret.clone(), answer.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let (secret, answer) = (secret.clone(), answer.clone());
            async move {
                let answer = match question(&request, &secret) {
                    Ok(question) => answer(question).await,
                    Err(refusal) => refusal,
                };
                Ok::<_, Infallible>(response(answer, request.method() == Method::HEAD))
            }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(QUESTION_LIMIT)
            .keep_alive(false)
            .max_buf_size(QUESTION_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service);
        // Errors of a single connection need no report.
        guests.admit(async move { drop(tokio::time::timeout(ANSWER_LIMIT, connection).await) });
    }
}

/// Checks a request. Returns it parsed, or the response that refuses it: unknown method, or no valid access token.
fn question(request: &Request<Incoming>, secret: &Secret) -> Result<Question, Answer> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let header = request.headers().get(header::AUTHORIZATION);
    let bearer = header.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let acts = match *request.method() {
        Method::GET | Method::HEAD => false,
        Method::POST => true,
        _ => {
            return Err(Answer::sentence(
                StatusCode::METHOD_NOT_ALLOWED,
                "this server answers only GET, HEAD and POST requests",
            ));
        }
    };
    // A page of another site can make a browser open a URL, but cannot make it send this header. So only requests with
    // the header may act; a token in the URL is not enough.
    let in_address = value_in(&query, "token").filter(|_| !acts);
    if !bearer.or(in_address).is_some_and(|token| secret.is(token)) {
        return Err(Answer::sentence(
            StatusCode::UNAUTHORIZED,
            "this server needs the token that it printed when it started: open the whole printed address, or send \
             the header 'Authorization: Bearer TOKEN'",
        ));
    }
    Ok(Question {
        path: request.uri().path().to_owned(),
        acts,
        query,
    })
}

fn value_in<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .filter(|(key, _)| *key == name)
        .map(|(_, value)| value)
        .next_back()
}

fn response(answer: Answer, head_only: bool) -> Response<Full<Bytes>> {
    let body = if head_only { Bytes::new() } else { answer.body };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = answer.status;
    let headers = response.headers_mut();
    let fixed = [
        (header::CONTENT_TYPE, answer.kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if let Ok(policy) = HeaderValue::from_str(&answer.policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    if answer.status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_name_counts_and_only_numbers_are_numbers() {
        let question = |query: &str| Question {
            path: "/".into(),
            acts: false,
            query: query.into(),
        };
        assert_eq!(question("a=1&b=2&a=3").number("a"), Some(3.0));
        assert_eq!(question("a=1&b").number("b"), None);
        assert_eq!(question("a=inf&b=x").number("a"), None);
        assert_eq!(value_in("token=x", "tok"), None);
    }
}
