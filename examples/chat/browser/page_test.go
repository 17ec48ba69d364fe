package browser

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// slowly sets the speed of answers for tests that act during one: a count to 100 takes three
// seconds.
const slowly = "-delay=30ms"

// box selects the text field for messages.
const box = "#composer-text"

// say types a message and clicks on Send.
func (tb *tab) say(text string) {
	tb.t.Helper()
	tb.do(chromedp.SendKeys(box, text), chromedp.Click("#send"))
}

// retitle types a title without leaving its field.
func (tb *tab) retitle(title string) {
	tb.t.Helper()
	tb.do(chromedp.Click("#title"))
	eval[bool](tb, `document.getElementById("title").select(), true`)
	tb.do(chromedp.KeyEvent(title))
}

// answer returns a JavaScript expression for the answer to the nth question, from 1.
func answer(n int) string { return fmt.Sprintf(`document.querySelector('.answer[data-n="%d"]')`, n-1) }

// text returns the text of the nth answer so far.
func (tb *tab) text(n int) string {
	tb.t.Helper()
	return eval[string](tb, answer(n)+`?.querySelector(".text").textContent ?? ""`)
}

// writing waits until the nth answer contains a word.
func (tb *tab) writing(n int, word string) {
	tb.t.Helper()
	tb.until(fmt.Sprintf(`%s?.querySelector(".text").textContent.match(/\b%s\b/)`, answer(n), word), fmt.Sprintf("answer %d contains %q", n, word))
}

// ends waits until the nth answer has a final status.
func (tb *tab) ends(n int, status string) {
	tb.t.Helper()
	tb.until(fmt.Sprintf(`%s?.dataset.status === %q`, answer(n), status), fmt.Sprintf("answer %d is %s", n, status))
	require.Equal(tb.t, "false", eval[string](tb, answer(n)+`.getAttribute("aria-busy")`))
}

// credits waits until the page shows n credits.
func (tb *tab) credits(n int) {
	tb.t.Helper()
	tb.until(fmt.Sprintf(`document.getElementById("me-credits").textContent === "%d"`, n), fmt.Sprintf("%d credits", n))
}

// serverCredits returns the credits as the server reports them.
func (tb *tab) serverCredits() int {
	tb.t.Helper()
	return eval[int](tb, `fetch("/api/me").then(r => r.json()).then(me => me.credits)`)
}

// questions returns the questions on the page, in order.
func (tb *tab) questions() []string {
	tb.t.Helper()
	return eval[[]string](tb, `Array.from(document.querySelectorAll(".question .text"), q => q.textContent)`)
}

// conversation returns the whole log as text.
func (tb *tab) conversation() string {
	tb.t.Helper()
	return eval[string](tb, `document.getElementById("log").innerText`)
}

// counted asserts that a text counts from 1 to n without a gap or a repetition.
func counted(t *testing.T, text string, n int) {
	t.Helper()
	next := 1
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r < '0' || r > '9' }) {
		if got, err := strconv.Atoi(word); err == nil && next <= n {
			require.Equal(t, next, got, text)
			next++
		}
	}
	require.Equal(t, n, next-1, text)
}

// An answer is streamed to the page, and its credit is taken. Tools fill the panel.
func TestSendAndStream(t *testing.T) {
	t.Parallel()
	s := serve(t, "", slowly)
	tb := guest(t, s.url())
	before := tb.serverCredits()
	require.NotZero(t, eval[int](tb, `document.querySelectorAll("#welcome:not([hidden]) button").length`), "an empty session must show examples")
	eval[bool](tb, `window.texts = new Set(), new MutationObserver(() => texts.add(document.querySelector(".answer .text")?.textContent))
		.observe(document.getElementById("log"), { subtree: true, childList: true, characterData: true }), true`)
	tb.say("count to 50")
	tb.ends(1, "done")
	counted(t, tb.text(1), 50)
	require.Greater(t, eval[int](tb, `texts.size`), 5, "the answer must grow step by step")
	require.Equal(t, []string{"count to 50"}, tb.questions())
	require.True(t, eval[bool](tb, `document.getElementById("welcome").hidden`))
	tb.credits(before - 1)

	tb.do(chromedp.Click("#session-new"))
	tb.until(`document.querySelectorAll("#session-list li").length === 2`, "a second session")
	tb.do(chromedp.Click(".example")) // the example with tools
	tb.ends(1, "done")
	require.NotZero(t, eval[int](tb, `document.querySelectorAll('.call[data-done="true"]').length`))
	tb.until(`document.querySelectorAll("#charges li").length === 1 && document.querySelectorAll("#mails li").length === 1`, "a charge and a mail in the panel")
	tb.until(`document.getElementById("claims").children.length === 0`, "all claims are released")
}

// Markup in a message or a title is shown as text.
func TestMarkupIsShownAsText(t *testing.T) {
	t.Parallel()
	tb := guest(t, serve(t, "", "-delay=1ms").url())
	const evil = `<img src=x onerror="document.title='evil'"><script>document.title='evil'</script>`
	tb.say(evil)
	tb.ends(1, "done")
	require.Equal(t, []string{evil}, tb.questions())
	tb.retitle(evil[:60] + kb.Enter)
	tb.until(fmt.Sprintf(`document.querySelector("#session-list .name").textContent === %q`, evil[:60]), "the title is in the list")
	require.Zero(t, eval[int](tb, `document.querySelectorAll("main img, main script, nav img").length`))
	require.NotEqual(t, "evil", eval[string](tb, `document.title`))
}

// After a reload during an answer, the page shows the text so far and the rest of the answer.
func TestReloadInMidAnswer(t *testing.T) {
	t.Parallel()
	tb := guest(t, serve(t, "", slowly).url())
	before := tb.serverCredits()
	tb.say("count to 100")
	tb.writing(1, "10")
	so := tb.text(1)
	tb.do(chromedp.Reload())
	tb.until(answer(1)+`?.querySelector(".text").textContent`, "the text so far")
	require.True(t, strings.HasPrefix(tb.text(1), so), "the text before the reload must stay")
	tb.ends(1, "done")
	counted(t, tb.text(1), 100)
	require.Equal(t, []string{"count to 100"}, tb.questions())
	require.Equal(t, before-1, tb.serverCredits())
}

// A double click on Send sends one message.
func TestDoubleClickSendsOnce(t *testing.T) {
	t.Parallel()
	tb := guest(t, serve(t, "", "-delay=1ms").url())
	before := tb.serverCredits()
	eval[bool](tb, `window.clicks = 0, document.getElementById("send").addEventListener("click", () => clicks++), true`)
	tb.do(chromedp.SendKeys(box, "count to 5"), chromedp.Click("#send"), chromedp.DoubleClick("#send")) // DoubleClick makes only the second click
	require.Equal(t, 2, eval[int](tb, `clicks`))
	tb.ends(1, "done")
	tb.say("count to 6") // any effect of the second click comes before this
	tb.ends(2, "done")
	require.Equal(t, []string{"count to 5", "count to 6"}, tb.questions())
	require.Equal(t, before-2, tb.serverCredits())
}

// A reload while a message is being sent does not send it twice.
func TestReloadWhileSendingSendsOnce(t *testing.T) {
	t.Parallel()
	s := serve(t, "", "-delay=1ms")
	tb := guest(t, s.url())
	tb.allow("net::ERR_")
	before := tb.serverCredits()
	tb.do(chromedp.SendKeys(box, "count to 5"))
	key := `JSON.parse(sessionStorage["draft:" + location.hash.slice(1)]).key`
	composed := eval[string](tb, key)
	s.signal(stopped)
	tb.do(chromedp.Click("#send"))
	tb.until(`document.querySelector('.question[data-status="sending"]')`, "the message is shown as being sent")
	require.Equal(t, composed, eval[string](tb, `JSON.parse(sessionStorage.outbox)[0].key`), "the key must not change when the message is sent")
	// The request is in flight, and after the reload the page does not wait for its response.
	eval[bool](tb, `setTimeout(() => location.reload()), true`)
	s.signal(continued)
	tb.until(`sessionStorage.outbox === "[]"`, "the reloaded page has sent it")
	tb.ends(1, "done")
	tb.say("count to 6")
	tb.ends(2, "done")
	require.Equal(t, []string{"count to 5", "count to 6"}, tb.questions())
	require.Equal(t, before-2, tb.serverCredits())
}

// A message whose response is lost twice, by an error and by silence before a reload, is sent once.
func TestLostResponsesSendOnce(t *testing.T) {
	t.Parallel()
	tb := guest(t, serve(t, "", slowly).url())
	before := tb.serverCredits()
	tb.do(chromedp.Func(loseAnswers))
	tb.do(chromedp.Reload())
	tb.until(`location.hash.length > 1 && !document.getElementById("composer-text").disabled`, "the page is loaded again")
	tb.say("count to 50")
	tb.until(`sessionStorage.lost === "2"`, "two responses are lost")
	tb.writing(1, "3")
	require.Equal(t, 1, eval[int](tb, `mostQuestions`), "a message that has arrived must not be shown twice")
	tb.do(chromedp.Reload())
	tb.until(`sessionStorage.lost === "3" && sessionStorage.outbox === "[]"`, "the third attempt, after the reload, succeeds")
	tb.ends(1, "done")
	tb.say("count to 6")
	tb.ends(2, "done")
	require.Equal(t, []string{"count to 50", "count to 6"}, tb.questions())
	require.Equal(t, before-2, tb.serverCredits())
}

// A message that the server refuses returns to the text field, and the page shows the reason.
func TestRefusedMessageGoesBackIntoTheBox(t *testing.T) {
	t.Parallel()
	tb := guest(t, serve(t, "", "-delay=1ms").url())
	eval[bool](tb, `window.realFetch = fetch, window.fetch = (url, o) => o?.method !== "POST" ? realFetch(url, o) :
		Promise.resolve(new Response('{"code":"INSUFFICIENT_CREDITS"}', { status: 402 })), true`)
	tb.say("count to 5")
	tb.until(`document.getElementById("notice-text").textContent.includes("no credits")`, "the reason is shown")
	require.Equal(t, "count to 5", eval[string](tb, `document.querySelector("`+box+`").value`))
	require.Empty(t, tb.questions())
	eval[bool](tb, `window.fetch = realFetch, true`)
	tb.do(chromedp.Click("#notice-close"), chromedp.Click("#send"))
	tb.ends(1, "done")
}

// Stop ends an answer and keeps its text. Stopping it from the panel lets the next turn run.
func TestStop(t *testing.T) {
	t.Parallel()
	tb := guest(t, serve(t, "", slowly).url())
	tb.say("count to 300")
	tb.writing(1, "10")
	tb.do(chromedp.Click("#stop"))
	tb.ends(1, "stopped")
	so := tb.text(1)
	require.Contains(t, so, "10", "the text so far must stay")
	require.NotContains(t, so, "300")

	tb.say("count to 300")
	tb.writing(2, "5")
	tb.say("count to 7") // waits in the queue
	tb.until(answer(3)+`?.querySelector(".note").textContent === "Waiting: number 1 in the queue"`, "the page shows the place in the queue")
	tb.do(chromedp.Click("#claims button")) // in the panel
	tb.ends(2, "stopped")
	tb.ends(3, "done")
	counted(t, tb.text(3), 7)
	tb.do(chromedp.Reload())
	tb.ends(1, "stopped")
	require.Equal(t, so, tb.text(1))
}

// A failed answer returns its credit, and the page says so.
func TestFailedAnswerIsPaidBack(t *testing.T) {
	t.Parallel()
	tb := guest(t, serve(t, "", "-delay=1ms").url())
	before := tb.serverCredits()
	tb.say("fail")
	tb.ends(1, "failed")
	tb.credits(before)
	require.Contains(t, eval[string](tb, answer(1)+`.querySelector(".note").textContent`), "The credit was returned")
}

// A reload shows the last page of a long thread, and a button loads the page before it.
func TestEarlierMessages(t *testing.T) {
	t.Parallel()
	const asked, notShown = 53, 6 // 106 messages, of which 100 are on a page
	tb := guest(t, serve(t, "", "-delay=0").url())
	eval[bool](tb, fmt.Sprintf(`(async () => {
		const path = "/api/sessions/" + location.hash.slice(1) + "/messages";
		for (let i = 0; i < %d; ) {
			const r = await fetch(path, { method: "POST", headers: { "Idempotency-Key": "k" + i, "Content-Type": "application/json" }, body: '{"text":"count to ' + (i + 1) + '"}' });
			if (r.status === 202) i++; // otherwise too many turns are waiting
		}
		return true;
	})()`, asked))
	tb.allow("429")
	for n := 1; n <= asked; n++ { // including the first page, although there is a second one now
		tb.ends(n, "done")
	}
	require.Len(t, tb.questions(), asked)
	tb.do(chromedp.Reload())
	tb.ends(asked, "done")
	shown := len(tb.questions())
	require.Less(t, shown, asked)
	require.GreaterOrEqual(t, shown, asked-notShown)
	require.Equal(t, shown, eval[int](tb, `document.querySelectorAll(".answer").length`), "an answer must be shown with its question")
	tb.do(chromedp.Click("#earlier"))
	tb.ends(1, "done")
	require.Len(t, tb.questions(), asked)
	require.True(t, eval[bool](tb, `document.getElementById("earlier").hidden`))
	counted(t, tb.text(asked), asked)
}

// Two tabs of one user show the same conversation. Of two renames at once, the second tab is told.
func TestTwoTabs(t *testing.T) {
	t.Parallel()
	tb := guest(t, serve(t, "", slowly).url())
	tb.until(`location.hash.length > 1`, "a session")
	other := tb.another(eval[string](tb, `location.href`))
	tb.say("count to 20")
	other.writing(1, "5")
	other.say("count to 5")
	for _, x := range []*tab{tb, other} {
		x.ends(1, "done")
		x.ends(2, "done")
		require.Equal(t, []string{"count to 20", "count to 5"}, x.questions())
	}
	require.Equal(t, tb.conversation(), other.conversation())

	// Both tabs rename at once: the second one is told of the conflict.
	other.allow("412")
	other.retitle("Hers")
	tb.retitle("His" + kb.Enter)
	other.until(`document.querySelector("#session-list .name").textContent === "His"`, "the title of the other tab")
	other.do(chromedp.KeyEvent(kb.Enter))
	other.until(`document.getElementById("notice-text").textContent.includes("“His”")`, "the conflict is shown")
	require.Equal(t, "His", eval[string](other, `document.getElementById("title").value`))
	other.do(chromedp.Click("#notice-action"))
	tb.until(`document.getElementById("title").value === "Hers"`, "the title of the second tab")
}

// A user cannot see or stop the sessions and turns of another user.
func TestAnotherUserSeesNothing(t *testing.T) {
	t.Parallel()
	s := serve(t, "", "-delay=1ms")
	ann := guest(t, s.url())
	ann.say("count to 5")
	ann.ends(1, "done")
	session := eval[string](ann, `location.hash.slice(1)`)
	turn := eval[string](ann, `fetch("/api/sessions/`+session+`/messages").then(r => r.json()).then(p => p.messages[0].turn)`)

	bob := guest(t, s.url()+"#"+session)
	bob.allow("status of 40")
	bob.until(`document.getElementById("notice-text").textContent.includes("not yours")`, "a notice")
	require.Empty(t, bob.questions())
	require.NotEqual(t, ann.now(`document.getElementById("me-user").textContent`), bob.now(`document.getElementById("me-user").textContent`))
	for _, path := range []string{"sessions/" + session + "/messages", "sessions/" + session + "/events", "sessions/" + session + "/panel", "turns/" + turn + "/events"} {
		require.Contains(t, []int{403, 404}, eval[int](bob, `fetch("/api/`+path+`").then(r => r.status)`), path)
	}
	require.Contains(t, []int{403, 404}, eval[int](bob, `fetch("/api/turns/`+turn+`", { method: "DELETE" }).then(r => r.status)`))
}

// A hidden tab keeps no stream open, and a visible tab at most two.
func TestHiddenTabClosesItsStreams(t *testing.T) {
	t.Parallel()
	tb := guest(t, serve(t, "", slowly).url())
	tb.do(chromedp.Func(watchStreams))
	tb.do(chromedp.Reload())
	tb.until(`window.sources?.length`, "a stream")
	tb.say("count to 100")
	tb.writing(1, "3")
	require.Equal(t, 2, eval[int](tb, `mostStreams()`))
	cover := tb.another("about:blank", chromedp.WithNewWindow(false)) // covers tb in the same window
	tb.until(`document.hidden && openStreams() === 0`, "no stream")
	cover.close()
	tb.until(`!document.hidden && openStreams() > 0`, "streams again")
	tb.ends(1, "done")
	counted(t, tb.text(1), 100)
	tb.until(`openStreams() === 1`, "the stream of the turn closes with the turn")
	require.Equal(t, 2, eval[int](tb, `mostStreams()`))
}

// The page opens a stream again after a response other than 200, although EventSource gives up.
func TestRefusedStreamIsRetried(t *testing.T) {
	t.Parallel()
	tb := guest(t, serve(t, "", slowly).url())
	tb.allow("404")
	tb.do(chromedp.Func(refuseStreams))
	tb.do(chromedp.Reload())
	tb.until(`document.getElementById("connection").dataset.state === "lost"`, "the stream is refused")
	tb.until(`document.getElementById("connection").dataset.state === "live"`, "the next stream is accepted")
	tb.say("count to 30")
	tb.ends(1, "done")
	require.Equal(t, 4, eval[int](tb, `refused.size + accepted.size`), "the streams of the session and the turn must each be tried twice")
}

// The chart of the contention test shows that the safe ways lost no update.
func TestContention(t *testing.T) {
	t.Parallel()
	tb := guest(t, serve(t, "").url())
	tb.do(chromedp.Click("#contention"))
	tb.until(`document.querySelector("#contention-chart svg")`, "a chart")
	labels := strings.Split(eval[string](tb, `document.querySelector("#contention-chart svg").getAttribute("aria-label")`), "; ")
	require.GreaterOrEqual(t, len(labels), 3, "%q", labels)
	for _, way := range labels[:len(labels)-1] { // the last way is a get and a set
		require.Contains(t, way, "1280 of 1280")
	}
	require.Contains(t, labels[len(labels)-1], "of 1280")
	require.Equal(t, 3*len(labels), eval[int](tb, `document.querySelectorAll("#contention-chart rect").length`))
}
