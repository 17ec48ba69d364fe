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

var screenshot = flag.String("screenshot", "", "write the picture for the README to this file")

// media emulates a user preference of the system, such as prefers-color-scheme.
func media(name, value string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: name, Value: value}}})
		return err
	})
}

// On a small screen nothing is cut off, and Send is always visible.
func TestPhone(t *testing.T) {
	t.Parallel()
	tb := guest(t, serve(t, "", "-delay=1ms").url())
	tb.do(chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile))
	fits := func(when string) {
		t.Helper()
		require.LessOrEqual(t, eval[int](tb, `document.documentElement.scrollWidth`), 360, "%s: the page is wider than the screen", when)
		require.Empty(t, eval[[]string](tb, `Array.from(document.querySelectorAll("body *")).filter(e => e.checkVisibility() && !e.closest(".sessions, .hidden, .skip, pre, .rows"))
			.filter(e => e.getBoundingClientRect().right > 361 || e.getBoundingClientRect().left < -1).map(e => e.outerHTML.slice(0, 100))`), "%s: elements are cut off", when)
		require.Less(t, eval[float64](tb, `document.getElementById("send").getBoundingClientRect().bottom`), 741.0, "%s: Send is below the screen", when)
	}
	fits("empty")
	eval[string](tb, `document.getElementById("me-user").textContent = "guest-wwwwwwww"`)
	fits("with the widest name")
	tb.say("charge 5; email bob@example.com hello; search pawl ratchet lease")
	tb.ends(1, "done")
	tb.say(strings.Repeat("wide", 60))
	tb.ends(2, "done")
	fits("with messages")
	require.False(t, eval[bool](tb, `document.getElementById("panel").checkVisibility()`))
	tb.do(chromedp.Click("#panel-toggle"))
	tb.until(`document.getElementById("panel").checkVisibility() && document.getElementById("charges").children.length`, "the panel, filled")
	tb.do(chromedp.Click("#contention"))
	tb.until(`document.querySelector("#contention-chart svg")`, "the chart")
	fits("with the panel")
	tb.do(chromedp.KeyEvent(kb.Escape))
	tb.until(`!document.getElementById("panel").checkVisibility()`, "the panel is closed")
}

// Every function of the page can be used with the keyboard, and the focus is always visible.
func TestKeyboardOnly(t *testing.T) {
	t.Parallel()
	tb := guest(t, serve(t, "", slowly).url())
	focused := func() string {
		return eval[string](tb, `document.activeElement.id || document.activeElement.className`)
	}
	// tabTo presses Tab until the wanted element has the focus. The focus must be visible at every
	// step.
	tabTo := func(want string) {
		t.Helper()
		for range 40 {
			tb.do(chromedp.KeyEvent(kb.Tab))
			if focused() == "" { // after the last element: start again
				continue
			}
			require.True(t, eval[bool](tb, `(s => s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2)(getComputedStyle(document.activeElement))`), "the focus on %q is not visible", focused())
			if focused() == want {
				return
			}
		}
		t.Fatalf("Tab does not reach %q", want)
	}
	tabTo("skip")
	tb.do(chromedp.KeyEvent(kb.Enter))
	require.Equal(t, "composer-text", focused())
	tb.do(chromedp.KeyEvent("count to"), chromedp.KeyEvent(kb.Enter, chromedp.KeyModifiers(chromedp.ModifierShift)), chromedp.KeyEvent("300"))
	require.Equal(t, "count to\n300", eval[string](tb, `document.activeElement.value`))
	eval[bool](tb, `document.activeElement.value = "", document.activeElement.dispatchEvent(new Event("input"))`)
	tb.do(chromedp.KeyEvent("count to 300"), chromedp.KeyEvent(kb.Enter))
	require.Equal(t, "composer-text", focused(), "the text field must keep the focus")
	tb.writing(1, "5")
	tb.do(chromedp.KeyEvent(kb.Escape))
	tb.ends(1, "stopped")
	tb.do(chromedp.KeyEvent("count to 300"), chromedp.KeyEvent(kb.Enter))
	tb.writing(2, "5")
	tabTo("stop")
	tb.do(chromedp.KeyEvent(" "))
	tb.ends(2, "stopped")
	tb.until(`document.activeElement.id === "composer-text"`, "the focus moves from the removed button to the text field")
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
		.filter(e => !(e.textContent.trim() || e.labels?.length || e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.hidden)).map(e => e.outerHTML)`), "elements without an accessible name")
}

// contrast is a JavaScript function: the WCAG contrast of an element with its background.
const contrast = `(selector => {
	const rgb = text => text.match(/[\d.]+/g).map(Number);
	const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
	const e = document.querySelector(selector);
	let behind = e;
	while (behind.parentElement && rgb(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
	const [a, b] = [light(rgb(getComputedStyle(e).color)), light(rgb(getComputedStyle(behind).backgroundColor))];
	return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
})`

// Text has enough contrast in the light and in the dark scheme.
func TestLightAndDark(t *testing.T) {
	t.Parallel()
	tb := guest(t, serve(t, "", "-delay=1ms").url())
	tb.say("count to 5")
	tb.ends(1, "done")
	behind := make(map[string]string)
	for _, scheme := range []string{"light", "dark"} {
		tb.do(media("prefers-color-scheme", scheme))
		tb.until(`matchMedia("(prefers-color-scheme: `+scheme+`)").matches`, scheme)
		behind[scheme] = eval[string](tb, `getComputedStyle(document.body).backgroundColor`)
		for _, selector := range []string{".answer .text", ".question .text", "#send", "#composer-hint", ".fact-org dt", "#queue-summary", ".badge", ".sessions a", ".tiles dt"} {
			require.GreaterOrEqual(t, eval[float64](tb, contrast+"('"+selector+"')"), 4.5, "%s: too little contrast of %s", scheme, selector)
		}
	}
	require.NotEqual(t, behind["light"], behind["dark"])
}

// Nothing is animated if the user prefers reduced motion.
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
	tb.ends(1, "stopped")
}

// TestScreenshot writes the picture for the README to the file that -screenshot names.
func TestScreenshot(t *testing.T) {
	if *screenshot == "" {
		t.Skip("-screenshot is not set")
	}
	tb := guest(t, serve(t, "", "-delay=25ms").url())
	tb.do(chromedp.EmulateViewport(1280, 860, chromedp.EmulateScale(2)))
	for i, text := range []string{"What does a pawl do?", "count to 12"} {
		tb.say(text)
		tb.ends(1, "done")
		tb.do(chromedp.Click("#session-new"))
		tb.until(fmt.Sprintf(`document.querySelectorAll("#session-list li").length === %d && document.querySelectorAll(".question").length === 0`, i+2), "another session")
	}
	tb.retitle("Three things at once" + kb.Enter)
	tb.do(chromedp.Click("#contention"))
	tb.until(`document.querySelector("#contention-chart svg")`, "the chart")
	tb.say("charge 5; email bob@example.com hello; search pawl ratchet lease")
	tb.ends(1, "done")
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
	tb.ends(2, "stopped")
	tb.ends(3, "done")
}
