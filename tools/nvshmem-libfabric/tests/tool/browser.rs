//! A real browser, that looks at pages the tool has written.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use test_support::needs::Need;

use crate::bed::{Scratch, expect};

/// What it may take on a machine that is very busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the page is asked in the browser: where its pictures and their lines are, and which text
/// they have.
const QUESTION: &str = "<script>addEventListener('load', () => {
    const box = (of) => { const b = of.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
    const plots = [...document.querySelectorAll('svg')].map((svg) => ({
        box: box(svg),
        lines: [...svg.querySelectorAll('polyline')].map(box),
        points: [...svg.querySelectorAll('circle')].map(box),
        texts: [...svg.querySelectorAll('text')].map((text) => [text.textContent.trim(), ...box(text)]),
    }));
    const answer = { plots, title: document.title, width: innerWidth, all: document.documentElement.scrollWidth };
    document.body.textContent = 'ANSWER' + JSON.stringify(answer) + 'END';
});</script>";

/// A browser without a window.
pub(crate) fn chromium() -> Need<()> {
    match Command::new("chromium").arg("--version").output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("chromium does not work here: {}", output.status)),
        Err(error) => Err(format!("chromium does not start: {error}")),
    }
}

/// What it prints for a page, with a window of this size.
fn browse(scratch: &Scratch, page: &Path, more: &[&str]) -> Result<String, Failed> {
    let mut command = Command::new("chromium");
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1000,4000",
    ]);
    command.arg(format!("--user-data-dir={}", scratch.at("profile").display())).args(more);
    command.arg(format!("file://{}", page.display())).stdin(Stdio::null());
    let out = scratch.at("browser.out");
    command.stdout(fs::File::create(&out)?).stderr(fs::File::create(scratch.at("browser.err"))?);
    let mut child = command.spawn()?;
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            let said = fs::read_to_string(scratch.at("browser.err"))?;
            expect(status.success(), || format!("{status}: {said}"))?;
            return Ok(fs::read_to_string(&out)?);
        }
        if began.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Err("the browser has not ended".into());
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// What the browser makes of a page.
pub(crate) fn look(scratch: &Scratch, page: &Path) -> Result<serde_json::Value, Failed> {
    let text = fs::read_to_string(page)?;
    let policy = text.lines().find(|line| line.contains("Content-Security-Policy"));
    let policy = policy.ok_or("the page does not forbid what it does not need")?;
    // A copy that may answer.
    let asked = scratch.write("asked.html", &text.replace(policy, QUESTION));
    let dom = browse(scratch, &asked, &["--dump-dom"])?;
    let answer = dom.rsplit_once("ANSWER").and_then(|(_, rest)| Some(rest.split_once("END")?.0));
    let answer = answer.ok_or_else(|| format!("no answer in {dom}"))?;
    // As text of a page.
    let plain = answer.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    Ok(serde_json::from_str(&plain)?)
}

/// A picture of the page, as its users see it.
pub(crate) fn picture(scratch: &Scratch, page: &Path) -> Result<Vec<u8>, Failed> {
    let shot = scratch.at("shot.png");
    browse(scratch, page, &[&format!("--screenshot={}", shot.display())])?;
    Ok(fs::read(shot)?)
}
