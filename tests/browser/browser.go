// Package browser drives a headless Chromium, so that a test sees a page as a user does.
package browser

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/beeline-lb/beeline/tests/lab"
	"github.com/beeline-lb/beeline/tests/tier"
	"github.com/beeline-lb/beeline/tests/wait"
)

// screenshotsVariable names a folder that screenshots are kept in, to be looked at.
const screenshotsVariable = "BEELINE_TEST_SCREENSHOTS"

// Browser is a tab of a headless Chromium, driven by the DevTools protocol over a pipe.
type Browser struct {
	t       *testing.T
	in      *os.File
	session string

	mu       sync.Mutex
	calls    int
	answers  map[int]chan devtools
	problems []string // what pages have thrown, and what the policy has kept them from
}

// devtools is a message of the protocol.
type devtools struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     json.RawMessage `json:"error,omitempty"`
}

// New starts one, which ends with the test. The test is left to make test-all, and skipped where
// there is no chromium.
func New(t *testing.T) *Browser {
	t.Helper()
	tier.Slow(t, "needs chromium, a large program")
	lab.Need(t, "chromium")
	toRead, in, err := os.Pipe()
	check(t, err)
	out, toWrite, err := os.Pipe()
	check(t, err)
	home := t.TempDir()
	// The sandbox needs another user than root. What it shows comes from this test.
	cmd := exec.Command("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--remote-debugging-pipe", "--user-data-dir="+filepath.Join(home, "profile"))
	cmd.Env = append(os.Environ(), "HOME="+home, "TMPDIR="+home, "LANG=C.UTF-8")
	cmd.ExtraFiles = []*os.File{toRead, toWrite} // 3 and 4
	check(t, cmd.Start())
	check(t, toRead.Close())
	check(t, toWrite.Close())
	b := &Browser{t: t, in: in, answers: make(map[int]chan devtools)}
	var done sync.WaitGroup
	done.Go(func() { b.listen(out) })
	t.Cleanup(func() {
		b.call("Browser.close", nil)
		cmd.Wait()
		done.Wait()
		in.Close()
		out.Close()
		if t.Failed() {
			t.Logf("what the page has thrown, or was kept from: %s", strings.Join(b.problems, "\n"))
		}
	})
	var target struct{ TargetID, SessionID string }
	b.into(&target, "Target.createTarget", map[string]any{"url": "about:blank"})
	b.into(&target, "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true})
	b.session = target.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(domain+".enable", nil)
	}
	return b
}

// listen hands on what the browser says, until it ends.
func (b *Browser) listen(out *os.File) {
	messages := bufio.NewReader(out)
	for {
		text, err := messages.ReadBytes(0)
		b.mu.Lock()
		if err != nil {
			for id, answer := range b.answers {
				close(answer)
				delete(b.answers, id)
			}
			b.answers = nil
			b.mu.Unlock()
			return
		}
		var m devtools
		if err := json.Unmarshal(text[:len(text)-1], &m); err != nil {
			b.problems = append(b.problems, err.Error())
		}
		switch {
		case m.ID != 0 && b.answers[m.ID] != nil:
			b.answers[m.ID] <- m
			delete(b.answers, m.ID)
		case m.Method == "Runtime.exceptionThrown", m.Method == "Log.entryAdded" && strings.Contains(string(m.Params), `"level":"error"`):
			b.problems = append(b.problems, string(m.Params))
		}
		b.mu.Unlock()
	}
}

// call calls a method and returns its result; none once the browser has ended.
func (b *Browser) call(method string, params map[string]any) json.RawMessage {
	b.t.Helper()
	encoded, err := json.Marshal(params)
	check(b.t, err)
	answer := make(chan devtools, 1)
	b.mu.Lock()
	if b.answers == nil {
		b.mu.Unlock()
		b.t.Fatalf("%s: the browser has ended", method)
	}
	b.calls++
	b.answers[b.calls] = answer
	message, err := json.Marshal(devtools{ID: b.calls, SessionID: b.session, Method: method, Params: encoded})
	b.mu.Unlock()
	check(b.t, err)
	_, err = b.in.Write(append(message, 0))
	check(b.t, err)
	m := <-answer
	if m.Error != nil {
		b.t.Fatalf("%s: %s", method, m.Error)
	}
	return m.Result
}

func (b *Browser) into(result any, method string, params map[string]any) {
	b.t.Helper()
	check(b.t, json.Unmarshal(b.call(method, params), result))
}

// Window sets the size of the window, and whether the user likes it dark.
func (b *Browser) Window(width, height int, scheme string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{
		"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500,
	})
	b.call("Emulation.setEmulatedMedia", map[string]any{
		"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}},
	})
}

// Open goes to a page and waits until it is loaded.
func (b *Browser) Open(url string) {
	b.t.Helper()
	b.call("Page.navigate", map[string]any{"url": url})
	// The page before may be asked still, which is loaded as well.
	loaded := fmt.Sprintf("document.readyState === 'complete' && location.href.split('#')[0] === new URL(%q).href.split('#')[0]", url)
	wait.Until(b.t, "the page is loaded", func() bool { return b.evaluate(loaded, false) == "true" })
}

// Eval returns what an expression is in the page, or what its promise comes to, as text.
func (b *Browser) Eval(expression string) string {
	b.t.Helper()
	return b.evaluate(expression, true)
}

// evaluate is Eval. A promise is not to be awaited while the page may change: of one that goes with its page nothing is
// heard any more.
func (b *Browser) evaluate(expression string, await bool) string {
	b.t.Helper()
	var answer struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	b.into(&answer, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": await})
	if answer.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, answer.ExceptionDetails)
	}
	return fmt.Sprint(answer.Result.Value)
}

// Text returns the text that an element shows; "" where there is none.
func (b *Browser) Text(selector string) string {
	b.t.Helper()
	return b.Eval(fmt.Sprintf("document.querySelector(%q)?.innerText ?? ''", selector))
}

// Shows waits until an element shows all parts, in this order.
func (b *Browser) Shows(what, selector string, parts ...string) {
	b.t.Helper()
	text := ""
	defer func() {
		if b.t.Failed() {
			b.t.Logf("%s: %s shows:\n%s", what, selector, text)
		}
	}()
	wait.Until(b.t, what, func() bool {
		text = b.Text(selector)
		rest, found := text, true
		for _, part := range parts {
			if _, rest, found = strings.Cut(rest, part); !found {
				return false
			}
		}
		return true
	})
}

// Until waits until an expression is true in the page.
func (b *Browser) Until(what, expression string) {
	b.t.Helper()
	wait.Until(b.t, what, func() bool { return b.Eval("Promise.resolve("+expression+").then(Boolean)") == "true" })
}

// Click clicks where the element of a selector is seen.
func (b *Browser) Click(selector string) {
	b.t.Helper()
	var at struct{ X, Y float64 }
	check(b.t, json.Unmarshal([]byte(b.Eval(fmt.Sprintf(`(() => {
		const e = document.querySelector(%q);
		e.scrollIntoView({ block: 'center' });
		const r = e.getBoundingClientRect();
		return JSON.stringify({ x: r.x + Math.min(r.width, 20) / 2, y: r.y + r.height / 2 });
	})()`, selector))), &at))
	for _, event := range []string{"mousePressed", "mouseReleased"} {
		b.call("Input.dispatchMouseEvent", map[string]any{"type": event, "x": at.X, "y": at.Y, "button": "left", "clickCount": 1})
	}
}

// Press presses a key: what it is called, what it types, and its number.
func (b *Browser) Press(key, text string, code int) {
	b.t.Helper()
	for _, event := range []string{"keyDown", "keyUp"} {
		b.call("Input.dispatchKeyEvent", map[string]any{"type": event, "key": key, "text": text, "windowsVirtualKeyCode": code})
	}
}

// TypeText types into the element that has the focus.
func (b *Browser) TypeText(text string) {
	b.t.Helper()
	b.call("Input.insertText", map[string]any{"text": text})
}

// Screenshot takes one of the whole page, and keeps it where that is asked for.
func (b *Browser) Screenshot(name string) {
	b.t.Helper()
	var shot struct{ Data string }
	b.into(&shot, "Page.captureScreenshot", map[string]any{"captureBeyondViewport": true})
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	check(b.t, err)
	if folder := os.Getenv(screenshotsVariable); folder != "" {
		check(b.t, os.WriteFile(filepath.Join(folder, name+".png"), png, 0o644))
	}
}

// Fits checks that nothing of the page is wider than the window.
func (b *Browser) Fits(what string) {
	b.t.Helper()
	if wide := b.Eval(`[...document.querySelectorAll('body *')].filter((e) => !e.closest('.spoken, svg')
		&& e.getBoundingClientRect().right > document.documentElement.clientWidth + 0.5)
		.map((e) => e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40))
		.concat(document.documentElement.scrollWidth > document.documentElement.clientWidth ? ['text'] : []).join('; ')`); wide != "" {
		b.t.Errorf("%s: wider than the window: %s", what, wide)
	}
}

// leastContrast is that of WCAG 2 (AA) for text.
const leastContrast = 4.5

// Contrast checks that text is seen on the ground behind it.
func (b *Browser) Contrast(what string) {
	b.t.Helper()
	faint := b.Eval(fmt.Sprintf(`(() => {
		const light = (color) => {
			const [r, g, b] = color.match(/[\d.]+/g).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
			return 0.2126 * r + 0.7152 * g + 0.0722 * b;
		};
		const ground = (e) => {
			for (; e; e = e.parentElement) {
				const color = getComputedStyle(e).backgroundColor;
				if (!/, 0\)/.test(color)) return color;
			}
			return 'rgb(255, 255, 255)';
		};
		return [...document.querySelectorAll('body *')].filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())
			&& !e.closest('script, style, noscript, option, [hidden], :disabled')).map((e) => {
			const style = getComputedStyle(e), text = light(e.closest('svg') ? style.fill : style.color), behind = light(ground(e));
			return [(Math.max(text, behind) + 0.05) / (Math.min(text, behind) + 0.05), e.tagName + ' ' + e.textContent.slice(0, 40)];
		}).filter(([ratio]) => ratio < %v).join('; ');
	})()`, leastContrast))
	if faint != "" {
		b.t.Errorf("%s: text with little contrast: %s", what, faint)
	}
}

// NoProblems fails when a page has thrown something or was kept from something, but for what
// contains one of some texts.
func (b *Browser) NoProblems(but ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.problems {
		if !slices.ContainsFunc(but, func(text string) bool { return strings.Contains(p, text) }) {
			b.t.Errorf("the page: %s", p)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
