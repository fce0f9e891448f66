//! Tests of the live page and the metrics: the data that a browser and a collector get of a cluster, and that strangers
//! do not get.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::browser::Browser;
use crate::harness::cluster::{Cluster, job, kill};
use crate::harness::{Running, Tau, points_csv};

/// Adds a node that serves a page at this address, and returns the page's URL.
fn with_page(cluster: &mut Cluster, page: &str, flags: &[&str]) -> String {
    cluster.add(&[&["--page", page], flags].concat());
    page_of(&mut cluster.nodes.last_mut().unwrap().process)
}

/// Returns the URL of the page that a process announces.
fn page_of(process: &mut Running) -> String {
    let line = process.read_object();
    assert_eq!(line["event"], "page", "{line}");
    line["url"].as_str().unwrap().into()
}

/// Returns the address and the token in a page's URL.
fn parts(url: &str) -> (&str, &str) {
    let (place, token) = url
        .strip_prefix("http://")
        .and_then(|rest| rest.split_once("/?token="))
        .unwrap();
    (place, token)
}

/// Sends an HTTP request, and returns the whole answer.
fn ask(place: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(place).unwrap();
    write!(stream, "{request}\r\nHost: {place}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_page_shows_a_run_a_death_and_a_return() {
    let Some(mut browser) = Browser::start() else { return };
    let mut cluster = Cluster::new();
    let url = with_page(&mut cluster, "127.0.0.1:0", &[]);
    cluster.add(&[]);
    cluster.add(&[]);
    cluster.wait_for_nodes(3);
    browser.open(&url);
    browser.wait_until("document.querySelectorAll('#nodes tr').length === 3");
    points_csv(&cluster.tau, "points.csv", 600);
    cluster.must("start", &job("1000000", &["--detach"]));

    let points = "document.querySelector('#loss-chart .loss')?.getAttribute('d').split('L').length ?? 0";
    browser.wait_until("document.getElementById('state').innerText === 'training'");
    browser.wait_until(&format!("({points}) >= 3"));
    let before = browser.value(points).as_u64().unwrap();
    browser.wait_until(&format!("({points}) > {before}"));
    let shown = browser.text("job");
    assert!(
        shown.starts_with("csv:points.csv") && shown.contains("dense 16, relu, dense 2"),
        "{shown}"
    );
    assert_eq!(
        browser.value("document.getElementById('stop').hidden"),
        true,
        "nobody has allowed that"
    );
    browser.picture("page-training", 1280, 1000);
    browser.picture("page-phone", 390, 844);
    browser.call("Emulation.clearDeviceMetricsOverride", &json!({}));

    let dead = cluster.nodes.pop().unwrap();
    kill("-KILL", dead.process.pid());
    let cell = format!(
        "[...document.querySelectorAll('#grid .silent')].some((cell) => cell.innerText.startsWith('{}'))",
        dead.name
    );
    browser.wait_until(&cell);
    browser.wait_until("document.querySelectorAll('#loss-chart .tick.bad').length === 1");
    assert!(browser.text("events").contains(&format!("{} fell silent", dead.name)));
    browser.darken();
    browser.picture("page-death-dark", 1280, 1000);

    // The node that serves the page is killed, and returns at the same address with the same token.
    let (place, _) = parts(&url);
    let (place, dir) = (place.to_owned(), cluster.nodes[0].dir.clone());
    kill("-KILL", cluster.nodes[0].process.pid());
    browser.wait_until("document.getElementById('state').innerText === 'not connected'");
    let other = cluster.nodes[1].address.clone();
    let dir = dir.file_name().unwrap().to_str().unwrap().to_owned();
    cluster.start(Some(&other), "127.0.0.1:0", &["--page", &place, "--dir", &dir]);
    assert_eq!(page_of(&mut cluster.nodes.last_mut().unwrap().process), url);
    browser.wait_until("document.getElementById('state').innerText === 'training'");
    // The data of the new process is shown whole: the curve from its start, and the first event. A second without
    // training has no loss and no point in the curve.
    let trained = "model.points.filter((point) => point[LOSS] !== null).length";
    browser.wait_until(&format!("({points}) >= 3 && ({points}) === {trained}"));
    browser.wait_until("model.events.length > 0 && model.events[0].number === 1");
}

/// Moves the slider of an ended run to a second in which it trained.
fn go_back_to_training(browser: &mut Browser) {
    let found = browser.value(
        "(async () => {
            const slider = document.getElementById('at');
            for (let part = 0.05; part < 1; part += 0.05) {
                slider.value = slider.max * part;
                await slider.oninput();
                if (document.getElementById('state').innerText === 'training') return true;
            }
            return false;
        })()",
    );
    assert_eq!(found, true, "it never trained");
}

#[test]
fn a_run_that_is_followed_has_a_page_until_its_end_and_is_shown_again() {
    let Some(mut browser) = Browser::start() else { return };
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 600);
    let flags = ["--nodes", "2", "--threads", "1", "--page", "--json"];
    let mut run = tau.start(&[&["train"], &*job("1000000", &flags)].concat());
    browser.open(&page_of(&mut run));
    browser.wait_until("document.querySelectorAll('#loss-chart .loss').length === 1");
    browser.wait_until("document.getElementById('accuracy').innerText.endsWith('%')");
    // The user who started the run may stop it from the page.
    browser.value("window.confirm = () => true; document.getElementById('stop').click()");
    browser.wait_until("document.getElementById('end').innerText.startsWith('finished (stopped): accuracy')");
    assert_eq!(browser.text("replicas"), "agree");
    browser.picture("page-finished", 1280, 1000);
    let output = run.finish();
    assert_eq!(
        (output.code, &output.last()["reason"]),
        (0, &"stopped".into()),
        "{}",
        output.stderr
    );

    // The report of the run is the same page, from disk.
    let report = tau.path("tau-out/latest/report.html");
    browser.open(&format!("file://{}", report.display()));
    browser.wait_until("document.getElementById('end').innerText.startsWith('finished (stopped): accuracy')");
    assert_eq!(browser.text("replicas"), "agree");
    assert!(browser.text("settings").contains("csv:points.csv") && browser.text("figures").contains("CPU time"));
    let drawn = "document.querySelectorAll('#loss-chart .loss, #accuracy-chart .held').length";
    assert_eq!(browser.value(drawn), 2);
    assert_eq!(browser.value("document.querySelectorAll('#nodes tr').length"), 2);
    assert_eq!(browser.value("document.getElementById('past').hidden"), true);
    browser.picture("report", 1280, 1400);

    let mut shown = tau.start(&["page", "tau-out/latest", "--json"]);
    browser.open(&page_of(&mut shown));
    browser.wait_until("document.getElementById('state').innerText === 'finished'");
    let all = browser
        .value("document.querySelectorAll('#events li').length")
        .as_u64()
        .unwrap();
    go_back_to_training(&mut browser);
    browser.value("document.getElementById('play').click()");
    browser.wait_until("document.getElementById('state').innerText === 'finished'");
    go_back_to_training(&mut browser);
    let some = browser
        .value("document.querySelectorAll('#events li').length")
        .as_u64()
        .unwrap();
    assert!(some < all, "{some} of {all} events");
    browser.picture("page-replay", 1280, 1000);
    shown.interrupt();
    shown.finish().ok();
}

/// Changes a run folder of an older release as if its model had no accuracy and its code had measured a perplexity.
fn without_accuracy(tau: &Tau) {
    let older = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/older/run");
    let folder = tau.path("run");
    std::fs::create_dir(&folder).unwrap();
    for entry in std::fs::read_dir(older).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
    }
    let result = folder.join("result.json");
    let mut finished: Value = serde_json::from_slice(&std::fs::read(&result).unwrap()).unwrap();
    let named = |one: &mut Value, perplexity: f64| {
        one["accuracy"] = Value::Null;
        one["named"] = json!({ "perplexity": perplexity, "<b>": Value::Null });
    };
    named(&mut finished, 7.125);
    let evaluations = finished["evaluations"].as_array_mut().unwrap();
    for (perplexity, one) in (10..).zip(evaluations.iter_mut().rev()) {
        named(one, f64::from(perplexity));
    }
    std::fs::write(&result, finished.to_string()).unwrap();
    let job = folder.join("job.toml");
    let text = std::fs::read_to_string(&job).unwrap();
    std::fs::write(job, text.replace("target_accuracy", "# target_accuracy")).unwrap();
}

#[test]
fn a_run_without_accuracy_shows_its_loss_and_what_the_users_code_has_measured() {
    let tau = Tau::new();
    without_accuracy(&tau);
    let shown = tau.must(&["show", "run/model.safetensors"]).stdout;
    let line = shown.lines().find(|line| line.starts_with("loss ")).unwrap();
    assert!(
        line.ends_with("loss      0.1148, <b> NaN, perplexity 7.1250 on test samples"),
        "{shown}"
    );
    let shown = tau.must(&["show", "run/model.safetensors", "--json"]).last();
    assert_eq!(shown["result"]["accuracy"], Value::Null);
    assert_eq!(shown["result"]["named"]["perplexity"], 7.125);
    let report = tau.must(&["report", "run", "--out", "report", "--json"]).last();
    assert_eq!(report["event"], "report");

    let Some(mut browser) = Browser::start() else { return };
    let mut process = tau.start(&["page", "run", "--json"]);
    browser.open(&page_of(&mut process));
    browser.wait_until("document.getElementById('state').innerText === 'finished'");
    let title = browser.text("judged");
    assert_eq!((&*title, browser.text("accuracy")), ("Eval loss", "0.1148".into()));
    assert!(
        browser.text("end").starts_with("finished: loss 0.1148, "),
        "{}",
        browser.text("end")
    );
    assert_eq!(browser.text("judged-curve"), "Eval loss");
    assert_eq!(
        browser.value("document.querySelectorAll('#accuracy-chart .held').length"),
        1
    );
    let names = "[...document.querySelectorAll('#named figcaption span:first-child')].map((one) => one.innerText)";
    assert_eq!(browser.value(names), json!(["<b>", "perplexity"]));
    assert_eq!(
        browser.value("document.querySelectorAll('#named .held.curve').length"),
        1
    );
    browser.picture("page-named", 1280, 1000);
    process.interrupt();
    process.finish().ok();
}

/// Records come once a second; of a shorter run everything is kept nevertheless.
#[test]
fn a_run_of_less_than_a_second_is_kept_and_shown_whole() {
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 600);
    let flags = ["--nodes", "2", "--threads", "1", "--evaluations", "4", "--json"];
    let output = tau.must(&[&["train"], &*job("3", &flags)].concat());
    let result = output.last();
    let seconds = |evaluations: &Value| -> Vec<Value> {
        let all = evaluations.as_array().unwrap();
        all.iter().map(|one| one["seconds"].clone()).collect()
    };
    let evaluated = seconds(&result["evaluations"]);
    assert!(!evaluated.is_empty(), "{result}");
    let text = std::fs::read_to_string(tau.path("tau-out/latest/metrics.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_evaluations = lines.iter().filter(|line| line["event"] == "evaluation");
    let kept: Vec<Value> = of_evaluations.map(|line| line["seconds"].clone()).collect();
    assert_eq!(kept, evaluated);
    // A node may have joined too late to train.
    let records = || lines.iter().filter(|line| line["event"].is_null());
    let nodes = |is_so: fn(&Value) -> bool| -> BTreeSet<String> {
        let so = records().filter(|line| is_so(line));
        so.map(|line| line["node"].to_string()).collect()
    };
    let trained = nodes(|line| line["samples"].as_u64() > Some(0));
    assert!(
        !trained.is_empty() && trained == nodes(|line| line["loss"].is_number()),
        "{text}"
    );
    assert_eq!(nodes(|line| line["state"] == "finishing").len(), 2, "{text}");

    let mut shown = tau.start(&["page", "tau-out/latest", "--json"]);
    let url = page_of(&mut shown);
    let (place, token) = parts(&url);
    let answer = ask(
        place,
        &format!("GET /news HTTP/1.1\r\nConnection: close\r\nAuthorization: Bearer {token}"),
    );
    let news: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(seconds(&news["evaluations"]), evaluated);
    let states: Vec<&Value> = news["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| &node["state"])
        .collect();
    assert_eq!(states, ["finished", "finished"]);
    let points = news["points"].as_array().unwrap();
    assert!(
        points.iter().any(|point| point[2].is_number()),
        "there is no training loss: {points:?}"
    );
    assert!(news["past"]["length"].as_f64() > Some(0.0), "{}", news["past"]);
    shown.interrupt();
    shown.finish().ok();
}

/// A client's page shows the path of the client's own copy of the model, because the nodes' copies are removed with
/// them.
#[test]
fn the_page_of_a_client_names_the_model_that_it_has_saved() {
    let tau = Tau::new();
    points_csv(&tau, "points.csv", 600);
    let flags = ["--nodes", "1", "--threads", "1", "--page", "127.0.0.1:0", "--json"];
    let mut run = tau.start(&[&["train"], &*job("3", &flags)].concat());
    let url = page_of(&mut run);
    let (place, token) = parts(&url);
    let mut named = String::new();
    // At its end the client waits until the page has been asked for.
    Cluster::wait_until("the page tells where the model is", || {
        let answer = ask(place, &format!("GET /news HTTP/1.1\r\nAuthorization: Bearer {token}"));
        let news: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        let over = news["facts"]["end"]["end"] == "finished";
        named = news["model"].as_str().unwrap().into();
        over && !named.is_empty()
    });
    let output = run.finish().ok();
    assert_eq!(named, output.last()["model"].as_str().unwrap());
    assert!(std::path::Path::new(&named).is_file());
}

/// Names and notices of nodes are shown as text, and never run as scripts.
#[test]
fn hostile_names_are_shown_as_text() {
    let Some(mut browser) = Browser::start() else { return };
    let evil = "<img src=x onerror=\"document.body.dataset.evil=1\">";
    let tau = Tau::new();
    let folder = tau.path("run");
    std::fs::create_dir(&folder).unwrap();
    let record = json!({
        "node": evil, "run": "7", "state": evil, "time": 1e9, "seconds": 1.0, "loss": 1.0, "digest": evil,
        "said": [{ "gravity": "error", "text": format!("{evil}</script>") }]
    });
    let later = json!({ "node": evil, "run": "7", "state": evil, "time": 1e9 + 2.0, "seconds": 3.0, "loss": 0.5 });
    let write = |name: &str, text: String| std::fs::write(folder.join(name), text).unwrap();
    write("metrics.jsonl", format!("{record}\n{later}\nhalf a li"));
    write(
        "events.jsonl",
        json!({ "time": 1e9 + 1.0, "event": "failed", "reason": evil }).to_string(),
    );
    write("job.toml", "data = \"builtin:mnist\"\n".into());
    let mut shown = tau.start(&["page", "run", "--json"]);
    let shown_at = page_of(&mut shown);
    tau.must(&["report", "run"]);
    let report = format!("file://{}", tau.path("tau-report/report.html").display());
    for (url, scripts) in [(&shown_at, 1), (&report, 2)] {
        browser.open(url);
        browser.wait_until("document.querySelectorAll('#nodes tr').length === 1");
        assert!(browser.text("nodes").contains(evil) && browser.text("events").contains(evil));
        assert_eq!(
            browser.value("document.images.length + document.querySelectorAll('script').length"),
            scripts
        );
        assert_eq!(browser.value("document.body.dataset.evil ?? 'none'"), "none");
    }
    shown.interrupt();
    shown.finish().ok();
}

#[test]
fn nothing_is_given_without_the_token_and_slow_clients_keep_nobody_out() {
    let mut cluster = Cluster::new();
    let url = with_page(&mut cluster, "127.0.0.1:0", &[]);
    let (place, token) = parts(&url);
    let page = ask(place, &format!("GET /?token={token} HTTP/1.1"));
    assert!(
        page.starts_with("HTTP/1.1 200 OK") && page.contains("<title>Tau"),
        "{page}"
    );
    let head = page.split("\r\n\r\n").next().unwrap().to_lowercase();
    for header in [
        "content-security-policy: default-src 'none'; script-src 'sha256-",
        "x-content-type-options: nosniff",
        "x-frame-options: deny",
        "referrer-policy: no-referrer",
        "cache-control: no-store",
        "content-type: text/html; charset=utf-8",
    ] {
        assert!(head.contains(header), "{header}\n{head}");
    }
    let bearer = format!("Authorization: Bearer {token}");
    for (request, status) in [
        ("GET / HTTP/1.1".to_owned(), 401),
        ("GET /news HTTP/1.1".into(), 401),
        (format!("GET /news?token={}x HTTP/1.1", &token[1..]), 401),
        ("GET /news HTTP/1.1\r\nAuthorization: Bearer".into(), 401),
        (format!("GET /news HTTP/1.1\r\n{bearer}"), 200),
        // The token in the address alone does not permit a stop, and this page does not allow stopping at all.
        (format!("POST /stop?token={token} HTTP/1.1"), 401),
        (format!("POST /stop HTTP/1.1\r\n{bearer}"), 403),
        (format!("GET /../../etc/passwd HTTP/1.1\r\n{bearer}"), 404),
        (format!("DELETE / HTTP/1.1\r\n{bearer}"), 405),
    ] {
        let answer = ask(place, &request);
        let short = &request[..request.len().min(80)];
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{short}: {answer:.200}"
        );
        assert!(status == 200 || !answer.contains("\"nodes\""), "{short}");
    }

    // A request that is too long is cut off: the sender gets an answer or only a closed connection.
    let mut talker = TcpStream::connect(place).unwrap();
    let _ = write!(
        talker,
        "GET / HTTP/1.1\r\n{bearer}\r\nx: {}\r\n\r\n",
        "y".repeat(1 << 20)
    );
    let mut answer = Vec::new();
    let _ = talker.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer:.200}");

    // Of a thousand connections three hundred are open at a time, which is within this process's limit of descriptors.
    let mut slow = std::collections::VecDeque::new();
    for number in 0..1000 {
        let mut stream = TcpStream::connect(place).unwrap();
        // Some clients send a request and do not read, some stop in the middle of a request, some send nothing.
        let _ = match number % 3 {
            0 => write!(stream, "GET /?token={token} HTTP/1.1\r\n\r\n"),
            1 => write!(stream, "GET /?tok"),
            _ => Ok(()),
        };
        slow.push_back(stream);
        if slow.len() > 300 {
            slow.pop_front();
        }
    }
    for _ in 0..20 {
        let news = ask(place, &format!("GET /news HTTP/1.1\r\n{bearer}"));
        assert!(news.starts_with("HTTP/1.1 200"), "{news:.200}");
    }
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", cluster.nodes[0].process.pid()));
    let descriptors = descriptors.unwrap().count();
    assert!(descriptors < 300, "{descriptors} descriptors are open");
    drop(slow);
}

#[test]
fn metrics_are_collected_and_the_dashboard_asks_for_what_there_is() {
    let mut cluster = Cluster::new();
    cluster.add(&["--metrics", "127.0.0.1:0"]);
    let line = cluster.nodes[0].process.read_object();
    assert_eq!(line["event"], "metrics", "{line}");
    let place = line["address"].as_str().unwrap().to_owned();
    let token = line["token"].as_str().unwrap().to_owned();
    cluster.wait_for_nodes(1);
    points_csv(&cluster.tau, "points.csv", 600);
    cluster.must("start", &job("1000000", &["--detach"]));
    assert!(ask(&place, "GET /metrics HTTP/1.1").starts_with("HTTP/1.1 401"));
    let collect = || {
        ask(
            &place,
            &format!("GET /metrics HTTP/1.1\r\nAuthorization: Bearer {token}"),
        )
    };
    let told = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.and_then(|value| value.parse::<f64>().ok())
    };
    Cluster::wait_until("no accuracy is measured", || {
        told(&collect(), "tau_held_out_loss").is_some()
    });
    Cluster::wait_until("nothing is trained", || {
        told(&collect(), "tau_samples_total") > Some(0.0)
    });
    // Records arrive before the facts that say how much there is to train.
    Cluster::wait_until("nobody says how much is done", || {
        told(&collect(), "tau_run_share").is_some()
    });
    let text = collect();
    assert!(
        text.contains("tau_state{state=\"training\"} 1") && text.ends_with("# EOF\n"),
        "{text}"
    );
    assert_eq!(told(&text, "tau_members_heard"), Some(1.0));

    let dashboard = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/grafana-dashboard.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(dashboard).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let expressions: Vec<&str> = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap())
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    assert!(expressions.len() >= 8);
    for expression in expressions {
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let names = expression
            .split(|letter| !is_letter(letter))
            .filter(|word| word.starts_with("tau_"));
        for name in names {
            let there = text
                .lines()
                .any(|line| line.starts_with(&format!("{name} ")) || line.starts_with(&format!("{name}{{")));
            assert!(there, "{expression} asks for {name}, which there is not");
        }
    }
}
