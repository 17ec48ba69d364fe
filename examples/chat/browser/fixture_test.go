package browser

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/pawl-go/pawl/internal/need"
	"github.com/pawl-go/pawl/internal/pgtest"
)

// patience is the longest time that a test waits for one condition.
const patience = 30 * time.Second

// binary is the server, built once. Its folder is removed after the tests.
var binary struct {
	once   sync.Once
	folder string
	path   string
	err    error
}

// chromium is the browser that all tests share. Each test has its own cookies.
var chromium struct {
	once sync.Once
	path string
	ctx  context.Context
	end  func()
	err  error
}

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if chromium.end != nil {
		chromium.end()
	}
	pgtest.Stop()
	if binary.folder != "" {
		_ = os.RemoveAll(binary.folder)
	}
	os.Exit(code)
}

// build returns the path of the server.
func build(t *testing.T) string {
	t.Helper()
	binary.once.Do(func() {
		if binary.folder, binary.err = os.MkdirTemp("", "pawl-chat-"); binary.err != nil {
			return
		}
		binary.path = filepath.Join(binary.folder, "chat")
		cmd := exec.Command("go", "build", "-o", binary.path, "./examples/chat")
		cmd.Dir = filepath.Join("..", "..", "..")
		if output, err := cmd.CombinedOutput(); err != nil {
			binary.err = fmt.Errorf("%w: %s", err, output)
		}
	})
	if binary.err != nil {
		t.Fatalf("the server did not build: %v", binary.err)
	}
	return binary.path
}

// browser returns the context of the browser. The first call starts it.
func browser(t *testing.T) context.Context {
	t.Helper()
	chromium.once.Do(func() {
		for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
			if chromium.path, chromium.err = exec.LookPath(name); chromium.err == nil {
				break
			}
		}
		if chromium.err != nil {
			return
		}
		options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium.path), chromedp.WindowSize(1280, 800),
			chromedp.WSURLReadTimeout(patience))
		if os.Getuid() == 0 {
			options = append(options, chromedp.NoSandbox)
		}
		allocator, endAllocator := chromedp.NewExecAllocator(context.Background(), options...)
		ctx, end := chromedp.NewContext(allocator)
		chromium.ctx, chromium.end = ctx, func() { end(); endAllocator() }
		chromium.err = chromedp.Do(ctx) // starts it
	})
	switch {
	case chromium.path == "":
		need.Missing(t, "chromium", "it is not in PATH", "make need-chromium")
	case chromium.err != nil:
		t.Fatalf("%s did not start: %v", chromium.path, chromium.err)
	}
	return chromium.ctx
}

// tab is a browser tab that records errors and warnings of its console.
type tab struct {
	t     *testing.T
	ctx   context.Context
	close func()

	mu      sync.Mutex // protects the rest
	console []string
	allowed []string
}

// guest opens a tab with no cookies, as a new user.
func guest(t *testing.T, url string) *tab {
	t.Helper()
	return open(t, url, browser(t), chromedp.WithNewBrowserContext())
}

// another opens a tab beside tb, with the same cookies.
func (tb *tab) another(url string, options ...chromedp.ContextOption) *tab {
	tb.t.Helper()
	return open(tb.t, url, tb.ctx, options...)
}

func open(t *testing.T, url string, parent context.Context, options ...chromedp.ContextOption) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(parent, options...)
	tb := &tab{t: t, ctx: ctx, close: cancel}
	messages, read := chromedp.Console(ctx), make(chan struct{})
	go func() {
		defer close(read)
		for m, err := range messages {
			if err != nil {
				return
			}
			if m.Type == chromedp.ConsoleError || m.Type == chromedp.ConsoleWarning || m.IsException() {
				tb.mu.Lock()
				tb.console = append(tb.console, fmt.Sprintf("%s %s %s", m.Source, m.Text, m.URL))
				tb.mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the page at the end: %s", tb.now(`document.body.innerText`))
		}
		cancel()
		<-read
		tb.quiet()
	})
	tb.do(chromedp.Navigate(url))
	if url == "about:blank" {
		return tb
	}
	tb.until(`document.getElementById("connection").dataset.state === "live"`, "the page connects")
	return tb
}

// allow permits console messages that contain part.
func (tb *tab) allow(part string) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.allowed = append(tb.allowed, part)
}

// quiet asserts that the console has no other message: no error, and no violation of the content
// security policy.
func (tb *tab) quiet() {
	tb.t.Helper()
	tb.mu.Lock()
	defer tb.mu.Unlock()
lines:
	for _, line := range tb.console {
		for _, part := range tb.allowed {
			if strings.Contains(line, part) {
				continue lines
			}
		}
		tb.t.Errorf("console message: %s", line)
	}
}

// do runs actions and fails the test if one of them fails.
func (tb *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		tb.t.Fatalf("browser action failed: %v; the page: %s", err, tb.now(`document.body.innerText`))
	}
}

// eval returns the value of a JavaScript expression in the tab. It waits for a promise.
func eval[T any](tb *tab, expression string) T {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		tb.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// now returns the value of an expression as text, or the error, for failure messages.
func (tb *tab) now(expression string) string {
	ctx, cancel := context.WithTimeout(tb.ctx, 5*time.Second)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[string]("String("+expression+")"))
	if err != nil {
		return err.Error()
	}
	return v
}

// until waits for a condition. An error while the page is loading does not fail the test.
func (tb *tab) until(condition, what string) {
	tb.t.Helper()
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		yes, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+condition+")"))
		if err == nil && yes {
			return
		}
		select {
		case <-ctx.Done():
			tb.t.Fatalf("timed out waiting: %s (%s, %v); the page: %s", what, condition, err, tb.now(`document.body.innerText`))
		case <-tick.C:
		}
	}
}

// watchStreams makes every later document of the tab count its EventSources.
func watchStreams(ctx context.Context, target *chromedp.Target) error {
	return inject(ctx, target, `
		window.sources = [];
		window.openStreams = () => sources.filter(s => s.readyState !== EventSource.CLOSED).length;
		let most = 0;
		window.mostStreams = () => most;
		window.EventSource = class extends EventSource {
			constructor(url) {
				super(url);
				sources.push(this);
				most = Math.max(most, openStreams());
			}
		};`)
}

// refuseStreams makes the first attempt to open each stream fail with 404.
func refuseStreams(ctx context.Context, target *chromedp.Target) error {
	return inject(ctx, target, `
		window.refused = new Set(), window.accepted = new Set();
		window.EventSource = class extends EventSource {
			constructor(url) {
				super(refused.has(url) ? url : "/refused");
				(refused.has(url) ? accepted : refused).add(url);
			}
		};`)
}

// loseAnswers drops the responses to the first two messages that are sent. It counts all messages
// in sessionStorage.lost.
func loseAnswers(ctx context.Context, target *chromedp.Target) error {
	return inject(ctx, target, `
		const real = window.fetch;
		window.fetch = async (url, options) => {
			const response = await real(url, options);
			if (options?.method === "POST" && url.endsWith("/messages")) {
				sessionStorage.lost = Number(sessionStorage.lost ?? 0) + 1;
				if (sessionStorage.lost === "1") throw new TypeError("lost");
				if (sessionStorage.lost === "2") await new Promise(() => {});
			}
			return response;
		};
		window.mostQuestions = 0;
		new MutationObserver(() => mostQuestions = Math.max(mostQuestions, document.querySelectorAll(".question").length)).observe(document, { subtree: true, childList: true });`)
}

// inject runs a script in every later document of the tab, before its own scripts.
func inject(ctx context.Context, target *chromedp.Target, script string) error {
	_, err := cdp.Call(ctx, target, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script})
	return err
}
