package browser

import (
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
)

// The server is killed during an answer and started again. The page reconnects by itself, the
// answer continues, and it is paid once.
func TestKilledServerResumes(t *testing.T) {
	t.Parallel()
	s := serve(t, "", slowly)
	tb := guest(t, s.url())
	tb.allow("net::ERR_")
	before := tb.serverCredits()
	tb.say("count to 100")
	tb.writing(1, "10")
	s.kill()
	require.Equal(t, "answering", eval[string](tb, answer(1)+".dataset.status"))
	tb.until(`document.getElementById("connection").dataset.state === "lost"`, "the page shows the lost connection")
	tb.say("count to 5") // kept until the server is back
	tb.until(`document.querySelector('.question[data-status="sending"] .note').textContent.includes("retrying")`, "the page retries the message")
	s.start()
	tb.ends(1, "done")
	counted(t, tb.text(1), 100)
	tb.ends(2, "done")
	counted(t, tb.text(2), 5)
	require.Equal(t, []string{"count to 100", "count to 5"}, tb.questions())
	require.Equal(t, "live", eval[string](tb, `document.getElementById("connection").dataset.state`))
	require.Equal(t, before-2, tb.serverCredits())
	tb.do(chromedp.Reload())
	tb.ends(2, "done")
	counted(t, tb.text(1), 100)
}

// Two servers share one PostgreSQL. A user with a tab at each server sees one conversation,
// answered in order.
func TestTwoServers(t *testing.T) {
	t.Parallel()
	browser(t)
	store := pgtest.URL(t)
	a, b := serve(t, store, slowly), serve(t, store, slowly)
	tb := guest(t, a.url())
	tb.until(`location.hash.length > 1`, "a session")
	other := tb.another(b.url() + eval[string](tb, `location.hash`))
	for _, x := range []*tab{tb, other} {
		x.until(`document.getElementById("me-user").textContent.startsWith("guest-")`, "the page shows its user")
	}
	require.Equal(t, tb.now(`document.getElementById("me-user").textContent`), other.now(`document.getElementById("me-user").textContent`))
	before := tb.serverCredits()
	tb.do(chromedp.SendKeys(box, "count to 21"))
	other.do(chromedp.SendKeys(box, "count to 22"))
	tabs := []*tab{tb, other}
	for _, x := range tabs {
		x.do(chromedp.Click("#send"))
	}
	for _, x := range tabs {
		x.say("count to 3")
	}
	for _, x := range tabs {
		for n := 1; n <= 4; n++ {
			x.ends(n, "done")
		}
	}
	require.Equal(t, tb.conversation(), other.conversation())
	require.ElementsMatch(t, []string{"count to 21", "count to 22", "count to 3", "count to 3"}, tb.questions())
	for i, q := range tb.questions() {
		counted(t, tb.text(i+1), map[string]int{"count to 21": 21, "count to 22": 22, "count to 3": 3}[q])
	}
	require.Equal(t, before-4, other.serverCredits())
}

// Two servers share one SQLite file. A server stops an answer that the other writes, and takes over
// an answer when the other is killed.
func TestStopAndTakeoverByAnotherServer(t *testing.T) {
	t.Parallel()
	store := filepath.Join(t.TempDir(), "chat.db")
	a, b := serve(t, store, slowly, "-lease=2s"), serve(t, store, slowly, "-lease=2s")
	tb := guest(t, a.url())
	tb.allow("net::ERR_")
	other := tb.another(b.url() + eval[string](tb, `location.hash`))
	before := tb.serverCredits()
	tb.say("count to 300")
	other.writing(1, "5")
	other.do(chromedp.Click("#stop"))
	for _, x := range []*tab{tb, other} {
		x.ends(1, "stopped")
	}
	require.Equal(t, tb.conversation(), other.conversation())

	tb.say("count to 100")
	other.writing(2, "10")
	a.kill()
	require.Equal(t, "answering", eval[string](other, answer(2)+".dataset.status"))
	other.ends(2, "done")
	counted(t, other.text(2), 100)
	require.Equal(t, before-2, other.serverCredits())
}
