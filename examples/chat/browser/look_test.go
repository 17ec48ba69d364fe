package browser

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

var screenshot = flag.String("screenshot", "", "write the picture of the README to this file")

// media emulates what somebody has set in the system, as a name and a value.
func media(name, value string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: name, Value: value}}})
		return err
	})
}

func TestPhone(t *testing.T) {
	t.Parallel()
	tb := guest(t, serve(t, "", "-delay=1ms").url())
	tb.do(chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile))
	fits := func(when string) {
		t.Helper()
		require.LessOrEqual(t, eval[int](tb, `document.documentElement.scrollWidth`), 360, "%s: nothing is wider than the screen", when)
		require.Empty(t, eval[[]string](tb, `Array.from(document.querySelectorAll("body *")).filter(e => e.checkVisibility() && !e.closest(".sessions, .hidden, .skip, pre, .rows"))
			.filter(e => e.getBoundingClientRect().right > 361 || e.getBoundingClientRect().left < -1).map(e => e.outerHTML.slice(0, 100))`), "%s: nothing is cut off", when)
		require.Less(t, eval[float64](tb, `document.getElementById("send").getBoundingClientRect().bottom`), 741.0, "%s: Send is in reach", when)
	}
	fits("empty")
	eval[string](tb, `document.getElementById("me-user").textContent = "guest-wwwwwwww"`)
	fits("with the widest of names")
	tb.say("charge 5; email bob@example.com hello; search pawl ratchet lease")
	tb.over(1, "done")
	tb.say(strings.Repeat("wide", 60))
	tb.over(2, "done")
	fits("with messages")
	require.False(t, eval[bool](tb, `document.getElementById("panel").checkVisibility()`))
	tb.do(chromedp.Click("#panel-toggle"))
	tb.until(`document.getElementById("panel").checkVisibility() && document.getElementById("charges").children.length`, "the panel, filled")
	tb.do(chromedp.Click("#contention"))
	tb.until(`document.querySelector("#contention-chart svg")`, "the chart")
	fits("with the panel")
	tb.do(chromedp.KeyEvent(kb.Escape))
	tb.until(`!document.getElementById("panel").checkVisibility()`, "the panel is put away")
}

func TestKeyboardOnly(t *testing.T) {
	t.Parallel()
	tb := guest(t, serve(t, "", slowly).url())
	focused := func() string {
		return eval[string](tb, `document.activeElement.id || document.activeElement.className`)
	}
	// tabTo presses Tab until something has the focus, which has to be seen wherever it is on the way.
	tabTo := func(want string) {
		t.Helper()
		for range 40 {
			tb.do(chromedp.KeyEvent(kb.Tab))
			if focused() == "" { // beyond the end of the page: round again
				continue
			}
			require.True(t, eval[bool](tb, `(s => s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2)(getComputedStyle(document.activeElement))`), "focus on %q is seen", focused())
			if focused() == want {
				return
			}
		}
		t.Fatalf("Tab never gets to %q", want)
	}
	tabTo("skip")
	tb.do(chromedp.KeyEvent(kb.Enter))
	require.Equal(t, "composer-text", focused())
	tb.do(chromedp.KeyEvent("count to"), chromedp.KeyEvent(kb.Enter, chromedp.KeyModifiers(chromedp.ModifierShift)), chromedp.KeyEvent("300"))
	require.Equal(t, "count to\n300", eval[string](tb, `document.activeElement.value`))
	eval[bool](tb, `document.activeElement.value = "", document.activeElement.dispatchEvent(new Event("input"))`)
	tb.do(chromedp.KeyEvent("count to 300"), chromedp.KeyEvent(kb.Enter))
	require.Equal(t, "composer-text", focused(), "one can go on typing")
	tb.writing(1, "5")
	tb.do(chromedp.KeyEvent(kb.Escape))
	tb.over(1, "stopped")
	tb.do(chromedp.KeyEvent("count to 300"), chromedp.KeyEvent(kb.Enter))
	tb.writing(2, "5")
	tabTo("stop")
	tb.do(chromedp.KeyEvent(" "))
	tb.over(2, "stopped")
	tb.until(`document.activeElement.id === "composer-text"`, "the button is gone, and the focus is not")
	tabTo("contention")
	tb.do(chromedp.KeyEvent(kb.Enter))
	tb.until(`document.querySelector("#contention-chart svg")`, "the chart")
	tabTo("session-new")
	tb.do(chromedp.KeyEvent(kb.Enter))
	tb.until(`document.querySelectorAll("#session-list li").length === 2 && document.activeElement.id === "composer-text"`, "a new session")
	tabTo("title")
	eval[bool](tb, `document.activeElement.select(), true`)
	tb.do(chromedp.KeyEvent("By hand"), chromedp.KeyEvent(kb.Enter))
	tb.until(`Array.from(document.querySelectorAll("#session-list .name")).some(n => n.textContent === "By hand")`, "the title")
	require.Empty(t, eval[[]string](tb, `Array.from(document.querySelectorAll("button, input, textarea, meter, progress, svg[role=img]"))
		.filter(e => !(e.textContent.trim() || e.labels?.length || e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.hidden)).map(e => e.outerHTML)`), "everything has a name")
}

// contrast is the JavaScript of the contrast of an element with what is behind it, as of the WCAG.
const contrast = `(selector => {
	const rgb = text => text.match(/[\d.]+/g).map(Number);
	const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
	const e = document.querySelector(selector);
	let behind = e;
	while (behind.parentElement && rgb(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
	const [a, b] = [light(rgb(getComputedStyle(e).color)), light(rgb(getComputedStyle(behind).backgroundColor))];
	return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
})`

func TestLightAndDark(t *testing.T) {
	t.Parallel()
	tb := guest(t, serve(t, "", "-delay=1ms").url())
	tb.say("count to 5")
	tb.over(1, "done")
	behind := make(map[string]string)
	for _, scheme := range []string{"light", "dark"} {
		tb.do(media("prefers-color-scheme", scheme))
		tb.until(`matchMedia("(prefers-color-scheme: `+scheme+`)").matches`, scheme)
		behind[scheme] = eval[string](tb, `getComputedStyle(document.body).backgroundColor`)
		for _, selector := range []string{".answer .text", ".question .text", "#send", "#composer-hint", ".fact-org dt", "#queue-summary", ".badge", ".sessions a", ".tiles dt"} {
			require.GreaterOrEqual(t, eval[float64](tb, contrast+"('"+selector+"')"), 4.5, "%s: %s can be read", scheme, selector)
		}
	}
	require.NotEqual(t, behind["light"], behind["dark"])
}

func TestReducedMotion(t *testing.T) {
	t.Parallel()
	tb := guest(t, serve(t, "", slowly).url())
	tb.say("count to 300")
	tb.writing(1, "3")
	const moving = `document.getAnimations().length`
	require.NotZero(t, eval[int](tb, moving))
	tb.do(media("prefers-reduced-motion", "reduce"))
	tb.until(moving+" === 0", "nothing moves")
	tb.do(chromedp.Click("#stop"))
	tb.over(1, "stopped")
}

// TestScreenshot takes the picture of the README when it is told where to put it.
func TestScreenshot(t *testing.T) {
	if *screenshot == "" {
		t.Skip("without -screenshot there is nothing to do")
	}
	tb := guest(t, serve(t, "", "-delay=25ms").url())
	tb.do(chromedp.EmulateViewport(1280, 860, chromedp.EmulateScale(2)))
	for i, text := range []string{"What does a pawl do?", "count to 12"} {
		tb.say(text)
		tb.over(1, "done")
		tb.do(chromedp.Click("#session-new"))
		tb.until(fmt.Sprintf(`document.querySelectorAll("#session-list li").length === %d && document.querySelectorAll(".question").length === 0`, i+2), "another session")
	}
	tb.retitle("Three things at once" + kb.Enter)
	tb.do(chromedp.Click("#contention"))
	tb.until(`document.querySelector("#contention-chart svg")`, "the chart")
	tb.say("charge 5; email bob@example.com hello; search pawl ratchet lease")
	tb.over(1, "done")
	tb.say("count to 200")
	tb.say("search fence lease")
	tb.writing(2, "40")
	tb.until(`["claims", "queue", "charges", "mails"].every(id => document.getElementById(id).children.length)`, "the panel is filled")
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	picture, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(*screenshot, picture, 0o644))
	tb.do(chromedp.Click("#stop"))
	tb.over(2, "stopped")
	tb.over(3, "done")
}
