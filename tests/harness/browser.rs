//! A headless Chromium, driven over a pipe by the protocol of its developer tools.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use base64::Engine;
use serde_json::{Value, json};

use super::cluster::Cluster;

/// Names of the browser's program on different systems.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// A browser with one page open, which is closed on drop.
pub(crate) struct Browser {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    session: Option<String>,
    number: u64,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts a browser. Returns `None`, after a message, if this machine has none.
    pub(crate) fn start() -> Option<Self> {
        let has = |name: &&&str| {
            let found = Command::new(name).arg("--version").output();
            found.is_ok_and(|output| output.status.success())
        };
        let Some(name) = NAMES.iter().find(has) else {
            super::skip("it needs Chromium");
            return None;
        };
        let profile = tempfile::tempdir().unwrap();
        // The browser uses descriptors 3 and 4, which the shell connects to standard input and output.
        let flags = "--headless --no-sandbox --disable-gpu --hide-scrollbars --disable-dev-shm-usage --no-first-run \
                     --disable-background-networking --disable-component-update --remote-debugging-pipe";
        let command = format!("exec {name} {flags} \"--user-data-dir=$0\" 3<&0 4>&1 >/dev/null 2>&1");
        let mut process = Command::new("sh")
            .args(["-c", &command])
            .arg(profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        let mut browser = Self {
            process,
            commands,
            answers,
            session: None,
            number: 0,
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", &target);
        browser.session = Some(attached["sessionId"].as_str().unwrap().into());
        Some(browser)
    }

    /// Sends a command to the browser's developer tools, and returns its result.
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.number += 1;
        let mut command = json!({ "id": self.number, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            command["sessionId"] = session.as_str().into();
        }
        write!(self.commands, "{command}\0").unwrap();
        self.commands.flush().unwrap();
        loop {
            let mut text = Vec::new();
            self.answers.read_until(0, &mut text).unwrap();
            assert!(!text.is_empty(), "the browser has ended");
            let answer: Value = serde_json::from_slice(text.strip_suffix(&[0]).unwrap_or(&text)).unwrap();
            if answer["id"] == self.number {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    /// Opens an address in the browser's page.
    pub(crate) fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", &json!({ "url": url }));
        assert!(opened["errorText"].is_null(), "{opened}");
    }

    /// Returns the value of a JavaScript expression in the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", &parameters);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Returns the text of the element with this id.
    pub(crate) fn text(&mut self, id: &str) -> String {
        let text = self.value(&format!("document.getElementById('{id}')?.innerText ?? ''"));
        text.as_str().unwrap().into()
    }

    /// Waits until a JavaScript expression is true in the page.
    pub(crate) fn wait_until(&mut self, expression: &str) {
        let mut seen = String::new();
        let holds = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            Cluster::wait_until("never", || {
                // A page that is still loading has no elements.
                let careful = format!("(() => {{ try {{ return {expression}; }} catch {{ return false; }} }})()");
                let holds = self.value(&careful) == true;
                if !holds {
                    let text = self.value("document.body?.innerText");
                    seen = text.as_str().unwrap_or_default().into();
                }
                holds
            });
        }));
        assert!(holds.is_ok(), "the page never has {expression}:\n{seen}");
    }

    /// Sets the size of the window and checks that the page is no wider. Writes a screenshot if `TAU_PICTURES` names a
    /// folder.
    pub(crate) fn picture(&mut self, name: &str, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", &size);
        let wide = self.value("document.documentElement.scrollWidth");
        assert!(
            wide.as_u64() <= Some(width.into()),
            "{name}: the page is {wide} wide, the window {width}"
        );
        let Ok(folder) = std::env::var("TAU_PICTURES") else {
            return;
        };
        // Charts are redrawn when the window changes.
        self.value("new Promise((resolve) => setTimeout(() => resolve(true), 100))");
        let picture = self.call("Page.captureScreenshot", &json!({ "format": "png" }));
        let letters = picture["data"].as_str().unwrap();
        let bytes = base64::prelude::BASE64_STANDARD.decode(letters).unwrap();
        std::fs::write(format!("{folder}/{name}.png"), bytes).unwrap();
    }

    /// Emulates a user who prefers a dark page.
    pub(crate) fn darken(&mut self) {
        let dark = json!({ "features": [{ "name": "prefers-color-scheme", "value": "dark" }] });
        self.call("Emulation.setEmulatedMedia", &dark);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session = None;
        let _ = write!(self.commands, "{}\0", json!({ "id": 0, "method": "Browser.close" }));
        let _ = self.commands.flush();
        // The browser ends when its pipe closes, and its helper processes end with it.
        let mut rest = Vec::new();
        let _ = std::io::Read::read_to_end(&mut self.answers, &mut rest);
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
